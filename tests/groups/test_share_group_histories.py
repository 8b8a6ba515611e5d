"""Random histories of share groups (KIP-932), with clients that behave as the KIP has them behave.

Answers get lost, members crash, leave and come back; topics come, grow and go; appends fail; share coordinators are
slow or refuse; the coordinator moves; administrators set and forget start offsets and delete groups. In every case,
no member is assigned a partition the share coordinators do not keep the state of, and they keep exactly what the group
knows of; and when nothing happens any more, every partition is read, and by the members the coordinator names.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from assignment_words import assigned
from histories import Client, Clients
from share_words import partitions_asked, read_alteration

from kraftpy.groups.assignment import NOTHING, Assignment, TopicIdPartition
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.share.records import partitions_of
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsResponse
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from kraftpy.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

TOPICS = ("t", "u", "v")
AGAIN = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass(kw_only=True)
class Reader(Client):
    """A member as it sees itself."""

    topics: tuple[str, ...]
    reads: Assignment = NOTHING


class Members(Clients[Reader, ShareGroupHeartbeatResponse]):
    """Clients of one group, its administrators, and what happens to them."""

    beaten = ShareGroupHeartbeatResponse

    def check(self) -> None:
        super().check()
        group = self.coordinator.groups.get("g")
        if group is None or not isinstance(group.kind, ShareGroup) or group.is_dead:
            return
        share = group.kind
        kept = self.share_coordinators.of("g").keys()
        there = frozenset(
            info.topic_id for name in self.topics.names() if (info := self.topics.topic(name)) is not None
        )
        lost = {each for each in partitions_of(share.partitions.initialized) if each.topic_id in there} - kept
        assert not lost, (share.partitions, lost)
        known = {*share.partitions.initializing, *share.partitions.initialized, *share.partitions.deleting}
        assert {each.topic_id for each in kept} <= known, (known, kept)
        for current in share.currents.values():
            lost = {each for each in current.assigned if each.topic_id in there} - kept
            assert not lost, lost

    # ---- what a client does

    def beat(self, client: Reader) -> None:
        if client.waiting:
            return
        full = client.reports or client.epoch == 0
        message = ShareGroupHeartbeatRequest(
            group_id="g",
            member_id=client.member_id,
            member_epoch=client.epoch,
            subscribed_topic_names=list(client.topics) if full else None,
        )
        self.send(client, message, 1)

    def leave(self, client: Reader) -> None:
        client.is_gone = True
        self.request(ShareGroupHeartbeatRequest(group_id="g", member_id=client.member_id, member_epoch=-1), 1)

    def _heard(self, client: Reader, answer: ShareGroupHeartbeatResponse) -> None:
        client.reports = False
        if answer.error_code:
            assert answer.error_code in AGAIN, ErrorCode.of(answer.error_code)
            client.reports = True
            if answer.error_code in AGAIN[:3]:
                client.epoch, client.reads = 0, NOTHING
            return
        assert answer.member_epoch >= client.epoch
        client.epoch = answer.member_epoch
        told = assigned(answer)
        if told is not None:
            client.reads = told

    # ---- what happens

    def happen(self) -> None:
        what = self.chance.random()
        alive = self.alive()
        if what < 0.08 or not alive:
            self.join()
        elif what < 0.50:
            self.beat(self.chance.choice(alive))
        elif what < 0.58:
            client = self.chance.choice(alive)
            if not client.waiting and client.epoch > 0:
                self.leave(client)
        elif what < 0.61:  # it crashes
            self.chance.choice(alive).is_gone = True
        elif what < 0.66:
            client = self.chance.choice(alive)
            client.topics = tuple(self.chance.sample(TOPICS, self.chance.randint(1, 3)))
            client.reports = True
        elif what < 0.72:
            self.change_topics()
        elif what < 0.78:
            self.tick(self.now + self.chance.choice((500, 5_000, 20_000)))
        elif what < 0.84:
            self.administer()
        elif what < 0.87:
            self.hold = True
        elif what < 0.90:
            self.silent = True
        elif what < 0.92:
            self.reload()
        elif self.asked:
            asked = self.chance.choice(self.asked)
            failing = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
            lot = partitions_asked(asked)
            self.told(asked.token, {each: self.chance.choice(failing) for each in lot if self.chance.random() < 0.2})
        elif self.held:
            self.end_append()
        if self.chance.random() < 0.15:
            self.stop_holding()
        if self.chance.random() < 0.15:
            self.silent = False
            self.go_on()
        self.hear(losing=0.1)

    def change_topics(self) -> None:
        counts = self.topics.counts()
        gone = [name for name in sorted(counts) if self.chance.random() < 0.2]
        if gone:
            self.delete_topics(*gone)
        counts = self.topics.counts()
        for name in self.chance.sample(TOPICS, self.chance.randint(0, 3)):
            counts[name] = max(counts.get(name, 0), self.chance.randint(1, 8))
        self.topics.become(counts)

    def administer(self) -> None:
        what = self.chance.random()
        if what < 0.3:
            self.request(DeleteGroupsRequest(groups_names=["g"]), 2)
        elif what < 0.6:
            wanted = [f"{name}:{number}={self.chance.randint(-1, 9)}" for name in TOPICS for number in range(3)]
            self.request(read_alteration("g", self.chance.sample(wanted, 3)), 0)
        else:
            topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=self.chance.choice(TOPICS))]
            self.request(DeleteShareGroupOffsetsRequest(group_id="g", topics=topics), 0)

    def join(self) -> None:
        self.made += 1
        topics = tuple(self.chance.sample(TOPICS, self.chance.randint(1, 3)))
        self.clients.append(Reader(member_id=f"m{self.made}", topics=topics))

    def settle(self) -> None:
        """Let nothing happen any more but heartbeats."""
        self.hold = self.silent = False
        self.go_on()
        self.hear()
        self.topics.become({**self.topics.counts(), "t": max(self.topics.counts().get("t", 0), 5)})
        for _ in range(30):
            self.tick(self.now + 5_000)
            for client in self.alive():
                self.beat(client)
            self.hear()


@pytest.mark.parametrize("seed", range(25))
def test_what_is_read_has_state_and_in_the_end_everything_is_read(seed: int) -> None:
    world = Members(random.Random(seed))
    world.topics.become({"t": 4, "u": 2})
    group, alive = world.come_to_rest(250), world.alive()
    if group is None:
        return
    assert isinstance(group.kind, ShareGroup)
    assert set(group.kind.members) == {client.member_id for client in alive}
    for client in alive:
        assert client.reads == group.kind.current(client.member_id).assigned == group.kind.target(client.member_id)
    for name, count in world.topics.counts().items():
        readers = [client for client in alive if name in client.topics]
        info = world.topics.topic(name)
        assert info is not None
        partitions = [TopicIdPartition(info.topic_id, number) for number in range(count)]
        shared = Counter(each for client in readers for each in client.reads if each.topic_id == info.topic_id)
        if readers:
            assert shared.keys() == set(partitions), (shared, partitions)
        assert all(name in client.topics for client in alive for each in client.reads if each in partitions)


@pytest.mark.parametrize("seed", range(8))
def test_administrators_are_answered_and_a_group_that_is_gone_leaves_nothing(seed: int) -> None:
    world = Members(random.Random(1_000 + seed))
    world.topics.become({"t": 4, "u": 2})
    for _ in range(150):
        world.happen()
    world.hold = world.silent = False
    world.go_on()
    for client in world.alive():
        client.is_gone = True
    world.tick(world.now + 100_000)
    altered = world.request(read_alteration("g", ["t:0=7"]), 0)
    answer = world.answers[altered]
    assert isinstance(answer, AlterShareGroupOffsetsResponse)
    if "t" in world.topics.counts():
        assert [each.error_code for topic in answer.responses for each in topic.partitions] == [0]
        partition = TopicIdPartition(world.topics.last_id("t"), 0)
        assert world.share_coordinators.of("g")[partition][1] == 7
    deleted = world.request(DeleteGroupsRequest(groups_names=["g"]), 2)
    results = world.answers[deleted]
    assert isinstance(results, DeleteGroupsResponse)
    assert [each.error_code for each in results.results] in ([0], [ErrorCode.GROUP_ID_NOT_FOUND])
    assert world.share_coordinators.of("g") == {}
    assert world.coordinator.groups == {}
    world.check_replay()
