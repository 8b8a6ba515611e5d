"""The cluster as clients see it: brokers, topics, partitions and their leaders.

An empty list in version 0, and null from version 1 on, asks for all topics.

KIP-4 (controller, rack), KIP-78 (cluster id), KIP-112 (offline replicas), KIP-320 (leader epochs), KIP-430 (authorized
operations), KIP-516 (topic ids), KIP-700 (the cluster's operations moved to DescribeCluster), KIP-1102 (rebootstrap).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    ignorable,
    int16,
    int32,
    message,
    nullable,
    string,
    struct,
    uuid,
)


@struct
class MetadataRequestTopic:
    """A topic, named or identified by id."""

    topic_id: Annotated[bytes, uuid, "10+", ignorable] = ZERO_UUID
    name: Annotated[str | None, string, nullable("10+")] = None


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    """The topics to describe, or null for all."""

    topics: Annotated[list[MetadataRequestTopic] | None, array, nullable("1+")] = []  # null for all
    allow_auto_topic_creation: Annotated[bool, boolean, "4+"] = True
    include_cluster_authorized_operations: Annotated[bool, boolean, "8-10"] = False
    include_topic_authorized_operations: Annotated[bool, boolean, "8+"] = False


@struct
class MetadataResponseBroker:
    """A broker and its address."""

    node_id: Annotated[int, int32]
    host: Annotated[str, string]
    port: Annotated[int, int32]
    rack: Annotated[str | None, string, "1+", ignorable] = None


@struct
class MetadataResponsePartition:
    """A partition and its replicas."""

    error_code: Annotated[int, int16] = 0
    partition_index: Annotated[int, int32]
    leader_id: Annotated[int, int32] = -1
    leader_epoch: Annotated[int, int32, "7+", ignorable] = -1
    replica_nodes: Annotated[list[int], array(int32)] = []
    isr_nodes: Annotated[list[int], array(int32)] = []
    offline_replicas: Annotated[list[int], array(int32), "5+", ignorable] = []


@struct
class MetadataResponseTopic:
    """A topic: an error, or its partitions."""

    error_code: Annotated[int, int16] = 0
    name: Annotated[str | None, string, nullable("12+")] = None
    topic_id: Annotated[bytes, uuid, "10+", ignorable] = ZERO_UUID
    is_internal: Annotated[bool, boolean, "1+", ignorable] = False
    partitions: Annotated[list[MetadataResponsePartition], array] = []
    topic_authorized_operations: Annotated[int, int32, "8+"] = -0x80000000


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    """The cluster as clients see it."""

    throttle_time_ms: Annotated[int, int32, "3+", ignorable] = 0
    brokers: Annotated[list[MetadataResponseBroker], array] = []
    cluster_id: Annotated[str | None, string, "2+", ignorable] = None
    controller_id: Annotated[int, int32, "1+", ignorable] = -1
    topics: Annotated[list[MetadataResponseTopic], array] = []
    cluster_authorized_operations: Annotated[int, int32, "8-10"] = -0x80000000
    error_code: Annotated[int, int16, "13+", ignorable] = 0
