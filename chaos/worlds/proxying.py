"""A `chaos.worlds.proxy` in the network of one node, and how a command is run there: for every world of real nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from chaos.worlds import proxy

ROOT: Final = Path(__file__).resolve().parents[2]
QUEUE: Final = 1
"""The queue, of each node's own network, to which iptables sends the packets that go through the proxy."""

Impairment = Mapping[str, float]
"""delay_ms, jitter_ms and loss, as the proxy reads them."""


def in_network(network: Path, *command: str) -> list[str]:
    """The command in the network namespace that this file stands for; it dies with this process."""
    return ["nsenter", f"--net={network}", "setpriv", "--pdeathsig", "KILL", *command]


class PacketProxy:
    """The process. Begun from the event loop's own thread, with which it is to die."""

    def __init__(self, network: Path) -> None:
        self._process = subprocess.Popen(
            in_network(network, sys.executable, "-m", proxy.__name__, str(QUEUE)),
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    async def is_ready(self) -> bool:
        """Wait until the proxy takes packets; return False if it ended instead."""
        return await asyncio.to_thread(self._output.readline) == b"ready\n"

    def set(self, impairment: Impairment) -> None:
        """Set what happens to packets from now on."""
        self._input.write(json.dumps(dict(impairment)).encode() + b"\n")
        self._input.flush()

    async def end(self) -> int:
        """Have it end, and wait; its status."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        status = await asyncio.to_thread(self._process.wait)
        self._output.close()
        return status

    async def kill(self) -> None:
        """End the proxy at once."""
        self._process.kill()
        await self.end()
