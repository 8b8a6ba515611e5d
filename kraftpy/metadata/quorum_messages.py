"""Encoding and validation of the quorum's messages, log entries and snapshots.

All input comes from a peer or a disk, so reading is total: a body is a dict of msgpack values with exactly the fields
of its type, each of its declared type, or `BadMessageError`. Nothing is ever unpickled.

An entry's first byte is its kind: a command for the state machine, a no-op (a new leader's first entry), or the full
list of voters from here on. No command starts with those bytes (commands are msgpack lists), so a journal written
before quorums existed reads as commands.

A snapshot is the machine's state with the voters at that index. One written before quorums existed is the state alone.

A voter is its node id and address, with its directory id if the quorum tells disks apart (`metadata.voters`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import xxhash

from kraftpy.metadata.codec import CodecError, pack, unpack
from kraftpy.metadata.voters import DIRECTORY_ID_BYTES, VoterSet

COMMAND, NO_OP, VOTERS = b"\x00", b"\x01", b"\x02"
_SNAPSHOT_MAGIC = b"\xc1\x01"  # never the start of a msgpack value

SNAPSHOT_MORE, SNAPSHOT_INSTALLED, SNAPSHOT_REFUSED, SNAPSHOT_STALE = range(4)
MAX_SNAPSHOT_CHUNK_BYTES = 1 << 20
_MAX_INTEGER = 1 << 62

_INT, _BYTES, _BOOL, _LIST = int, bytes, bool, list
_FIELDS: Mapping[str, Mapping[str, type]] = {
    "request_prevote": {"term": _INT, "last_log_index": _INT, "last_log_term": _INT},
    "response_prevote": {"term": _INT, "granted": _BOOL, "current_term": _INT},
    "request_vote": {"term": _INT, "last_log_index": _INT, "last_log_term": _INT, "transfer": _BOOL},
    "response_vote": {"term": _INT},
    "term": {"term": _INT},
    "append_entries": {
        "term": _INT, "commit_index": _INT, "prevLogIdx": _INT, "prevLogTerm": _INT, "entries": _LIST, "round": _INT,
    },
    "heartbeat": {"term": _INT, "round": _INT},
    "next_node_idx": {
        "term": _INT, "next_node_idx": _INT, "reset": _BOOL, "success": _BOOL, "round": _INT, "last_index": _INT,
    },
    "snapshot": {
        "term": _INT, "index": _INT, "last_term": _INT, "size": _INT, "checksum": _INT, "offset": _INT, "data": _BYTES,
    },
    "snapshot_ack": {"term": _INT, "index": _INT, "offset": _INT, "status": _INT},
    "timeout_now": {"term": _INT},
    "learn": {},
}  # fmt: skip


class BadMessageError(ValueError):
    """A message that no node of this version sends; it changed nothing."""


class SnapshotContents(NamedTuple):
    """The decoded content of a snapshot."""

    voters_index: int
    """The entry that set these voters; 0 if they were configured."""
    voters: VoterSet | None
    state: bytes


def read_body(body: object) -> dict[str, Any]:
    """Validate a message body and return it. Raises BadMessageError."""
    if type(body) is not dict or type(body.get("type")) is not str:
        raise BadMessageError("a message of the quorum is a map with a type")
    fields = _FIELDS.get(body["type"])
    if fields is None:
        raise BadMessageError(f"unknown message type {body['type'][:40]!r}")
    if len(body) != len(fields) + 1:
        raise BadMessageError(f"{body['type']}: fields {sorted(map(str, body))}")
    for name, kind in fields.items():
        value = body.get(name)
        if type(value) is not kind:  # exactly: True is not an integer
            raise BadMessageError(f"{body['type']}.{name} is {type(value).__name__}")
        if type(value) is int and not 0 <= value < (1 << 64 if name == "checksum" else _MAX_INTEGER):
            raise BadMessageError(f"{body['type']}.{name} is out of range")
    if body["type"] == "append_entries":
        return {**body, "entries": _read_entries(body)}
    return body


def _read_entries(body: dict[str, Any]) -> list[tuple[bytes, int, int]]:
    entries = []
    expected, term = body["prevLogIdx"] + 1, body["prevLogTerm"]
    for entry in body["entries"]:
        if type(entry) is not list or [type(part) for part in entry] != [bytes, int, int]:
            raise BadMessageError("an entry is its bytes, index and term")
        if entry[1] != expected or not term <= entry[2] <= body["term"]:
            raise BadMessageError(
                f"entry {entry[1]} of term {entry[2]}, expected entry {expected} of term {term} or later"
            )
        if entry[0][:1] not in (COMMAND, NO_OP, VOTERS):
            raise BadMessageError("an entry of an unknown kind")
        voters_in(entry[0])
        entries.append((entry[0], entry[1], entry[2]))
        expected, term = expected + 1, entry[2]
    return entries


# -- entries


def entry_of(data: bytes) -> bytes:
    """Return an entry from a journal of any age, with its kind."""
    return data if data[:1] in (COMMAND, NO_OP, VOTERS) else COMMAND + data


def command_in(entry: bytes) -> bytes | None:
    """Return an entry's command for the state machine, or None if it has none."""
    kind = entry[:1]
    if kind == COMMAND:
        return entry[1:]
    return None if kind in (NO_OP, VOTERS) else entry


def voters_entry(voters: VoterSet | Mapping[int, str]) -> bytes:
    """Encode the entry that sets these voters."""
    return VOTERS + pack(plain_voters(VoterSet.of(voters)))


def voters_in(entry: bytes) -> VoterSet | None:
    """Return the voters that an entry sets, or None for another kind. Raises BadMessageError."""
    if entry[:1] != VOTERS:
        return None
    try:
        return read_voters(unpack(entry[1:]))
    except CodecError as error:
        raise BadMessageError(str(error)) from error


def plain_voters(voters: VoterSet) -> list[list[Any]]:
    """Return the voters as plain values: each an id and an address, and its directory id if it has one."""
    directories = voters.directories
    return [
        [node_id, address, *([directories[node_id]] if directories else [])]
        for node_id, address in sorted(voters.addresses.items())
    ]


def read_voters(plain: object) -> VoterSet:
    """Read what `plain_voters` returned. Raises BadMessageError."""
    if type(plain) is not list or not plain:
        raise BadMessageError("no voters")
    addresses: dict[int, str] = {}
    directories: dict[int, bytes] = {}
    for voter in plain:
        if type(voter) is not list or [type(part) for part in voter] not in ([int, str], [int, str, bytes]):
            raise BadMessageError("a voter is an id and an endpoint, and the id of its directory")
        addresses[voter[0]] = voter[1]
        if len(voter) == 3:
            if len(voter[2]) != DIRECTORY_ID_BYTES or not 0 <= voter[0] < 1 << 31:
                raise BadMessageError("a directory id has 16 bytes, and a node id is below 2^31")
            directories[voter[0]] = voter[2]
    if directories and directories.keys() != addresses.keys():
        raise BadMessageError("only some of the voters have a directory id")
    return VoterSet(addresses, directories)


# -- snapshots


def pack_snapshot(voters_index: int, voters: VoterSet | Mapping[int, str], state: bytes) -> bytes:
    """Encode a snapshot: the machine's state and the voters at that index."""
    return _SNAPSHOT_MAGIC + pack([voters_index, plain_voters(VoterSet.of(voters)), state])


def unpack_snapshot(data: bytes) -> SnapshotContents:
    """Decode a snapshot. Raises BadMessageError."""
    if data[: len(_SNAPSHOT_MAGIC)] != _SNAPSHOT_MAGIC:
        return SnapshotContents(0, None, data)
    try:
        plain = unpack(data[len(_SNAPSHOT_MAGIC) :])
    except CodecError as error:
        raise BadMessageError(str(error)) from error
    if type(plain) is not list or len(plain) != 3 or type(plain[0]) is not int or type(plain[2]) is not bytes:
        raise BadMessageError("a snapshot is its voters and a state")
    voters = read_voters(plain[1]) if plain[1] else None  # a learner may have taken it before it knew any
    return SnapshotContents(plain[0], voters, plain[2])


def checksum(data: bytes) -> int:
    """Return the checksum of a whole snapshot, which shows whether its chunks were joined as they were sent."""
    return int(xxhash.xxh3_64_intdigest(data))
