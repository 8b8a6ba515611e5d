"""No step of a coordinator loops over all topics, partitions or tasks of a large group: that is done apart.

Lines of Python are counted, and not time: a loop that a step should not have executes more lines than there are topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from group_world import World
from test_costs_of_groups import lines

from kraftpy.groups import change_queue
from kraftpy.groups.apart import UNITS_AT_ONCE
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import Effect, Event, Request, StateChanged, Survived
from kraftpy.groups.share import protocol as share_protocol
from kraftpy.groups.share import records as share_records
from kraftpy.groups.share.group import ShareGroup
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import alter_share_group_offsets as altering
from kraftpy.protocol.messages import delete_share_group_offsets as deleting
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.types import TopicId

MANY = UNITS_AT_ONCE + 500
AT_ONCE = 100
"""What may be done on the spot, so that the rest of a step shows."""
SHAPES: dict[str, dict[str, int]] = {
    "one large topic": {"t": MANY},
    "many topics": {f"topic-{number:05}": 1 for number in range(MANY)},
}


class Steps(World):
    """Counts the lines of each step; what is done apart does not count."""

    def __init__(self, topics: Mapping[str, int], config: GroupConfig | None = None) -> None:
        super().__init__(config)
        self.most = 0
        self.longest: Any = None
        self.become(topics)

    def become(self, topics: Mapping[str, int]) -> None:
        self.topics.become(dict(topics))
        names = {info.topic_id: name for name, info in self.topics._topics.items()}

        def name(topic_id: TopicId) -> str | None:
            return names.get(topic_id)

        self.topics.name = name  # type: ignore[method-assign]

    def step(self, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        count = lines(lambda: effects.extend(self.coordinator.step(event, self.now)))
        if count > self.most:
            self.most, self.longest = count, event.message if isinstance(event, Request) else event
        assert not [effect for effect in effects if isinstance(effect, Survived)]
        self.take(effects)
        self.go_on()
        return effects

    def check(self) -> None:
        """Leave it to `check_replay`: it takes long for large groups."""

    def _answered(self, reply: Any) -> None:
        assert reply.request_id not in self.answers
        self.answers[reply.request_id] = reply.response

    def request(self, message: Any, api_version: int, client_id: str = "c", host: str = "/10.0.0.1") -> int:
        request_id = len(self.requests) + 1
        event = Request(
            request_id=request_id, api_version=api_version, message=message, client_id=client_id, client_host=host
        )
        self.requests[request_id] = event
        self.step(event)
        return request_id

    def told(self, token: int, failing: Any = None) -> None:
        self.asked.remove(next(each for each in self.asked if each.token == token))
        self.step(StateChanged(token=token, failed={}))

    def ask(self, message: Any, version: int) -> Any:
        return self.answers[self.request(message, version)]

    def had_short_steps(self) -> None:
        assert self.most < MANY, (type(self.longest), self.most)
        assert self.waiting_outside() == set()
        self.check_replay()


@pytest.fixture(autouse=True)
def _little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (change_queue, share_protocol, share_records):
        monkeypatch.setattr(module, "UNITS_AT_ONCE", AT_ONCE)


@pytest.mark.parametrize("shape", SHAPES)
def test_share_groups(shape: str) -> None:
    world = Steps(SHAPES[shape])
    names = list(SHAPES[shape])

    def group() -> ShareGroup:
        kind = world.coordinator.groups["g"].kind
        assert isinstance(kind, ShareGroup)
        return kind

    def beat(member: str, epoch: int | None = None) -> None:
        joins = epoch == 0
        message = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=member,
            member_epoch=group().current(member).member_epoch if epoch is None else epoch,
            subscribed_topic_names=names if joins else None,
        )
        assert world.ask(message, 1).error_code == ErrorCode.NONE

    beat("a", 0)
    beat("a")
    assert len(group().current("a").assigned) == MANY
    beat("b", 0)
    for member in "ab":
        beat(member)
    assert {len(group().current(member).assigned) for member in "ab"} == {MANY // 2}
    world.become({**SHAPES[shape], "another": 1})
    for member in "ab":
        beat(member)
    beat("b", -1)
    beat("a")
    beat("a")
    assert len(group().current("a").assigned) == MANY
    beat("a", -1)
    alter = altering.AlterShareGroupOffsetsRequest(
        group_id="g",
        topics=[
            altering.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    altering.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=number)
                    for number in range(count)
                ],
            )
            for name, count in SHAPES[shape].items()
        ],
    )
    altered = world.ask(alter, 0)
    assert {part.error_code for topic in altered.responses for part in topic.partitions} == {ErrorCode.NONE}
    assert sum(len(topic.partitions) for topic in altered.responses) == MANY
    some = [deleting.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names[:-1]]
    deleted = world.ask(deleting.DeleteShareGroupOffsetsRequest(group_id="g", topics=some), 0)
    assert [each.error_code for each in deleted.responses] == [ErrorCode.NONE] * len(some)
    world.delete_topics(*names[-1:])
    (gone,) = world.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert gone.error_code == ErrorCode.NONE
    assert not world.coordinator.groups
    world.had_short_steps()
