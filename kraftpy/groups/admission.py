"""Refuses members and groups for which there is not enough memory (`memory`).

Each classic group has its own limit (`kraftpy.group.max.bytes`), and all groups of a broker share another
(`kraftpy.group.coordinator.max.bytes`). A refused member gets GROUP_MAX_SIZE_REACHED, on which clients give up with an
error that names the group. Heartbeat responses of the newer protocols also name the setting, and the broker's log
always does. A member is never refused if it asks for no more than it already has.

Left out: committed offsets, which `offsets` refuses one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

from kraftpy.groups.classic.rebalance import join_error
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.events import GroupResponse, Request
from kraftpy.groups.group import Group
from kraftpy.groups.memory import (
    GROUP_BYTES,
    GROUP_MAX_BYTES_SETTING,
    MAX_BYTES_SETTING,
    MEMBER_BYTES,
    Room,
    Usage,
    weight_of_member,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kraftpy.protocol.messages.join_group import JoinGroupRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kraftpy.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)

_Heartbeat = ConsumerGroupHeartbeatRequest | ShareGroupHeartbeatRequest | StreamsGroupHeartbeatRequest
_LOOKED_AT = (
    JoinGroupRequest,
    ConsumerGroupHeartbeatRequest,
    ShareGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequest,
)
_NAME_BYTES = 8
"""The bytes that a name or number in a list counts for in addition to its characters."""


class Admission:
    """Checks requests before the groups see them."""

    def __init__(self, config: GroupConfig, room: Room | None, usage: Usage) -> None:
        self._config = config
        self.room = room or Room(config.kraftpy_group_coordinator_max_bytes)
        self.room.join(usage)

    def refusal(self, event: Request, groups: Mapping[str, Group]) -> GroupResponse | None:
        """Return an error response if the request would take too much memory, else None."""
        message = event.message
        if type(message) not in _LOOKED_AT:
            return None
        if isinstance(message, JoinGroupRequest):
            return self._join(event, message, groups.get(message.group_id))
        if isinstance(
            message, ConsumerGroupHeartbeatRequest | ShareGroupHeartbeatRequest | StreamsGroupHeartbeatRequest
        ):
            return self._heartbeat(message)
        return None

    def _join(self, event: Request, message: JoinGroupRequest, group: Group | None) -> GroupResponse | None:
        wanted = MEMBER_BYTES + sum(len(each.name) + len(each.metadata) for each in message.protocols)
        others = 0
        known = 0
        if group is not None:
            classic = group.classic_or_empty()
            member_id = message.member_id or classic.static_members.get(message.group_instance_id or "", "")
            member = classic.members.get(member_id)
            if member is not None:
                known = member.weight
            elif member_id in classic.pending_members:
                known = MEMBER_BYTES
            others = group.weight - known
        if wanted <= known:
            return None
        setting = None
        if others + wanted > self._config.kraftpy_group_max_bytes:
            setting = f"{GROUP_MAX_BYTES_SETTING}={self._config.kraftpy_group_max_bytes}"
        elif not self.room.has(wanted - known + (GROUP_BYTES if group is None else 0)):
            setting = f"{MAX_BYTES_SETTING}={self.room.max_bytes}"
        if setting is None:
            return None
        self.room.refused(f"a member ({setting}) of group {message.group_id}")
        return join_error(event.api_version, message.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _heartbeat(self, message: _Heartbeat) -> GroupResponse | None:
        characters = _new_characters(message)
        if characters is None or self.room.has(weight_of_member(characters)):
            return None
        self.room.refused(f"a member ({MAX_BYTES_SETTING}={self.room.max_bytes}) of group {message.group_id}")
        text = f"The broker has no memory left for this member: {MAX_BYTES_SETTING}={self.room.max_bytes}."
        match message:
            case ConsumerGroupHeartbeatRequest():
                return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, error_message=text)
            case ShareGroupHeartbeatRequest():
                return ShareGroupHeartbeatResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, error_message=text)
            case StreamsGroupHeartbeatRequest():
                return StreamsGroupHeartbeatResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED, error_message=text)


def _new_characters(message: _Heartbeat) -> int | None:
    """Estimate how many characters a heartbeat adds to its member; None if it says nothing new."""
    if message.member_epoch < 0:
        return None
    if isinstance(message, StreamsGroupHeartbeatRequest):
        if message.topology is None and message.member_epoch != 0:
            return None
        tags = message.client_tags or ()
        size = 0 if message.topology is None else _topology(message.topology)
        return size + _names(part for tag in tags for part in (tag.key, tag.value))
    names = message.subscribed_topic_names
    regex = message.subscribed_topic_regex if isinstance(message, ConsumerGroupHeartbeatRequest) else None
    if names is None and regex is None and message.member_epoch != 0:
        return None
    return _names(names or ()) + len(regex or "")


def _names(names: Iterable[str]) -> int:
    lengths = [*map(len, names)]
    return _NAME_BYTES * len(lengths) + sum(lengths)


def _topology(topology: Topology) -> int:
    """Count the characters and numbers of a topology, which may have very many subtopologies."""
    parts = topology.subtopologies

    def lists(name: str, of: Iterable[Any] = parts) -> Iterator[Any]:
        return chain.from_iterable(map(attrgetter(name), of))

    size = sum(_names(lists(name)) for name in ("source_topics", "source_topic_regex", "repartition_sink_topics"))
    topics = [*lists("state_changelog_topics"), *lists("repartition_source_topics")]
    pairs = [*lists("topic_configs", topics)]
    for name, of in (("subtopology_id", parts), ("name", topics), ("key", pairs), ("value", pairs)):
        size += _names(map(attrgetter(name), of))
    groups = [*lists("copartition_groups")]
    for name in ("source_topics", "source_topic_regex", "repartition_source_topics"):
        size += 2 * sum(map(len, map(attrgetter(name), groups)))
    return size
