"""However many offsets are deleted, expire or are committed by a transaction: each step of a coordinator does a bounded
part, other groups are served in between, and the log gives the same state at any point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_world import World, Written

from kraftpy.groups import offsets
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import Append, Effect, Tick
from kraftpy.groups.records import Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kraftpy.types import Millis

PIECE = 10
OFFSETS = 45
RETENTION_MS = 7 * 24 * 3_600_000
CHECK_MS = 600_000


class Counting(World):
    """Counts the records that one step has written."""

    most = 0

    def happened(self, effect: Effect) -> None:
        if isinstance(effect, Append):
            self.most = max(self.most, len(effect.records))

    def commit(self, group: str, topic: str = "t", count: int = 1) -> list[int]:
        partitions = [OffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(count)]
        topics = [OffsetCommitRequestTopic(name=topic, partitions=partitions)]
        request = self.request(OffsetCommitRequest(group_id=group, member_id="", topics=topics), 8)
        answer = self.answers[request]
        assert isinstance(answer, OffsetCommitResponse)
        return [part.error_code for part in answer.topics[0].partitions]

    def offsets(self, group: str) -> int:
        known = self.coordinator.groups.get(group)
        return 0 if known is None else len(known.offsets)

    def fetched(self, group: str) -> tuple[int, int]:
        """The error of the group, and how many offsets it has."""
        groups = [OffsetFetchRequestGroup(group_id=group, topics=None)]
        request = self.request(OffsetFetchRequest(groups=groups), 8)
        answer = self.answers[request]
        assert isinstance(answer, OffsetFetchResponse)
        (of_group,) = answer.groups
        return of_group.error_code, sum(len(topic.partitions) for topic in of_group.topics)

    def delete(self, group: str) -> int:
        return self.request(DeleteGroupsRequest(groups_names=[group]), 2)

    def deleted(self, request: int) -> int:
        """The error code of a deletion."""
        answer = self.answers[request]
        assert isinstance(answer, DeleteGroupsResponse)
        (result,) = answer.results
        return result.error_code

    def next_piece(self) -> bool:
        """Let the next piece of work be done, if there is one."""
        due = self.coordinator.next_deadline()
        if due is None or due > self.now + 10:
            return False
        self.tick(due)
        return True

    def count_pieces(self, meanwhile: Callable[[], None], *, replay: bool = True) -> int:
        count = 1
        while self.next_piece():
            if replay:
                self.check_replay()
            meanwhile()
            count += 1
        return count

    def commit_in_transaction(self, producer_id: int, group: str, count: int, offset: int = 0) -> None:
        partitions = [TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=offset) for n in range(count)]
        topics = [TxnOffsetCommitRequestTopic(name="t", partitions=partitions)]
        message = TxnOffsetCommitRequest(
            transactional_id="id", group_id=group, producer_id=producer_id, producer_epoch=0, topics=topics
        )
        request = self.request(message, 3)
        answer = self.answers[request]
        assert isinstance(answer, TxnOffsetCommitResponse)
        assert {part.error_code for topic in answer.topics for part in topic.partitions} == {ErrorCode.NONE}


def replay_into(machine: GroupCoordinator, record: Record) -> None:
    if not isinstance(record, Written):
        machine.replay(*record)
    elif record.is_commit is None:
        machine.replay_pending(record.producer_id, *record)
    else:
        machine.replay_end(record.producer_id, is_commit=record.is_commit)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(offsets, "TOMBSTONES_AT_ONCE", PIECE)
    monkeypatch.setattr("kraftpy.groups.deletion._MOST_TOGETHER", PIECE)
    world = Counting(GroupConfig())
    world.commit("g", count=OFFSETS)
    world.most = 0
    return world


def test_a_group_with_many_offsets_is_deleted_in_pieces(world: Counting) -> None:
    request = world.delete("g")
    seen: list[int] = []

    def meanwhile() -> None:
        assert world.commit("other") == [ErrorCode.NONE]
        if "g" in world.coordinator.groups:
            seen.append(world.offsets("g"))
            assert request not in world.answers
            assert world.fetched("g") == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0), "half of the offsets are shown"
            assert world.commit("g") == [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    assert world.count_pieces(meanwhile) == OFFSETS // PIECE + 2
    assert seen == [25, 15, 5, 0]
    assert world.most <= PIECE
    assert world.deleted(request) == ErrorCode.NONE
    assert "g" not in world.coordinator.groups
    assert world.fetched("g") == (ErrorCode.NONE, 0)


def test_a_group_whose_deletion_fails_keeps_the_offsets_that_are_left(world: Counting) -> None:
    request = world.delete("g")
    world.hold = True
    assert world.next_piece()
    world.hold = False
    world.appended(world.held[0].token, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.deleted(request) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.fetched("g") == (ErrorCode.NONE, OFFSETS - PIECE)
    assert world.commit("g") == [ErrorCode.NONE]
    again = world.delete("g")
    world.count_pieces(lambda: None)
    assert again in world.answers
    assert "g" not in world.coordinator.groups


def test_who_waits_for_a_deletion_is_told_if_the_coordinator_moves(world: Counting) -> None:
    request = world.delete("g")
    world.reload()
    assert world.deleted(request) == ErrorCode.NOT_COORDINATOR
    assert world.fetched("g") == (ErrorCode.NONE, OFFSETS - PIECE), "what was not deleted is there"


def begin_to_expire(world: Counting) -> None:
    """All offsets but one expire, and the first piece is deleted."""
    world.now = Millis(RETENTION_MS - 1_000)
    world.commit("g", "late")
    world.tick(world.now + CHECK_MS)
    assert world.offsets("g") == OFFSETS - PIECE + 1


def test_many_offsets_of_one_group_expire_in_pieces(world: Counting) -> None:
    begin_to_expire(world)
    assert world.count_pieces(lambda: None) == OFFSETS // PIECE + 1
    assert world.offsets("g") == 1
    assert world.most <= PIECE


def test_an_offset_that_is_committed_again_meanwhile_does_not_expire(world: Counting) -> None:
    begin_to_expire(world)
    world.commit("g", count=OFFSETS)
    world.count_pieces(lambda: None)
    assert world.offsets("g") == OFFSETS + 1


def test_offsets_of_deleted_topics_are_deleted_in_pieces(world: Counting) -> None:
    for number in range(30):
        world.commit(f"group-{number:02}", "t")
        world.commit(f"group-{number:02}", "kept")
    world.delete_topics("t")
    assert 0 < world.offsets("g") < OFFSETS

    def meanwhile() -> None:
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if world.coordinator._deleted_topics.is_pending("t") else 0
        assert world.commit("new", "t") == [expected], "a commit for a topic of that name could be deleted"
        assert world.commit("new", "kept") == [ErrorCode.NONE]

    assert world.count_pieces(meanwhile) >= (OFFSETS + 30) // PIECE
    assert world.most <= PIECE
    assert "g" not in world.coordinator.groups
    assert {world.offsets(f"group-{number:02}") for number in range(30)} == {1}
    assert world.commit("new", "t") == [ErrorCode.NONE]
    assert world.offsets("new") == 2


def test_groups_are_looked_through_in_pieces_when_a_topic_is_deleted(
    world: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.groups.topic_deletion.OFFSETS_AT_ONCE", 20)
    for number in range(50):
        world.commit(f"group-{number:02}", "kept")
    world.delete_topics("nobody-reads-it")
    world.delete_topics("t")
    assert world.count_pieces(lambda: None) > 2 * 50 * 2 // 20
    assert "g" not in world.coordinator.groups


def test_the_end_of_a_large_transaction_takes_effect_group_by_group(
    world: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group has all of it or nothing. Until it has it, the offsets are unstable."""
    monkeypatch.setattr("kraftpy.groups.backlog.ENDED_AT_ONCE", 2 * PIECE)
    names = [f"group-{number:02}" for number in range(10)]
    for name in names:
        world.commit_in_transaction(7, name, PIECE)
    world.ended(7, is_commit=True)
    assert [world.offsets(name) for name in names] == [PIECE] * 2 + [0] * 8
    world.commit_in_transaction(7, names[5], 1)  # its next transaction, which is open

    def meanwhile() -> None:
        assert {world.offsets(name) for name in names} <= {0, PIECE}
        for name in names:
            unstable = PIECE if not world.offsets(name) else int(name == names[5])
            assert len(world.coordinator.groups[name].unstable) == unstable
        assert world.commit("other") == [ErrorCode.NONE]

    assert world.count_pieces(meanwhile, replay=False) == len(names) // 2
    assert [world.offsets(name) for name in names] == [PIECE] * 10
    world.check_replay()


def test_later_offsets_win_over_those_of_a_transaction_that_is_still_being_ended(
    world: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftpy.groups.backlog.ENDED_AT_ONCE", PIECE)
    for name in ("a", "b", "c"):
        world.commit_in_transaction(7, name, PIECE, offset=1)
    world.commit_in_transaction(8, "c", PIECE, offset=2)
    world.ended(7, is_commit=True)
    world.ended(8, is_commit=True)
    assert world.offsets("c") == 0
    world.commit("c")  # offset 0 for partition 0, behind both
    world.count_pieces(lambda: None, replay=False)
    values = {partition.partition: value.offset for partition, value in world.coordinator.groups["c"].offsets.items()}
    assert values == {0: 0, **dict.fromkeys(range(1, PIECE), 2)}
    assert not world.coordinator.groups["c"].unstable
    world.check_replay()


def test_what_a_marker_leaves_to_do_is_done_while_loading_and_after(
    world: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        world.commit_in_transaction(7, name, PIECE)
    world.ended(7, is_commit=False)
    world.commit_in_transaction(7, "d", PIECE)
    world.ended(7, is_commit=True)
    monkeypatch.setattr("kraftpy.groups.backlog.ENDED_AT_ONCE", 1)
    machine = GroupCoordinator(world.config, lambda: "id")
    pieces = 0
    for record in world.log:
        replay_into(machine, record)
        while machine.replay_on():
            pieces += 1
    assert pieces == 2
    assert machine.durable() == world.coordinator.durable()
    late = GroupCoordinator(world.config, lambda: "id")
    for record in world.log:
        replay_into(late, record)
    late.loaded(world.now)
    now = world.now
    while late.durable() != world.coordinator.durable():
        due = late.next_deadline()
        assert due is not None
        assert due <= world.now + 10
        now = due
        late.step(Tick(), now)
        late.validate()
