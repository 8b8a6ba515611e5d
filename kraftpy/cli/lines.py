"""Input as blocks of whole lines, from files and standard input, without stalling the client's event loop.

Files are read through aiofiles. Standard input has a thread of its own that is never joined: a read at a terminal ends
only when a key is pressed, and Ctrl-C must not wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncGenerator, Sequence

BLOCK_BYTES = 1 << 18
STANDARD_INPUT = "-"


async def read_lines(names: Sequence[str]) -> AsyncGenerator[list[bytes]]:
    """Yield the lines of the files in turn, many at a time, without their line ends; `-` is standard input.

    Line ends are `\\n` or `\\r\\n`; a last line without one counts. Raises OSError.
    """
    for name in names:
        rest = b""
        async with contextlib.aclosing(_standard_input() if name == STANDARD_INPUT else _file(name)) as blocks:
            async for block in blocks:
                lines = (rest + block).split(b"\n")
                rest = lines.pop()
                if lines:
                    yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest.removesuffix(b"\r")]


async def _file(name: str) -> AsyncGenerator[bytes]:
    import aiofiles

    async with aiofiles.open(name, "rb") as file:
        while block := await file.read(BLOCK_BYTES):
            yield block


async def _standard_input() -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[bytes | OSError] = asyncio.Queue(maxsize=4)
    descriptor = sys.stdin.fileno()

    def read() -> None:
        block: bytes | OSError = b"-"
        while block and not isinstance(block, OSError):
            try:
                block = os.read(descriptor, BLOCK_BYTES)
            except OSError as error:
                block = error
            with contextlib.suppress(RuntimeError):  # the loop has ended: the block is no longer needed
                asyncio.run_coroutine_threadsafe(blocks.put(block), loop).result()

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while block := await blocks.get():
        if isinstance(block, OSError):
            raise block
        yield block
