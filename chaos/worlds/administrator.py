"""An operator's work on a node besides starting it, for every world of real processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from chaos.nemesis import NodeId
from chaos.worlds.asking import Asking
from chaos.worlds.disks import damaged

_POLL_SECONDS: Final = 0.2
_REFETCH_SECONDS: Final = 120.0


async def has_no_vote(world: Asking, node: NodeId) -> bool:
    """Take a node's vote away; return True if it has none. A voter that forgets its vote may vote twice."""
    await world.set_voter(node, False)
    voters = await world.voters()
    return voters is not None and node not in voters


async def wait_until_serving(
    world: Asking, nodes: Iterable[NodeId], may_serve: Callable[[NodeId], bool], at_most_seconds: float
) -> None:
    """Wait until all of these nodes that may answer do, both when it began and now, or the time is up.

    This is the wait between nodes of a rolling restart.
    """
    wanted = set(nodes)
    deadline = time.monotonic() + at_most_seconds
    while time.monotonic() < deadline:
        wanted = {node for node in wanted if may_serve(node)}
        if not wanted or wanted <= await world.answering():
            return
        await asyncio.sleep(_POLL_SECONDS)


async def refetch_damaged(world: Asking, node: NodeId, data: Path) -> list[str]:
    """Refetch a node's damaged copies, as `kraftpy log verify` and `kraftpy topic refetch` would.

    Returns a line for each copy that could not be mended.
    """
    problems = []
    for key in await asyncio.to_thread(damaged, data, node):
        topic, _, number = key.rpartition("-")
        command = [sys.executable, "-m", "kraftpy", "topic", "refetch", f"{topic}:{number}"]
        asked = [*command, "--broker", str(node), "--bootstrap-server", world.bootstrap_servers]
        done = await asyncio.to_thread(
            subprocess.run, asked, capture_output=True, text=True, timeout=_REFETCH_SECONDS, check=False
        )
        if done.returncode != 0:
            problems.append(f"node {node}: {key} is damaged, and not mended: {done.stderr.strip()[-300:]}")
    return problems
