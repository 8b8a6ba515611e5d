"""Describes streams groups: topologies, members, and the tasks of each (KIP-1071)."""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.messages.streams_group_heartbeat import Endpoint, KeyValue, TaskIds, TaskOffset, TopicInfo
from kraftpy.protocol.messages.streams_group_topology_description_update import TopologyDescription
from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, message, nested, string, struct


@message(api_key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest:
    """The groups to describe."""

    group_ids: Annotated[list[str], array(string)] = []
    include_authorized_operations: Annotated[bool, boolean] = False
    include_topology_description: Annotated[bool, boolean, "1+"] = False  # KIP-1331


@struct
class DescribedSubtopology:
    """A part of a topology, with its internal topics and their numbers of partitions."""

    subtopology_id: Annotated[str, string]
    source_topics: Annotated[list[str], array(string)] = []
    repartition_sink_topics: Annotated[list[str], array(string)] = []
    state_changelog_topics: Annotated[list[TopicInfo], array] = []
    repartition_source_topics: Annotated[list[TopicInfo], array] = []


@struct
class DescribedTopology:
    """A topology; its subtopologies are null if it is not ready yet."""

    epoch: Annotated[int, int32]
    subtopologies: Annotated[list[DescribedSubtopology] | None, array] = None


@struct
class DescribedTasks:
    """Tasks in each role."""

    active_tasks: Annotated[list[TaskIds], array] = []
    standby_tasks: Annotated[list[TaskIds], array] = []
    warmup_tasks: Annotated[list[TaskIds], array] = []


@struct
class DescribedStreamsMember:
    """A member: its properties, its current tasks and its target tasks."""

    member_id: Annotated[str, string]
    member_epoch: Annotated[int, int32]
    instance_id: Annotated[str | None, string] = None
    rack_id: Annotated[str | None, string] = None
    client_id: Annotated[str, string] = ""
    client_host: Annotated[str, string] = ""
    topology_epoch: Annotated[int, int32] = 0
    process_id: Annotated[str, string] = ""
    user_endpoint: Annotated[Endpoint | None, nested] = None
    client_tags: Annotated[list[KeyValue], array] = []
    task_offsets: Annotated[list[TaskOffset], array] = []
    task_end_offsets: Annotated[list[TaskOffset], array] = []
    assignment: Annotated[DescribedTasks, nested]
    target_assignment: Annotated[DescribedTasks, nested]
    is_classic: Annotated[bool, boolean] = False


@struct
class DescribedStreamsGroup:
    """A group, or the error for it."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    group_id: Annotated[str, string] = ""
    group_state: Annotated[str, string] = ""
    group_epoch: Annotated[int, int32] = 0
    assignment_epoch: Annotated[int, int32] = 0
    topology: Annotated[DescribedTopology | None, nested] = None
    members: Annotated[list[DescribedStreamsMember], array] = []
    authorized_operations: Annotated[int, int32] = -(2**31)
    topology_description: Annotated[TopologyDescription | None, nested, "1+"] = None  # KIP-1331
    topology_description_status: Annotated[int, int8, "1+"] = 0
    assignor_name: Annotated[str | None, string, "1+", ignorable] = None  # KIP-1357


@message(api_key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    """The described groups."""

    throttle_time_ms: Annotated[int, int32] = 0
    groups: Annotated[list[DescribedStreamsGroup], array] = []
