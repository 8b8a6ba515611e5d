"""Submits commands for clients that set a timeout.

A command that times out may still be decided later, as after any lost response, so the client must check before it
retries. On a single node, a command that changes nothing is answered at once and never times out. A request with a
timeout of 0 or less is refused before anything is done, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.metadata.commands import Command
from kraftpy.metadata.decision import Decision
from kraftpy.protocol.errors import ErrorCode, KafkaError


def check_timeout(timeout_ms: int) -> None:
    """Raise KafkaError (REQUEST_TIMED_OUT) if the client leaves no time to decide its request."""
    if timeout_ms <= 0:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"The request has a timeout of {timeout_ms} ms: nothing was done."
        )


async def decided_within(metadata: MetadataLog, command: Command, timeout_ms: int) -> Decision[Any]:
    """Submit a command and return its decision. Raises KafkaError: REQUEST_TIMED_OUT, or as `MetadataLog.submit`."""
    check_timeout(timeout_ms)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await metadata.submit(command)
    except TimeoutError:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"The request was not decided within {timeout_ms} ms; it may still be, so check before retrying.",
        ) from None
