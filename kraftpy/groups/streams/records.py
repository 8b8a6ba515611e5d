"""The records of streams groups (KIP-1071) in `__consumer_offsets`, exactly in Kafka's format.

A key starts with the number of its kind (an int16) and is not flexible; a value starts with its version, 0, and is
flexible.

    17 the group: its epoch, and of that time a hash of its topics, the epoch of the valid topology, and the settings
       of the assignment
    19 a member: its metadata, from its own requests
    20 the assignment: the group epoch for which it was computed, and when (KIP-1263)
    21 a member's target: the tasks it should have, by role
    22 a member's current tasks: its epoch, what it has, what it was asked to give up
    23 the topology

Left out: the epochs at which tasks were assigned: a tag that is skipped when read and not written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar, assert_never

from kraftpy.frozen import frozen
from kraftpy.groups.assignment_interval import NEVER_ASSIGNED, read_assigned_at, write_assigned_at
from kraftpy.groups.records import Record, RecordReader
from kraftpy.groups.streams.topology import CopartitionGroup, InternalTopic, Subtopology, Topology
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ProtocolError
from kraftpy.protocol.primitives import compact_nullable_string, compact_string, string, uvarint

VERSION = 0
_NO_TAGS = b"\x00"
_NULL = b"\xff"
_NOT_NULL = b"\x01"
_VALIDATED_TAG = 0
_CONFIGS_TAG = 1
T = TypeVar("T")


class Task(NamedTuple):
    """One task: a subtopology and a partition of its sources."""

    subtopology_id: str
    partition: int


TaskSet = frozenset[Task]
"""Tasks of any subtopologies. Sort before iterating."""


@frozen
class Tasks:
    """Tasks in each role: active, standby (ready to take over), and warm-up (being prepared for a move)."""

    active: TaskSet = frozenset()
    standby: TaskSet = frozenset()
    warmup: TaskSet = frozenset()

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def __len__(self) -> int:
        return len(self.active) + len(self.standby) + len(self.warmup)

    def __or__(self, other: Tasks) -> Tasks:
        return Tasks(
            active=self.active | other.active,
            standby=self.standby | other.standby,
            warmup=self.warmup | other.warmup,
        )

    def __and__(self, other: Tasks) -> Tasks:
        return Tasks(
            active=self.active & other.active,
            standby=self.standby & other.standby,
            warmup=self.warmup & other.warmup,
        )

    def __sub__(self, other: Tasks) -> Tasks:
        return Tasks(
            active=self.active - other.active,
            standby=self.standby - other.standby,
            warmup=self.warmup - other.warmup,
        )

    def all(self) -> list[Task]:
        """Return every task in any role, in order."""
        return sorted(self.active | self.standby | self.warmup)


NO_TASKS = Tasks()


class StreamsState(Enum):
    """A member's progress towards its target; the values are those in the record."""

    STABLE = 0
    UNREVOKED_TASKS = 1  # was asked to give up tasks and has not confirmed it
    UNRELEASED_TASKS = 2  # waits for tasks that others have yet to give up
    UNKNOWN = 127  # written by a newer coordinator


# ---- keys


@dataclass(frozen=True, slots=True)
class StreamsGroupKey:
    """The group itself (17)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class StreamsMemberKey:
    """A member's metadata (19)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class StreamsTargetMetadataKey:
    """The assignment of the whole group (20)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class StreamsTargetKey:
    """A member's target (21)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class StreamsCurrentKey:
    """A member's current tasks (22)."""

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class StreamsTopologyKey:
    """The topology (23)."""

    group_id: str


StreamsKey = (
    StreamsGroupKey
    | StreamsMemberKey
    | StreamsTargetMetadataKey
    | StreamsTargetKey
    | StreamsCurrentKey
    | StreamsTopologyKey
)


# ---- values


@frozen
class StreamsGroupValue:
    """The group's epoch, a hash of its topics at that time, and the topology's epoch if it could be run."""

    epoch: int
    metadata_hash: int = 0
    validated_topology_epoch: int = -1
    assignment_configs: tuple[tuple[str, str], ...] = ()
    """The settings by which tasks are assigned in this epoch; none if an older version wrote the record."""


@frozen
class StreamsMemberValue:
    """A member's metadata."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = 0
    process_id: str = ""
    user_endpoint: tuple[str, int] | None = None
    client_tags: tuple[tuple[str, str], ...] = ()


@frozen
class StreamsTargetMetadataValue:
    """The group epoch for which the targets were computed, and when that was."""

    assignment_epoch: int
    assigned_at: int = NEVER_ASSIGNED  # wall clock


@frozen
class StreamsTargetValue:
    """The tasks a member should have."""

    tasks: Tasks


@frozen
class StreamsCurrentValue:
    """The last assignment sent to a member: its epoch, its tasks, and what it has yet to give up."""

    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: StreamsState = StreamsState.STABLE
    assigned: Tasks = NO_TASKS
    pending_revocation: Tasks = NO_TASKS


StreamsValue = (
    StreamsGroupValue
    | StreamsMemberValue
    | StreamsTargetMetadataValue
    | StreamsTargetValue
    | StreamsCurrentValue
    | Topology
)


# ---- writing


def write_key(key: StreamsKey) -> bytes:
    """Encode a key."""
    match key:
        case StreamsGroupKey(group_id):
            return struct.pack(">h", 17) + string(group_id)
        case StreamsMemberKey(group_id, member_id):
            return struct.pack(">h", 19) + string(group_id) + string(member_id)
        case StreamsTargetMetadataKey(group_id):
            return struct.pack(">h", 20) + string(group_id)
        case StreamsTargetKey(group_id, member_id):
            return struct.pack(">h", 21) + string(group_id) + string(member_id)
        case StreamsCurrentKey(group_id, member_id):
            return struct.pack(">h", 22) + string(group_id) + string(member_id)
        case StreamsTopologyKey(group_id):
            return struct.pack(">h", 23) + string(group_id)
        case _:
            assert_never(key)


def _array(items: Iterable[T], write: Callable[[T], bytes]) -> bytes:
    written = [write(item) for item in items]
    return uvarint(len(written) + 1) + b"".join(written)


def _pair(pair: tuple[str, str]) -> bytes:
    return compact_string(pair[0]) + compact_string(pair[1]) + _NO_TAGS


def _int16(value: int) -> bytes:
    return struct.pack(">h", value)


def by_subtopology(tasks: TaskSet) -> list[tuple[str, list[int]]]:
    """Group partitions by subtopology, all in order."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return list(found.items())


def _tasks(tasks: Tasks) -> bytes:
    def written(item: tuple[str, list[int]]) -> bytes:
        name, partitions = item
        return compact_string(name) + _array(partitions, lambda each: struct.pack(">i", each)) + _NO_TAGS

    roles = (tasks.active, tasks.standby, tasks.warmup)
    return b"".join(_array(by_subtopology(role), written) for role in roles)


def _topic(topic: InternalTopic) -> bytes:
    head = compact_string(topic.name) + struct.pack(">ih", topic.partitions, topic.replication_factor)
    return head + _array(topic.configs, _pair) + _NO_TAGS


def _copartition_group(group: CopartitionGroup) -> bytes:
    places = (group.source_topics, group.source_topic_regex, group.repartition_source_topics)
    return b"".join(_array(each, _int16) for each in places) + _NO_TAGS


def _subtopology(subtopology: Subtopology) -> bytes:
    return b"".join(
        (
            compact_string(subtopology.subtopology_id),
            _array(subtopology.source_topics, compact_string),
            _array(subtopology.source_topic_regex, compact_string),
            _array(subtopology.state_changelog_topics, _topic),
            _array(subtopology.repartition_sink_topics, compact_string),
            _array(subtopology.repartition_source_topics, _topic),
            _array(subtopology.copartition_groups, _copartition_group),
            _NO_TAGS,
        )
    )


def _endpoint(endpoint: tuple[str, int] | None) -> bytes:
    if endpoint is None:
        return _NULL
    return _NOT_NULL + compact_string(endpoint[0]) + struct.pack(">H", endpoint[1]) + _NO_TAGS


def _group_tags(value: StreamsGroupValue) -> bytes:
    tags = []
    if value.validated_topology_epoch != -1:
        tags.append((_VALIDATED_TAG, struct.pack(">i", value.validated_topology_epoch)))
    if value.assignment_configs:
        tags.append((_CONFIGS_TAG, _array(value.assignment_configs, _pair)))
    return uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(data)) + data for tag, data in tags)


def write_value(value: StreamsValue) -> bytes:
    """Encode a value."""
    tags = _NO_TAGS
    match value:
        case StreamsGroupValue():
            body = struct.pack(">iq", value.epoch, value.metadata_hash)
            tags = _group_tags(value)
        case StreamsMemberValue():
            body = b"".join(
                (
                    compact_nullable_string(value.instance_id),
                    compact_nullable_string(value.rack_id),
                    compact_string(value.client_id),
                    compact_string(value.client_host),
                    struct.pack(">ii", value.rebalance_timeout_ms, value.topology_epoch),
                    compact_string(value.process_id),
                    _endpoint(value.user_endpoint),
                    _array(value.client_tags, _pair),
                )
            )
        case StreamsTargetMetadataValue():
            body = struct.pack(">i", value.assignment_epoch)
            tags = write_assigned_at(value.assigned_at)
        case StreamsTargetValue():
            body = _tasks(value.tasks)
        case StreamsCurrentValue():
            body = (
                struct.pack(">iib", value.member_epoch, value.previous_member_epoch, value.state.value)
                + _tasks(value.assigned)
                + _tasks(value.pending_revocation)
            )
        case Topology():
            body = struct.pack(">i", value.epoch) + _array(value.subtopologies, _subtopology)
        case _:
            assert_never(value)
    return struct.pack(">h", VERSION) + body + tags


def streams_record(key: StreamsKey, value: StreamsValue | None) -> Record:
    """Return the record that stores this value, or deletes it if the value is None."""
    return write_key(key), None if value is None else write_value(value)


# ---- reading


def read_key(data: Buffer) -> StreamsKey | None:
    """Parse a key; None if it is of another kind. Raises ProtocolError."""
    reader = RecordReader(data)
    match reader.int16():
        case 17:
            return StreamsGroupKey(reader.string())
        case 19:
            return StreamsMemberKey(reader.string(), reader.string())
        case 20:
            return StreamsTargetMetadataKey(reader.string())
        case 21:
            return StreamsTargetKey(reader.string(), reader.string())
        case 22:
            return StreamsCurrentKey(reader.string(), reader.string())
        case 23:
            return StreamsTopologyKey(reader.string())
    return None


def _read_array(reader: RecordReader, read: Callable[[RecordReader], T]) -> tuple[T, ...]:
    return tuple(read(reader) for _ in range(reader.array_length()))


def _read_struct(reader: RecordReader, read: Callable[[RecordReader], T]) -> T:
    found = read(reader)
    reader.tagged_fields()
    return found


def _read_pair(reader: RecordReader) -> tuple[str, str]:
    return _read_struct(reader, lambda r: (r.string(), r.string()))


def _read_task_set(reader: RecordReader) -> TaskSet:
    found = []
    for _ in range(reader.array_length()):
        name = reader.string()
        found += [Task(name, reader.int32()) for _ in range(reader.array_length())]
        reader.tagged_fields()
    return frozenset(found)


def _read_tasks(reader: RecordReader) -> Tasks:
    return Tasks(active=_read_task_set(reader), standby=_read_task_set(reader), warmup=_read_task_set(reader))


def _read_topic(reader: RecordReader) -> InternalTopic:
    topic = InternalTopic(
        name=reader.string(),
        partitions=reader.int32(),
        replication_factor=reader.int16(),
        configs=_read_array(reader, _read_pair),
    )
    reader.tagged_fields()
    return topic


def _read_copartition_group(reader: RecordReader) -> CopartitionGroup:
    group = CopartitionGroup(
        source_topics=_read_array(reader, RecordReader.int16),
        source_topic_regex=_read_array(reader, RecordReader.int16),
        repartition_source_topics=_read_array(reader, RecordReader.int16),
    )
    reader.tagged_fields()
    return group


def _read_subtopology(reader: RecordReader) -> Subtopology:
    subtopology = Subtopology(
        subtopology_id=reader.string(),
        source_topics=_read_array(reader, RecordReader.string),
        source_topic_regex=_read_array(reader, RecordReader.string),
        state_changelog_topics=_read_array(reader, _read_topic),
        repartition_sink_topics=_read_array(reader, RecordReader.string),
        repartition_source_topics=_read_array(reader, _read_topic),
        copartition_groups=_read_array(reader, _read_copartition_group),
    )
    reader.tagged_fields()
    return subtopology


def _read_endpoint(reader: RecordReader) -> tuple[str, int] | None:
    if reader.int8() < 0:
        return None
    host, port = reader.string(), reader.int16() & 0xFFFF
    reader.tagged_fields()
    return host, port


def _read_member(reader: RecordReader) -> StreamsMemberValue:
    return StreamsMemberValue(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        rebalance_timeout_ms=reader.int32(),
        topology_epoch=reader.int32(),
        process_id=reader.string(),
        user_endpoint=_read_endpoint(reader),
        client_tags=_read_array(reader, _read_pair),
    )


def _read_current(reader: RecordReader) -> StreamsCurrentValue:
    member_epoch, previous_member_epoch, state = reader.int32(), reader.int32(), reader.int8()
    return StreamsCurrentValue(
        member_epoch=member_epoch,
        previous_member_epoch=previous_member_epoch,
        state=StreamsState(state) if state in (0, 1, 2) else StreamsState.UNKNOWN,
        assigned=_read_tasks(reader),
        pending_revocation=_read_tasks(reader),
    )


def _read_configs(data: bytes) -> tuple[tuple[str, str], ...]:
    reader = RecordReader(data)
    reader.flexible = True
    return _read_array(reader, _read_pair)


def read_value(key: StreamsKey, data: Buffer) -> StreamsValue:
    """Parse the value for this key. Raises ProtocolError."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != VERSION:
        raise ProtocolError(f"a {type(key).__name__} has unknown version {version}; only {VERSION} is supported")
    reader.flexible = True
    if isinstance(key, StreamsGroupKey):
        epoch, metadata_hash = reader.int32(), reader.int64()
        tags = reader.tagged_fields()
        validated, configs = tags.get(_VALIDATED_TAG), tags.get(_CONFIGS_TAG)
        return StreamsGroupValue(
            epoch=epoch,
            metadata_hash=metadata_hash,
            validated_topology_epoch=-1 if validated is None else RecordReader(validated).int32(),
            assignment_configs=() if configs is None else _read_configs(configs),
        )
    if isinstance(key, StreamsTargetMetadataKey):
        return StreamsTargetMetadataValue(assignment_epoch=reader.int32(), assigned_at=read_assigned_at(reader))
    return _read_struct(reader, lambda r: _read_fields(key, r))


def _read_fields(
    key: StreamsMemberKey | StreamsTargetKey | StreamsCurrentKey | StreamsTopologyKey, reader: RecordReader
) -> StreamsValue:
    match key:
        case StreamsMemberKey():
            return _read_member(reader)
        case StreamsTargetKey():
            return StreamsTargetValue(tasks=_read_tasks(reader))
        case StreamsCurrentKey():
            return _read_current(reader)
        case StreamsTopologyKey():
            return Topology(epoch=reader.int32(), subtopologies=_read_array(reader, _read_subtopology))
        case _:
            assert_never(key)
