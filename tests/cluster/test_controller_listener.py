"""Kafka's administrators on the controller listener (KIP-919), beside the links of the nodes, on brokers or apart.

The nodes of this module are shared; nothing here breaks them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import broker_wire
import pytest
from broker_wire import connect, is_closed, read_exactly

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kraftpy.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.unregister_broker import UnregisterBrokerRequest
from kraftpy.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kraftpy.testing import Cluster
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(120)]

BROKERS, CONTROLLERS = 1, 2
DYNAMIC_BROKER, STATIC, DEFAULT = 2, 4, 5
"""Sources of settings (DescribeConfigs)."""
OF_KAFKA = {*range(17, 21), *range(29, 34), *range(36, 42), *range(43, 47), *range(49, 52), 55, 57, 60, 64, 80, 81, 94}
"""The APIs of Kafka 4.4.0's controller listener, less those between nodes and those that kraftpy has nowhere."""


@pytest.fixture(scope="module")
def apart() -> Iterator[Cluster]:
    """Two brokers, and three controllers that are nothing else."""
    with Cluster(brokers=2, controllers=3, can_partition=False, keep_on_failure=True) as made:
        yield made


@pytest.fixture(scope="module")
def together() -> Iterator[Cluster]:
    """Three nodes that are brokers and controllers."""
    with Cluster(can_partition=False, keep_on_failure=True) as made:
        yield made


@pytest.fixture(params=["apart", "together"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Cluster)
    return found


def addresses(cluster: Cluster) -> dict[int, str]:
    """The controller listeners of the nodes that vote."""
    return dict(zip(cluster.controllers, cluster.bootstrap_controllers.split(","), strict=True))


def ask(address: str, key: ApiKey, version: int, request: object) -> Any:
    with connect(address) as connection:
        return broker_wire.ask(connection, key, version, request)


def describe(address: str, endpoint_type: int, version: int = 2) -> DescribeClusterResponse:
    request = DescribeClusterRequest(endpoint_type=endpoint_type)
    found = ask(address, ApiKey.DESCRIBE_CLUSTER, version, request)
    assert isinstance(found, DescribeClusterResponse)
    return found


def test_every_controller_names_all_of_them(cluster: Cluster) -> None:
    known = addresses(cluster)
    for address in known.values():
        found = describe(address, CONTROLLERS)
        assert (found.error_code, found.endpoint_type) == (ErrorCode.NONE, CONTROLLERS)
        assert {each.broker_id: f"{each.host}:{each.port}" for each in found.brokers} == known
        assert found.controller_id in known
        assert found.cluster_id == describe(cluster.bootstrap_servers.split(",")[0], BROKERS).cluster_id


def test_a_listener_of_the_other_kind_is_named_as_such(cluster: Cluster) -> None:
    controller, broker = next(iter(addresses(cluster).values())), cluster.bootstrap_servers.split(",")[0]
    wanted = "The request was sent to an endpoint of type {}, but we wanted an endpoint of type {}"
    for address, asked, text in (
        (controller, BROKERS, wanted.format("CONTROLLER", "BROKER")),
        (broker, CONTROLLERS, wanted.format("BROKER", "CONTROLLER")),
    ):
        found = describe(address, asked)
        assert (found.error_code, found.error_message) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, text)
        assert (found.brokers, found.cluster_id, found.controller_id) == ([], "", -1)
        found = describe(address, 3)
        assert (found.error_code, found.error_message) == (
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 3",
        )  # fmt: skip
    assert describe(controller, BROKERS, version=0).error_code == ErrorCode.INVALID_REQUEST


def test_it_lists_what_it_serves(cluster: Cluster) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    for address in addresses(cluster).values():
        found = ask(address, ApiKey.API_VERSIONS, 4, request)
        assert {each.api_key for each in found.api_keys} == OF_KAFKA
        assert {each.name for each in found.finalized_features} >= {"metadata.version", "kraft.version"}


def test_what_is_served_to_clients_only_ends_the_connection(cluster: Cluster) -> None:
    address = next(iter(addresses(cluster).values()))
    with pytest.raises(EOFError):
        ask(address, ApiKey.METADATA, 12, MetadataRequest(topics=[]))
    assert describe(address, CONTROLLERS).error_code == ErrorCode.NONE


def test_any_controller_changes_the_cluster(cluster: Cluster) -> None:
    for node, address in addresses(cluster).items():
        topic = CreatableTopic(name=f"by-{node}", num_partitions=1, replication_factor=1)
        (made,) = ask(address, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000)).topics
        assert made.error_code == ErrorCode.NONE
        change = AlterableConfig(name="retention.ms", config_operation=0, value="1234")
        resource = AlterConfigsResource(resource_type=2, resource_name=f"by-{node}", configs=[change])
        (changed,) = ask(
            address, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[resource])
        ).responses
        assert changed.error_code == ErrorCode.NONE
        asked = DescribeConfigsResource(
            resource_type=2, resource_name=f"by-{node}", configuration_keys=["retention.ms"]
        )
        (found,) = ask(address, ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[asked])).results
        assert [(each.name, each.value) for each in found.configs] == [("retention.ms", "1234")]


def moving(cluster: Cluster) -> list[Any]:
    """The topics whose replicas are on the move, as each controller lists them."""
    request = ListPartitionReassignmentsRequest()
    answers = [ask(each, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, request) for each in addresses(cluster).values()]
    return [topic for answer in answers for topic in answer.topics]


def test_any_controller_moves_replicas_changes_features_and_unregisters(cluster: Cluster) -> None:
    for node, address in addresses(cluster).items():
        name = f"moved-by-{node}"
        placed = CreatableReplicaAssignment(partition_index=0, broker_ids=[cluster.brokers[0]])
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=[placed])
        (made,) = ask(address, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=20_000)).topics
        assert made.error_code == ErrorCode.NONE
        partition = ReassignablePartition(partition_index=0, replicas=[cluster.brokers[1]])
        move = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=name, partitions=[partition])])
        begun = ask(address, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, move)
        assert [each.error_code for each in begun.responses[0].partitions] == [ErrorCode.NONE]
        eventually(lambda: not moving(cluster))
        update = FeatureUpdateKey(feature="group.version", max_version_level=1)
        told = ask(address, ApiKey.UPDATE_FEATURES, 1, UpdateFeaturesRequest(feature_updates=[update]))
        assert (told.error_code, told.error_message) == (ErrorCode.NONE, None)
        gone = ask(address, ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(broker_id=77))
        assert gone.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_quorum_describes_itself(cluster: Cluster) -> None:
    topic = QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])
    known = addresses(cluster)
    for address in known.values():
        found = ask(address, ApiKey.DESCRIBE_QUORUM, 2, DescribeQuorumRequest(topics=[topic]))
        (partition,) = found.topics[0].partitions
        assert {voter.replica_id for voter in partition.current_voters} == set(known)
        assert {node.node_id for node in found.nodes} == set(known)


def test_a_request_may_come_in_any_pieces_and_behind_others(cluster: Cluster) -> None:
    """The first bytes decide whose connection it is, however few of them come at a time."""
    address = next(iter(addresses(cluster).values()))
    request = DescribeClusterRequest(endpoint_type=CONTROLLERS)
    frames = b"".join(encode_request(ApiKey.DESCRIBE_CLUSTER, 2, number, "pieces", request) for number in range(3))
    with connect(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(12):
            connection.sendall(frames[at : at + 1])
        connection.sendall(frames[12:])
        for number in range(3):
            (size,) = struct.unpack(">i", read_exactly(connection, 4))
            assert struct.unpack_from(">i", read_exactly(connection, size))[0] == number


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">i", 1 << 30) + bytes(1),
        struct.pack(">i", 8) + bytes(8),
        struct.pack(">i", 0) + bytes(64),
        struct.pack(">i", -1) + bytes(64),
        bytes(4096),
    ],
    ids=["huge", "zeros", "empty", "negative", "only zeros"],
)
def test_bytes_of_nobody_cost_their_connection(cluster: Cluster, sent: bytes) -> None:
    address = next(iter(addresses(cluster).values()))
    with connect(address) as odd:
        odd.sendall(sent)
        assert describe(address, CONTROLLERS).error_code == ErrorCode.NONE
        assert is_closed(odd)


def test_the_nodes_are_still_one_cluster(cluster: Cluster) -> None:
    """Clients of the controller listener are not mistaken for nodes that failed to prove themselves."""
    for node in cluster.nodes:
        assert "a connection of the quorum" not in cluster.logs(node)
        assert "Traceback" not in cluster.logs(node)


def test_a_controller_s_own_settings_are_changed_and_told(cluster: Cluster) -> None:
    """A controller that is no broker, and is registered nowhere, tells its settings and their sources, too."""
    for node, address in addresses(cluster).items():
        setting = AlterableConfig(name="message.max.bytes", value=f"{100_000 + node}", config_operation=0)
        resource = AlterConfigsResource(resource_type=4, resource_name=str(node), configs=[setting])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        answer = ask(address, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses[0]
        assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
        asked = DescribeConfigsResource(
            resource_type=4,
            resource_name=str(node),
            configuration_keys=["message.max.bytes", "node.id", "num.partitions"],
        )

        def told(address: str = address, asked: DescribeConfigsResource = asked) -> dict[str, tuple[str, int]]:
            found = ask(address, ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[asked])).results[0]
            return {each.name: (each.value, each.config_source) for each in found.configs}

        changed = (setting.value, DYNAMIC_BROKER)
        eventually(lambda changed=changed, told=told: told()["message.max.bytes"] == changed)
        assert told()["node.id"] == (str(node), STATIC)
        assert told()["num.partitions"] == ("1", DEFAULT)
