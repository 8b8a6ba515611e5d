"""A leader that is cut off gives no answer that its successor may have made wrong.

It does not answer that an offset is past the log's end: a consumer with such an offset of its group, and metadata from
before, would read everything again. And it hands out nothing to a share group: its successor may have been told that it
is done.

Each test has its own cluster, because it leaves nodes cut off and elections behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_wire import connect
from confluent_kafka import Producer
from cutting import BOUND_SECONDS, SETTINGS, ask_node, create, cut_off, until
from share_wire import ACCEPT, Member, acquired, begin

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def _members_are_gone_afterwards() -> Iterator[None]:
    yield
    while Member.there:
        Member.there.pop().vanish()


def _fetched(cluster: Cluster, node: int, offset: int) -> ErrorCode:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=100, min_bytes=0, topics=[FetchTopic(topic="t", partitions=[partition])])
    answer = ask_node(cluster, node, ApiKey.FETCH, 11, request)
    return ErrorCode.of(answer.responses[0].partitions[0].error_code)


def _produce(cluster: Cluster, node: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.address(node), "acks": "all"})
    for number in range(count):
        producer.produce("t", value=str(number), partition=0)
    assert producer.flush(BOUND_SECONDS) == 0


def _leader(cluster: Cluster, asked: int) -> int | None:
    return cluster.leader_of("t", ask=asked)


def _queue(cluster: Cluster, leader: int, topic_id: bytes) -> None:
    """Four records of "t", and the group "g" that will receive them, at a partition that is in sync."""
    _produce(cluster, leader, 4)
    with connect(cluster.address(leader)) as connection:
        begin(connection, "g", topic_id, data=cluster.node_directory(leader) / "data", is_alone=False)
    cluster.wait_in_sync()


def _isr(cluster: Cluster, asked: int) -> list[int]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    return list(ask_node(cluster, asked, ApiKey.METADATA, 9, request).topics[0].partitions[0].isr_nodes)


def test_it_says_of_no_offset_that_there_is_none() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        create(cluster, "t")
        old = until(lambda: _leader(cluster, 1), "nobody leads")
        assert old is not None
        cluster.wait_in_sync()
        assert _fetched(cluster, old, 7) is ErrorCode.OFFSET_OUT_OF_RANGE, "who leads says it, and at once"
        new = cut_off(cluster, old, lambda asked: _leader(cluster, asked))
        _produce(cluster, new, 7)
        assert _fetched(cluster, old, 7) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it leads no more"
        assert _fetched(cluster, new, 7) is ErrorCode.NONE
        assert _fetched(cluster, new, 8) is ErrorCode.OFFSET_OUT_OF_RANGE, "two of three are enough"
        cluster.heal()
        until(lambda: _leader(cluster, old) == new, "it never heard of its successor")


def test_it_hands_out_nothing_that_was_accepted_from_its_successor() -> None:
    with Cluster(settings=SETTINGS, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        old = until(lambda: _leader(cluster, 1), "nobody leads")
        assert old is not None
        _queue(cluster, old, topic_id)
        stays, other = (Member(cluster.address(old), "g", topic_id) for _ in range(2))
        assert stays.take(2, max_records=2, share_acquire_mode=1) == [(0, 1), (1, 1)]
        assert other.fetch(max_records=0) is None, "a session that begins before the cut"

        new = cut_off(cluster, old, lambda asked: _leader(cluster, asked))
        member = Member(cluster.address(new), "g", topic_id)
        assert [offset for offset, _ in member.take(4)] == [0, 1, 2, 3]
        assert member.acknowledge([(0, 3, [ACCEPT])]) is ErrorCode.NONE

        part = other.fetch(wait_ms=100)
        assert acquired(part) == [], "what was accepted is handed out again"
        assert ErrorCode.of(part.error_code) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.heal()
        until(lambda: _leader(cluster, old) == new, "it never heard of its successor")
        assert member.fetch(wait_ms=100) is None, "nothing is left"


def test_a_leader_with_too_few_in_sync_hands_out_all_the_same() -> None:
    """The replicas that may be elected cannot all be asked; the quorum can be. Otherwise a queue would stand still."""
    with Cluster(settings={**SETTINGS, "min.insync.replicas": "3"}, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t")
        leader = until(lambda: _leader(cluster, 1), "nobody leads")
        assert leader is not None
        _queue(cluster, leader, topic_id)
        member = Member(cluster.address(leader), "g", topic_id)
        assert member.take(2, max_records=2, share_acquire_mode=1) == [(0, 1), (1, 1)]
        cluster.kill(next(node for node in cluster.nodes if node != leader))
        until(lambda: len(_isr(cluster, leader)) == 2, "the ISR never became smaller")
        assert member.take(2, also={ErrorCode.NOT_LEADER_OR_FOLLOWER}) == [(2, 1), (3, 1)]


@pytest.mark.parametrize("is_quorum_leader", [False, True], ids=["a follower", "the quorum's leader too"])
def test_a_follower_that_is_silent_does_not_stop_a_queue(is_quorum_leader: bool) -> None:
    """It is in the ISR until its session is over, and a member would have to wait for that.

    If it led the quorum, another has to be elected first; meanwhile members get a retriable error.
    """
    settings = {**SETTINGS, "broker.session.timeout.ms": "60000", "replica.lag.time.max.ms": "60000"}
    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        quorum_leader = until(cluster.quorum_leader, "nobody leads the quorum")
        assert quorum_leader is not None
        followers = [node for node in cluster.nodes if node != quorum_leader]
        leader = followers[0] if is_quorum_leader else quorum_leader
        silent = quorum_leader if is_quorum_leader else followers[0]
        topic_id = create(cluster, "t", [leader, *(node for node in cluster.nodes if node != leader)])
        until(lambda: _leader(cluster, leader) == leader, "the first replica does not lead")
        _queue(cluster, leader, topic_id)
        member = Member(cluster.address(leader), "g", topic_id)
        assert member.take(2, max_records=2, share_acquire_mode=1) == [(0, 1), (1, 1)]
        cluster.pause(silent)
        assert member.take(2, also={ErrorCode.NOT_LEADER_OR_FOLLOWER}) == [(2, 1), (3, 1)]
        assert len(_isr(cluster, leader)) == 3, "it had not left the ISR meanwhile"
        cluster.resume(silent)
