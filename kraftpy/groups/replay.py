"""Records of the groups that the coordinator itself assigns to: consumer groups, share groups, streams groups.

Each kind has keys of its own; a group comes with its first record and is one of nothing when the last is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kraftpy.groups import consumer_records, share_records, streams_records
from kraftpy.groups.consumer_group import ConsumerGroup
from kraftpy.groups.group import Group
from kraftpy.groups.share_group import ShareGroup
from kraftpy.groups.streams_group import StreamsGroup
from kraftpy.ports import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How the records of one kind of group are read, and where in the `Group` they say something."""

    read_key: Callable[[Buffer], Any]  # None where it is of another kind
    read_value: Callable[[Any, Buffer], Any]
    begin: type[ConsumerGroup | ShareGroup | StreamsGroup]
    place: Literal["consumer", "share", "streams"]


_KINDS = (
    _Kind(
        read_key=consumer_records.read_key,
        read_value=consumer_records.read_value,
        begin=ConsumerGroup,
        place="consumer",
    ),
    _Kind(read_key=share_records.read_key, read_value=share_records.read_value, begin=ShareGroup, place="share"),
    _Kind(
        read_key=streams_records.read_key,
        read_value=streams_records.read_value,
        begin=StreamsGroup,
        place="streams",
    ),
)


def replay_record(
    key: Buffer, value: Buffer | None, groups: Mapping[str, Group], make: Callable[[str], Group]
) -> str | None:
    """Have what the record says become so. The group it left with nothing of its kind, if it did. Raises ProtocolError.

    `make` gives the group of that id, a new one if need be.
    """
    for kind in _KINDS:
        named = kind.read_key(key)
        if named is None:
            continue
        said = None if value is None else kind.read_value(named, value)
        group = make(named.group_id) if said is not None else groups.get(named.group_id)
        known = None if group is None else getattr(group, kind.place)
        if group is None or (said is None and known is None):
            return None
        if known is None:
            known = kind.begin(group_id=named.group_id)
            setattr(group, kind.place, known)
        known.apply(named, said)
        if not known.is_gone:
            return None
        setattr(group, kind.place, None)
        return group.group_id
    return None
