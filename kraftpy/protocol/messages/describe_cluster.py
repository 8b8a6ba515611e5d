"""The brokers, the controller and the id of the cluster.

KIP-430 (authorized operations), KIP-700, KIP-919 (controllers as endpoints), KIP-1073 (fenced brokers).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, message, string, struct


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Asks for the cluster's brokers (1) or its controllers (2)."""

    include_cluster_authorized_operations: Annotated[bool, boolean] = False
    endpoint_type: Annotated[int, int8, "1+"] = 1  # KIP-919
    include_fenced_brokers: Annotated[bool, boolean, "2+"] = False  # KIP-1073


@struct
class DescribeClusterBroker:
    """A broker or controller, and its address."""

    broker_id: Annotated[int, int32]
    host: Annotated[str, string]
    port: Annotated[int, int32]
    rack: Annotated[str | None, string] = None
    is_fenced: Annotated[bool, boolean, "2+", ignorable] = False


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The cluster: its id, its nodes and its controller."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    endpoint_type: Annotated[int, int8, "1+"] = 1
    cluster_id: Annotated[str, string] = ""
    controller_id: Annotated[int, int32] = -1
    brokers: Annotated[list[DescribeClusterBroker], array] = []
    cluster_authorized_operations: Annotated[int, int32] = -0x80000000
