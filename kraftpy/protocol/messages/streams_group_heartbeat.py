"""The one request of a streams group's members: to join, stay, send their topology, report tasks, and leave.

KIP-1071, KIP-1331 (descriptions of topologies, in version 1). The members of a streams group share the tasks of a
topology, as those of a consumer group share partitions.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    array,
    boolean,
    ignorable,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    uint16,
)


@struct
class KeyValue:
    """A setting of a topic, or a tag of a client."""

    key: Annotated[str, string]
    value: Annotated[str, string]


@struct
class TopicInfo:
    """An internal topic. 0 partitions or replicas: the coordinator or the brokers choose the number."""

    name: Annotated[str, string]
    partitions: Annotated[int, int32] = 0
    replication_factor: Annotated[int, int16] = 0
    topic_configs: Annotated[list[KeyValue], array] = []


@struct
class CopartitionGroup:
    """Source topics that must have equally many partitions, by their positions in the subtopology."""

    source_topics: Annotated[list[int], array(int16)] = []
    source_topic_regex: Annotated[list[int], array(int16)] = []
    repartition_source_topics: Annotated[list[int], array(int16)] = []


@struct
class Subtopology:
    """A part of a topology that runs as tasks: one for each partition of its sources."""

    subtopology_id: Annotated[str, string]
    source_topics: Annotated[list[str], array(string)] = []
    source_topic_regex: Annotated[list[str], array(string)] = []
    state_changelog_topics: Annotated[list[TopicInfo], array] = []
    repartition_sink_topics: Annotated[list[str], array(string)] = []
    repartition_source_topics: Annotated[list[TopicInfo], array] = []
    copartition_groups: Annotated[list[CopartitionGroup], array] = []


@struct
class Topology:
    """The parts of a streams application's topology that its coordinator needs."""

    epoch: Annotated[int, int32] = 0
    subtopologies: Annotated[list[Subtopology], array] = []


@struct
class TaskIds:
    """Tasks of one subtopology."""

    subtopology_id: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class Endpoint:
    """The address at which an application answers queries about its state."""

    host: Annotated[str, string]
    port: Annotated[int, uint16]


@struct
class TaskOffset:
    """The sum of the positions, or of the end offsets, in a task's changelogs."""

    subtopology_id: Annotated[str, string]
    partition: Annotated[int, int32]
    offset: Annotated[int, int64]


@message(api_key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest:
    """Shows that a member is alive. Null, or a timeout of -1, means no change since its last heartbeat."""

    group_id: Annotated[str, string]
    member_id: Annotated[str, string]
    member_epoch: Annotated[int, int32] = 0
    endpoint_information_epoch: Annotated[int, int32] = 0
    instance_id: Annotated[str | None, string] = None
    rack_id: Annotated[str | None, string] = None
    rebalance_timeout_ms: Annotated[int, int32] = -1
    topology: Annotated[Topology | None, nested] = None
    active_tasks: Annotated[list[TaskIds] | None, array] = None
    standby_tasks: Annotated[list[TaskIds] | None, array] = None
    warmup_tasks: Annotated[list[TaskIds] | None, array] = None
    process_id: Annotated[str | None, string] = None
    user_endpoint: Annotated[Endpoint | None, nested] = None
    client_tags: Annotated[list[KeyValue] | None, array] = None
    task_offsets: Annotated[list[TaskOffset] | None, array] = None
    task_end_offsets: Annotated[list[TaskOffset] | None, array] = None
    shutdown_application: Annotated[bool, boolean] = False


@struct
class Status:
    """A condition of the group that its members should know about."""

    status_code: Annotated[int, int8]
    status_detail: Annotated[str, string] = ""


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class EndpointToPartitions:
    """The partitions whose state can be queried at an endpoint."""

    user_endpoint: Annotated[Endpoint, nested]
    active_partitions: Annotated[list[TopicPartitions], array] = []
    standby_partitions: Annotated[list[TopicPartitions], array] = []


@message(api_key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    """The member's epoch, and its tasks if they have changed."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    member_id: Annotated[str, string] = ""
    member_epoch: Annotated[int, int32] = 0
    heartbeat_interval_ms: Annotated[int, int32] = 0
    acceptable_recovery_lag_legacy: Annotated[int, int32, "0"] = 0
    task_offset_interval_ms: Annotated[int, int32] = 0
    acceptable_recovery_lag: Annotated[int, int64, "1+", ignorable] = -1
    status: Annotated[list[Status] | None, array] = []
    active_tasks: Annotated[list[TaskIds] | None, array] = None
    standby_tasks: Annotated[list[TaskIds] | None, array] = None
    warmup_tasks: Annotated[list[TaskIds] | None, array] = None
    topology_description_required: Annotated[bool, boolean, "1+"] = False  # KIP-1331
    endpoint_information_epoch: Annotated[int, int32] = 0
    partitions_by_user_endpoint: Annotated[list[EndpointToPartitions] | None, array] = None
