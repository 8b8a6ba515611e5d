"""Submits commands for clients that set a timeout.

A command that times out may still be decided later, as after any lost response, so the client must check before it
retries. On a single node, a command that changes nothing is answered at once and never times out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kraftpy.metadata.commands import Command
from kraftpy.metadata.decision import Decision
from kraftpy.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker


async def decided_within(broker: Broker, command: Command, timeout_ms: int) -> Decision[Any]:
    """Submit a command and return its decision. Raises KafkaError: REQUEST_TIMED_OUT, or as `MetadataLog.submit`."""
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            return await broker.metadata.submit(command)
    except TimeoutError:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"The request was not decided within {timeout_ms} ms; it may still be, so check before retrying.",
        ) from None
