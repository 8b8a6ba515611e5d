"""Random histories of a streams group (KIP-1071), with members that behave as the KIP has them behave.

Answers get lost, members crash, are slow to give tasks up, leave and come back; topics come and go, internal topics are
made late; appends fail; the coordinator moves. In every case no two members work on a task, and no two members of a
process have one, neither by what the coordinator says (`World` checks that after every step) nor by what members do.
When nothing happens any more the group settles with every task in one member's hands.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from histories import REVOCATION_MS, SESSION_MS, Client, Clients
from streams_words import read_topology, told

from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import CreateInternalTopics, Effect
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.streams.protocol import task_ids
from kraftpy.groups.streams.records import NO_TASKS, Tasks
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

TOPOLOGY = "0:t>r;1:~r*s;2:t*v"
TASKS = 15


@dataclass(kw_only=True)
class Member(Client):
    """A member's own view: `owns` is what it works on or keeps ready, `told` is its last assignment."""

    process_id: str
    owns: Tasks = NO_TASKS
    told: Tasks = NO_TASKS


class Workers(Clients[Member, StreamsGroupHeartbeatResponse]):
    """The members of one group, and what happens to them."""

    beaten = StreamsGroupHeartbeatResponse

    def __init__(self, chance: random.Random) -> None:
        self.wanted: dict[str, int] = {}
        delay = chance.choice((0, 3_000))
        standby = chance.choice((0, 1))
        config = GroupConfig(group_streams_initial_rebalance_delay_ms=delay, group_streams_num_standby_replicas=standby)
        super().__init__(chance, config)

    def happened(self, effect: Effect) -> None:
        if isinstance(effect, CreateInternalTopics):
            self.wanted = {topic.name: topic.partitions for topic in effect.topics}

    def make_topics(self) -> None:
        """Create the topics that the group asked for, a while later."""
        if self.wanted:
            self.topics.become({**self.wanted, **self.topics.counts()})
            self.wanted = {}

    def beat(self, member: Member) -> None:
        if member.waiting:
            return
        joins = member.epoch == 0
        member.owns = NO_TASKS if joins else member.owns & member.told
        full = member.reports or joins or member.owns != member.told or self.chance.random() < 0.5
        message = StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id=member.member_id,
            member_epoch=member.epoch,
            rebalance_timeout_ms=REVOCATION_MS if joins or member.reports else -1,
            topology=read_topology(TOPOLOGY) if joins else None,
            active_tasks=task_ids(member.owns.active) if full else None,
            standby_tasks=task_ids(member.owns.standby) if full else None,
            warmup_tasks=task_ids(member.owns.warmup) if full else None,
            process_id=member.process_id if joins else None,
        )
        self.send(member, message, 0)

    def leave(self, member: Member) -> None:
        member.is_gone = True
        member.owns = NO_TASKS
        self.request(StreamsGroupHeartbeatRequest(group_id="g", member_id=member.member_id, member_epoch=-1), 0)

    def _heard(self, member: Member, answer: StreamsGroupHeartbeatResponse) -> None:
        member.reports = False
        match ErrorCode.of(answer.error_code):
            case ErrorCode.NONE:
                assert answer.member_epoch >= member.epoch
                member.epoch = answer.member_epoch
                has = told(answer)
                if has is not None:
                    member.owns |= has
                    member.told = has
            case ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.UNKNOWN_MEMBER_ID:
                member.owns = member.told = NO_TASKS
                member.epoch = 0
            case ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.NOT_COORDINATOR:
                member.reports = True
            case other:
                raise AssertionError(other)

    def check_owners(self) -> None:
        group = self.coordinator.groups.get("g")
        known = group.kind.members if group is not None and isinstance(group.kind, StreamsGroup) else {}
        workers: dict[object, str] = {}
        by_process: dict[object, str] = {}
        for member in self.clients:
            if member.is_gone or member.member_id not in known or member.epoch == 0:
                continue
            for task in member.owns.active:
                assert task not in workers, f"{task} is worked on by {workers[task]} and {member.member_id}"
                workers[task] = member.member_id
            for task in member.owns.all():
                place = (task, member.process_id)
                assert place not in by_process, f"{place} is with {by_process[place]} and {member.member_id}"
                by_process[place] = member.member_id

    def happen(self) -> None:
        what = self.chance.random()
        alive = self.alive()
        if what < 0.07 or not alive:
            self.made += 1
            self.clients.append(Member(member_id=f"m{self.made}", process_id=self.chance.choice("pqr")))
        elif what < 0.62:
            self.beat(self.chance.choice(alive))
        elif what < 0.66:
            member = self.chance.choice(alive)
            if not member.waiting and member.epoch > 0:
                self.leave(member)
        elif what < 0.69:
            self.chance.choice(alive).is_gone = True
        elif what < 0.74:
            self.make_topics()
        elif what < 0.79:
            kept = {name: count for name, count in self.topics.counts().items() if self.chance.random() < 0.8}
            self.topics.become({**kept, "t": 5} if self.chance.random() < 0.9 else kept)
        elif what < 0.86:
            self.tick(self.now + self.chance.choice((500, 5_000, 20_000)))
            for member in self.alive():
                if self.now - member.heard_at >= SESSION_MS:
                    member.owns = member.told = NO_TASKS
                    member.epoch = 0
        elif what < 0.90:
            self.hold = True
        elif what < 0.92:
            self.reload()
        elif self.held:
            self.end_append()
        if self.hold and self.chance.random() < 0.3:
            self.stop_holding()
        self.hear(losing=0.1)

    def settle(self) -> None:
        self.stop_holding()
        self.hear()
        self.topics.become({"t": 5})
        for _ in range(60):
            self.tick(self.now + 5_000)
            self.make_topics()
            for member in self.alive():
                self.beat(member)
            self.hear()


@pytest.mark.parametrize("seed", range(30))
def test_no_task_has_two_workers_and_the_group_converges(seed: int) -> None:
    world = Workers(random.Random(seed))
    world.topics.become({"t": 5})
    group, alive = world.come_to_rest(200), world.alive()
    if group is None:
        return
    assert isinstance(group.kind, StreamsGroup)
    assert group.state_name == "Stable"
    assert set(group.kind.members) == {member.member_id for member in alive}
    active = [task for member in alive for task in member.owns.active]
    assert len(active) == len(set(active)) == TASKS
    for member in alive:
        assert member.owns == group.kind.current(member.member_id).assigned
