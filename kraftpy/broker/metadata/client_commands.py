"""Commands of clients who name how long they will wait.

A command whose decision does not come in time may be decided all the same, as after any lost answer: the client looks
again. One that changes nothing needs nobody's consent and is never late.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.metadata.commands import Command
from kraftpy.metadata.decision import Decision
from kraftpy.protocol.errors import ErrorCode, KafkaError


async def decided_within(metadata: MetadataLog, command: Command, timeout_ms: int) -> Decision[Any]:
    """What the command comes to. Raises KafkaError: REQUEST_TIMED_OUT, or as `MetadataLog.submit` does."""
    try:
        async with asyncio.timeout(max(timeout_ms, 0) / 1000):
            return await metadata.submit(command)
    except TimeoutError:
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"not decided within {timeout_ms} ms; it may yet be, so look before trying again",
        ) from None
