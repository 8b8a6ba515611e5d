"""Random histories of groups that pass from one protocol to the other and back while their members live (KIP-848).

Beside the clients of the consumer protocol there are classic ones, eager and cooperative, that behave as Kafka's do:
they rejoin when asked to, an eager one gives up everything before, a cooperative one what it has lost, and it
then joins once more. The leader of a classic generation assigns.

In every case no two members read a partition, and when nothing happens any more every partition is read by one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from test_consumer_histories import Members

from kraftpy.groups.assignment import NOTHING
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from kraftpy.types import TopicId, TopicPartition

CLASSIC_SESSION_MS = 10_000
Owned = frozenset[TopicPartition]


@dataclass
class ClassicClient:
    """A classic member as it sees itself. `owns` is what it reads from."""

    name: str
    is_eager: bool
    topics: tuple[str, ...]
    member_id: str = ""
    generation_id: int = -1
    owns: Owned = frozenset()
    must_join: bool = True
    asked: list[int] = field(default_factory=list)  # the request that is not answered yet
    is_gone: bool = False
    heard_at: int = 0

    def lose(self) -> None:
        self.owns, self.generation_id, self.must_join = frozenset(), -1, True

    @property
    def protocol(self) -> str:
        return "range" if self.is_eager else "cooperative-sticky"


class Mixed(Members):
    """Clients of both protocols in one group."""

    def __init__(self, chance: random.Random) -> None:
        self.classics: list[ClassicClient] = []
        self.known_ids: dict[str, TopicId] = {}
        self.eager = chance.random() < 0.5  # classic members of a group have a protocol in common
        super().__init__(chance)

    def classics_alive(self) -> list[ClassicClient]:
        return [client for client in self.classics if not client.is_gone]

    # ---- what a classic client does

    def turn_of(self, client: ClassicClient) -> None:
        """Send its next request: JoinGroup if it has to join, else a heartbeat."""
        if client.asked:
            return
        client.heard_at = self.now
        if client.must_join:
            client.must_join = False
            if client.is_eager:
                client.owns = frozenset()
            metadata = encode_subscription(
                Subscription(topics=client.topics, owned=tuple(sorted(client.owns)), generation_id=client.generation_id)
            )
            join = JoinGroupRequest(
                group_id="g",
                session_timeout_ms=CLASSIC_SESSION_MS,
                rebalance_timeout_ms=30_000,
                member_id=client.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=client.protocol, metadata=metadata)],
            )
            self.ask(client, join, 9)
        elif client.generation_id >= 0:
            beat = HeartbeatRequest(group_id="g", generation_id=client.generation_id, member_id=client.member_id)
            self.ask(client, beat, 4)

    def ask(
        self, client: ClassicClient, message: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest, version: int
    ) -> None:
        client.asked.append(len(self.requests) + 1)
        self.request(message, version, client.name)

    def go(self, client: ClassicClient) -> None:
        client.is_gone = True
        client.owns = frozenset()
        self.request(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=client.member_id)]), 5)

    def hear(self, *, losing: float = 0.0) -> None:
        self.forget_deleted_topics()
        for client in self.classics:
            while client.asked and client.asked[0] in self.answers:
                answer = self.answers[client.asked.pop()]
                if client.is_gone:
                    continue
                if self.chance.random() < losing:
                    client.must_join = True
                    continue
                self.heard(client, answer)
        super().hear(losing=losing)

    def forget_deleted_topics(self) -> None:
        """Classic members know topics by name: what is read of one that was deleted is not of its namesake."""
        ids = {name: info.topic_id for name in self.topics.names() if (info := self.topics.topic(name)) is not None}
        gone = {name for name, topic_id in self.known_ids.items() if ids.get(name) != topic_id}
        for client in self.classics:
            client.owns = frozenset(each for each in client.owns if each.topic not in gone)
        self.known_ids = ids

    def heard(self, client: ClassicClient, answer: object) -> None:
        assert isinstance(answer, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        match ErrorCode.of(answer.error_code), answer:
            case ErrorCode.NONE, JoinGroupResponse():
                client.member_id, client.generation_id = answer.member_id, answer.generation_id
                self.sync(client, answer)
            case ErrorCode.NONE, SyncGroupResponse():
                told = frozenset(decode_assignment(answer.assignment))
                client.must_join |= not client.is_eager and bool(client.owns - told)
                client.owns = told
            case ErrorCode.NONE, _:
                pass
            case ErrorCode.MEMBER_ID_REQUIRED, JoinGroupResponse():
                client.member_id, client.must_join = answer.member_id, True
            case ErrorCode.UNKNOWN_MEMBER_ID, _:
                client.member_id = ""
                client.lose()
            case ErrorCode.ILLEGAL_GENERATION, _:
                client.lose()
            case (
                ErrorCode.REBALANCE_IN_PROGRESS
                | ErrorCode.COORDINATOR_NOT_AVAILABLE
                | ErrorCode.NOT_COORDINATOR
                | ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                _,
            ):
                client.must_join = True
            case other:
                raise AssertionError(other)

    def sync(self, client: ClassicClient, joined: JoinGroupResponse) -> None:
        leads = joined.leader == client.member_id and not joined.skip_assignment
        assigned = self.assign(joined, is_eager=client.is_eager) if leads else {}
        message = SyncGroupRequest(
            group_id="g",
            generation_id=joined.generation_id,
            member_id=client.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(sorted(partitions)))
                for member_id, partitions in assigned.items()
            ],
        )
        self.ask(client, message, 5)

    def assign(self, joined: JoinGroupResponse, *, is_eager: bool) -> dict[str, list[TopicPartition]]:
        """Assign partitions round-robin among subscribers. Cooperative members get none that another still holds."""
        said = {member.member_id: decode_subscription(member.metadata) for member in joined.members}
        owner = {each: member_id for member_id, one in said.items() if not is_eager for each in one.owned}
        given: dict[str, list[TopicPartition]] = {member_id: [] for member_id in said}
        for name, count in sorted(self.topics.counts().items()):
            readers = sorted(member_id for member_id, one in said.items() if name in one.topics)
            for number in range(count if readers else 0):
                partition = TopicPartition(name, number)
                taker = readers[number % len(readers)]
                if owner.get(partition, taker) == taker:
                    given[taker].append(partition)
        return given

    # ---- what must be so

    def check_owners(self) -> None:
        super().check_owners()
        group = self.coordinator.groups.get("g")
        if group is None:
            return
        consumers = group.kind.members if isinstance(group.kind, ConsumerGroup) else {}
        owner: dict[TopicPartition, str] = {}
        for client in self.alive():
            if client.member_id in consumers and client.epoch > 0:
                for each in client.owns:
                    name = self.topics.name(each.topic_id)
                    if name is not None:
                        owner[TopicPartition(name, each.partition)] = client.member_id
        for classic in self.classics_alive():
            # One that was dropped, or is asked to join a newer generation, may not know it yet.
            seen = group.classic_or_empty()
            member = seen.members.get(classic.member_id)
            if classic.member_id not in consumers and (member is None or classic.generation_id != seen.generation_id):
                continue
            for partition in classic.owns:
                assert partition not in owner, f"{partition} is read by {owner[partition]} and {classic.member_id}"
                owner[partition] = classic.member_id

    # ---- what happens

    def happen(self) -> None:
        what = self.chance.random()
        classics = self.classics_alive()
        if what < 0.04:
            self.made += 1
            topics = tuple(sorted(self.chance.sample(("t", "u", "v"), self.chance.randint(1, 3))))
            self.classics.append(ClassicClient(name=f"c{self.made}", is_eager=self.eager, topics=topics))
        elif what < 0.45 and classics:
            self.turn_of(self.chance.choice(classics))
        elif what < 0.48 and classics:
            client = self.chance.choice(classics)
            if self.chance.random() < 0.5 and client.generation_id >= 0 and not client.asked:
                self.go(client)
            else:
                client.is_gone = True
        elif what < 0.51 and classics:  # all who speak the newer protocol are taken away again
            for member in self.alive():
                if not member.waiting and member.epoch > 0:
                    self.leave(member, -1)
        else:
            super().happen()
            return
        self.hear(losing=0.1)

    def expect_sessions(self) -> None:
        super().expect_sessions()
        for client in self.classics_alive():
            if self.now - client.heard_at >= CLASSIC_SESSION_MS and not client.asked:
                client.lose()

    def reload(self) -> None:
        super().reload()
        for client in self.classics:
            if client.asked and client.asked[0] not in self.answers:  # a request that the old coordinator kept is lost
                client.asked.clear()
                client.must_join = True

    def settle(self) -> None:
        self.hold = False
        while self.held:
            self.appended(self.held[0].token)
        self.hear()
        self.topics.become({"t": 5, "u": 3, "v": 2})
        for _ in range(100):
            self.tick(self.now + 3_000)
            for client in self.alive():
                self.beat(client)
            for classic in self.classics_alive():
                self.turn_of(classic)
            for _ in range(3):
                self.hear()


@pytest.mark.parametrize("seed", range(40))
def test_no_partition_has_two_owners_while_the_group_passes_and_it_converges(seed: int) -> None:
    world = Mixed(random.Random(seed))
    world.topics.become({"t": 4, "u": 2})
    for _ in range(250):
        world.happen()
    world.settle()
    world.check_replay()
    consumers, classics = world.alive(), world.classics_alive()
    group = world.coordinator.groups.get("g")
    if not consumers and not classics:
        assert group is None or group.is_empty
        return
    assert group is not None
    assert group.state_name == "Stable"
    assert isinstance(group.kind, ConsumerGroup) == bool(consumers)
    members = group.kind.members.keys()
    assert set(members) == {client.member_id for client in (*consumers, *classics)}
    subscribed = group.subscribed_topics()
    assert subscribed is not None
    wanted = [(n, i) for n, count in world.topics.counts().items() if n in subscribed for i in range(count)]
    owned = [(world.topics.name(each.topic_id), each.partition) for client in consumers for each in client.owns]
    owned += [(each.topic, each.partition) for client in classics for each in client.owns]
    if consumers:  # a classic generation learns of new topics when its clients look, which these do not
        assert sorted(owned, key=str) == sorted(wanted, key=str)
    assert all(client.owns != NOTHING or len(wanted) < len(members) for client in consumers) or consumers
    world.check_owners()


def test_these_histories_do_pass_both_ways() -> None:
    ups = downs = 0
    for seed in range(40):
        world = Mixed(random.Random(seed))
        world.topics.become({"t": 4, "u": 2})
        before = None
        for _ in range(250):
            world.happen()
            group = world.coordinator.groups.get("g")
            now = None if group is None or group.is_empty else isinstance(group.kind, ConsumerGroup)
            ups += before is False and now is True
            downs += before is True and now is False
            before = now
    assert ups > 10
    assert downs > 10
