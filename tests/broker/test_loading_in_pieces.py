"""A coordinator's partition is replayed in pieces, by records, batches and bytes; long records are parsed apart."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from one_broker import running
from test_many_share_partitions import Calls

from kraftpy.broker import coordinator_shards as shards
from kraftpy.broker.broker import Broker
from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer import records as consumer_records
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.records import (
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    RecordReader,
    group_record,
    offset_record,
)
from kraftpy.protocol.record_batch import encode_batch, split_batches
from kraftpy.share import coordinator as share_coordinator
from kraftpy.share import records as share_records
from kraftpy.share.batches import DeliveryState, StateBatch
from kraftpy.share.config import ShareCoordinatorConfig
from kraftpy.share.coordinator import ShareCoordinator
from kraftpy.transactions import records as transaction_records
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.transactions.transaction import State, TransactionValue
from kraftpy.types import TopicId, TopicPartition

MANY = 9_000
TOPIC_ID = TopicId(bytes(16))
Record = tuple[bytes, bytes | None]


def consumer_group() -> list[Record]:
    partitions = frozenset(TopicIdPartition(TOPIC_ID, number) for number in range(MANY))
    return [
        consumer_records.consumer_record(consumer_records.GroupKey("g"), consumer_records.GroupValue(epoch=1)),
        consumer_records.consumer_record(
            consumer_records.CurrentKey("g", "m"), consumer_records.CurrentValue(assigned=partitions)
        ),
    ]


def classic_group() -> list[Record]:
    members = tuple(
        MemberMetadata(
            member_id=f"member-{number}",
            group_instance_id=None,
            client_id="",
            client_host="",
            rebalance_timeout_ms=1,
            session_timeout_ms=1,
            subscription=b"",
            assignment=b"",
        )
        for number in range(MANY // 8)
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation_id=1,
        protocol="range",
        leader="member-0",
        current_state_timestamp=1,
        members=members,
    )
    return [group_record("g", value)]


def share_state() -> list[Record]:
    value = share_records.ShareSnapshotValue(
        snapshot_epoch=0,
        state_epoch=1,
        leader_epoch=1,
        start_offset=0,
        create_timestamp=1,
        write_timestamp=1,
        state_batches=[],
    )
    batches = [StateBatch(2 * n, 2 * n, DeliveryState.AVAILABLE, 1) for n in range(1, MANY)]
    key = share_records.write_key(share_records.SNAPSHOT, share_records.ShareKey("g", TOPIC_ID, 0))
    return [(key, share_records.write_value(value, batches))]


def transaction() -> list[Record]:
    partitions = frozenset(TopicPartition("t", number) for number in range(MANY))
    value = TransactionValue(producer_id=1, producer_epoch=1, timeout_ms=1, state=State.ONGOING, partitions=partitions)
    return [transaction_records.transaction_record("id", value)]


def groups() -> GroupCoordinator:
    return GroupCoordinator(GroupConfig(), lambda: "new")


KINDS: dict[str, tuple[str, Any, Any]] = {
    "consumer group": ("coordinators", groups, consumer_group),
    "classic group": ("coordinators", groups, classic_group),
    "share partition": ("share_coordinators", lambda: ShareCoordinator(ShareCoordinatorConfig()), share_state),
    "transaction": ("transactions", lambda: TransactionCoordinator(TransactionConfig()), transaction),
}


async def replayed(broker: Broker, owner: str, machine: Any, records: list[Record]) -> None:
    batch = encode_batch([(0, key, value, ()) for key, value in records])
    ((header, body),) = split_batches(batch)
    async for error in getattr(broker, owner)._replayed(machine, header, body):
        raise error


@pytest.mark.parametrize("kind", KINDS)
async def test_a_long_record_is_parsed_in_a_thread(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, make, records = KINDS[kind]
    parsed: list[bool] = []

    def watched(function: Any, length: Any) -> Any:
        def watching(*arguments: Any) -> Any:
            if length(*arguments) > shards._LONG_BYTES:
                parsed.append(threading.current_thread() is threading.main_thread())
            return function(*arguments)

        return watching

    reading = RecordReader.__init__
    monkeypatch.setattr(RecordReader, "__init__", watched(reading, lambda _, data: len(data)))
    monkeypatch.setattr(transaction_records._Reader, "__init__", watched(transaction_records._Reader.__init__, _size))
    monkeypatch.setattr(share_coordinator, "read_snapshot", watched(share_coordinator.read_snapshot, len))
    async with running(tmp_path) as broker:
        machine, at_once = make(), make()
        await replayed(broker, owner, machine, records())
        assert parsed == [False] * len(parsed)
        assert parsed, "nothing long was parsed"
        for offset, (key, value) in enumerate(records()):
            arguments = (key, value) if owner == "transactions" else (key, value, offset)
            at_once.replay(*arguments)
        assert machine.durable() == at_once.durable()


def _size(_: Any, data: bytes) -> int:
    return len(data)


def commits(count: int, metadata: str = "") -> list[Record]:
    value = OffsetCommitValue(offset=1, leader_epoch=-1, metadata=metadata, commit_timestamp=1)
    return [offset_record(OffsetCommitKey(group_id="g", topic="t", partition=number), value) for number in range(count)]


async def test_records_are_replayed_in_pieces_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(GroupCoordinator, "replay", calls.wrapping(GroupCoordinator.replay))
    size = shards._LONG_BYTES // 10
    async with running(tmp_path) as broker:
        await replayed(broker, "coordinators", groups(), commits(200, "x" * size))
    assert calls.all == 200
    assert calls.most <= 2 * 10, "the end of a piece and the begin of the next may share a turn"


async def test_batches_are_replayed_in_pieces_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(GroupCoordinator, "replay", calls.wrapping(GroupCoordinator.replay))
    count = 6 * shards._BATCHES_AT_ONCE
    batches = b"".join(
        encode_batch([(0, key, value, ())], base_offset=offset) for offset, (key, value) in enumerate(commits(count))
    )
    replica = SimpleNamespace(
        log=SimpleNamespace(log_start_offset=0),
        topic_partition=TopicPartition("__consumer_offsets", 0),
        read_to_end=lambda offset, *_, **__: batches if offset == 0 else b"",
    )
    machine = groups()
    async with running(tmp_path) as broker:
        shard: Any = SimpleNamespace(replica=replica, machine=machine)
        await broker.coordinators._replay(shard, count)
    assert calls.all == len(machine.groups["g"].offsets) == count
    assert calls.most <= 2 * shards._BATCHES_AT_ONCE
