"""Records of the groups that the coordinator itself assigns to: consumer groups, share groups, streams groups.

Each kind has keys of its own; a group comes with its first record and is one of nothing when the last is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kraftpy.groups.consumer_group import ConsumerGroup
from kraftpy.groups.consumer_records import read_key as read_consumer_key
from kraftpy.groups.consumer_records import read_value as read_consumer_value
from kraftpy.groups.group import Group
from kraftpy.groups.share_group import ShareGroup
from kraftpy.groups.share_records import read_key as read_share_key
from kraftpy.groups.share_records import read_value as read_share_value
from kraftpy.groups.streams_group import StreamsGroup
from kraftpy.groups.streams_records import read_key as read_streams_key
from kraftpy.groups.streams_records import read_value as read_streams_value
from kraftpy.ports import Buffer


def replay_record(
    key: Buffer, value: Buffer | None, groups: Mapping[str, Group], make: Callable[[str], Group]
) -> str | None:
    """Have what the record says become so. The group it left with nothing of its kind, if it did. Raises ProtocolError.

    `make` gives the group of that id, a new one if need be.
    """
    if (consumer_key := read_consumer_key(key)) is not None:
        said = None if value is None else read_consumer_value(consumer_key, value)
        group = make(consumer_key.group_id) if said is not None else groups.get(consumer_key.group_id)
        if group is None or (said is None and group.consumer is None):
            return None
        group.consumer = group.consumer or ConsumerGroup(group_id=group.group_id)
        group.consumer.apply(consumer_key, said)
        if group.consumer.is_gone:
            group.consumer = None
            return group.group_id
    elif (share_key := read_share_key(key)) is not None:
        shared = None if value is None else read_share_value(share_key, value)
        group = make(share_key.group_id) if shared is not None else groups.get(share_key.group_id)
        if group is None or (shared is None and group.share is None):
            return None
        group.share = group.share or ShareGroup(group_id=group.group_id)
        group.share.apply(share_key, shared)
        if group.share.is_gone:
            group.share = None
            return group.group_id
    elif (streams_key := read_streams_key(key)) is not None:
        streamed = None if value is None else read_streams_value(streams_key, value)
        group = make(streams_key.group_id) if streamed is not None else groups.get(streams_key.group_id)
        if group is None or (streamed is None and group.streams is None):
            return None
        group.streams = group.streams or StreamsGroup(group_id=group.group_id)
        group.streams.apply(streams_key, streamed)
        if group.streams.is_gone:
            group.streams = None
            return group.group_id
    return None
