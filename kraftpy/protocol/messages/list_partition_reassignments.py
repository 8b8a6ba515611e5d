"""Lists ongoing partition reassignments.

KIP-455.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, message, string, struct


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of a topic."""

    name: Annotated[str, string]
    partition_indexes: Annotated[list[int], array(int32)] = []


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """The partitions to look at, or null for all."""

    timeout_ms: Annotated[int, int32] = 60000
    topics: Annotated[list[ListPartitionReassignmentsTopics] | None, array] = None


@struct
class OngoingPartitionReassignment:
    """A partition being reassigned: all its replicas, the ones being added and the ones being removed."""

    partition_index: Annotated[int, int32]
    replicas: Annotated[list[int], array(int32)] = []
    adding_replicas: Annotated[list[int], array(int32)] = []
    removing_replicas: Annotated[list[int], array(int32)] = []


@struct
class OngoingTopicReassignment:
    """A topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[OngoingPartitionReassignment], array] = []


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The ongoing reassignments."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    topics: Annotated[list[OngoingTopicReassignment], array] = []
