"""Commands: requests to change the cluster's metadata, as data that is replicated before it is decided.

A command carries everything its decision may depend on apart from the committed image: its own time, the ids it hands
out, the defaults of the broker that received the request. Every node that decides it on the same image therefore
reaches the same decision, now and when the journal is replayed.

On disk and on the wire a command is `[schema, number, fields]` in msgpack. The schema number covers both formats and
meanings: a new field, a new command, or a change to what an accepted command decides takes a new number and leaves the
meaning of old ones alone, because every replay of a journal decides its commands again. A node that reads a newer
number stops (`NewerSchemaError`); if it skipped the command, its image would diverge from the others' permanently.
Schema 2 decides differently from schema 1 only through features, and a cluster formatted by schema 1 has none. Schema 3
decides differently only for replicas marked as offline, and only its own `ChangeReplicas` marks them. Schema 4 decides
differently only commands with `max_partitions`. Schema 5 decides differently only after a `SetControllerDefaults`, and
`SetConfigs` with `rules`. It also knows the level of a feature, and the names of settings, that dead letter queues need
(`_NEW_LEVELS`, `_NEW_SETTINGS`): in a command of an earlier schema the level does not exist, as when the command was
decided. Schema 6 adds credentials, ACLs, delegation tokens and client quotas. Schema 7 decides differently only where
brokers are cordoned, and only its own `CordonBroker` cordons them. Schema 8 decides differently only where brokers
share a host, and only its own `RegisterBroker` names one. A command is written in the lowest schema that it needs.

A quorum carries a command as a *submission*: `[node id, nonce, sequence, command]`. The submitting node may send the
same bytes again, to the current leader: a second copy changes nothing (`SubmissionId`).
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Any, Final, TypeVar

from kraftpy.frozen import frozen
from kraftpy.metadata.acls import CreateAcls, DeleteAcls
from kraftpy.metadata.codec import CodecError, from_plain, pack, to_plain, unpack
from kraftpy.metadata.credentials import SetScramCredentials
from kraftpy.metadata.delegation_tokens import CreateDelegationToken, ExpireDelegationToken, RemoveDelegationTokens
from kraftpy.metadata.quotas import AlterClientQuotas
from kraftpy.types import ZERO_TOPIC_ID, BrokerId, LeaderEpoch, Millis, TopicId

SCHEMA = 8
"""The newest command schema that this code understands."""
PARTITIONS_AT_ONCE: Final = 1_000
"""The most partitions that one entry of the log moves when a broker comes or goes: some 15 ms on every node."""


class ConfigResourceType(IntEnum):
    """Kinds of resources that have settings, with their numbers on the wire."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigOperationType(IntEnum):
    """Operations of an incremental change, with their numbers on the wire (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@frozen
class Endpoint:
    """A broker's address on one listener. `security_protocol` holds Kafka's name for the protocol."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class FeatureUpdateType(IntEnum):
    """Permitted directions of a feature update, with their numbers on the wire (KIP-584)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@frozen
class FeatureLevel:
    """A feature of the cluster and the level to finalize it at; 0 disables it."""

    name: str
    level: int


@frozen
class FormatCluster:
    """Give the cluster its id. Repeating it with the same id changes nothing."""

    cluster_id: str
    time_ms: Millis
    features: tuple[FeatureLevel, ...] = ()
    """Initial features of a new cluster (at most `features.LATEST`); ignored if the cluster already has an id."""
    min_insync_replicas: int = 1
    """With eligible leader replicas, the cluster-wide setting: all must judge ISRs by the same minimum (KIP-966)."""


@frozen
class SyncedReplicas:
    """Replicas of one topic that had synced every record they acknowledged."""

    topic_id: TopicId
    partitions: tuple[int, ...]


@frozen
class RegisterBroker:
    """Register a broker process. `incarnation_id` is 16 random bytes, new at each start (KIP-631)."""

    broker_id: BrokerId
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    time_ms: Millis
    rack: str | None = None
    fenced: bool = True
    """True if it has yet to prove that it is caught up. A broker that is its own quorum does not have to."""
    previous_session_expired: bool = False
    """The proposer saw that no other incarnation is alive. If False, an unfenced registration is not replaced."""
    previous_broker_epoch: int = -1
    """Its epoch when it last stopped cleanly, with everything synced; -1 if it cannot prove that (KIP-966)."""
    previous_incarnation_ids: tuple[bytes, ...] = ()
    """Earlier incarnations of this broker that ran on the same disks."""
    synced_replicas: tuple[SyncedReplicas, ...] = ()
    """Replicas that lost nothing in an unclean stop, provided that the disks are those of the last incarnation."""
    max_partitions: int = 0
    """The most partitions to change; 0 is no limit. If there are more, the broker is not registered yet, and the
    command must be repeated. Only a registration as fenced is limited."""
    host: str | None = None
    """The host that it shares with other brokers (`kraftpy.broker.host`); None if it is alone on its host."""


@frozen
class ChangeBroker:
    """Fence a broker whose heartbeats stopped, unfence one that has caught up, or begin a controlled shutdown.

    `fenced` is the new state. A controlled shutdown lasts until the broker registers again.
    """

    broker_id: BrokerId
    broker_epoch: int
    fenced: bool
    time_ms: Millis
    in_controlled_shutdown: bool = False
    controller_epoch: int = -1
    """The controller's term; the command is refused in any other. -1 skips the check."""
    max_partitions: int = 0
    """The most partitions to change; 0 is no limit. If there are more, the broker is leaving or returning, and the
    command must be repeated."""


@frozen
class UnregisterBroker:
    """Remove a broker's registration. Its replicas stay assigned to it."""

    broker_id: BrokerId
    time_ms: Millis
    max_partitions: int = 0
    """The most partitions to change; 0 is no limit. If there are more, the broker stays registered, and the command
    must be repeated."""


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
    """Create topics independently: one refusal does not affect the others."""

    topics: tuple[NewTopic, ...]
    time_ms: Millis
    default_partitions: int = 1
    default_replication_factor: int = 1
    validate_only: bool = False


@frozen
class TopicReference:
    """A topic, given by name or, if the name is None, by id (KIP-516)."""

    name: str | None = None
    topic_id: TopicId = TopicId(bytes(16))

    @property
    def is_sound(self) -> bool:
        """True if exactly one of name and id is given."""
        return (self.name is None) != (self.topic_id == ZERO_TOPIC_ID)


@frozen
class DeleteTopics:
    """Delete topics and their settings, each independently."""

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
    """Add partitions to topics, each independently (KIP-195)."""

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
    """The default on the broker that received the request: APPEND and SUBTRACT start from it if nothing is set."""


@frozen
class ConfigChange:
    """Changes to one resource, all or none. A broker's name is its id in decimal; "" means every broker."""

    resource_type: int
    """A `ConfigResourceType`, or any other number that a client sent, which is refused."""
    resource_name: str
    operations: tuple[ConfigOperation, ...]
    replace: bool = False
    """The operations list all settings the resource keeps; any others are removed (AlterConfigs)."""


@frozen
class SetConfigs:
    """Change settings of topics, brokers, groups and client metrics, each resource independently."""

    changes: tuple[ConfigChange, ...]
    time_ms: Millis
    validate_only: bool = False
    rules: int = 0
    """0 refuses client metrics, controllers, and settings of brokers that are unknown or without effect, as earlier
    versions do."""


@frozen
class SetControllerDefaults:
    """The active controller's own static settings on which elections depend; one that is not named has its default.

    A controller issues it when its term begins, if the last controller had other settings: every node decides elections
    by these values, not by those of its own file.
    """

    configs: tuple[ConfigValue, ...]
    time_ms: Millis
    controller_epoch: int = -1
    """The controller's term; the command is refused in any other. -1 skips the check."""


@frozen
class AllocateProducerIds:
    """Allocate a block of 1000 producer ids for a broker to hand out (KIP-730)."""

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
    """True if the leader is still recovering from an unclean election (KIP-704)."""


@frozen
class ChangePartitions:
    """One broker's proposals for partitions that it leads."""

    broker_id: BrokerId
    broker_epoch: int
    changes: tuple[IsrChange, ...]
    time_ms: Millis


class ReplicaState(IntEnum):
    """The state of a replica, as reported by its broker."""

    ONLINE = 0
    """The log is intact."""
    OFFLINE = 1
    """The log cannot be read or written: the log directory failed, or the log could not be opened."""
    LOST = 2
    """The log is gone; the replica would restart with an empty one."""
    TRUNCATED = 3
    """The log is usable but shorter than before: records that the replica had acknowledged may be missing."""


@frozen
class ReplicaChange:
    """The new state of one broker's replica of a partition."""

    topic_id: TopicId
    partition: int
    state: ReplicaState


@frozen
class ChangeReplicas:
    """Report replicas whose disks failed or came back, each independently (KIP-858 reports directories instead)."""

    broker_id: BrokerId
    broker_epoch: int
    changes: tuple[ReplicaChange, ...]
    time_ms: Millis


@frozen
class CordonBroker:
    """Say whether all log directories of a broker are cordoned, so that it gets no new replicas (KIP-1066)."""

    broker_id: BrokerId
    broker_epoch: int
    is_cordoned: bool
    time_ms: Millis


@frozen
class PartitionReference:
    """A partition, given by topic name and number."""

    topic: str
    partition: int


@frozen
class ElectLeaders:
    """Elect leaders on request (KIP-460): preferred replicas, or if `unclean`, any replica of leaderless partitions.

    If `partitions` is None, all partitions are meant, and the result lists only those that needed an election.
    """

    partitions: tuple[PartitionReference, ...] | None
    unclean: bool
    time_ms: Millis


@frozen
class BalanceLeaders:
    """The controller's periodic balancing: elect preferred leaders for brokers that lead too few partitions."""

    imbalance_percentage: int
    """A broker counts as balanced while others lead at most this percentage of the partitions that prefer it."""
    time_ms: Millis
    controller_epoch: int = -1
    max_elections: int = 1_000


@frozen
class Reassignment:
    """A partition's target replicas, the preferred leader first; None cancels a running reassignment."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...] | None


@frozen
class AlterReassignments:
    """Move partitions to other replicas, or cancel such moves, each independently (KIP-455)."""

    reassignments: tuple[Reassignment, ...]
    time_ms: Millis
    allow_replication_factor_change: bool = True


@frozen
class FeatureUpdate:
    """One feature's new level. `upgrade_type` is a `FeatureUpdateType`; any other number from a client is refused."""

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
    """The setting of the broker that received the request; see `FormatCluster`."""


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
    | CordonBroker
    | SetControllerDefaults
    | SetScramCredentials
    | CreateAcls
    | DeleteAcls
    | CreateDelegationToken
    | ExpireDelegationToken
    | RemoveDelegationTokens
    | AlterClientQuotas
)


class NewerSchemaError(CodecError):
    """A newer version of kraftpy wrote this; the message asks to upgrade the node."""


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
    SetControllerDefaults: 16,
    SetScramCredentials: 17,
    CreateAcls: 18,
    DeleteAcls: 19,
    AlterClientQuotas: 20,
    CreateDelegationToken: 21,
    ExpireDelegationToken: 22,
    RemoveDelegationTokens: 23,
    CordonBroker: 24,
}
_CLASSES: dict[int, type[Any]] = {number: cls for cls, number in _NUMBERS.items()}


_OLDER_SCHEMA: Final = 4
_OF_NEW_LEVELS: Final = 5
_OF_SECURITY: Final = 6
_OF_CORDONS: Final = 7
_NEW_LEVELS: Final = {"share.version": 2}
"""The levels of features that are new in schema 5."""
_NEW_SETTINGS: Final = ("errors.deadletterqueue.",)
"""The prefixes of the settings that are new in schema 5."""
_NO_LEVEL: Final = 32_767


def encode_command(command: Command) -> bytes:
    """Encode a command for the wire and the journal. Raises ValueError if a text is not valid Unicode."""
    return pack([_schema_of(command), _NUMBERS[type(command)], to_plain(command)])


def _schema_of(command: Command) -> int:
    """Return the lowest schema in which a command has its current meaning, so that older nodes can read it."""
    match command:
        case FormatCluster():
            needs_newer = any(is_new_level(each.name, each.level) for each in command.features)
        case UpdateFeatures():
            needs_newer = any(is_new_level(each.name, each.level) for each in command.updates)
        case CreateTopics():
            needs_newer = any(each.name.startswith(_NEW_SETTINGS) for topic in command.topics for each in topic.configs)
        case SetControllerDefaults():
            needs_newer = True
        case SetConfigs():
            needs_newer = command.rules > 0 or any(
                each.name.startswith(_NEW_SETTINGS) for change in command.changes for each in change.operations
            )
        case SetScramCredentials() | CreateAcls() | DeleteAcls() | AlterClientQuotas():
            return _OF_SECURITY
        case CreateDelegationToken() | ExpireDelegationToken() | RemoveDelegationTokens():
            return _OF_SECURITY
        case CordonBroker():
            return _OF_CORDONS
        case RegisterBroker(host=str()):
            return SCHEMA
        case _:
            needs_newer = False
    return _OF_NEW_LEVELS if needs_newer else _OLDER_SCHEMA


def is_new_level(name: str, level: int) -> bool:
    """Return whether only newer schemas know this level of a feature."""
    return name in _NEW_LEVELS and level >= _NEW_LEVELS[name]


def _as_of_older_schema(command: Command) -> Command:
    """Return a command that is refused because the older schema did not support it."""
    match command:
        case FormatCluster():
            return replace(command, features=tuple(map(_without_new_level, command.features)))
        case UpdateFeatures():
            return replace(command, updates=tuple(map(_without_new_level, command.updates)))
        case _:
            return command


_Level = TypeVar("_Level", FeatureLevel, FeatureUpdate)


def _without_new_level(each: _Level) -> _Level:
    return replace(each, level=_NO_LEVEL) if is_new_level(each.name, each.level) else each


def decode_command(data: bytes | memoryview) -> Command:
    """Decode a command. Raises `NewerSchemaError` on a later schema, `CodecError` on anything else."""
    plain = unpack(data)
    if type(plain) is not list or len(plain) != 3:
        raise CodecError("not a metadata command")
    schema, number, fields = plain
    if type(schema) is not int or schema < 1:
        raise CodecError("not a metadata command: the schema is not a number")
    if schema > SCHEMA:
        raise NewerSchemaError(
            f"a newer version of kraftpy wrote this metadata (commands of schema {schema}, this one knows {SCHEMA}): "
            "upgrade this node"
        )
    if type(number) is not int or number not in _CLASSES:
        raise CodecError(f"unknown metadata command {number}")
    command: Command = from_plain(_CLASSES[number], fields)
    return command if schema > _OLDER_SCHEMA else _as_of_older_schema(command)
