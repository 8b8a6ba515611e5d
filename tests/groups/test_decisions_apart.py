"""Large assignments are computed apart from a coordinator, which serves other groups in the meantime.

Requests about the same group wait, and no client sees half of a decision.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import test_consumer_histories
import test_migration_histories
import test_share_group_histories
import test_streams_histories
from group_world import World

from kraftpy.groups import assignment, change_queue
from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.consumer import assignors, records
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.events import Computed, Effect, Event, Survived
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

MANY = UNITS_AT_ONCE + 100


class Steps(World):
    """Knows whether the coordinator is in a step, and what it survived."""

    is_stepping = False
    survived: tuple[Survived, ...] = ()

    def step(self, event: Event) -> list[Effect]:
        with self.stepping():
            effects = self.coordinator.step(event, self.now)
        self.take(effects)
        self.go_on()
        return effects

    @contextmanager
    def stepping(self) -> Iterator[None]:
        self.is_stepping = True
        yield
        self.is_stepping = False

    def happened(self, effect: Effect) -> None:
        if isinstance(effect, Survived):
            self.survived += (effect,)

    def beat(self, group: str, member: str, epoch: int, *topics: str, reports: bool = False) -> int:
        joins = epoch == 0
        message = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_names=list(topics) if joins else None,
            topic_partitions=[] if joins or reports else None,
        )
        return self.request(message, 1)

    def answer(self, request: int) -> ConsumerGroupHeartbeatResponse:
        answer = self.answers[request]
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def size(self, request: int) -> int:
        """How many partitions the answer gives to the member."""
        given = self.answer(request).assignment
        return 0 if given is None else sum(len(topic.partitions) for topic in given.topic_partitions)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Steps:
    world = Steps()
    world.topics.become({"many": MANY, "few": 2})
    for name, assignor in list(assignors.ASSIGNORS.items()):

        def checked(members: Any, counts: Any, assignor: Any = assignor) -> Any:
            assert not world.is_stepping or sum(counts.values()) <= UNITS_AT_ONCE, "assigned in a step of the loop"
            return assignor(members, counts)

        monkeypatch.setitem(assignors.ASSIGNORS, name, checked)
    return world


def test_other_groups_are_served_while_a_large_assignment_is_computed(world: Steps) -> None:
    world.is_busy = True
    large = world.beat("large", "a", 0, "many")
    waiting = world.beat("large", "b", 0, "many")
    assert len(world.computing) == 1
    other = world.beat("other", "a", 0, "few")
    assert world.size(other) == 2
    assert not world.answers.keys() & {large, waiting}
    assert "large" in world.coordinator.groups
    assert world.coordinator.groups["large"].classic is not None, "half of a decision is seen"
    world.is_busy = False
    world.go_on()
    assert world.size(large) == MANY
    assert world.answer(waiting).error_code == ErrorCode.NONE
    assert not world.survived
    world.check_replay()


def test_a_large_group_is_not_parsed_again_when_its_records_are_in_the_log(
    world: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, parsed = assignment.read_partitions, 0

    def counted(reader: Any) -> Any:
        nonlocal parsed
        partitions = read(reader)
        parsed = max(parsed, len(partitions))
        return partitions

    monkeypatch.setattr(records, "read_partitions", counted)
    world.beat("large", "a", 0, "many")
    assert parsed == 0
    world.check_replay()
    assert parsed == MANY


def test_an_error_in_a_computation_costs_its_request(world: Steps) -> None:
    world.is_busy = True
    large = world.beat("large", "a", 0, "many")
    (compute,) = world.computing
    world.computing.clear()
    world.step(Computed(group_id="large", token=compute.token, error=RuntimeError("nobody expects it")))
    assert world.answer(large).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(world.survived) == 1
    assert "large" not in world.coordinator.groups
    world.is_busy = False
    assert world.size(world.beat("large", "a", 0, "many")) == MANY


def test_who_waits_for_a_computation_is_told_if_the_coordinator_moves(world: Steps) -> None:
    world.is_busy = True
    requests = [world.beat("large", member, 0, "many") for member in ("a", "b")]
    world.reload()
    assert {world.answer(request).error_code for request in requests} == {ErrorCode.NOT_COORDINATOR}


def test_topics_that_change_during_a_computation_are_looked_at_again(world: Steps) -> None:
    world.is_busy = True
    world.beat("large", "a", 0, "many")
    world.topics.become({"many": MANY + 1, "few": 2})
    world.is_busy = False
    world.go_on()
    group = world.coordinator.groups["large"].kind
    assert isinstance(group, ConsumerGroup)
    world.beat("large", "a", group.current("a").member_epoch)
    group = world.coordinator.groups["large"].kind
    assert isinstance(group, ConsumerGroup)
    assert len(group.current("a").assigned) == MANY + 1


def test_a_group_that_is_about_to_become_a_share_group_takes_no_offsets(world: Steps) -> None:
    world.is_busy = True
    world.request(
        ShareGroupHeartbeatRequest(group_id="large", member_id="a", member_epoch=0, subscribed_topic_names=["many"]), 1
    )
    assert len(world.computing) == 1
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    topics = [OffsetCommitRequestTopic(name="few", partitions=partitions)]
    commit = world.request(OffsetCommitRequest(group_id="large", member_id="", topics=topics), 8)
    answer = world.answers[commit]
    assert isinstance(answer, OffsetCommitResponse)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.is_busy = False
    world.go_on()
    world.check_replay()


def test_heartbeats_that_change_nothing_are_answered_at_once_in_large_groups(world: Steps) -> None:
    epoch = world.answer(world.beat("large", "a", 0, "many")).member_epoch
    world.is_busy = True
    assert world.answer(world.beat("large", "a", epoch)).member_epoch == epoch
    assert not world.computing


HISTORIES: dict[str, tuple[Any, dict[str, int]]] = {
    "consumer": (test_consumer_histories.Members, {"t": 4, "u": 2}),
    "migration": (test_migration_histories.Mixed, {"t": 4, "u": 2}),
    "share": (test_share_group_histories.Members, {"t": 4, "u": 2}),
    "streams": (test_streams_histories.Workers, {"t": 5}),
}


@pytest.mark.parametrize("kind", HISTORIES)
@pytest.mark.parametrize("seed", range(12))
def test_groups_go_on_whatever_happens_while_something_is_computed(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is computed apart, and only now and then; the worlds check each step."""
    monkeypatch.setattr(change_queue, "UNITS_AT_ONCE", -1)
    members, topics = HISTORIES[kind]
    pauses = 0

    class Slow(members):  # type: ignore[misc,valid-type]
        def happen(self) -> None:
            nonlocal pauses
            pauses += bool(self.computing)
            self.is_busy = self.chance.random() < 0.7
            if not self.is_busy:
                self.go_on()
            super().happen()

        def settle(self) -> None:
            self.is_busy = False
            self.go_on()
            super().settle()

    world = Slow(random.Random(seed))
    world.topics.become(topics)
    world.come_to_rest(200)
    assert pauses > 10
