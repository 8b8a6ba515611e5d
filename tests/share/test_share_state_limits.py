"""The state of share partitions has a bound in bytes: new ones are refused, and existing ones continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from test_costs_of_share_partitions import lines

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share import coordinator as share_coordinator
from kraftpy.share.batches import DeliveryState, StateBatch
from kraftpy.share.config import ShareCoordinatorConfig, SharePartitionConfig
from kraftpy.share.coordinator import MOST_SNAPSHOTS, ShareCoordinator
from kraftpy.share.events import (
    Append,
    Appended,
    Delete,
    Initialize,
    Read,
    ReadSummary,
    Reply,
    Request,
    Result,
    Tick,
    TopicsDeleted,
    Write,
)
from kraftpy.share.memory import MOST_BATCHES, STATE_BYTES, Room
from kraftpy.share.partition import SharePartition
from kraftpy.share.records import (
    SNAPSHOT,
    UPDATE,
    Record,
    ShareKey,
    ShareSnapshotValue,
    ShareUpdateValue,
    write_key,
    write_value,
)
from kraftpy.types import Millis, TopicId

TOPIC = TopicId(b"t" * 16)


class Machine:
    """A coordinator whose appends are durable at once."""

    def __init__(self, max_bytes: int, log: Sequence[Record] = ()) -> None:
        self.refused: list[str] = []
        self.room = Room(max_bytes, self.refused.append)
        self.coordinator = ShareCoordinator(ShareCoordinatorConfig(), self.room)
        self.log: list[Record] = []
        self.now = Millis(1_000)
        self.appended = 0
        for offset, (key, value) in enumerate(log):
            self.coordinator.replay(key, value, offset)
        self.coordinator.loaded(self.now, self.now)
        self._answer: Result | None = None

    def ask(self, command: Any) -> Result:
        self._answer = None
        self.step(Request(request_id=0, command=command))
        assert self._answer is not None
        return self._answer

    def step(self, event: Any) -> None:
        effects = [*self.coordinator.step(event, self.now, self.now)]
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Reply):
                self._answer = effect.result
            elif isinstance(effect, Append):
                self.appended += 1
                self.log.append(effect.record)
                done = Appended(token=effect.token, offset=len(self.log), error_code=ErrorCode.NONE)
                effects += self.coordinator.step(done, self.now, self.now)
        self.coordinator.validate()

    def begin(self, number: int) -> Result:
        return self.ask(Initialize(key=ShareKey("g", TOPIC, number), state_epoch=1, start_offset=0))


def test_new_share_partitions_are_refused_and_those_that_are_there_go_on() -> None:
    machine = Machine(10 * (STATE_BYTES + 2))
    told = [machine.begin(number) for number in range(20)]
    assert [each.error_code for each in told[:10]] == [ErrorCode.NONE] * 10
    assert {each.error_code for each in told[10:]} == {ErrorCode.POLICY_VIOLATION}
    assert f"kraftpy.share.coordinator.max.bytes={machine.room.max_bytes}" in (told[-1].error_message or "")
    key = ShareKey("g", TOPIC, 3)
    assert machine.ask(Read(key=key, leader_epoch=1)).error_code is ErrorCode.NONE
    acknowledged = StateBatch(first_offset=5, last_offset=6, state=DeliveryState.ACKNOWLEDGED, delivery_count=1)
    written = Write(key=key, state_epoch=1, leader_epoch=1, start_offset=0, batches=(acknowledged,))
    assert machine.ask(written).error_code is ErrorCode.NONE, "what became of records is never refused"
    assert machine.ask(Delete(key=key)).error_code is ErrorCode.NONE
    machine.ask(Delete(key=ShareKey("g", TOPIC, 4)))
    assert machine.begin(30).error_code is ErrorCode.NONE


def test_more_batches_than_any_leader_has_in_flight_are_refused() -> None:
    machine = Machine(1 << 30)
    machine.begin(0)
    key = ShareKey("g", TOPIC, 0)
    machine.ask(Read(key=key, leader_epoch=1))
    many = tuple(
        StateBatch(first_offset=10 * n, last_offset=10 * n, state=DeliveryState.ACKNOWLEDGED, delivery_count=1)
        for n in range(1, MOST_BATCHES + 2)
    )
    told = machine.ask(Write(key=key, state_epoch=1, leader_epoch=1, start_offset=0, batches=many))
    assert told.error_code is ErrorCode.INVALID_REQUEST


def test_what_the_log_holds_is_loaded_though_it_is_above_the_bound() -> None:
    before = Machine(1 << 30)
    for number in range(50):
        before.begin(number)
    after = Machine(1_000, before.log)
    assert len(after.coordinator.states) == 50
    assert after.begin(50).error_code is ErrorCode.POLICY_VIOLATION
    assert after.begin(7).error_code is ErrorCode.NONE, "asked again"
    after.coordinator.unload()
    assert after.room.used == 0


def test_cold_share_partitions_are_snapshot_in_portions() -> None:
    machine = Machine(1 << 30)
    count = MOST_SNAPSHOTS + 10
    for number in range(count):
        machine.begin(number)
    for _ in range(2):  # or there would not be enough in the log that could go
        for number in range(count):
            machine.ask(Read(key=ShareKey("g", TOPIC, number), leader_epoch=_ + 1))
    machine.appended = 0
    taken = []
    machine.now = Millis(machine.now + 2 * machine.coordinator.config.cold_partition_snapshot_interval_ms)
    while machine.appended < count:
        machine.step(Tick())
        taken.append(machine.appended)
        due = machine.coordinator.next_deadline()
        assert due is not None
        machine.now = Millis(due)
    assert taken == [MOST_SNAPSHOTS, count]


def test_what_leaves_nothing_to_follow_is_refused_and_every_state_can_be_written() -> None:
    machine = Machine(1 << 30)
    key = ShareKey("g", TOPIC, 0)
    last = (1 << 63) - 1
    machine.begin(0)

    def write(first_offset: int, last_offset: int, leader_epoch: int = 1) -> ErrorCode:
        batch = StateBatch(first_offset, last_offset, DeliveryState.ACKNOWLEDGED, 1)
        return machine.ask(Write(key=key, state_epoch=1, leader_epoch=leader_epoch, batches=(batch,))).error_code

    assert machine.ask(Initialize(key=key, state_epoch=2**31 - 1)).error_code is ErrorCode.INVALID_REQUEST
    assert machine.ask(Read(key=key, leader_epoch=2**31 - 1)).error_code is ErrorCode.INVALID_REQUEST
    assert write(1, 1, leader_epoch=2**31 - 1) is ErrorCode.INVALID_REQUEST
    assert write(1, last) is ErrorCode.INVALID_REQUEST
    assert machine.ask(Read(key=key, leader_epoch=1)).error_code is ErrorCode.NONE
    assert write(1, last - 1) is ErrorCode.NONE, "more offsets than an int32 counts"
    machine.coordinator.config = ShareCoordinatorConfig(snapshot_update_records_per_snapshot=0)
    assert write(0, 0) is ErrorCode.NONE, "a snapshot"
    assert machine.ask(ReadSummary(key=key)).start_offset == last
    again = Machine(1 << 30, machine.log)
    assert again.ask(Read(key=key, leader_epoch=2)).start_offset == last


def test_what_an_older_log_holds_is_survived() -> None:
    key, last = ShareKey("g", TOPIC, 0), (1 << 63) - 1
    done = StateBatch(0, last, DeliveryState.ACKNOWLEDGED, 1)
    snapshot = ShareSnapshotValue(
        snapshot_epoch=2**31 - 1,
        state_epoch=1,
        leader_epoch=1,
        start_offset=0,
        delivery_complete_count=0,
        create_timestamp=0,
        write_timestamp=0,
        state_batches=[],
    )
    update = ShareUpdateValue(snapshot_epoch=2**31 - 1, leader_epoch=1, start_offset=-1, state_batches=[])
    log = [
        (write_key(SNAPSHOT, key), write_value(snapshot, [done])),
        (write_key(UPDATE, key), write_value(update, [done])),
    ]
    machine = Machine(1 << 30, log)
    machine.coordinator.config = ShareCoordinatorConfig(snapshot_update_records_per_snapshot=0)
    told = machine.ask(Write(key=key, state_epoch=1, leader_epoch=1, start_offset=last))
    assert told.error_code is ErrorCode.NONE
    assert machine.ask(ReadSummary(key=key)).start_offset == last


def test_a_leader_counts_no_more_records_as_done_than_an_int32_holds() -> None:
    partition = SharePartition(SharePartitionConfig())
    gap = StateBatch(1, 2**40, DeliveryState.ARCHIVED, 0)
    partition.loaded(0, [gap], log_start_offset=0, log_end_offset=2**41)
    assert partition.delivery_complete_count == 2**31 - 1


def large(batches: int, config: ShareCoordinatorConfig) -> tuple[ShareCoordinator, ShareKey]:
    """A coordinator of a share partition with that many batches, in a state after which each write is a snapshot."""
    key = ShareKey("g", TOPIC, 0)
    machine = Machine(1 << 30)
    machine.coordinator.config = config
    machine.ask(Initialize(key=key, state_epoch=1, start_offset=0))
    said = tuple(StateBatch(2 * n, 2 * n, DeliveryState.AVAILABLE, 1) for n in range(1, batches + 1))
    assert machine.ask(write_of(key, said)).error_code == ErrorCode.NONE
    return machine.coordinator, key


def write_of(key: ShareKey, batches: tuple[StateBatch, ...]) -> Write:
    return Write(key=key, state_epoch=1, leader_epoch=-1, start_offset=0, delivery_complete_count=0, batches=batches)


@pytest.mark.parametrize("updates", [0, 500])
def test_a_write_to_thousands_of_batches_does_not_parse_or_combine_all_of_them(updates: int) -> None:
    """Neither if an update is written nor if a snapshot is; the bytes of a snapshot are packed without objects."""
    count = 5_000
    coordinator, key = large(count, ShareCoordinatorConfig(snapshot_update_records_per_snapshot=updates))
    done = (StateBatch(2_000, 2_000, DeliveryState.ACKNOWLEDGED, 1),)
    effects: list[Any] = []

    def write() -> None:
        effects.extend(coordinator.step(Request(request_id=1, command=write_of(key, done)), Millis(0), Millis(0)))
        (append,) = effects
        token = append.token
        effects.extend(
            coordinator.step(Appended(token=token, offset=9, error_code=ErrorCode.NONE), Millis(0), Millis(0))
        )

    per_batch = 4  # counting those that are done, and packing a snapshot
    assert lines(write) < per_batch * count + 1_000
    coordinator.validate()
    again = ShareCoordinator(ShareCoordinatorConfig())
    again.replay(*effects[0].record, 9)
    if updates == 0:
        assert again.states[key] == coordinator.states[key]
    assert done[0] in coordinator.states[key].batches


def test_the_state_of_a_deleted_topic_is_deleted_in_pieces() -> None:
    machine = Machine(1 << 30)
    count = 3 * MOST_SNAPSHOTS + 10
    for number in range(count):
        machine.ask(Initialize(key=ShareKey("g", TOPIC, number), state_epoch=1, start_offset=0))
    machine.step(TopicsDeleted(topic_ids=frozenset((TOPIC,))))
    pieces = []
    while machine.coordinator.states:
        pieces.append(machine.appended)
        machine.appended = 0
        due = machine.coordinator.next_deadline()
        assert due is not None
        machine.now = due
        machine.step(Tick())
    pieces.append(machine.appended)
    assert sum(pieces) == 2 * count
    assert pieces[1:] == [MOST_SNAPSHOTS, MOST_SNAPSHOTS, 10]


def test_idle_share_partitions_are_looked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_coordinator, "LOOKED_AT_ONCE", 10)
    machine = Machine(1 << 30)
    for number in range(100):
        machine.ask(Initialize(key=ShareKey("g", TOPIC, number), state_epoch=1, start_offset=0))
    machine.coordinator.records_since_pruned = 1_000
    machine.appended = 0
    rounds = 0
    while machine.appended < 100:
        due = machine.coordinator.next_deadline()
        assert due is not None
        before, machine.now = machine.appended, due
        machine.step(Tick())
        assert machine.appended - before <= 10
        rounds += 1
        assert rounds <= 10
