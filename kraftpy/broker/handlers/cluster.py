"""ApiVersions (18), DescribeCluster (60), DescribeLogDirs (35): what this broker and its cluster are.

ApiVersions: KIP-35, KIP-511, features KIP-584. DescribeCluster: KIP-700, endpoint types KIP-919, fenced brokers
KIP-1073. DescribeLogDirs: KIP-113, volume sizes KIP-827, cordoned directories KIP-1066.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kraftpy.broker import apis
from kraftpy.protocol.apis import APIS
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kraftpy.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from kraftpy.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from kraftpy.broker.broker import Broker
    from kraftpy.broker.request import RequestContext

_BROKERS = 1


async def api_versions(broker: Broker, request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """Every API that is served, with its versions."""
    if context.api_version >= 3 and not (
        _is_software_name(request.client_software_name) and _is_software_name(request.client_software_version)
    ):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    return api_versions_response(broker, ErrorCode.NONE)


def api_versions_response(broker: Broker, error_code: ErrorCode) -> ApiVersionsResponse:
    """The table of `apis`, as a response."""
    keys = [ApiVersion(api_key=key, min_version=APIS[key].first, max_version=APIS[key].last) for key in apis.served()]
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)


def _is_software_name(name: str) -> bool:
    """KIP-511's pattern: letters, digits, '-' and '.', none of the last two at the ends."""
    inner = name.replace("-", "").replace(".", "")
    return bool(name) and inner.isascii() and inner.isalnum() and name[0].isalnum() and name[-1].isalnum()


async def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """The cluster's id, controller and brokers."""
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker listener; it describes brokers",
            cluster_id=broker.image.cluster_id or "",
            brokers=[],
        )
    return DescribeClusterResponse(
        cluster_id=broker.image.cluster_id or "",
        controller_id=broker.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in broker.endpoints(context.listener)
        ],
    )


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Each log directory with the size of the partitions asked for (null: all)."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
    results = []
    for directory in broker.replicas.directories:
        topics: dict[str, DescribeLogDirsTopic] = {}
        for replica in broker.replicas.in_directory(directory):
            name, index = replica.topic_partition
            if wanted is not None and (name, index) not in wanted:
                continue
            topic = topics.setdefault(name, DescribeLogDirsTopic(name=name, partitions=[]))
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index, partition_size=replica.log.size_bytes, offset_lag=0, is_future_key=False
                )
            )
        try:
            usage = shutil.disk_usage(directory)
        except OSError:
            results.append(
                DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory, topics=[])
            )
            continue
        results.append(
            DescribeLogDirsResult(
                log_dir=directory, topics=list(topics.values()), total_bytes=usage.total, usable_bytes=usage.free
            )
        )
    return DescribeLogDirsResponse(results=results)
