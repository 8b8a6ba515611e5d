"""Random histories of share partitions and of the coordinator of their state, against what a group may rely on.

Every record is delivered until it is done; nobody has what another has; deliveries are counted right; what was
acknowledged never comes again, whoever leads; what a coordinator has said it keeps, it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from share_world import KEY, CoordinatorWorld, PartitionWorld

from kraftpy.protocol.errors import ErrorCode
from kraftpy.share.acknowledgements import Acknowledgement, AcknowledgeType
from kraftpy.share.batches import TELLABLE, StateBatch, advance, combine
from kraftpy.share.config import ShareCoordinatorConfig, SharePartitionConfig
from kraftpy.share.effects import Acquired, Effect, Reply
from kraftpy.share.events import Delete, Initialize, Read, ReadSummary, Write

MEMBERS = ("a", "b", "c")
FAILURES = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT)


@dataclass(slots=True)
class Lock:
    """The records that a member believes it has."""

    member_id: str
    deadline: int


class Group(PartitionWorld):
    """A partition whose members remember the answers that they got."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.locks: dict[int, Lock] = {}
        self.counts: dict[int, int] = {}
        """Deliveries as this leader has them; what it never delivered is not in it."""
        self.delivered: set[int] = set()
        self.done: set[int] = set()
        """Accepted or rejected, and the member got that answer."""
        self.asked: dict[int, tuple[str, list[Acknowledgement]]] = {}
        self.taken: list[tuple[str, list[Acquired]]] = []
        """The records that each fetch of this leader acquired."""
        limit = chance.choice((2, 3, 5, 10))
        config = SharePartitionConfig(
            delivery_count_limit=limit,
            partition_max_record_locks=chance.choice((5, 20, 2000)),
            record_lock_duration_ms=1000,
            has_dead_letters=chance.random() < 0.5,
        )
        self.rejected: set[int] = set()
        """Rejected, and the member got that answer: they must reach the dead letter queue, if there is one."""
        self.lost_letters: set[int] = set()
        super().__init__(config)

    # ---- what members do

    def some_fetch(self) -> None:
        member_id = self.chance.choice(MEMBERS)
        most = self.chance.choice((1, 2, 7, 500))
        is_record_limit = self.chance.random() < 0.5
        room = len(self.partition.records)
        taken = self.fetch(member_id, most, is_record_limit=is_record_limit, batch_size=self.chance.choice((1, 3, 500)))
        if is_record_limit:
            assert sum(each.size for each in taken) <= most
        assert len(self.partition.records) <= max(room, self.config.partition_max_record_locks)
        if self.chance.random() < 0.1:
            self.take(self.partition.give_back(member_id, taken))
            return
        for each in taken:
            for offset in range(each.first_offset, each.last_offset + 1):
                self.was_delivered(offset, member_id, each.delivery_count)
        self.taken.append((member_id, taken))

    def some_late_giving_back(self) -> None:
        """Give back the records of some fetch of this leader that are still as it left them: not delivered, then."""
        if not self.taken:
            return
        member_id, taken = self.chance.choice(self.taken[-5:])
        asked = self._asked_of(member_id)
        self.take(self.partition.give_back(member_id, taken))
        for each in taken:
            for offset in range(each.first_offset, each.last_offset + 1):
                lock = self.locks.get(offset)
                is_as_it_was = lock is not None and lock.member_id == member_id and offset not in asked
                if is_as_it_was and self.counts[offset] == each.delivery_count:
                    del self.locks[offset]
                    self.counts[offset] -= 1

    def was_delivered(self, offset: int, member_id: str, count: int) -> None:
        assert offset not in self.done, f"{offset} was done"
        assert any(each.has_records and each.first_offset <= offset <= each.last_offset for each in self.log)
        assert offset not in self.locks, f"{offset} is {self.locks[offset]}"
        assert 1 <= count <= self.config.delivery_count_limit
        if offset in self.counts:
            assert count == self.counts[offset] + 1, offset
        self.counts[offset] = count
        self.locks[offset] = Lock(member_id, self.now + self.config.record_lock_duration_ms)
        self.delivered.add(offset)

    def some_acknowledgement(self) -> None:
        if not self.locks:
            return
        first = self.chance.choice(sorted(self.locks))
        member_id = self.locks[first].member_id
        last = first
        while last + 1 in self.locks and self.locks[last + 1].member_id == member_id and self.chance.random() < 0.8:
            last += 1
        said = [self._said(first, last)]
        if first < last and self.chance.random() < 0.5:
            middle = self.chance.randrange(first, last)
            said = [self._said(first, middle), self._said(middle + 1, last)]
        self.asked[self.requests + 1] = member_id, said
        self.acknowledge(member_id, said)

    def some_theft(self) -> None:
        """A member says something of what it does not have."""
        offset = self.chance.randrange(self.log_end_offset + 1)
        member_id = self.chance.choice(MEMBERS)
        lock = self.locks.get(offset)
        if lock is not None and lock.member_id == member_id:
            return
        said = [Acknowledgement(offset, offset, self.chance.choice(list(AcknowledgeType)))]
        is_passed_over = offset < self.partition.start_offset
        self.requests += 1
        (reply,) = self.partition.acknowledge(self.requests, member_id, said, self.now)
        assert isinstance(reply, Reply)
        refused = ErrorCode.INVALID_RECORD_STATE if offset < self.partition.end_offset else ErrorCode.INVALID_REQUEST
        assert reply.error_code is (ErrorCode.NONE if is_passed_over else refused)

    def _said(self, first: int, last: int) -> Acknowledgement:
        kinds = (AcknowledgeType.ACCEPT, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
        kind = AcknowledgeType.RENEW if self.chance.random() < 0.15 else self.chance.choice(kinds)
        return Acknowledgement(first, last, kind)

    def told(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self.answered(effect)

    def answered(self, reply: Reply) -> None:
        member_id, said = self.asked.pop(reply.request_id)
        if reply.error_code is not ErrorCode.NONE:
            assert reply.error_code in (
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ErrorCode.INVALID_RECORD_STATE,  # answered for already, and not written yet; or its lock has run out
            ), reply
            return
        for each in said:
            for offset in range(each.first_offset, each.last_offset + 1):
                if each.type is AcknowledgeType.RENEW:
                    if offset in self.locks:
                        self.locks[offset].deadline = self.now + self.config.record_lock_duration_ms
                    continue
                lock = self.locks.pop(offset, None)
                assert lock is None or lock.member_id == member_id
                if each.type in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT):
                    self.done.add(offset)
                if each.type is AcknowledgeType.REJECT:
                    self.rejected.add(offset)

    def _asked_of(self, member_id: str) -> set[int]:
        """The records that the member has answered for, if the answer is not written yet."""
        return {
            offset
            for sender, said in self.asked.values()
            for each in said
            for offset in range(each.first_offset, each.last_offset + 1)
            if sender == member_id and each.type is not AcknowledgeType.RENEW
        }

    def some_end(self) -> None:
        member_id = self.chance.choice(MEMBERS)
        asked = self._asked_of(member_id)
        self.take(self.partition.release(member_id))
        for offset, lock in list(self.locks.items()):
            if lock.member_id == member_id and offset in asked:
                lock.deadline = 0  # should that fail
            elif lock.member_id == member_id:
                del self.locks[offset]

    # ---- what happens to them

    def some_time(self) -> None:
        self.pass_time(self.chance.choice((1, 100, 1001)))

    def pass_time(self, span_ms: int) -> None:
        self.now_is(self.now + span_ms)

    def now_is(self, now: int) -> None:
        asked = {
            offset
            for _, said in self.asked.values()
            for each in said
            for offset in range(each.first_offset, each.last_offset + 1)
            if each.type is not AcknowledgeType.RENEW
        }
        for offset, lock in list(self.locks.items()):
            if lock.deadline <= now and offset not in asked:
                del self.locks[offset]
        self.tick(now)

    def some_failure(self) -> None:
        if self.held:
            self.write(self.chance.choice(FAILURES), is_done=self.chance.random() < 0.5)
            self.now_is(self.now)  # locks of records that were asked for may have run out meanwhile

    def some_write(self) -> None:
        if self.held:
            self.write()
            self.now_is(self.now)

    def some_letters(self) -> None:
        """The queue takes some dead letters, or cannot."""
        if self.letters:
            if is_lost := self.chance.random() < 0.1:
                self.lost_letters.update(range(self.letters[0].first_offset, self.letters[0].last_offset + 1))
            self.write_letters(is_done=not is_lost)

    def some_failover(self) -> None:
        self.fail_over()
        self.locks.clear()
        self.counts.clear()
        self.taken.clear()

    def some_retention(self) -> None:
        start = min(self.log_end_offset, self.log_start_offset + self.chance.randrange(5))
        self.log_start_offset = start
        self.rejected = {offset for offset in self.rejected if offset >= start}
        self.take(self.partition.log_start_advanced(start))
        for offset in [offset for offset in self.locks if offset < start]:
            del self.locks[offset]

    def some_append(self) -> None:
        self.append(
            self.chance.choice((1, 1, 3, 10)),
            has_records=self.chance.random() < 0.85,
            gap=self.chance.choice((0, 0, 0, 4)) if self.log else 0,
        )

    def step(self) -> None:
        happens = {
            self.some_append: 4,
            self.some_fetch: 10,
            self.some_acknowledgement: 10,
            self.some_theft: 3,
            self.some_late_giving_back: 1,
            self.some_end: 1,
            self.some_time: 3,
            self.some_write: 6,
            self.some_letters: 4,
            self.some_failure: 2,
            self.some_failover: 1,
            self.some_retention: 1,
        }
        (chosen,) = self.chance.choices(list(happens), weights=list(happens.values()))
        self.hold = self.chance.random() < 0.5
        self.holds_letters = self.chance.random() < 0.7
        chosen()
        self.check()

    def finish(self) -> None:
        """Nothing fails any more: all that is there is delivered, and done in the end."""
        self.hold = self.holds_letters = False
        while self.held:
            self.write()
        while self.letters:
            self.write_letters()
        for _ in range(10_000):
            self.pass_time(1001)
            if self.partition.start_offset >= self.log_end_offset:
                break
            taken = self.fetch("z")
            for each in taken:
                for offset in range(each.first_offset, each.last_offset + 1):
                    self.was_delivered(offset, "z", each.delivery_count)
            if taken:
                said = [Acknowledgement(each.first_offset, each.last_offset, AcknowledgeType.ACCEPT) for each in taken]
                self.asked[self.requests + 1] = "z", said
                self.acknowledge("z", said)
            self.check()
        assert self.partition.start_offset == self.log_end_offset
        for each in self.log:
            for offset in range(max(each.first_offset, self.log_start_offset), each.last_offset + 1):
                assert not each.has_records or offset in self.delivered, offset
        assert self.delivered >= set(self.queue)
        if self.config.has_dead_letters:
            assert self.rejected <= {*self.queue, *self.lost_letters}
        else:
            assert not self.queue


@pytest.mark.parametrize("seed", range(100))
def test_a_group_gets_every_record_and_none_that_is_done(seed: int) -> None:
    group = Group(Random(f"share partition {seed}"))
    for _ in range(150):
        group.step()
    group.finish()
    assert group.done


def test_histories_have_dead_letters() -> None:
    """Otherwise they would prove nothing of them."""
    groups = [Group(Random(f"share partition {seed}")) for seed in range(10)]
    for group in groups:
        for _ in range(150):
            group.step()
        group.finish()
    assert {bool(group.queue) for group in groups} == {True, False}
    assert any(group.rejected and group.config.has_dead_letters for group in groups)


def some_batches(chance: Random) -> tuple[StateBatch, ...]:
    found = []
    for _ in range(chance.randrange(4)):
        first = chance.randrange(30)
        state = chance.choice(TELLABLE)
        found.append(StateBatch(first, first + chance.randrange(6), state, chance.randrange(4)))
    return tuple(found)


def offsets_of(batches: tuple[StateBatch, ...] | list[StateBatch]) -> dict[int, tuple[bool, int, int]]:
    return {offset: each.progress for each in batches for offset in range(each.first_offset, each.last_offset + 1)}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_adds_up_in_any_order_and_any_number_of_times(seed: int) -> None:
    chance = Random(f"batches {seed}")
    said = [some_batches(chance) for _ in range(6)]
    together: list[StateBatch] = []
    for each in said:
        together = combine(together, each)
    expected: dict[int, tuple[bool, int, int]] = {}
    for each in said:
        for batch in each:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                expected[offset] = max(expected.get(offset, batch.progress), batch.progress)
    assert offsets_of(together) == expected
    again: list[StateBatch] = []
    for each in chance.sample(said * 2, 12):
        again = combine(again, each)
    assert again == together
    start = chance.randrange(20)
    cut = combine((), together, start)
    assert offsets_of(cut) == {offset: progress for offset, progress in expected.items() if offset >= start}
    moved, left = advance(start, cut)
    assert all(expected[offset][0] for offset in range(start, moved))
    assert not (left and left[0].first_offset == moved and left[0].is_done)


@pytest.mark.parametrize("seed", range(40))
def test_a_coordinator_keeps_what_it_said_it_keeps(seed: int) -> None:
    chance = Random(f"share coordinator {seed}")
    world = CoordinatorWorld(ShareCoordinatorConfig(snapshot_update_records_per_snapshot=chance.choice((0, 1, 3, 500))))
    keys = [KEY._replace(partition=partition) for partition in range(3)]
    epochs = dict.fromkeys(keys, 0)
    kept: dict[int, tuple[StateBatch, ...]] = {}
    begun_at = dict.fromkeys(keys, 0)
    for _ in range(150):
        key = chance.choice(keys)
        world.hold = chance.random() < 0.5
        match chance.randrange(12):
            case 0:
                if chance.random() < 0.1 or not epochs[key]:
                    epochs[key] += 1
                    begun_at[key] = len(world.requests) + 1  # earlier writes are no more
                world.request(Initialize(key=key, state_epoch=epochs[key], start_offset=chance.choice((-1, 0))))
            case 1:
                world.request(Read(key=key, leader_epoch=chance.randrange(4)))
            case 2:
                world.request(ReadSummary(key=key))
            case 3 if chance.random() < 0.1:
                begun_at[key] = world.request(Delete(key=key))
            case 4:
                world.reload(lose_held=chance.random() < 0.5)
            case 5:
                world.prune()
            case 6:
                world.tick(world.now + chance.choice((10, 300_000)))
            case 7 if world.held:
                world.appended(ErrorCode.NOT_ENOUGH_REPLICAS)
            case 8 | 9 if world.held:
                world.appended()
            case _:
                batches = some_batches(chance)
                start = chance.choice((-1, -1, chance.randrange(10)))
                request_id = world.request(
                    Write(
                        key=key,
                        state_epoch=epochs[key],
                        leader_epoch=chance.randrange(5),
                        start_offset=start,
                        delivery_complete_count=0,
                        batches=batches,
                    )
                )
                kept[request_id] = batches
        world.check()
    world.hold = False
    while world.held:
        world.appended()
    world.check()
    written = 0
    for request_id, batches in kept.items():
        command = world.requests[request_id]
        state = world.coordinator.states.get(command.key)
        if world.answers[request_id].error_code is not ErrorCode.NONE or state is None:
            continue
        if request_id < begun_at[command.key]:
            continue
        written += 1
        known = offsets_of(state.batches)
        for offset, progress in offsets_of(combine((), batches)).items():
            assert offset < state.start_offset or known[offset] >= progress, (offset, progress, state)
    assert written
