"""The groups of one partition of `__consumer_offsets`, and the records that change them.

Invariants: the durable state of a group changes by its records alone, in the order of the log, so that replaying them
again gives the same; a group of which nothing is left is forgotten; `usage` counts the memory of all that is here.
"""

from __future__ import annotations

from typing import Final

from kraftpy.groups import offsets
from kraftpy.groups.group import Group
from kraftpy.groups.memory import OBJECTS_PER_BYTE, Usage
from kraftpy.groups.records import (
    GROUP_KEY_VERSION,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    read_group,
    read_key,
    read_offset,
)
from kraftpy.groups.replay import parse_record, replay_record
from kraftpy.groups.transactional_offsets import PendingOffsets
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError

_CLASSIC_KEY: Final = GROUP_KEY_VERSION.to_bytes(2, "big")
_OF_CLASSIC: Final = 2
"""The memory for each byte of a classic group's record: its members' metadata is kept unparsed."""


def parse(key: Buffer | None, value: Buffer | None) -> object:
    """Parse the value of a record, for `GroupRegistry.replay`. Raises ProtocolError."""
    if key is None or value is None:
        return None
    match read_key(key):
        case OffsetCommitKey():
            return None
        case GroupMetadataKey():
            return read_group(value)
    return parse_record(key, value)


class GroupRegistry:
    """All groups by id, with the offsets of transactions that are not in effect yet."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.usage = Usage()
        self.pending_offsets = PendingOffsets(self.usage)

    def named(self, group_id: str) -> Group:
        """Return the group, creating it if necessary."""
        return self.groups.setdefault(group_id, Group(group_id=group_id))

    def forget_if_vacant(self, group_id: str) -> None:
        """Drop the group if nothing is left of it, or else count its memory again."""
        group = self.groups.get(group_id)
        if group is not None and group.is_vacant:
            del self.groups[group_id]
            self.usage.bytes -= group.counted
        elif group is not None:
            self.usage.count(group)

    # ---- records

    def replay(self, key: Buffer | None, value: Buffer | None, offset: int, parsed: object = None) -> None:
        """Apply one record. Raises ProtocolError if it is not in Kafka's format.

        `parsed` is the value if it was parsed before, which takes long (`parse`).
        """
        if key is None:
            return
        try:
            match read_key(key):
                case OffsetCommitKey() as named:
                    self._replay_offset(named, None if value is None else read_offset(value))
                case GroupMetadataKey() as named:
                    self.count(key, value)
                    generation = parsed if isinstance(parsed, GroupMetadataValue) else None
                    if generation is None and value is not None:
                        generation = read_group(value)
                    self._replay_group(named.group_id, generation)
                case None:
                    self.count(key, value)
                    emptied = replay_record(key, value, self.groups, self.named, parsed)
                    if emptied is not None:
                        self.forget_if_vacant(emptied)
        except ProtocolError as error:
            raise ProtocolError(f"the record at offset {offset}: {error}") from error

    def replay_pending(self, producer_id: int, key: Buffer | None, value: Buffer | None) -> None:
        """Apply one record that is part of this producer's transaction. Raises ProtocolError."""
        named = None if key is None else read_key(key)
        if isinstance(named, OffsetCommitKey) and value is not None:
            group = self.named(named.group_id)
            self.pending_offsets.add(producer_id, group, named.topic_partition, read_offset(value))

    def count(self, key: Buffer, value: Buffer | None) -> None:
        """Count the memory of a record about a group."""
        of_a_byte = _OF_CLASSIC if key[:2] == _CLASSIC_KEY else OBJECTS_PER_BYTE
        self.usage.stored(bytes(key), None if value is None else len(value), of_a_byte)

    def _replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        group = self.groups.get(key.group_id)
        if group is not None:
            self.pending_offsets.superseded(group, key.topic_partition)
        if value is not None:
            offsets.put(self.named(key.group_id), key.topic_partition, value, self.usage)
        elif key.group_id in self.groups:
            offsets.put(self.groups[key.group_id], key.topic_partition, None, self.usage)
            self.forget_if_vacant(key.group_id)

    def _replay_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        if value is not None:
            self.named(group_id).put_generation(value)
        elif group_id in self.groups:
            self.groups[group_id].put_generation(None)
            self.forget_if_vacant(group_id)
