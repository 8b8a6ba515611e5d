"""Tracks applied submissions, so that a command sent more than once is applied only once.

For each node this keeps the last few nonces (one per start of its process), and for each nonce the applied sequences:
all up to a floor, plus later ones that arrived out of order. At most `WINDOW` of these are kept; beyond that the oldest
gap is closed, and a submission that still arrives from it counts as applied. A node must therefore have at most
`WINDOW` submissions in flight, and then none of them is lost that way.

Part of the image: equal histories give equal states and equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kraftpy.frozen import frozen
from kraftpy.metadata.codec import CodecError, pack, unpack
from kraftpy.metadata.commands import Command, encode_command

WINDOW = 1_024
NONCES_PER_NODE = 4
"""Number of starts of a node that are remembered: the last submissions of earlier ones may still be in flight."""


@frozen
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
    """The applied submissions, by node and nonce."""

    __slots__ = ("_nodes",)

    def __init__(self, saved: Iterable[SavedSubmissions] = ()) -> None:
        self._nodes: dict[int, dict[bytes, _Process]] = {}
        """For each node, its nonces in the order of last use."""
        for one in saved:
            process = _Process(floor=one.floor, above=set(one.above))
            self._nodes.setdefault(one.node_id, {})[one.nonce] = process

    def has(self, submission: SubmissionId) -> bool:
        """Return whether this submission was applied, or is so old that it counts as applied."""
        process = self._nodes.get(submission.node_id, {}).get(submission.nonce)
        return process is not None and (submission.sequence <= process.floor or submission.sequence in process.above)

    def add(self, submission: SubmissionId) -> None:
        """Record a submission as applied."""
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
        """Return the whole state, in an order that is the same for equal histories."""
        return tuple(
            SavedSubmissions(node_id=node_id, nonce=nonce, floor=process.floor, above=tuple(sorted(process.above)))
            for node_id, processes in sorted(self._nodes.items())
            for nonce, process in processes.items()
        )


# --- on the wire

MAX_NONCE_BYTES = 32
_SUBMISSION = 0x94
"""The msgpack header of a four-element array; a bare command is an array of three."""


@frozen
class SubmissionId:
    """Identifies a command: the node, a `nonce` that is new at each start, and a `sequence` that counts from 0."""

    node_id: int
    nonce: bytes
    sequence: int


def encode_submission(submission: SubmissionId, command: Command | bytes) -> bytes:
    """Encode a command together with its identity, as the quorum carries it. `command` may already be encoded."""
    data = command if isinstance(command, bytes) else encode_command(command)
    return pack([submission.node_id, submission.nonce, submission.sequence, data])


def decode_submission(data: bytes | memoryview) -> tuple[SubmissionId | None, bytes | memoryview]:
    """Split a submission into its identity (None for a bare command) and the command's bytes.

    Raises `CodecError` on a malformed submission.
    """
    if not data or data[0] != _SUBMISSION:
        return None, data
    plain = unpack(data)
    node_id, nonce, sequence, command = plain
    if type(node_id) is not int or type(nonce) is not bytes or type(sequence) is not int or type(command) is not bytes:
        raise CodecError("not a metadata submission: a part has the wrong type")
    if not 0 < len(nonce) <= MAX_NONCE_BYTES or sequence < 0:
        raise CodecError("not a metadata submission: invalid nonce or sequence")
    return SubmissionId(node_id=node_id, nonce=nonce, sequence=sequence), command
