"""Nothing that a well-formed request can say makes a handler fail: it is answered, or costs its connection."""

from __future__ import annotations

import socket
import time
from collections import Counter
from random import Random
from typing import Any

from broker_wire import StartBroker, answer, ask, connect, create_topic, is_closed, read_frame, serves
from odd_requests import BATCH, LONG, Words, odd

from kraftpy.broker.apis import MAX_REQUEST_ELEMENTS
from kraftpy.broker.handlers.table import served
from kraftpy.groups.request_pieces import MOST_REPEATS
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import decode_response_header, encode_request
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kraftpy.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from kraftpy.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kraftpy.protocol.schema import decode
from kraftpy.testing.cluster import EmbeddedBroker

SEED = 20261121
REQUESTS_PER_VERSION = 15
CLIENT_IDS = ("odd", "odd", "", None, "żółw-🎉", LONG)
ANSWER_SECONDS = 0.4  # longer means that it waits for others (a join) or for nothing (a long poll): given up


def send(
    connection: socket.socket, key: ApiKey, version: int, client_id: str | None, request: Any, outcomes: Counter[str]
) -> bool:
    """Send a request, read its answer, and return whether the connection is still usable."""
    connection.sendall(encode_request(key, version, 9, client_id, request))
    if isinstance(request, ProduceRequest) and request.acks == 0:
        outcomes["unanswered"] += 1
        return True
    try:
        frame = read_frame(connection)
    except TimeoutError:
        outcomes["waiting"] += 1
        return False
    except (EOFError, ConnectionError):
        outcomes[f"closed {key.name}"] += 1
        return False
    correlation_id, body = decode_response_header(key, version, frame)
    assert correlation_id == 9
    decode(APIS[key].response, body, version)
    outcomes["answered"] += 1
    return True


def test_no_request_makes_a_handler_fail(start_broker: StartBroker) -> None:
    broker = start_broker(
        settings={"offsets.topic.num.partitions": "2", "num.partitions": "1", "group.min.session.timeout.ms": "100"}
    )
    with connect(broker.bootstrap) as connection:
        made: Any = ask(
            connection,
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(name="odd", num_partitions=2, replication_factor=1, assignments=[], configs=[]),
                    CreatableTopic(
                        name="odd-compacted",
                        num_partitions=1,
                        replication_factor=1,
                        assignments=[],
                        configs=[CreatableTopicConfig(name="cleanup.policy", value="compact")],
                    ),
                ],
                timeout_ms=5000,
            ),
        )
        assert [topic.error_code for topic in made.topics] == [ErrorCode.NONE] * 2
        topic_ids = tuple(topic.topic_id for topic in made.topics)
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["odd-group"]))
    outcomes: Counter[str] = Counter()
    chance = Random(SEED)
    cases = [
        (key, version)
        for key in served()
        for version in range(APIS[key].first, APIS[key].last + 1)
        for _ in range(REQUESTS_PER_VERSION)
    ]
    chance.shuffle(cases)
    connection = connect(broker.bootstrap, ANSWER_SECONDS)
    for key, version in cases:
        # DeleteTopics, which would remove the topics, is asked about others.
        request = odd(APIS[key].request, version, chance, Words(topic_ids if key != ApiKey.DELETE_TOPICS else ()))
        try:
            client_id = chance.choice(CLIENT_IDS)
            goes_on = send(connection, ApiKey(key), version, client_id, request, outcomes)
        except ConnectionError:  # the one before, with acks=0, has closed it
            goes_on = False
        if not goes_on:
            connection.close()
            connection = connect(broker.bootstrap, ANSWER_SECONDS)
    connection.close()
    serves(broker.bootstrap)
    assert "Traceback" not in broker.log_text, broker.log_text
    assert outcomes["answered"] > 0.8 * len(cases), outcomes
    assert broker.stop() == 0
    broker.start()
    serves(broker.bootstrap)
    assert "Traceback" not in broker.log_text


def test_a_client_id_that_fills_its_field_still_gets_a_member_id(kraftpy_server: EmbeddedBroker) -> None:
    """A member id is made of the client's; the two together must fit the field."""
    group = f"long-client-{time.time_ns()}"
    joining = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=1000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    with connect(kraftpy_server.bootstrap) as connection:
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))
        connection.sendall(encode_request(ApiKey.JOIN_GROUP, 7, 7, LONG, joining))
        found = answer(connection, ApiKey.JOIN_GROUP, 7)
        assert found.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert found.member_id.startswith("xxx")


def test_a_group_of_the_longest_name_is_described(kraftpy_server: EmbeddedBroker) -> None:
    with connect(kraftpy_server.bootstrap) as connection:
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=[LONG]))
        found = ask(connection, ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[LONG]))
        assert found.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_kept_for_ever_are_kept(kraftpy_server: EmbeddedBroker) -> None:
    """OffsetCommit 2 to 4 say for how long; the largest number they have, from now, is more than a record can say."""
    group, topic = f"for-ever-{time.time_ns()}", f"for-ever-{time.time_ns()}"
    commit = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=2**63 - 1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")],
            )
        ],
    )
    with connect(kraftpy_server.bootstrap) as connection:
        ask(connection, ApiKey.METADATA, 4, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))
        found = ask(connection, ApiKey.OFFSET_COMMIT, 3, commit)
        assert found.topics[0].partitions[0].error_code == ErrorCode.NONE


def test_nobody_writes_to_internal_topics(kraftpy_server: EmbeddedBroker) -> None:
    """`__consumer_offsets` is replayed at the next start, so only the broker may write to it."""
    produced = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="__consumer_offsets", partition_data=[PartitionProduceData(index=0, records=bytearray(BATCH))]
            )
        ],
    )
    with connect(kraftpy_server.bootstrap) as connection:
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]))
        found = ask(connection, ApiKey.PRODUCE, 9, produced)
        assert found.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_broker_does_not_change_what_it_reads_at_its_start(kraftpy_server: EmbeddedBroker) -> None:
    setting = AlterConfigsResource(
        resource_type=4,
        resource_name="1",
        configs=[AlterableConfig(name="log.dirs", value="/elsewhere", config_operation=0)],
    )
    with connect(kraftpy_server.bootstrap) as connection:
        request = IncrementalAlterConfigsRequest(resources=[setting], validate_only=False)
        found = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert found.responses[0].error_code == ErrorCode.INVALID_REQUEST


def test_appending_to_a_list_starts_from_what_is_in_force(start_broker: StartBroker) -> None:
    """Not from Kafka's default: from what the broker that was asked has for topics that set nothing."""
    broker = start_broker(settings={"log.cleanup.policy": "compact"})
    topic = AlterConfigsResource(
        resource_type=2,
        resource_name="listed",
        configs=[AlterableConfig(name="cleanup.policy", value="delete", config_operation=2)],
    )
    with connect(broker.bootstrap) as connection:
        ask(connection, ApiKey.METADATA, 4, MetadataRequest(topics=[MetadataRequestTopic(name="listed")]))
        request = IncrementalAlterConfigsRequest(resources=[topic], validate_only=False)
        found = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert found.responses[0].error_code == ErrorCode.NONE, found
        asked = DescribeConfigsResource(resource_type=2, resource_name="listed", configuration_keys=["cleanup.policy"])
        described = ask(connection, ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[asked]))
        assert described.results[0].configs[0].value == "compact,delete"


def test_too_many_elements_cost_the_connection(kraftpy_server: EmbeddedBroker) -> None:
    many = MetadataRequest(topics=[MetadataRequestTopic(name="x")] * (MAX_REQUEST_ELEMENTS + 1))
    with connect(kraftpy_server.bootstrap) as connection:
        connection.sendall(encode_request(ApiKey.METADATA, 4, 7, "test", many))
        assert is_closed(connection)
    serves(kraftpy_server.bootstrap)


def test_what_is_named_often_is_answered_few_times(kraftpy_server: EmbeddedBroker) -> None:
    """Otherwise a request of a megabyte would become an answer of a hundred gigabytes."""
    topic, often = f"often-{time.time_ns()}", 10_000
    with connect(kraftpy_server.bootstrap) as connection:
        create_topic(connection, topic, 50)
        metadata = MetadataRequest(topics=[MetadataRequestTopic(name=topic)] * often)
        assert len(ask(connection, ApiKey.METADATA, 9, metadata).topics) == 1
        resource = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
        configs = DescribeConfigsRequest(resources=[resource] * often)
        assert len(ask(connection, ApiKey.DESCRIBE_CONFIGS, 4, configs).results) == 1
        ask(connection, ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=["often"]))
        groups = DescribeGroupsRequest(groups=["often"] * often)
        assert len(ask(connection, ApiKey.DESCRIBE_GROUPS, 5, groups).groups) == 1 + MOST_REPEATS
        offsets = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="often", topics=None)] * often)
        assert len(ask(connection, ApiKey.OFFSET_FETCH, 8, offsets).groups) == 1 + MOST_REPEATS
        producers = TopicRequest(name=topic, partition_indexes=[0, 0, 1])
        found = ask(connection, ApiKey.DESCRIBE_PRODUCERS, 0, DescribeProducersRequest(topics=[producers] * often))
        assert [[each.partition_index for each in topic.partitions] for topic in found.topics] == [[0, 1]]
