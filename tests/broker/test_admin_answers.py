"""Administration over the wire: what each request answers where Kafka 4.3.1, asked the same, was found to answer so."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker_wire import BOUND_SECONDS, StartBroker, ask, connect, create_topic

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages import alter_configs as replacing
from kraftpy.protocol.messages import incremental_alter_configs as changing
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kraftpy.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kraftpy.protocol.messages.describe_cluster import DescribeClusterRequest
from kraftpy.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.init_producer_id import InitProducerIdRequest
from kraftpy.protocol.messages.metadata import MetadataRequest
from kraftpy.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
)
from kraftpy.protocol.messages.unregister_controller import UnregisterControllerRequest
from kraftpy.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from kraftpy.testing.cluster import EmbeddedBroker

NO_ID = bytes(16)


@pytest.fixture
def asking(kraftpy_server: EmbeddedBroker) -> Iterator[socket.socket]:
    with connect(kraftpy_server.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    return f"admin-{time.time_ns()}"


def partitions_of(asking: socket.socket) -> dict[str, int]:
    topics = ask(asking, ApiKey.METADATA, 12, MetadataRequest(topics=None)).topics
    return {found.name: len(found.partitions) for found in topics}


# --- no time ---


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_request_without_time_does_nothing(
    asking: socket.socket, topic: str, timeout_ms: int, validate_only: bool
) -> None:
    create_topic(asking, topic)
    new = CreatableTopic(name=f"{topic}-new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    more = CreatePartitionsTopic(name=topic, count=3, assignments=None)
    several: Any = [
        ask(
            asking,
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[new], timeout_ms=timeout_ms, validate_only=validate_only),
        ).topics,
        ask(
            asking,
            ApiKey.CREATE_PARTITIONS,
            3,
            CreatePartitionsRequest(topics=[more], timeout_ms=timeout_ms, validate_only=validate_only),
        ).results,
        ask(
            asking,
            ApiKey.DELETE_TOPICS,
            6,
            DeleteTopicsRequest(topics=[DeleteTopicState(name=topic, topic_id=NO_ID)], timeout_ms=timeout_ms),
        ).responses,
        ask(
            asking,
            ApiKey.DELETE_TOPICS,
            5,
            DeleteTopicsRequest(topic_names=[topic], timeout_ms=timeout_ms),
        ).responses,
    ]
    assert [result.error_code for results in several for result in results] == [ErrorCode.REQUEST_TIMED_OUT] * 4
    found = partitions_of(asking)
    assert (found.get(topic), f"{topic}-new" in found) == (1, False)


# --- topics ---


def test_what_is_wrong_with_a_name_is_told_before_its_settings(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    bad = [CreatableTopicConfig(name="no.such", value="1")]
    named = {
        topic: ErrorCode.TOPIC_ALREADY_EXISTS,
        "sp ace": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "__cluster_metadata": ErrorCode.INVALID_REQUEST,
        f"{topic}-new": ErrorCode.INVALID_CONFIG,
    }
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=bad) for name in named
    ]
    found = ask(asking, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics)).topics
    assert {each.name: each.error_code for each in found} == named


def test_what_a_request_names_twice_is_refused_once(asking: socket.socket, topic: str) -> None:
    topic_id = create_topic(asking, topic)
    new = CreatableTopic(name=f"{topic}-new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    other = CreatableTopic(name=f"{topic}-other", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    created = ask(asking, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new, other, new])).topics
    assert sorted((each.name, each.error_code) for each in created) == [
        (f"{topic}-new", ErrorCode.INVALID_REQUEST),
        (f"{topic}-other", ErrorCode.NONE),
    ]
    more = [CreatePartitionsTopic(name=topic, count=3, assignments=None)] * 2
    (grown,) = ask(asking, ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(topics=more, timeout_ms=5000)).results
    by_id = [DeleteTopicState(name=None, topic_id=topic_id)] * 2
    by_name = DeleteTopicsRequest(topic_names=[topic, topic], timeout_ms=5000)
    (first,) = ask(asking, ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=by_id, timeout_ms=5000)).responses
    (second,) = ask(asking, ApiKey.DELETE_TOPICS, 5, by_name).responses
    assert [each.error_code for each in (grown, first, second)] == [ErrorCode.INVALID_REQUEST] * 3
    assert partitions_of(asking)[topic] == 1


# --- settings ---

SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_BROKER, OF_GROUP = 2, 4, 32


def described(asking: socket.socket, kind: int, name: str, keys: list[str] | None) -> Any:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (result,) = ask(asking, ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource])).results
    return result


def changed(asking: socket.socket, kind: int, name: str, key: str, value: str | None, operation: int = SET) -> Any:
    config = changing.AlterableConfig(name=key, config_operation=operation, value=value)
    resource = changing.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    request = changing.IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = ask(asking, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    return result.error_code, result.error_message


def value_of(asking: socket.socket, topic: str, key: str) -> str:
    (config,) = described(asking, OF_TOPIC, topic, [key]).configs
    value: str = config.value
    return value


@pytest.mark.parametrize("kind", [OF_TOPIC, OF_BROKER, OF_GROUP])
def test_no_keys_mean_all_of_them(kraftpy_server: EmbeddedBroker, asking: socket.socket, topic: str, kind: int) -> None:
    create_topic(asking, topic)
    name = {OF_TOPIC: topic, OF_BROKER: "1", OF_GROUP: "any"}[kind]
    every = described(asking, kind, name, None)
    assert (every.error_code, len(every.configs) > 10) == (ErrorCode.NONE, True)
    assert described(asking, kind, name, []) == every
    assert described(asking, kind, name, ["no.such"]).configs == []


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        (OF_TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid: the empty string is not allowed"),
        (
            OF_TOPIC,
            "sp ace",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: 'sp ace' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
        (OF_TOPIC, "no.such", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'no.such' does not exist."),
        (OF_BROKER, "x", ErrorCode.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
        (
            OF_BROKER,
            "2",
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 2",
        ),
        (OF_BROKER, "01", ErrorCode.NONE, ""),
        (OF_BROKER, "+1", ErrorCode.NONE, ""),
        (OF_GROUP, "", ErrorCode.INVALID_REQUEST, "Group name must not be empty"),
    ],
)
def test_names_of_resources(asking: socket.socket, kind: int, name: str, error: ErrorCode, message: str) -> None:
    found = described(asking, kind, name, None)
    assert (found.error_code, found.error_message) == (error, message)


@pytest.mark.parametrize(
    ("kind", "name", "error", "message"),
    [
        (OF_TOPIC, "", ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."),
        (
            OF_TOPIC,
            "sp ace",
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "Topic name is invalid: 'sp ace' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
        (OF_BROKER, "x", ErrorCode.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
        (OF_BROKER, "2", ErrorCode.INVALID_REQUEST, "Unexpected broker id, expected 1, but received 2"),
        (OF_GROUP, "", ErrorCode.INVALID_REQUEST, "Default group resources are not allowed."),
        (3, "x", ErrorCode.INVALID_REQUEST, "Unknown resource type 3"),
    ],
)
def test_a_resource_is_checked_before_its_settings(
    asking: socket.socket, kind: int, name: str, error: ErrorCode, message: str
) -> None:
    assert changed(asking, kind, name, "no.such", "1") == (error, message)
    config = replacing.AlterableConfig(name="no.such", value="1")
    resource = replacing.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    request = replacing.AlterConfigsRequest(resources=[resource], validate_only=True)
    (result,) = ask(asking, ApiKey.ALTER_CONFIGS, 2, request).responses
    assert (result.error_code, result.error_message) == (error, message)


def test_a_key_twice_is_refused_by_both_ways_to_alter(asking: socket.socket, topic: str) -> None:
    create_topic(asking, topic)
    old = [replacing.AlterableConfig(name="retention.ms", value=value) for value in ("1", "2")]
    resource = replacing.AlterConfigsResource(resource_type=OF_TOPIC, resource_name=topic, configs=old)
    (replaced,) = ask(
        asking, ApiKey.ALTER_CONFIGS, 2, replacing.AlterConfigsRequest(resources=[resource], validate_only=False)
    ).responses
    new = [changing.AlterableConfig(name="retention.ms", config_operation=SET, value=value) for value in ("1", "2")]
    changes = changing.AlterConfigsResource(resource_type=OF_TOPIC, resource_name=topic, configs=new)
    (altered,) = ask(
        asking, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, changing.IncrementalAlterConfigsRequest(resources=[changes])
    ).responses
    for result in (replaced, altered):
        assert (result.error_code, result.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "Error due to duplicate config keys",
        )
    assert value_of(asking, topic, "retention.ms") == "604800000"


THROTTLED = "leader.replication.throttled.replicas"


@pytest.mark.parametrize("value", ["0:1,", "0:1,,1:1", ",", "*"])
def test_throttled_replicas_with_too_many_commas(asking: socket.socket, topic: str, value: str) -> None:
    create_topic(asking, topic)
    assert changed(asking, OF_TOPIC, topic, THROTTLED, value) == (ErrorCode.NONE, None)
    assert value_of(asking, topic, THROTTLED) == value


def test_an_empty_value_appended_to_a_list(asking: socket.socket, topic: str) -> None:
    """An empty entry that is allowed changes nothing; any other is refused."""
    create_topic(asking, topic)
    changed(asking, OF_TOPIC, topic, THROTTLED, "0:1,1:1")
    for operation in (APPEND, SUBTRACT):
        assert changed(asking, OF_TOPIC, topic, THROTTLED, "", operation) == (ErrorCode.NONE, None)
        assert value_of(asking, topic, THROTTLED) == "0:1,1:1"
    refused = (ErrorCode.INVALID_CONFIG, "Configuration 'cleanup.policy' values must not be empty.")
    for value in ("", ",compact"):
        assert changed(asking, OF_TOPIC, topic, "cleanup.policy", value, APPEND) == refused
    assert changed(asking, OF_TOPIC, topic, "cleanup.policy", "compact,", APPEND) == (ErrorCode.NONE, None)
    assert value_of(asking, topic, "cleanup.policy") == "delete,compact"


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "error", "message"),
    [
        (
            OF_BROKER,
            "1",
            "node.id",
            "9",
            ErrorCode.INVALID_REQUEST,
            "Cannot update these configs dynamically: [node.id]",
        ),
        (
            OF_BROKER,
            "1",
            "leader.replication.throttled.rate",
            "-1",
            ErrorCode.INVALID_REQUEST,
            "Invalid value -1 for configuration leader.replication.throttled.rate: Value must be at least 0",
        ),
        (
            OF_GROUP,
            "g",
            "consumer.session.timeout.ms",
            "1",
            ErrorCode.INVALID_CONFIG,
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            OF_GROUP,
            "g",
            "share.assignment.interval.ms",
            "15001",
            ErrorCode.INVALID_CONFIG,
            "share.assignment.interval.ms must be less than or equal to group.share.max.assignment.interval.ms",
        ),
        (OF_GROUP, "g", "no.such", "1", ErrorCode.INVALID_CONFIG, "Unknown group config name: no.such"),
    ],
)
def test_refusals_have_kafkas_words(
    asking: socket.socket, kind: int, name: str, key: str, value: str, error: ErrorCode, message: str
) -> None:
    assert changed(asking, kind, name, key, value) == (error, message)


def test_a_throttle_is_told_where_it_is_set(asking: socket.socket) -> None:
    """Kafka's tools take a throttle that is not described as none (-1)."""
    rate = "leader.replication.throttled.rate"
    assert described(asking, OF_BROKER, "1", [rate]).configs == []
    for value in ("1000", "0"):
        assert changed(asking, OF_BROKER, "1", rate, value) == (ErrorCode.NONE, None)
        (found,) = described(asking, OF_BROKER, "1", [rate]).configs
        assert (found.value, found.read_only, found.config_source) == (value, False, 2)
    assert changed(asking, OF_BROKER, "1", rate, None, DELETE) == (ErrorCode.NONE, None)
    assert described(asking, OF_BROKER, "1", [rate]).configs == []


# --- the cluster ---

UPGRADE, SAFE_DOWNGRADE = 1, 2


def updated(asking: socket.socket, feature: str, level: int, kind: int, version: int = 2) -> tuple[int, str | None]:
    update = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    found = ask(asking, ApiKey.UPDATE_FEATURES, version, UpdateFeaturesRequest(feature_updates=[update]))
    assert version > 1 or bool(found.results) == (found.error_code == ErrorCode.NONE)
    return found.error_code, found.error_message


def levels(asking: socket.socket) -> dict[str, tuple[int, int, int]]:
    """By feature: the lowest and highest level that is supported, and the level of the cluster."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    found = ask(asking, ApiKey.API_VERSIONS, 4, request)
    now = {feature.name: feature.max_version_level for feature in found.finalized_features}
    return {each.name: (each.min_version, each.max_version, now.get(each.name, 0)) for each in found.supported_features}


def test_features_are_told_as_kafka_tells_them(asking: socket.socket) -> None:
    assert levels(asking) == {
        "eligible.leader.replicas.version": (0, 1, 1),
        "group.version": (0, 1, 1),
        "kraft.version": (0, 1, 1),
        "metadata.version": (7, 30, 30),
        "share.version": (0, 2, 2),
        "streams.version": (0, 1, 1),
        "transaction.version": (0, 2, 2),
    }


def test_without_group_version_there_is_no_consumer_protocol(start_broker: StartBroker) -> None:
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a-member",
        member_epoch=0,
        rebalance_timeout_ms=5000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    describe = ConsumerGroupDescribeRequest(group_ids=["g"])
    with connect(start_broker().bootstrap) as asking:

        def served() -> list[int]:
            joined = ask(asking, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, heartbeat)
            (group,) = ask(asking, ApiKey.CONSUMER_GROUP_DESCRIBE, 1, describe).groups
            return [joined.error_code, group.error_code]

        assert updated(asking, "group.version", 0, SAFE_DOWNGRADE) == (ErrorCode.NONE, None)
        assert served() == [ErrorCode.UNSUPPORTED_VERSION] * 2
        assert updated(asking, "group.version", 1, UPGRADE, 1) == (ErrorCode.NONE, None)
        ask(asking, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        end = time.monotonic() + BOUND_SECONDS
        while (found := served())[0] in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            assert time.monotonic() < end
        assert found == [ErrorCode.NONE] * 2


@pytest.mark.parametrize(
    ("feature", "level", "kind", "reason"),
    [
        ("metadata.version", 6, UPGRADE, "Local controller only supports versions 7-30"),
        (
            "metadata.version",
            29,
            UPGRADE,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        ),
        (
            "metadata.version",
            29,
            SAFE_DOWNGRADE,
            "Refusing to perform the requested downgrade because it might delete metadata information.",
        ),
        ("group.version", 2, UPGRADE, "Local controller only supports versions 0-1"),
        ("no.such", 1, UPGRADE, "Local controller does not support this feature."),
        ("no.such", 0, UPGRADE, "Feature no.such not found."),
        ("share.version", -1, UPGRADE, "A feature version cannot be less than 0."),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_levels_that_no_cluster_can_have(
    asking: socket.socket, feature: str, level: int, kind: int, reason: str, version: int
) -> None:
    before = levels(asking)
    assert updated(asking, feature, level, kind, version) == (
        ErrorCode.INVALID_UPDATE_VERSION,
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {level} for feature {feature}. {reason}",
    )
    assert levels(asking) == before


@pytest.mark.parametrize(
    ("endpoint_type", "error", "message"),
    [
        (
            2,
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        ),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
        (-1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type -1"),
    ],
)
def test_a_broker_describes_brokers_only(
    asking: socket.socket, endpoint_type: int, error: ErrorCode, message: str
) -> None:
    found = ask(asking, ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest(endpoint_type=endpoint_type))
    assert (found.error_code, found.error_message, found.cluster_id, found.brokers) == (error, message, "", [])


@pytest.mark.parametrize("transactional_id", [None, "half"])
@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(-1, 0), (-1, 5), (5, -1), (-2, -1)])
@pytest.mark.parametrize("version", [3, 5])
def test_a_producer_names_its_id_and_epoch_or_neither(
    asking: socket.socket, transactional_id: str | None, producer_id: int, producer_epoch: int, version: int
) -> None:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    found = ask(asking, ApiKey.INIT_PRODUCER_ID, version, request)
    assert (found.error_code, found.producer_id) == (ErrorCode.INVALID_REQUEST, -1)
    if transactional_id is None:
        request.producer_id = request.producer_epoch = 5
        assert ask(asking, ApiKey.INIT_PRODUCER_ID, version, request).error_code == ErrorCode.NONE


LOG, OTHER = "__cluster_metadata", "other"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_described_to_who_asks_for_it_alone(asking: socket.socket, version: int) -> None:
    def described_as(*named: tuple[str, list[int]]) -> Any:
        topics = [
            QuorumTopic(topic_name=name, partitions=[QuorumPartition(partition_index=number) for number in numbers])
            for name, numbers in named
        ]
        return ask(asking, ApiKey.DESCRIBE_QUORUM, version, DescribeQuorumRequest(topics=topics))

    found = described_as((LOG, [0]))
    (state,) = found.topics[0].partitions
    (voter,) = state.current_voters
    assert (found.error_code, state.error_code, state.leader_id, voter.replica_id) == (0, 0, 1, 1)
    assert state.leader_epoch > 0
    assert 0 < state.high_watermark <= voter.log_end_offset
    if version >= 1:
        now = time.time() * 1000
        assert now - 60_000 < voter.last_fetch_timestamp == voter.last_caught_up_timestamp <= now
    if version >= 2:
        assert (found.error_message, state.error_message) == ("", "")
        assert [node.node_id for node in found.nodes] == [1]
    for named in (
        [(LOG, [1])],
        [(LOG, [0, 0])],
        [(LOG, [0]), (OTHER, [0])],
        [(LOG, [0]), (OTHER, [])],
        [(OTHER, [0])],
        [(LOG, [])],
        [],
    ):
        refused = described_as(*named)
        assert (refused.error_code, refused.nodes) == (ErrorCode.NONE, [])
        assert [
            (topic.topic_name, each.partition_index, each.error_code, each.leader_id, each.current_voters)
            for topic in refused.topics
            for each in topic.partitions
        ] == [
            (name, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, []) for name, numbers in named for number in numbers
        ]


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        (None, -1, ErrorCode.NONE),
        (None, 99, ErrorCode.NONE),
        ("", 1, ErrorCode.NONE),
        ("", 99, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", -1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
def test_a_client_that_means_another_cluster_or_node_is_told_to_bootstrap_again(
    asking: socket.socket, cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    """KIP-1242; "" stands for this cluster's id."""
    if cluster_id == "":
        cluster_id = ask(asking, ApiKey.DESCRIBE_CLUSTER, 2, DescribeClusterRequest()).cluster_id
    request = ApiVersionsRequest(
        client_software_name="test", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    found = ask(asking, ApiKey.API_VERSIONS, 5, request)
    assert found.error_code == error
    assert bool(found.api_keys) == (error == ErrorCode.NONE)


def test_what_kafka_4_4_has_without_a_plugin_and_below_its_metadata_version(asking: socket.socket) -> None:
    description = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id="g", member_id="m", topology_epoch=0, topology_description=TopologyDescription()
    )
    found = ask(asking, ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, description)
    assert (found.error_code, found.error_message) == (
        ErrorCode.UNSUPPORTED_VERSION,
        "The broker has no streams group topology description plugin configured.",
    )
    found = ask(asking, ApiKey.UNREGISTER_CONTROLLER, 0, UnregisterControllerRequest(controller_id=9))
    assert (found.error_code, found.error_message) == (
        ErrorCode.UNSUPPORTED_VERSION,
        "The current MetadataVersion is too old to support controller unregistration.",
    )
