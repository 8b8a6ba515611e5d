"""The admin client's requests out of its arguments, its answers out of the broker's. Plain functions.

A broker's error raises `KafkaError` with what was asked for in its text.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraftpy.client.admin_model import ActiveProducer, GroupMember, LogDir, LogDirPartition
from kraftpy.client.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from kraftpy.client.model import AlterOperation, NewTopic, ResourceType
from kraftpy.protocol.errors import ErrorCode, KafkaError, ProtocolError
from kraftpy.protocol.messages import (
    alter_configs,
    create_topics,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    incremental_alter_configs,
)
from kraftpy.types import TopicPartition

Resource = tuple[ResourceType, str]
"""What settings belong to: its type, and a topic's name or a broker's id as text."""


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise what an answer says went wrong."""
    error = ErrorCode.of(code)
    if error is not ErrorCode.NONE:
        raise KafkaError(error, f"{what}: {message or error.meaning}")


# --- messages to model and back ---------------------------------------------------------------------------------------


def creatable(topic: NewTopic) -> create_topics.CreatableTopic:
    """A topic to create, as the request has it."""
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
    """Settings of a broker are asked of that broker, all others of any."""
    grouped: dict[int | None, list[Resource]] = {}
    for kind, name in resources:
        own = kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name != ""
        grouped.setdefault(int(name) if own else None, []).append((ResourceType(kind), name))
    return grouped


def alterable(
    name: str, change: str | tuple[AlterOperation, str | None] | None
) -> incremental_alter_configs.AlterableConfig:
    """One change of a setting, as the request has it."""
    if isinstance(change, tuple):
        operation, value = change
    else:
        operation, value = (AlterOperation.DELETE if change is None else AlterOperation.SET), change
    return incremental_alter_configs.AlterableConfig(name=name, config_operation=operation, value=value)


def config_errors(answer: describe_configs.DescribeConfigsResponse) -> None:
    """Raise the first error in the answer."""
    for result in answer.results:
        check(result.error_code, f"settings of {result.resource_name!r}", result.error_message)


def alter_errors(
    answer: incremental_alter_configs.IncrementalAlterConfigsResponse | alter_configs.AlterConfigsResponse,
) -> None:
    """Raise the first error in the answer."""
    for result in answer.responses:
        check(result.error_code, f"settings of {result.resource_name!r} not changed", result.error_message)


def log_dir_errors(answer: describe_log_dirs.DescribeLogDirsResponse) -> None:
    """Raise the first error in the answer."""
    check(answer.error_code, "log directories")
    for result in answer.results:
        check(result.error_code, f"log directory {result.log_dir}")


def read_log_dir(broker_id: int, result: describe_log_dirs.DescribeLogDirsResult) -> LogDir:
    """A directory, as the answer has it."""
    return LogDir(
        broker_id=broker_id,
        path=result.log_dir,
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        partitions={
            TopicPartition(topic.name, part.partition_index): LogDirPartition(
                size_bytes=part.partition_size, offset_lag=part.offset_lag, is_future=part.is_future_key
            )
            for topic in result.topics
            for part in topic.partitions
        },
    )


def read_member(member: describe_groups.DescribedGroupMember, protocol_type: str) -> GroupMember:
    """A group's member, as the answer has it."""
    partitions: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            partitions = decode_assignment(member.member_assignment)
        except ProtocolError:
            partitions = ()  # another program's idea of an assignment: the bytes are there for who knows it
    return GroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        partitions=partitions,
        metadata=member.member_metadata,
        assignment=member.member_assignment,
    )


def read_producer(state: describe_producers.ProducerState) -> ActiveProducer:
    """A partition's producer, as the answer has it."""
    return ActiveProducer(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_transaction_start_offset=state.current_txn_start_offset,
    )
