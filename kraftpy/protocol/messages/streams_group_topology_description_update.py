"""Gives the coordinator of a streams group the description of its topology, for administrators to look at (KIP-1331).

A member sends it if a heartbeat has asked for it. Kafka passes it to a plugin, and refuses it without a plugin.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, message, nested, string, struct


@struct
class TopologyDescriptionNode:
    """A node of a topology: a source (1), a processor (2) or a sink (3)."""

    name: Annotated[str, string]
    node_type: Annotated[int, int8]
    source_topics: Annotated[list[str], array(string)] = []
    sink_topic: Annotated[str | None, string] = None
    stores: Annotated[list[str], array(string)] = []
    successors: Annotated[list[str], array(string)] = []


@struct
class TopologyDescriptionSubtopology:
    """A part of a topology, and its nodes."""

    subtopology_id: Annotated[str, string]
    nodes: Annotated[list[TopologyDescriptionNode], array] = []


@struct
class TopologyDescriptionGlobalStore:
    """A store of which every instance has a full copy."""

    source: Annotated[TopologyDescriptionNode, nested]
    processor: Annotated[TopologyDescriptionNode, nested]


@struct
class TopologyDescription:
    """A whole topology, as its application prints it."""

    subtopologies: Annotated[list[TopologyDescriptionSubtopology], array] = []
    global_stores: Annotated[list[TopologyDescriptionGlobalStore], array] = []


@message(api_key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest:
    """A description, from a member of the group."""

    group_id: Annotated[str, string]
    member_id: Annotated[str, string]
    topology_epoch: Annotated[int, int32]
    topology_description: Annotated[TopologyDescription, nested]


@message(api_key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse:
    """Success, or the reason for a refusal."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
