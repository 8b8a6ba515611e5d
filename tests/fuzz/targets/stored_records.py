"""Records of the internal topics as a coordinator replays them: groups of every kind, transactions, share state.

The first byte is the coordinator; then come records, each a key and a value after their lengths. A record that is not
in Kafka's format is a ProtocolError and costs itself; those around it are replayed, and the coordinator can be loaded
with what they left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from kraftpy.groups import records as group_records
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer import records as consumer_records
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.share import records as share_records
from kraftpy.groups.streams import records as streams_records
from kraftpy.protocol.errors import ProtocolError
from kraftpy.share import records as state_records
from kraftpy.share.config import ShareCoordinatorConfig
from kraftpy.share.coordinator import ShareCoordinator
from kraftpy.transactions import records as transaction_records
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.types import Millis

ALLOWED = (ProtocolError,)
MORE_BYTES = 1 << 20
_NOW = Millis(1_700_000_000_000)


def one(data: bytes) -> None:
    """Try one input. It chooses a coordinator and holds its records."""
    if not data:
        return
    records = [*_records(data[1:])]
    machine: Any
    match data[0] % 3:
        case 0:
            machine = GroupCoordinator(GroupConfig(), lambda: "id")
            replay = machine.replay
        case 1:
            machine = TransactionCoordinator(TransactionConfig())
            replay = lambda key, value, _: machine.replay(key, value)  # noqa: E731
        case _:
            machine = ShareCoordinator(ShareCoordinatorConfig())
            replay = machine.replay
    for offset, (key, value) in enumerate(records):
        with contextlib.suppress(ProtocolError):
            replay(key, value, offset)
    if isinstance(machine, GroupCoordinator):
        for producer_id, (key, value) in enumerate(records):
            with contextlib.suppress(ProtocolError):
                machine.replay_pending(producer_id % 2, key, value)
        machine.replay_end(0, is_commit=True)
        machine.replay_end(1, is_commit=False)
    machine.loaded(_NOW, _NOW)
    machine.durable()
    machine.next_deadline()
    machine.unload()


def _records(data: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    position = 0
    while position + 4 <= len(data):
        key_bytes = int.from_bytes(data[position : position + 2], "big")
        value_bytes = int.from_bytes(data[position + 2 : position + 4], "big")
        position += 4
        key = data[position : position + key_bytes]
        position += key_bytes
        if value_bytes == 0xFFFF:
            yield key, None
            continue
        yield key, data[position : position + value_bytes]
        position += value_bytes


def _framed(*records: tuple[bytes, bytes | None]) -> bytes:
    parts = []
    for key, value in records:
        size = 0xFFFF if value is None else len(value)
        parts += [len(key).to_bytes(2, "big"), size.to_bytes(2, "big"), key, value or b""]
    return b"".join(parts)


def seeds() -> Iterator[tuple[str, bytes]]:
    """A record of each kind, alone and after one another."""
    kinds = {
        "offset": (group_records.OffsetCommitKey(group_id="g", topic="odd", partition=0), None),
        "group": (group_records.GroupMetadataKey(group_id="g"), None),
    }
    for name, (key, _) in kinds.items():
        yield f"{name}-gone", b"\0" + _framed((group_records.write_key(key), None))
    offset = group_records.OffsetCommitValue(
        offset=5, leader_epoch=1, metadata="m", commit_timestamp=_NOW, expire_timestamp=-1
    )
    written = group_records.write_offset(offset)
    key = group_records.write_key(kinds["offset"][0])
    yield "offset", b"\0" + _framed((key, written))
    group = b"\0" + _framed(
        *(
            (module.write_key(made), None)
            for module, made in (
                (consumer_records, consumer_records.GroupKey(group_id="g")),
                (consumer_records, consumer_records.MemberKey(group_id="g", member_id="m")),
                (consumer_records, consumer_records.CurrentKey(group_id="g", member_id="m")),
                (share_records, share_records.ShareGroupKey(group_id="s")),
                (share_records, share_records.ShareStateKey(group_id="s")),
                (streams_records, streams_records.StreamsGroupKey(group_id="t")),
                (streams_records, streams_records.StreamsTopologyKey(group_id="t")),
            )
        )
    )
    yield "tombstones", group
    for number, kind in enumerate(range(20)):
        head = kind.to_bytes(2, "big") + b"\0\1g\0\1m\0\1t\0\0\0\1"
        for version in (0, 1, 3):
            body = version.to_bytes(2, "big") + b"\0" * 30
            yield f"kind-{number}-{version}", b"\0" + _framed((head, body))
    yield "transaction-gone", b"\1" + _framed((transaction_records.write_key("odd"), None))
    for version in (0, 1):
        body = version.to_bytes(2, "big") + (7).to_bytes(8, "big") + b"\0\1\0\0\x27\x10\1\xff\xff\xff\xff" + b"\0" * 16
        yield f"transaction-{version}", b"\1" + _framed((transaction_records.write_key("odd"), body))
    share_key = state_records.ShareKey("g", b"t" * 16, 0)
    for kind in (0, 1):
        for body in (b"\0\0" + b"\0" * 40, b"\0\0", b""):
            yield f"share-{kind}-{len(body)}", b"\2" + _framed((state_records.write_key(kind, share_key), body))
