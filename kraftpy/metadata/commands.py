"""What may be asked of the cluster's metadata, as data that is replicated before it is decided.

A command carries everything its decision may depend on apart from the committed image: its own time, the ids it hands
out, the defaults of the broker that took the request. So every node that decides it on the same image decides the
same, today and when the journal is replayed.

On disk and on the wire a command is `[schema, number, fields]` in msgpack. The schema counts formats and meanings: a
new field or command, or a change to what an accepted command decides, takes a new number and leaves the old one its
meaning, because a journal is decided again each time it is replayed. A node that meets a newer number stops
(`NewerSchemaError`): to skip what the others decide would be to disagree with them for ever.

Left out until the quorum of several nodes needs them: unregistering a broker, reassignments, elections on request,
feature levels, scram and ACLs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kraftpy.metadata.codec import CodecError, from_plain, pack, to_plain, unpack
from kraftpy.types import BrokerId, LeaderEpoch, Millis, TopicId

SCHEMA = 1
"""The newest meaning of commands that this code knows."""


class ConfigResourceType(IntEnum):
    """What settings can belong to, under the numbers of the wire."""

    TOPIC = 2
    BROKER = 4


class ConfigOperationType(IntEnum):
    """What an incremental change does to a setting, under the numbers of the wire (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a broker can be reached, for one listener. `security_protocol` is Kafka's word for it."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCluster:
    """Give the cluster its id. Once; the same id again changes nothing."""

    cluster_id: str
    time_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker process came up. `incarnation_id` is 16 bytes of its own, new with each start (KIP-631)."""

    broker_id: BrokerId
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    time_ms: Millis
    rack: str | None = None
    fenced: bool = True
    """Whether it has yet to prove that it is caught up. A broker that is its own quorum need not."""
    previous_session_expired: bool = False
    """The proposer saw that no other incarnation is alive; without it, one that is not fenced stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBroker:
    """Fence a broker whose heartbeats stopped or that shuts down, or unfence one that has caught up."""

    broker_id: BrokerId
    broker_epoch: int
    fenced: bool
    time_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaAssignment:
    """One partition's replicas, chosen by the caller; the first is preferred as leader."""

    partition: int
    replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A setting and its value, as text."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1 means the command's default; with `assignments` both counts must be -1."""

    name: str
    topic_id: TopicId
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[ConfigValue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """Create topics, each by itself: one that is refused does not hold up the others."""

    topics: tuple[NewTopic, ...]
    time_ms: Millis
    default_partitions: int = 1
    default_replication_factor: int = 1
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReference:
    """A topic by its name, or by its id where the name is None (KIP-516)."""

    name: str | None = None
    topic_id: TopicId = TopicId(bytes(16))  # noqa: RUF009 - immutable


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopics:
    """Delete topics and their settings, each by itself."""

    topics: tuple[TopicReference, ...]
    time_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """Grow a topic to `count` partitions in all. `assignments` places only the added ones, in order."""

    name: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Grow topics, each by itself (KIP-195)."""

    topics: tuple[NewPartitions, ...]
    time_ms: Millis
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOperation:
    """One change of one setting. The value of DELETE is ignored."""

    name: str
    value: str | None = None
    operation: ConfigOperationType = ConfigOperationType.SET
    inherited: str | None = None
    """What holds where it is not set, on the broker that took the request: what APPEND and SUBTRACT start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Changes to one resource, all or none. A broker's name is its id in decimal; "" means every broker."""

    resource_type: int
    """A `ConfigResourceType`, or a number that will be refused: it comes from a client."""
    resource_name: str
    operations: tuple[ConfigOperation, ...]
    replace: bool = False
    """The operations name all that shall be set; whatever else was set is removed (AlterConfigs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfigs:
    """Change settings of topics and brokers, each resource by itself."""

    changes: tuple[ConfigChange, ...]
    time_ms: Millis
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """A block of 1000 producer ids for a broker to hand out (KIP-730)."""

    broker_id: BrokerId
    broker_epoch: int
    time_ms: Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    """A replica that the leader proposes as in sync; epoch -1 skips the check of its registration (KIP-903)."""

    broker_id: BrokerId
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A leader's proposal for one partition's in-sync replicas, with the epochs it is based on (KIP-497)."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePartitions:
    """What one broker asks for the partitions that it leads."""

    broker_id: BrokerId
    broker_epoch: int
    changes: tuple[IsrChange, ...]
    time_ms: Millis


Command = (
    FormatCluster
    | RegisterBroker
    | ChangeBroker
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | SetConfigs
    | AllocateProducerIds
    | ChangePartitions
)


class NewerSchemaError(CodecError):
    """A newer version of kraftpy wrote this; the message says what to do."""


_NUMBERS: dict[type[Any], int] = {  # numbers are on disk: never reuse one
    FormatCluster: 1,
    RegisterBroker: 2,
    ChangeBroker: 3,
    CreateTopics: 4,
    DeleteTopics: 5,
    CreatePartitions: 6,
    SetConfigs: 7,
    AllocateProducerIds: 8,
    ChangePartitions: 9,
}
_CLASSES: dict[int, type[Any]] = {number: cls for cls, number in _NUMBERS.items()}


def encode_command(command: Command) -> bytes:
    """The command as it is replicated and kept. Raises ValueError on text that is not Unicode."""
    return pack([SCHEMA, _NUMBERS[type(command)], to_plain(command)])


def decode_command(data: bytes | memoryview) -> Command:
    """The command that these bytes hold. Raises `CodecError` on anything else, `NewerSchemaError` on a later schema."""
    plain = unpack(data)
    if type(plain) is not list or len(plain) != 3:
        raise CodecError("not a metadata command")
    schema, number, fields = plain
    if type(schema) is not int or schema < 1:
        raise CodecError("not a metadata command: its schema is no number")
    if schema > SCHEMA:
        raise NewerSchemaError(
            f"a newer version of kraftpy wrote this metadata (commands of schema {schema}, this one knows {SCHEMA}): "
            "upgrade this node"
        )
    if type(number) is not int or number not in _CLASSES:
        raise CodecError(f"unknown metadata command {number}")
    command: Command = from_plain(_CLASSES[number], fields)
    return command
