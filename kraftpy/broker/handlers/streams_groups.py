"""Streams groups (keys 88, 89, 93): their members and topologies (KIP-1071). The protocol is in `groups.coordinator`.

A cluster has them if the feature `streams.version` is at least 1, which is the default of a new cluster.

Left out: descriptions of topologies (KIP-1331), which Kafka leaves to a plugin. Members are never asked for one, and
get the same answer as from Kafka without a plugin; the description of a group says that none is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kraftpy.broker.handlers.pieces import ask, described
from kraftpy.broker.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kraftpy.groups.member_errors import NO_GROUP_ID, is_blank
from kraftpy.groups.routing import refuse
from kraftpy.metadata.features import STREAMS_FEATURE
from kraftpy.metadata.topics import topic_name_problem
from kraftpy.protocol.errors import ErrorCode, shortened
from kraftpy.protocol.messages.streams_group_describe import DescribedStreamsGroup, StreamsGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)
from kraftpy.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

if TYPE_CHECKING:
    from kraftpy.broker.handlers.services import HasCoordinators
    from kraftpy.broker.request import RequestContext
    from kraftpy.broker.services import HasConfig, HasImage, HasSlices

    class Broker(HasConfig, HasCoordinators, HasImage, HasSlices, Protocol):
        """The part of a broker that these handlers need."""


_NOT_STORED = 1
_INTERNAL = (CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE)


async def streams_group_heartbeat(
    broker: Broker, request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> Any:
    """Join a streams group, stay in it or leave it."""
    if not _has_protocol(broker):
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    if request.topology is not None and (problem := _problem_of_names(request.topology)) is not None:
        invalid = ErrorCode.STREAMS_INVALID_TOPOLOGY
        return StreamsGroupHeartbeatResponse(error_code=invalid, error_message=shortened(problem))
    if is_blank(request.group_id):
        return refuse(request, context.api_version, ErrorCode.INVALID_REQUEST, NO_GROUP_ID)
    answer: Any = await broker.coordinators.ask(request, context)
    answer.error_message = shortened(answer.error_message)
    return answer


def _has_protocol(broker: Broker) -> bool:
    has_feature = broker.image.feature_level(STREAMS_FEATURE) >= 1
    return has_feature and "streams" in broker.config.group_coordinator_rebalance_protocols


def _problem_of_names(topology: Topology) -> str | None:
    """Say which names in the topology cannot be topic names; None if all can."""
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        names |= dict.fromkeys(each.source_topics) | dict.fromkeys(each.repartition_sink_topics)
        names |= dict.fromkeys(topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    internal = [name for name in names if name in _INTERNAL]
    if internal:
        return f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
    invalid = [name for name in names if topic_name_problem(name) is not None]
    return f"Topic names {','.join(invalid)} are not valid topic names." if invalid else None


async def streams_group_describe(broker: Broker, request: StreamsGroupDescribeRequest, context: RequestContext) -> Any:
    """Describe streams groups."""
    if not _has_protocol(broker):
        return refuse(request, context.api_version, ErrorCode.UNSUPPORTED_VERSION)
    answer = await described(broker, request, context, ask, DescribedStreamsGroup)
    if request.include_topology_description:
        for group in answer.groups:
            if group.error_code == ErrorCode.NONE:
                group.topology_description_status = _NOT_STORED
    return answer


async def streams_group_topology_description_update(
    broker: Broker, request: StreamsGroupTopologyDescriptionUpdateRequest, context: RequestContext
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """Refuse the description of a topology, which is not stored here."""
    problem = None
    if broker.image.feature_level(STREAMS_FEATURE) >= 1:
        problem = "The broker has no streams group topology description plugin configured."
    return StreamsGroupTopologyDescriptionUpdateResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=problem or ErrorCode.UNSUPPORTED_VERSION.meaning
    )
