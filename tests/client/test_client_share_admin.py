"""Our admin client on share groups (KIP-932), against one broker, and against three, one of which dies.

The test in which a node dies has its own cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from kraftpy.client import Admin, ErrorCode, KafkaError, NewTopic, Producer, TopicPartition
from kraftpy.client.admin.model import FeatureUpgrade, ShareGroupOffset
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.nodes import Cluster

QUICK = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
}
BOUND_SECONDS = 60.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with EmbeddedBroker(settings=QUICK) as broker:
        yield broker.bootstrap
        assert "Traceback" not in broker.log_text, broker.log_text


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        yield admin


async def beat(admin: Admin, group_id: str, member_id: str, epoch: int, *topics: str) -> Any:
    """Send one heartbeat of a member to the current coordinator."""
    request = ShareGroupHeartbeatRequest(
        group_id=group_id, member_id=member_id, member_epoch=epoch, subscribed_topic_names=list(topics) or None
    )

    async def attempt() -> Any:
        answer = await admin._cluster.ask_coordinator(group_id, ApiKey.SHARE_GROUP_HEARTBEAT, request)
        if answer.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            raise KafkaError(ErrorCode.of(answer.error_code))
        if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return answer

    return await admin._cluster.retry(attempt, group_id=group_id)


async def joined(admin: Admin, group_id: str, member_id: str, topic: str, partitions: int) -> Any:
    """Join, and send heartbeats until `partitions` partitions are assigned."""
    answer = await beat(admin, group_id, member_id, 0, topic)
    async with asyncio.timeout(BOUND_SECONDS):
        while sum(len(each.partitions) for each in answer.assignment.topic_partitions) < partitions:
            await asyncio.sleep(0.1)
            answer = await beat(admin, group_id, member_id, answer.member_epoch, topic)
            assert answer.error_code == 0, answer
    return answer


async def test_a_share_group_from_its_first_member_to_its_deletion(admin: Admin, bootstrap: str) -> None:
    await admin.create_topics([NewTopic(name="t", num_partitions=3)])
    answer = await joined(admin, "g", "a", "t", 3)
    assert answer.heartbeat_interval_ms == 200
    described = (await admin.describe_groups(["g"]))["g"]
    assert (described.state, described.group_type, described.protocol) == ("Stable", "share", "simple")
    (member,) = described.members
    assert (member.member_id, member.member_epoch) == ("a", answer.member_epoch)
    assert member.partitions == tuple(TopicPartition("t", number) for number in range(3))
    (listed,) = [each for each in await admin.list_groups(states=["Stable"]) if each.group_id == "g"]
    assert (listed.group_type, listed.protocol_type) == ("share", "share")

    zero = TopicPartition("t", 0)
    with pytest.raises(KafkaError) as refused:
        await admin.alter_share_group_offsets("g", {zero: 0})
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    with pytest.raises(KafkaError) as refused:
        await admin.delete_groups(["g"])
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    with pytest.raises(KafkaError) as refused:
        await admin.alter_group_offsets("g", {zero: 0})
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    assert (await beat(admin, "g", "a", -1)).member_epoch == -1
    assert (await admin.describe_groups(["g"]))["g"].state == "Empty"
    await admin.delete_groups(["g"])
    assert (await admin.describe_groups(["g"]))["g"].state == "Dead"
    assert await admin.list_share_group_offsets("g") == {}


async def test_start_offsets_are_set_listed_and_forgotten(admin: Admin, bootstrap: str) -> None:
    await admin.create_topics([NewTopic(name="u", num_partitions=2)])
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait("u", b"%d" % number, partition=0)
    zero, one = TopicPartition("u", 0), TopicPartition("u", 1)
    await admin.alter_share_group_offsets("h", {zero: 4, one: 0})
    assert (await admin.describe_groups(["h"]))["h"].state == "Empty"
    listed = await admin.list_share_group_offsets("h")
    assert {name: at.start_offset for name, at in listed.items()} == {zero: 4, one: 0}
    only = await admin.list_share_group_offsets("h", [zero, TopicPartition("u", 7), TopicPartition("none", 0)])
    assert only[zero] == listed[zero]
    unknown = ShareGroupOffset(start_offset=None, leader_epoch=0, lag=None)
    assert only[TopicPartition("u", 7)] == only[TopicPartition("none", 0)] == unknown

    with pytest.raises(KafkaError) as refused:
        await admin.alter_share_group_offsets("h", {TopicPartition("u", 7): 0})
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        await admin.delete_share_group_offsets("h", ["none"])
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError) as refused:
        await admin.delete_share_group_offsets("no-group", ["u"])
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    await admin.delete_share_group_offsets("h", ["u"])
    assert await admin.list_share_group_offsets("h") == {}
    await admin.delete_groups(["h"])


async def test_what_is_not_there_is_told_and_not_waited_for(bootstrap: str) -> None:
    """However long the client may wait for an answer."""
    async with Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=3_600_000) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=1) for name in ("w", "unread")])
        await admin.alter_share_group_offsets("j", {TopicPartition("w", 0): 0})
        await admin.alter_group_offsets("j-classic", {TopicPartition("w", 0): 0})
        for call in (
            admin.alter_share_group_offsets("j", {TopicPartition("w", 1): 0}),
            admin.alter_share_group_offsets("j", {TopicPartition("w", 0): 0, TopicPartition("none", 0): 0}),
            admin.delete_share_group_offsets("j", ["none"]),
            admin.delete_share_group_offsets("j", ["unread"]),
            admin.alter_group_offsets("j-classic", {TopicPartition("none", 0): 0}),
        ):
            with pytest.raises(KafkaError) as refused:
                async with asyncio.timeout(BOUND_SECONDS):
                    await call
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await admin.delete_groups(["j", "j-classic"])


async def test_a_topic_the_coordinator_does_not_know_yet_is_waited_for(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.create_topics([NewTopic(name="x", num_partitions=1)])
    zero = TopicPartition("x", 0)
    ask_coordinator = admin._cluster.ask_coordinator
    behind = {ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.OFFSET_COMMIT}

    async def ask_one_that_is_behind(group_id: str, key: ApiKey, message: Any, **how: Any) -> Any:
        """At first it does not know the topic."""
        if key in behind:
            behind.remove(key)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await ask_coordinator(group_id, key, message, **how)

    monkeypatch.setattr(admin._cluster, "ask_coordinator", ask_one_that_is_behind)
    await admin.alter_share_group_offsets("k", {zero: 7})
    assert (await admin.list_share_group_offsets("k"))[zero].start_offset == 7
    await admin.alter_group_offsets("k-classic", {zero: 8})
    assert (await admin.list_group_offsets("k-classic"))[zero].offset == 8
    assert not behind
    await admin.delete_groups(["k", "k-classic"])


async def test_a_topic_that_is_deleted_is_forgotten_by_its_groups(admin: Admin, bootstrap: str) -> None:
    await admin.create_topics([NewTopic(name="v", num_partitions=1)])
    await admin.alter_share_group_offsets("i", {TopicPartition("v", 0): 3})
    await admin.delete_topics(["v"])
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            if not await admin.list_share_group_offsets("i"):
                break
            await asyncio.sleep(0.05)
    await admin.create_topics([NewTopic(name="v", num_partitions=1)])
    assert await admin.list_share_group_offsets("i") == {}, "one of that name is another"
    await admin.delete_groups(["i"])


async def test_a_cluster_without_the_feature_has_no_share_groups(start_broker: Callable[..., EmbeddedBroker]) -> None:
    broker = await asyncio.to_thread(start_broker, settings=QUICK)
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic(name="t", num_partitions=1)])
        zero = TopicPartition("t", 0)
        await admin.alter_share_group_offsets("g", {zero: 0})
        await admin.update_features({"share.version": 0}, upgrade=FeatureUpgrade.SAFE_DOWNGRADE)
        assert (await beat(admin, "g", "a", 0, "t")).error_code == ErrorCode.UNSUPPORTED_VERSION
        for call in (
            admin.alter_share_group_offsets("g", {zero: 0}),
            admin.delete_share_group_offsets("g", ["t"]),
            admin.list_share_group_offsets("g"),
        ):
            with pytest.raises(KafkaError) as refused:
                await call
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        await admin.update_features({"share.version": 1})
        assert (await admin.list_share_group_offsets("g"))[zero].start_offset == 0


async def test_members_and_start_offsets_outlive_their_coordinators() -> None:
    settings = {
        **QUICK,
        "group.share.session.timeout.ms": "30000",
        "offsets.topic.replication.factor": "3",
        "share.coordinator.state.topic.replication.factor": "3",
        "share.coordinator.state.topic.min.isr": "2",
    }
    with Cluster(3, settings=settings) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topics([NewTopic(name="t", num_partitions=6, replication_factor=3)])
            places = {TopicPartition("t", number): number * 10 for number in range(6)}
            await admin.alter_share_group_offsets("g", places)
            answer = await joined(admin, "g", "a", "t", 6)
            coordinator = await asyncio.to_thread(cluster.coordinator_of, "g")
            assert coordinator is not None
            await asyncio.to_thread(cluster.kill, coordinator)
            again = await beat(admin, "g", "a", answer.member_epoch)
            assert (again.error_code, again.member_epoch) == (0, answer.member_epoch), "it is a member, as before"
            described = (await admin.describe_groups(["g"]))["g"]
            assert (described.state, len(described.members)) == ("Stable", 1)
            assert len(described.members[0].partitions) == 6
            async with asyncio.timeout(BOUND_SECONDS):  # states that cannot be read yet are not known
                while True:
                    listed = await admin.list_share_group_offsets("g")
                    if {name: at.start_offset for name, at in listed.items()} == places:
                        break
                    await asyncio.sleep(0.2)
            await beat(admin, "g", "a", -1)
            await admin.delete_groups(["g"])
            assert await admin.list_share_group_offsets("g") == {}
