"""Streams groups (keys 88, 89): their members and topologies (KIP-1071). The protocol is in `groups.coordinator`.

A cluster has them if the feature `streams.version` is at least 1, which is the default of a new cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.handlers.pieces import ask, described
from kraftpy.groups.routing import refuse
from kraftpy.metadata.features import STREAMS_FEATURE
from kraftpy.protocol.errors import ErrorCode, shortened
from kraftpy.protocol.messages.streams_group_describe import DescribedStreamsGroup, StreamsGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasCoordinators
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasImage, HasSlices

    class Broker(HasCoordinators, HasImage, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


async def streams_group_heartbeat(
    broker: Broker, request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> Any:
    """Join a streams group, stay in it or leave it."""
    if broker.image.feature_level(STREAMS_FEATURE) < 1:
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    if not request.group_id.strip():
        return refuse(request, context.api_version, ErrorCode.INVALID_REQUEST)
    answer: Any = await broker.coordinators.ask(request, context)
    answer.error_message = shortened(answer.error_message)
    return answer


async def streams_group_describe(broker: Broker, request: StreamsGroupDescribeRequest, context: RequestContext) -> Any:
    """Describe streams groups."""
    if broker.image.feature_level(STREAMS_FEATURE) < 1:
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    return await described(broker, request, context, ask, DescribedStreamsGroup)
