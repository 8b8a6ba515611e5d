"""A client that poses as a broker: it acknowledges no records, and writes no states of share groups (CVE-2018-1288).

It has its own cluster, because a follower is frozen.
"""

from __future__ import annotations

from typing import Any

import pytest
from broker_wire import answer, ask, connect
from cutting import SETTINGS, ask_node, create, until

from kraftpy.broker.broker_proof import SOFTWARE
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages import write_share_group_state as writing
from kraftpy.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kraftpy.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.testing import Cluster

pytestmark = [pytest.mark.timeout(180)]


def poses(cluster: Cluster, leader: int, topic_id: bytes, follower: int, epoch: int, offset: int, said: str) -> Any:
    """Fetch as a follower that has everything before `offset`, after saying who that is."""
    replica = ReplicaState(replica_id=follower, replica_epoch=epoch)
    partition = FetchPartition(
        partition=0, fetch_offset=offset, current_leader_epoch=-1, log_start_offset=0, partition_max_bytes=1 << 20
    )
    request = FetchRequest(
        replica_state=replica,
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchTopic(topic_id=topic_id, partitions=[partition])],
    )
    with connect(between_brokers(cluster, leader)) as connection:
        if said:
            hello = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version=said)
            assert ask(connection, ApiKey.API_VERSIONS, 3, hello).error_code == ErrorCode.NONE
        answered = ask(connection, ApiKey.FETCH, 17, request)
    return answered.error_code or answered.responses[0].partitions[0].error_code


def between_brokers(cluster: Cluster, node: int) -> str:
    """The address of the listener that brokers use among themselves, which by default is that of clients too."""
    lines = (cluster.node_directory(node) / "server.properties").read_text().splitlines()
    found = dict(line.partition("=")[::2] for line in lines)
    name = found["inter.broker.listener.name"]
    listeners = dict(each.partition("://")[::2] for each in found["listeners"].split(","))
    return listeners[name]


def end_offset(cluster: Cluster, node: int) -> int:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[asked])], timeout_ms=1000)
    return int(ask_node(cluster, node, ApiKey.LIST_OFFSETS, 6, request).topics[0].partitions[0].offset)


def others_requests(cluster: Cluster) -> None:
    """Send requests that only brokers may send, as a client that claims to be one, on either listener."""
    part = writing.PartitionData(partition=0, state_epoch=1, leader_epoch=0, start_offset=9, state_batches=[])
    states = writing.WriteShareGroupStateRequest(
        group_id="g", topics=[writing.WriteStateData(topic_id=bytes(15) + b"t", partitions=[part])]
    )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="mine", producer_id=1, producer_epoch=0, verify_only=False, topics=[]
    )
    adding = AddPartitionsToTxnRequest(transactions=[transaction])
    hello = ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version=f"1.1.{'0' * 64}")
    for address in (cluster.address(1), between_brokers(cluster, 1)):
        with connect(address) as connection:
            assert ask(connection, ApiKey.API_VERSIONS, 3, hello).error_code == ErrorCode.NONE
            written = ask(connection, ApiKey.WRITE_SHARE_GROUP_STATE, 0, states).results[0].partitions[0]
            assert written.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            for version in (4, 5):
                added = ask(connection, ApiKey.ADD_PARTITIONS_TO_TXN, version, adding)
                assert added.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_frozen_followers_acknowledgement_comes_from_itself_alone() -> None:
    """One client said "I am broker 2", and acks=all succeeded with one copy."""
    settings = {**SETTINGS, "broker.session.timeout.ms": "60000", "replica.lag.time.max.ms": "60000"}
    with Cluster(settings=settings, keep_on_failure=True) as cluster:
        topic_id = create(cluster, "t", (1, 2, 3))
        until(lambda: cluster.leader_of("t", ask=1) == 1, "node 1 does not lead")
        cluster.wait_in_sync()
        for follower in (2, 3):
            cluster.pause(follower)
        batch = encode_batch([(1_700_000_000_000, None, b"one copy", ())])
        data = PartitionProduceData(index=0, records=batch)
        topics = [TopicProduceData(name="t", partition_data=[data])]
        with connect(cluster.address(1)) as producer:
            request = ProduceRequest(acks=-1, timeout_ms=4_000, topic_data=topics)
            producer.sendall(encode_request(ApiKey.PRODUCE, 9, 7, "test", request))
            for follower in (2, 3):
                for epoch in (-1, *range(40)):
                    code = poses(cluster, 1, topic_id, follower, epoch, 1, "")
                    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    if epoch < 8:
                        said = f"{follower}.{max(epoch, 0)}.{'0' * 64}"
                        code = poses(cluster, 1, topic_id, follower, epoch, 1, said)
                        assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert end_offset(cluster, 1) == 0, "nothing is committed"
            answered = answer(producer, ApiKey.PRODUCE, 9).responses[0].partition_responses[0]
            assert answered.error_code == ErrorCode.REQUEST_TIMED_OUT
        others_requests(cluster)
        for follower in (2, 3):
            cluster.resume(follower)
        cluster.wait_in_sync()
        until(lambda: end_offset(cluster, 1) == 1, "its followers do not follow any more")
