"""Builds the admin client's requests and reads the answers into its model. Plain functions.

If the broker reports an error, they raise `KafkaError` with what was asked for in its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kraftpy.client.admin.model import (
    ActiveProducer,
    GroupDescription,
    GroupMember,
    LogDir,
    LogDirPartition,
    QuorumDescription,
    QuorumEndpoint,
    QuorumReplica,
)
from kraftpy.client.model import AlterOperation, NewTopic, PartitionInfo, ResourceType, TopicInfo
from kraftpy.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.messages import (
    alter_configs,
    consumer_group_describe,
    create_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    incremental_alter_configs,
    list_config_resources,
    share_group_describe,
    streams_group_describe,
)
from kraftpy.types import TopicPartition

Resource = tuple[ResourceType, str]
"""A resource that has settings: its type, and a topic's name or a broker's id as text."""


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise the error of an answer, if it has one."""
    error = ErrorCode.of(code)
    if error is not ErrorCode.NONE:
        raise KafkaError(error, f"{what}: {message or error.meaning}")


# --- messages to model and back ---------------------------------------------------------------------------------------


def creatable(topic: NewTopic) -> create_topics.CreatableTopic:
    """Build the request's entry for a topic to create."""
    assigned = bool(topic.replica_assignment)
    return create_topics.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assigned else topic.num_partitions,
        replication_factor=-1 if assigned else topic.replication_factor,
        assignments=[
            create_topics.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in sorted(topic.replica_assignment.items())
        ],
        configs=[
            create_topics.CreatableTopicConfig(name=name, value=value) for name, value in sorted(topic.config.items())
        ],
    )


def by_broker(resources: Iterable[Resource]) -> dict[int | None, list[Resource]]:
    """Group resources by the broker to ask: a broker's own settings go to that broker, all others to any (None)."""
    grouped: dict[int | None, list[Resource]] = {}
    for kind, name in resources:
        own = kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name != ""
        grouped.setdefault(int(name) if own else None, []).append((ResourceType(kind), name))
    return grouped


def alterable(
    name: str, change: str | tuple[AlterOperation, str | None] | None
) -> incremental_alter_configs.AlterableConfig:
    """Build the request's entry for one change of a setting."""
    if isinstance(change, tuple):
        operation, value = change
    else:
        operation, value = (AlterOperation.DELETE if change is None else AlterOperation.SET), change
    return incremental_alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)


def config_errors(answer: describe_configs.DescribeConfigsResponse) -> None:
    """Raise the first error in the answer."""
    for result in answer.results:
        check(result.error_code, f"settings of {result.resource_name!r}", result.error_message)


def resource_errors(answer: list_config_resources.ListConfigResourcesResponse) -> None:
    """Raise KafkaError if resources could not be listed."""
    check(answer.error_code, "resources with settings not listed")


def alter_errors(
    answer: incremental_alter_configs.IncrementalAlterConfigsResponse | alter_configs.AlterConfigsResponse,
) -> None:
    """Raise the first error in the answer."""
    for result in answer.responses:
        check(result.error_code, f"settings of {result.resource_name!r} not changed", result.error_message)


def log_dir_errors(answer: describe_log_dirs.DescribeLogDirsResponse) -> None:
    """Raise the answer's own error. The error of a single directory is part of its description."""
    check(answer.error_code, "log directories")


def read_log_dir(broker_id: int, result: describe_log_dirs.DescribeLogDirsResult) -> LogDir:
    """Read a log directory from the answer."""
    return LogDir(
        broker_id=broker_id,
        path=result.log_dir,
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        error=ErrorCode.of(result.error_code),
        is_cordoned=result.is_cordoned,
        partitions={
            TopicPartition(topic.name, part.partition_index): LogDirPartition(
                size_bytes=part.partition_size, offset_lag=part.offset_lag, is_future=part.is_future_key
            )
            for topic in result.topics
            for part in topic.partitions
        },
    )


def read_member(member: describe_groups.DescribedGroupMember, protocol_type: str) -> GroupMember:
    """Read a group member from the answer."""
    partitions: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            partitions = decode_assignment(member.member_assignment)
        except ProtocolError:
            partitions = ()  # another program's assignment format: callers that know it get the bytes
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        partitions=partitions,
        metadata=member.member_metadata,
        assignment=member.member_assignment,
    )


def read_consumer_group(group: consumer_group_describe.DescribedConsumerGroup, coordinator: int) -> GroupDescription:
    """Read a group of the consumer protocol from the answer."""
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=PROTOCOL_TYPE,
        protocol=group.assignor_name,
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                partitions=_partitions(member.assignment),
                member_epoch=member.member_epoch,
                target=_partitions(member.target_assignment),
            )
            for member in group.members
        ),
        group_type="consumer",
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def read_share_group(group: share_group_describe.DescribedShareGroup, coordinator: int) -> GroupDescription:
    """Read a share group from the answer."""
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type="share",
        protocol=group.assignor_name,
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=None,
                client_id=member.client_id,
                client_host=member.client_host,
                partitions=_partitions(member.assignment),
                member_epoch=member.member_epoch,
            )
            for member in group.members
        ),
        group_type="share",
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def read_streams_group(
    group: streams_group_describe.DescribedStreamsGroup, coordinator: int, counts: Mapping[str, int]
) -> GroupDescription:
    """Read a streams group (KIP-1071) from the answer; `counts` are the partition counts of the cluster's topics.

    A member reads the partitions of its active tasks, in the source topics of their subtopologies.
    """
    parts = (group.topology.subtopologies if group.topology is not None else None) or []
    sources = {
        part.subtopology_id: (*part.source_topics, *(topic.name for topic in part.repartition_source_topics))
        for part in parts
    }

    def read(tasks: streams_group_describe.DescribedTasks) -> tuple[TopicPartition, ...]:
        return tuple(
            TopicPartition(name, number)
            for of_part in tasks.active_tasks
            for name in sources.get(of_part.subtopology_id, ())
            for number in of_part.partitions
            if number < counts.get(name, 0)
        )

    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type="streams",
        protocol="",
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                partitions=read(member.assignment),
                member_epoch=member.member_epoch,
                target=read(member.target_assignment),
            )
            for member in group.members
        ),
        group_type="streams",
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
    )


def _partitions(
    assignment: consumer_group_describe.DescribedAssignment | share_group_describe.DescribedShareAssignment,
) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


def read_producer(state: describe_producers.ProducerState) -> ActiveProducer:
    """Read a partition's producer from the answer."""
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_transaction_start_offset=state.current_txn_start_offset,
    )


def read_quorum(answer: describe_quorum.DescribeQuorumResponse) -> QuorumDescription:
    """Read the quorum from the answer. Raises `KafkaError` if it has none."""
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, "describe quorum", part.error_message)
            return QuorumDescription(
                leader_id=part.leader_id,
                leader_epoch=part.leader_epoch,
                high_watermark=part.high_watermark,
                voters=tuple(map(_quorum_replica, part.current_voters)),
                observers=tuple(map(_quorum_replica, part.observers)),
                endpoints={
                    node.node_id: tuple(
                        QuorumEndpoint(listener=listener.name, host=listener.host, port=listener.port)
                        for listener in node.listeners
                    )
                    for node in answer.nodes
                },
            )
    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "describe quorum: the broker returned no quorum")


def _quorum_replica(state: describe_quorum.ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        node_id=state.replica_id,
        directory_id=state.replica_directory_id,
        log_end_offset=state.log_end_offset,
        last_fetch_ms=state.last_fetch_timestamp,
        last_caught_up_ms=state.last_caught_up_timestamp,
    )


def read_described_topic(topic: describe_topic_partitions.DescribeTopicPartitionsResponseTopic) -> TopicInfo:
    """Read a topic, or one page of it, from the answer."""
    name = topic.name or ""
    return TopicInfo(
        name=name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionInfo(
                topic=name,
                partition=part.partition_index,
                leader=part.leader_id,
                leader_epoch=part.leader_epoch,
                replicas=tuple(part.replica_nodes),
                in_sync_replicas=tuple(part.isr_nodes),
                offline_replicas=tuple(part.offline_replicas),
                eligible_leader_replicas=_tuple(part.eligible_leader_replicas),
                last_known_eligible_replicas=_tuple(part.last_known_elr),
            )
            for part in topic.partitions
        ),
    )


def _tuple(numbers: list[int] | None) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(numbers)
