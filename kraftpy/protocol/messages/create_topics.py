"""Creates topics.

KIP-4, KIP-464 (the broker's defaults for -1), KIP-516 (topic ids), KIP-525 (the new topic's settings in the response),
KIP-599 (quotas).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    ignorable,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
    tag,
    uuid,
)


@struct
class CreatableReplicaAssignment:
    """The replicas of one partition, beginning with the preferred leader."""

    partition_index: Annotated[int, int32]
    broker_ids: Annotated[list[int], array(int32)] = []


@struct
class CreatableTopicConfig:
    """A setting of the new topic."""

    name: Annotated[str, string]
    value: Annotated[str | None, string] = None


@struct
class CreatableTopic:
    """A topic with its numbers of partitions and replicas (-1 for the default), or with assigned replicas."""

    name: Annotated[str, string]
    num_partitions: Annotated[int, int32] = -1
    replication_factor: Annotated[int, int16] = -1
    assignments: Annotated[list[CreatableReplicaAssignment], array] = []
    configs: Annotated[list[CreatableTopicConfig], array] = []


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """The topics to create, or with `validate_only` just to check."""

    topics: Annotated[list[CreatableTopic], array] = []
    timeout_ms: Annotated[int, int32] = 60000
    validate_only: Annotated[bool, boolean] = False


@struct
class CreatableTopicConfigs:
    """A setting of the topic as created."""

    name: Annotated[str, string]
    value: Annotated[str | None, string] = None
    read_only: Annotated[bool, boolean] = False
    config_source: Annotated[int, int8] = -1
    is_sensitive: Annotated[bool, boolean] = False


@struct
class CreatableTopicResult:
    """The result for one topic: an error, or its properties."""

    name: Annotated[str, string]
    topic_id: Annotated[bytes, uuid, "7+", ignorable] = ZERO_UUID
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    topic_config_error_code: Annotated[int, int16, "5+", tag(0), ignorable] = 0
    num_partitions: Annotated[int, int32, "5+", ignorable] = -1  # KIP-525
    replication_factor: Annotated[int, int16, "5+", ignorable] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, array, "5+", ignorable] = []


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    topics: Annotated[list[CreatableTopicResult], array] = []
