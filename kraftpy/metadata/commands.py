"""What may be asked of the cluster's metadata, as data that is replicated before it is decided.

A command carries everything its decision may depend on apart from the committed image: its own time, the ids it hands
out, the defaults of the broker that took the request. So every node that decides it on the same image decides the
same, today and when the journal is replayed.

On disk and on the wire a command is `[schema, number, fields]` in msgpack. The schema counts formats and meanings: a
new field or command, or a change to what an accepted command decides, takes a new number and leaves the old one its
meaning, because a journal is decided again each time it is replayed. A node that meets a newer number stops
(`NewerSchemaError`): to skip what the others decide would be to disagree with them for ever. What schema 2 decides
otherwise than schema 1 depends on features, and a cluster that schema 1 formatted has none. What schema 3 decides
otherwise depends on replicas that are marked as offline, which only its `ChangeReplicas` does.

A quorum carries a command as a *submission*: `[node id, nonce, sequence, command]`. Who submits may send the same bytes
again, to whichever node leads by then: the second time they change nothing (`SubmissionId`).

Left out: scram and ACLs.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from kraftpy.metadata.codec import CodecError, from_plain, pack, to_plain, unpack
from kraftpy.metadata.frozen import frozen
from kraftpy.types import BrokerId, LeaderEpoch, Millis, TopicId

SCHEMA = 3
"""The newest meaning of commands that this code knows."""


class ConfigResourceType(IntEnum):
    """What settings can belong to, under the numbers of the wire."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class ConfigOperationType(IntEnum):
    """What an incremental change does to a setting, under the numbers of the wire (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@frozen
class Endpoint:
    """Where a broker can be reached, for one listener. `security_protocol` is Kafka's word for it."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class FeatureUpdateType(IntEnum):
    """Which way a feature's level may go, under the numbers of the wire (KIP-584)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@frozen
class FeatureLevel:
    """A feature of the cluster and the level it is to be finalized at; 0 is off."""

    name: str
    level: int


@frozen
class FormatCluster:
    """Give the cluster its id. Once; the same id again changes nothing."""

    cluster_id: str
    time_ms: Millis
    features: tuple[FeatureLevel, ...] = ()
    """What a new cluster starts with (`features.LATEST` at best); none of it where it has its id already."""
    min_insync_replicas: int = 1
    """With eligible leader replicas: becomes the setting of every broker, for all must judge ISRs alike (KIP-966)."""


@frozen
class SyncedReplicas:
    """Replicas of one topic that had synced whatever they acknowledged."""

    topic_id: TopicId
    partitions: tuple[int, ...]


@frozen
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
    previous_broker_epoch: int = -1
    """Its epoch when it last stopped cleanly, with everything synced; -1 where it cannot prove that (KIP-966)."""
    previous_incarnation_ids: tuple[bytes, ...] = ()
    """Earlier incarnations of this broker that ran with the very disks it has now."""
    synced_replicas: tuple[SyncedReplicas, ...] = ()
    """What it has lost nothing of, though it stopped uncleanly, if its disks are those of its last incarnation."""


@frozen
class ChangeBroker:
    """Fence a broker whose heartbeats stopped, unfence one that has caught up, or let one begin to shut down.

    `fenced` is how it shall be afterwards. Once in controlled shutdown it stays so until it registers again.
    """

    broker_id: BrokerId
    broker_epoch: int
    fenced: bool
    time_ms: Millis
    in_controlled_shutdown: bool = False
    controller_epoch: int = -1
    """The term in which the controller decided this: refused in any other. -1 is not checked."""


@frozen
class UnregisterBroker:
    """Forget a broker; what it keeps replicas of stays assigned to it."""

    broker_id: BrokerId
    time_ms: Millis


@frozen
class ReplicaAssignment:
    """One partition's replicas, chosen by the caller; the first is preferred as leader."""

    partition: int
    replicas: tuple[BrokerId, ...]


@frozen
class ConfigValue:
    """A setting and its value, as text."""

    name: str
    value: str | None


@frozen
class NewTopic:
    """A topic to create. -1 means the command's default; with `assignments` both counts must be -1."""

    name: str
    topic_id: TopicId
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[ConfigValue, ...] = ()


@frozen
class CreateTopics:
    """Create topics, each by itself: one that is refused does not hold up the others."""

    topics: tuple[NewTopic, ...]
    time_ms: Millis
    default_partitions: int = 1
    default_replication_factor: int = 1
    validate_only: bool = False


@frozen
class TopicReference:
    """A topic by its name, or by its id where the name is None (KIP-516)."""

    name: str | None = None
    topic_id: TopicId = TopicId(bytes(16))


@frozen
class DeleteTopics:
    """Delete topics and their settings, each by itself."""

    topics: tuple[TopicReference, ...]
    time_ms: Millis


@frozen
class NewPartitions:
    """Grow a topic to `count` partitions in all. `assignments` places only the added ones, in order."""

    name: str
    count: int
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


@frozen
class CreatePartitions:
    """Grow topics, each by itself (KIP-195)."""

    topics: tuple[NewPartitions, ...]
    time_ms: Millis
    validate_only: bool = False


@frozen
class ConfigOperation:
    """One change of one setting. The value of DELETE is ignored."""

    name: str
    value: str | None = None
    operation: ConfigOperationType = ConfigOperationType.SET
    inherited: str | None = None
    """What holds where it is not set, on the broker that took the request: what APPEND and SUBTRACT start from."""


@frozen
class ConfigChange:
    """Changes to one resource, all or none. A broker's name is its id in decimal; "" means every broker."""

    resource_type: int
    """A `ConfigResourceType`, or a number that will be refused: it comes from a client."""
    resource_name: str
    operations: tuple[ConfigOperation, ...]
    replace: bool = False
    """The operations name all that shall be set; whatever else was set is removed (AlterConfigs)."""


@frozen
class SetConfigs:
    """Change settings of topics and brokers, each resource by itself."""

    changes: tuple[ConfigChange, ...]
    time_ms: Millis
    validate_only: bool = False


@frozen
class AllocateProducerIds:
    """A block of 1000 producer ids for a broker to hand out (KIP-730)."""

    broker_id: BrokerId
    broker_epoch: int
    time_ms: Millis


@frozen
class IsrMember:
    """A replica that the leader proposes as in sync; epoch -1 skips the check of its registration (KIP-903)."""

    broker_id: BrokerId
    broker_epoch: int = -1


@frozen
class IsrChange:
    """A leader's proposal for one partition's in-sync replicas, with the epochs it is based on (KIP-497)."""

    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    is_recovering: bool = False
    """Whether the leader still recovers from an unclean election; False says that it has recovered (KIP-704)."""


@frozen
class ChangePartitions:
    """What one broker asks for the partitions that it leads."""

    broker_id: BrokerId
    broker_epoch: int
    changes: tuple[IsrChange, ...]
    time_ms: Millis


class ReplicaState(IntEnum):
    """What a broker says of a replica of its own."""

    ONLINE = 0
    """It has the log, as it had it."""
    OFFLINE = 1
    """Its log cannot be read or written: the log directory failed, or the log could not be opened."""
    LOST = 2
    """The log is gone: what it would have from now on is an empty one."""
    CUT = 3
    """It has the log, and can use it, but not all that it had: records that it had acknowledged may be missing."""


@frozen
class ReplicaChange:
    """What has become of one broker's replica of a partition."""

    topic_id: TopicId
    partition: int
    state: ReplicaState


@frozen
class ChangeReplicas:
    """What a broker's disks have done to its replicas, each by itself (what KIP-858 has directories for)."""

    broker_id: BrokerId
    broker_epoch: int
    changes: tuple[ReplicaChange, ...]
    time_ms: Millis


@frozen
class PartitionReference:
    """A partition by its topic's name and its number."""

    topic: str
    partition: int


@frozen
class ElectLeaders:
    """Elect leaders on request (KIP-460): the preferred ones, or where `unclean`, anyone where nobody leads.

    `partitions` None means all of them; then only those whose leader changed are told of.
    """

    partitions: tuple[PartitionReference, ...] | None
    unclean: bool
    time_ms: Millis


@frozen
class BalanceLeaders:
    """The controller's own round: preferred leaders for brokers that lead too little of what they should."""

    imbalance_percentage: int
    """A broker is left alone while others lead at most this share of the partitions that prefer it."""
    time_ms: Millis
    controller_epoch: int = -1
    max_elections: int = 1_000


@frozen
class Reassignment:
    """The replicas a partition shall have, the preferred leader first; None ends a reassignment under way."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...] | None


@frozen
class AlterReassignments:
    """Move partitions to other replicas, or stop doing so, each by itself (KIP-455)."""

    reassignments: tuple[Reassignment, ...]
    time_ms: Millis
    allow_replication_factor_change: bool = True


@frozen
class FeatureUpdate:
    """One feature's new level. `upgrade_type` is a `FeatureUpdateType`, or a client's number that will be refused."""

    name: str
    level: int
    upgrade_type: int = FeatureUpdateType.UPGRADE


@frozen
class UpdateFeatures:
    """Finalize features at new levels, all or none (KIP-584, 1022)."""

    updates: tuple[FeatureUpdate, ...]
    time_ms: Millis
    validate_only: bool = False
    min_insync_replicas: int = 1
    """What the broker that took the request has set: see `FormatCluster`."""


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
    | UnregisterBroker
    | ElectLeaders
    | BalanceLeaders
    | AlterReassignments
    | UpdateFeatures
    | ChangeReplicas
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
    UnregisterBroker: 10,
    ElectLeaders: 11,
    BalanceLeaders: 12,
    AlterReassignments: 13,
    UpdateFeatures: 14,
    ChangeReplicas: 15,
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


# -- submissions

MAX_NONCE_BYTES = 32
_SUBMISSION = 0x94
"""How msgpack begins an array of four; a bare command begins as one of three."""


@frozen
class SubmissionId:
    """Whose command, and which: `nonce` is new with each start of the node, `sequence` counts from 0 within it."""

    node_id: int
    nonce: bytes
    sequence: int


def encode_submission(submission: SubmissionId, command: Command | bytes) -> bytes:
    """The command with its identity, as the quorum carries it. A command is encoded, or has been by
    `encode_command`."""
    data = command if isinstance(command, bytes) else encode_command(command)
    return pack([submission.node_id, submission.nonce, submission.sequence, data])


def decode_submission(data: bytes | memoryview) -> tuple[SubmissionId | None, bytes | memoryview]:
    """Whose command it is, where that is told, and the command's bytes. Raises `CodecError` on a spoilt submission."""
    if not data or data[0] != _SUBMISSION:
        return None, data
    plain = unpack(data)
    node_id, nonce, sequence, command = plain
    if type(node_id) is not int or type(nonce) is not bytes or type(sequence) is not int or type(command) is not bytes:
        raise CodecError("not a metadata submission: a part of it has the wrong type")
    if not 0 < len(nonce) <= MAX_NONCE_BYTES or sequence < 0:
        raise CodecError("not a metadata submission: its identity is none")
    return SubmissionId(node_id=node_id, nonce=nonce, sequence=sequence), command
