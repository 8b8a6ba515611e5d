"""However many offsets are deleted, expire or are committed by a transaction: each step of a coordinator does a bounded
part, other groups are served in between, and the log gives the same state at any point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from group_world import World

from kraftpy.groups import offsets
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import Append, Effect
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
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
        return [part.error_code for part in self.answers[request].topics[0].partitions]  # type: ignore[union-attr,index]

    def offsets(self, group: str) -> int:
        known = self.coordinator.groups.get(group)
        return 0 if known is None else len(known.offsets)

    def fetched(self, group: str) -> tuple[int, int]:
        """The error of the group, and how many offsets it has."""
        groups = [OffsetFetchRequestGroup(group_id=group, topics=None)]
        request = self.request(OffsetFetchRequest(groups=groups), 8)
        (of_group,) = self.answers[request].groups  # type: ignore[union-attr]
        return of_group.error_code, sum(len(topic.partitions) for topic in of_group.topics)  # type: ignore[union-attr]

    def next_piece(self) -> bool:
        """Let the next piece of work be done, if there is one."""
        due = self.coordinator.next_deadline()
        if due is None or due > self.now + 10:
            return False
        self.tick(due)
        self.check_replay()
        return True

    def count_pieces(self, meanwhile: Callable[[], None]) -> int:
        count = 1
        while self.next_piece():
            meanwhile()
            count += 1
        return count


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(offsets, "TOMBSTONES_AT_ONCE", PIECE)
    monkeypatch.setattr("kraftpy.groups.deletion._MOST_TOGETHER", PIECE)
    world = Counting(GroupConfig())
    world.commit("g", count=OFFSETS)
    world.most = 0
    return world


def test_a_group_with_many_offsets_is_deleted_in_pieces(world: Counting) -> None:
    request = world.request(DeleteGroupsRequest(groups_names=["g"]), 2)
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
    (result,) = world.answers[request].results  # type: ignore[union-attr]
    assert result.error_code == ErrorCode.NONE  # type: ignore[union-attr]
    assert "g" not in world.coordinator.groups
    assert world.fetched("g") == (ErrorCode.NONE, 0)


def test_a_group_whose_deletion_fails_keeps_the_offsets_that_are_left(world: Counting) -> None:
    request = world.request(DeleteGroupsRequest(groups_names=["g"]), 2)
    world.hold = True
    assert world.next_piece()
    world.hold = False
    world.appended(world.held[0].token, ErrorCode.NOT_ENOUGH_REPLICAS)
    (result,) = world.answers[request].results  # type: ignore[union-attr]
    assert result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE  # type: ignore[union-attr]
    assert world.fetched("g") == (ErrorCode.NONE, OFFSETS - PIECE)
    assert world.commit("g") == [ErrorCode.NONE]
    again = world.request(DeleteGroupsRequest(groups_names=["g"]), 2)
    world.count_pieces(lambda: None)
    assert again in world.answers
    assert "g" not in world.coordinator.groups


def test_who_waits_for_a_deletion_is_told_if_the_coordinator_moves(world: Counting) -> None:
    request = world.request(DeleteGroupsRequest(groups_names=["g"]), 2)
    world.reload()
    (result,) = world.answers[request].results  # type: ignore[union-attr]
    assert result.error_code == ErrorCode.NOT_COORDINATOR  # type: ignore[union-attr]
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
