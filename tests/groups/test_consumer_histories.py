"""Random histories of groups of the consumer protocol (KIP-848), with clients that behave as the KIP has them behave.

Answers get lost, members crash, are slow to give up, leave and come back; topics come and go; appends fail; the
coordinator moves. In every case no two members hold a partition, neither by what the coordinator says (`World`
checks that after every step) nor by what members do; and when nothing happens any more, the group settles with
every partition in one member's hands.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from assignment_words import assigned
from histories import REVOCATION_MS, SESSION_MS, Client, Clients

from kraftpy.groups.assignment import NOTHING, Assignment, by_topic
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupTopicPartitions,
)

TOPICS = ("t", "u", "v")


@dataclass(kw_only=True)
class Reader(Client):
    """A member's own view: `owns` is what it reads from, `told` is the last assignment it received."""

    instance_id: str | None
    topics: tuple[str, ...]
    regex: str | None = None
    assignor: str | None = None
    owns: Assignment = NOTHING
    told: Assignment = NOTHING


class Members(Clients[Reader, ConsumerGroupHeartbeatResponse]):
    """Clients of one group, and what happens to them."""

    beaten = ConsumerGroupHeartbeatResponse

    # ---- what a client does

    def beat(self, client: Reader) -> None:
        if client.waiting:
            return
        joins = client.epoch == 0
        client.owns &= client.told  # it stops reading partitions taken from it before it reports that
        full = client.reports or joins
        message = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id if client.instance_id is not None else None,
            rebalance_timeout_ms=REVOCATION_MS if full else -1,
            subscribed_topic_names=list(client.topics) if full else None,
            subscribed_topic_regex=client.regex if full else None,
            server_assignor=client.assignor if full else None,
            topic_partitions=[
                ConsumerGroupTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic(client.owns)
            ]
            if full or client.owns != client.told or self.chance.random() < 0.5
            else None,
        )
        self.send(client, message, 1)

    def leave(self, client: Reader, epoch: int) -> None:
        client.is_gone = True
        client.owns = NOTHING
        message = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=client.member_id, member_epoch=epoch, instance_id=client.instance_id
        )
        self.request(message, 1, client.member_id)

    def _heard(self, client: Reader, answer: ConsumerGroupHeartbeatResponse) -> None:
        client.reports = False
        match ErrorCode.of(answer.error_code):
            case ErrorCode.NONE:
                assert answer.member_epoch >= client.epoch
                client.epoch = answer.member_epoch
                told = assigned(answer)
                if told is not None:
                    # It reads new partitions at once, and stops reading removed ones some time before it reports that.
                    client.owns |= told
                    client.told = told
            case ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                client.owns = client.told = NOTHING
                client.epoch = 0
                client.is_gone |= answer.error_code == ErrorCode.FENCED_INSTANCE_ID
            case ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.NOT_COORDINATOR:
                client.reports = True
            case ErrorCode.UNRELEASED_INSTANCE_ID:
                assert client.epoch == 0
            case other:
                raise AssertionError(other)

    def check_owners(self) -> None:
        """Assert that no two present members read a partition: one that was fenced may not know it yet."""
        group = self.coordinator.groups.get("g")
        members = group.kind.members if group is not None and isinstance(group.kind, ConsumerGroup) else {}
        owner: dict[object, str] = {}
        for client in self.clients:
            if client.is_gone or client.member_id not in members or client.epoch == 0:
                continue
            for each in client.owns:
                assert each not in owner, f"{each} is read by {owner[each]} and {client.member_id}"
                owner[each] = client.member_id

    # ---- what happens

    def happen(self) -> None:
        what = self.chance.random()
        alive = self.alive()
        if what < 0.08 or not alive:
            self.join()
        elif what < 0.62:
            self.beat(self.chance.choice(alive))
        elif what < 0.67:
            client = self.chance.choice(alive)
            if not client.waiting and client.epoch > 0:
                self.leave(client, -2 if client.instance_id is not None and self.chance.random() < 0.7 else -1)
        elif what < 0.70:  # it crashes
            self.chance.choice(alive).is_gone = True
        elif what < 0.75:
            client = self.chance.choice(alive)
            client.topics = tuple(self.chance.sample(TOPICS, self.chance.randint(1, 3)))
            client.reports = True
        elif what < 0.82:
            names = self.chance.sample(TOPICS, self.chance.randint(0, 3))
            self.topics.become(
                {name: max(self.topics.counts().get(name, 0), self.chance.randint(1, 8)) for name in names}
            )
        elif what < 0.88:
            self.tick(self.now + self.chance.choice((500, 5_000, 20_000)))
            self.expect_sessions()
        elif what < 0.92:
            self.hold = True
        elif what < 0.94:
            self.reload()
        elif self.held:
            self.end_append()
        if self.hold and self.chance.random() < 0.3:
            self.stop_holding()
        self.hear(losing=0.1)

    def expect_sessions(self) -> None:
        """A client that has sent nothing for a whole session gives up on its own, as the KIP says."""
        for client in self.alive():
            if self.now - client.heard_at >= SESSION_MS:
                client.owns = client.told = NOTHING
                client.epoch = 0

    def join(self) -> None:
        self.made += 1
        here = {client.instance_id for client in self.alive()}
        instance = self.chance.choice((None, None, "i", "j"))
        self.clients.append(
            Reader(
                member_id=f"m{self.made}",
                instance_id=None if instance in here else instance,
                topics=tuple(self.chance.sample(TOPICS, self.chance.randint(1, 3))),
                regex=self.chance.choice((None, None, "[tu]", ".*")),
                assignor=self.chance.choice((None, None, "uniform", "range")),
            )
        )

    def settle(self) -> None:
        """Let nothing happen any more but heartbeats."""
        self.stop_holding()
        self.hear()
        self.topics.become({"t": 5, "u": 3, "v": 2})
        for _ in range(60):
            self.tick(self.now + 5_000)
            for client in self.alive():
                self.beat(client)
            self.hear()


@pytest.mark.parametrize("seed", range(30))
def test_no_partition_has_two_owners_and_the_group_converges(seed: int) -> None:
    world = Members(random.Random(seed))
    world.topics.become({"t": 4, "u": 2})
    group, alive = world.come_to_rest(200), world.alive()
    if group is None:
        return
    assert isinstance(group.kind, ConsumerGroup)
    assert group.kind.state == "Stable"
    assert set(group.kind.members) == {client.member_id for client in alive}
    subscribed = group.kind.subscribed_topics()
    wanted = {
        (name, number) for name, count in world.topics.counts().items() if name in subscribed for number in range(count)
    }
    owned = [(world.topics.name(each.topic_id), each.partition) for client in alive for each in client.owns]
    assert sorted(owned) == sorted(wanted)
    for client in alive:
        assert client.owns == group.kind.current(client.member_id).assigned
