"""Which submissions were applied: so that a command that was sent again is taken in once.

Per node the last few nonces (one for each start of its process), and per nonce the sequences that were applied: all
up to a floor, and the later ones that came out of order. Only `WINDOW` of these are kept; past that the oldest gap is
given up, and what would still come from it counts as applied. So a node must not have more than `WINDOW` submissions
under way, which is why nothing that waits is ever lost to it.

Part of the image: equal histories give equal states and equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kraftpy.metadata.commands import SubmissionId

WINDOW = 1_024
NONCES_PER_NODE = 4
"""Earlier starts of a node that are remembered: their last submissions may still be under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSubmissions:
    """One process's applied submissions, as a snapshot holds them."""

    node_id: int
    nonce: bytes
    floor: int
    above: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Process:
    floor: int = -1
    above: set[int] = field(default_factory=set)


class Submissions:
    """What was applied, by node and nonce."""

    __slots__ = ("_nodes",)

    def __init__(self, saved: Iterable[SavedSubmissions] = ()) -> None:
        self._nodes: dict[int, dict[bytes, _Process]] = {}
        """Of each node, the nonces in the order in which they were last used."""
        for one in saved:
            process = _Process(floor=one.floor, above=set(one.above))
            self._nodes.setdefault(one.node_id, {})[one.nonce] = process

    def has(self, submission: SubmissionId) -> bool:
        """Whether this one was applied, or is so old that it counts as applied."""
        process = self._nodes.get(submission.node_id, {}).get(submission.nonce)
        return process is not None and (submission.sequence <= process.floor or submission.sequence in process.above)

    def add(self, submission: SubmissionId) -> None:
        """Remember one that is applied now."""
        processes = self._nodes.setdefault(submission.node_id, {})
        process = processes.pop(submission.nonce, None) or _Process()
        processes[submission.nonce] = process
        if len(processes) > NONCES_PER_NODE:
            del processes[next(iter(processes))]
        process.above.add(submission.sequence)
        if len(process.above) > WINDOW:
            process.floor = min(process.above)
            process.above.remove(process.floor)
        while process.floor + 1 in process.above:
            process.floor += 1
            process.above.remove(process.floor)

    def saved(self) -> tuple[SavedSubmissions, ...]:
        """Everything, in an order that equal histories share."""
        return tuple(
            SavedSubmissions(node_id=node_id, nonce=nonce, floor=process.floor, above=tuple(sorted(process.above)))
            for node_id, processes in sorted(self._nodes.items())
            for nonce, process in processes.items()
        )
