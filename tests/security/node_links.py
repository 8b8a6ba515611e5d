"""The first frames of a link, sent by a test in a node's place."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from kraftpy.testing import Cluster
from tests.security.certificates import HOST
from tests.security.wire import BOUND_SECONDS

Ask = Callable[[bytes], Awaitable[bytes]]


def port_of(cluster: Cluster, node: int) -> int:
    """The port of a node's controller listener."""
    address = dict(zip(cluster.controllers, cluster.bootstrap_controllers.split(","), strict=True))[node]
    return int(address.rpartition(":")[2])


@contextlib.asynccontextmanager
async def ask_as_a_node(cluster: Cluster, node: int, context: ssl.SSLContext | None = None) -> AsyncIterator[Ask]:
    """Connect to a controller listener; the function sends a frame and returns the next one."""
    reader, writer = await asyncio.open_connection(HOST, port_of(cluster, node), ssl=context)

    async def ask(frame: bytes) -> bytes:
        writer.write(len(frame).to_bytes(4, "big") + frame)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    try:
        async with asyncio.timeout(BOUND_SECONDS):
            yield ask
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(BOUND_SECONDS):
                await writer.wait_closed()
