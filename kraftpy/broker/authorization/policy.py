"""The rights that each API needs, and how a refusal is reported: the table that guards, documentation and tests share.

Every API that is served has a row. A row without needs is open to every authenticated client; the handlers that renew
and expire a delegation token check that the client is its owner or a renewer. Rights are asked for before anything is
looked up, so that a refusal does not reveal what exists. Forwarded requests are judged once, by the broker that the
client is connected to.

Read: KIP-11, KIP-133, KIP-290, KIP-396, KIP-430, KIP-664, KIP-679, KIP-848, KIP-932, KIP-939, KIP-1071.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.security.acls import Operation, ResourceType


class Refusal(Enum):
    """How a refusal is reported."""

    WHOLE = "the whole request is refused"
    EACH = "refused entries are answered with the error, the rest is carried out"
    LEFT_OUT = "refused entries are left out of the answer, without an error"
    HIDDEN = "an `authorized_operations` field is 0"


class Need(NamedTuple):
    """An operation that an API needs on resources of a type, and how a refusal is reported."""

    operation: Operation
    resource: ResourceType
    refusal: Refusal
    when: str = ""
    """The circumstances in which it is needed, in words; empty if it always is."""
    instead_of: int = 0
    """The position, counted from 1, of a need of the same row that this one can replace; 0 if it replaces none."""

    @property
    def error(self) -> ErrorCode:
        """The error of a refusal."""
        return _ERRORS[self.resource]


_ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceType.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
_O, _R = Operation, ResourceType
_WHOLE, _EACH, _LEFT_OUT, _HIDDEN = Refusal.WHOLE, Refusal.EACH, Refusal.LEFT_OUT, Refusal.HIDDEN


def _cluster(operation: Operation, when: str = "") -> tuple[Need, ...]:
    return (Need(operation, _R.CLUSTER, _WHOLE, when),)


def _settings(operation: Operation) -> tuple[Need, ...]:
    return (
        Need(operation, _R.TOPIC, _EACH, "a topic's settings"),
        Need(operation, _R.GROUP, _EACH, "a group's settings"),
        Need(operation, _R.CLUSTER, _EACH, "settings of brokers, loggers and client metrics"),
    )


_MEMBER: Final = (Need(_O.READ, _R.GROUP, _WHOLE),)
_BROKERS_ONLY: Final = "the peer must have proved to be a broker"

RIGHTS: Final[dict[ApiKey, tuple[Need, ...]]] = {
    ApiKey.PRODUCE: (
        Need(_O.WRITE, _R.TRANSACTIONAL_ID, _WHOLE, "a batch is transactional"),
        Need(_O.WRITE, _R.TOPIC, _EACH),
    ),
    ApiKey.FETCH: (
        Need(_O.READ, _R.TOPIC, _EACH, "a consumer fetches"),
        Need(_O.CLUSTER_ACTION, _R.CLUSTER, _WHOLE, f"a follower fetches; {_BROKERS_ONLY}"),
    ),
    ApiKey.LIST_OFFSETS: (Need(_O.DESCRIBE, _R.TOPIC, _EACH),),
    ApiKey.METADATA: (
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "topics are named; others are left out of a list of all"),
        Need(_O.CREATE, _R.CLUSTER, _EACH, "a missing topic is to be created"),
        Need(_O.CREATE, _R.TOPIC, _EACH, "a missing topic is to be created", instead_of=2),
        Need(_O.DESCRIBE, _R.CLUSTER, _HIDDEN, "the cluster's authorized operations are asked for"),
    ),
    ApiKey.OFFSET_COMMIT: (*_MEMBER, Need(_O.READ, _R.TOPIC, _EACH)),
    ApiKey.OFFSET_FETCH: (
        Need(_O.DESCRIBE, _R.GROUP, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "topics are named; others are left out of a list of all"),
    ),
    ApiKey.FIND_COORDINATOR: (
        Need(_O.DESCRIBE, _R.GROUP, _EACH, "a group's coordinator is looked for"),
        Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID, _EACH, "a transaction's coordinator is looked for"),
        Need(_O.CLUSTER_ACTION, _R.CLUSTER, _WHOLE, "a share coordinator is looked for"),
    ),
    ApiKey.JOIN_GROUP: _MEMBER,
    ApiKey.HEARTBEAT: _MEMBER,
    ApiKey.LEAVE_GROUP: _MEMBER,
    ApiKey.SYNC_GROUP: _MEMBER,
    ApiKey.DESCRIBE_GROUPS: (Need(_O.DESCRIBE, _R.GROUP, _EACH),),
    ApiKey.LIST_GROUPS: (
        Need(_O.DESCRIBE, _R.CLUSTER, _LEFT_OUT),
        Need(_O.DESCRIBE, _R.GROUP, _LEFT_OUT, instead_of=1),
    ),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (
        Need(_O.CREATE, _R.CLUSTER, _EACH),
        Need(_O.CREATE, _R.TOPIC, _EACH, instead_of=1),
        Need(_O.DESCRIBE_CONFIGS, _R.TOPIC, _EACH, "the answer shows the new topic's settings"),
    ),
    ApiKey.DELETE_TOPICS: (
        Need(_O.DELETE, _R.CLUSTER, _EACH),
        Need(_O.DELETE, _R.TOPIC, _EACH, instead_of=1),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "the answer reveals whether the topic exists", instead_of=1),
    ),
    ApiKey.DELETE_RECORDS: (Need(_O.DELETE, _R.TOPIC, _EACH),),
    ApiKey.INIT_PRODUCER_ID: (
        Need(_O.WRITE, _R.TRANSACTIONAL_ID, _WHOLE, "a transactional id is given"),
        Need(_O.IDEMPOTENT_WRITE, _R.CLUSTER, _WHOLE, "no transactional id is given"),
        Need(_O.WRITE, _R.TOPIC, _WHOLE, "no transactional id is given; the right to any topic suffices", instead_of=2),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Need(_O.CLUSTER_ACTION, _R.CLUSTER, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, instead_of=1),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Need(_O.WRITE, _R.TRANSACTIONAL_ID, _WHOLE, "up to version 3"),
        Need(_O.WRITE, _R.TOPIC, _EACH, "up to version 3; if one topic is refused, none is added"),
        Need(_O.CLUSTER_ACTION, _R.CLUSTER, _WHOLE, f"from version 4; {_BROKERS_ONLY}"),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (Need(_O.WRITE, _R.TRANSACTIONAL_ID, _WHOLE), Need(_O.READ, _R.GROUP, _WHOLE)),
    ApiKey.END_TXN: (Need(_O.WRITE, _R.TRANSACTIONAL_ID, _WHOLE),),
    ApiKey.WRITE_TXN_MARKERS: (
        Need(_O.ALTER, _R.CLUSTER, _WHOLE),
        Need(_O.CLUSTER_ACTION, _R.CLUSTER, _WHOLE, instead_of=1),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        Need(_O.WRITE, _R.TRANSACTIONAL_ID, _WHOLE),
        Need(_O.READ, _R.GROUP, _WHOLE),
        Need(_O.READ, _R.TOPIC, _EACH),
    ),
    ApiKey.DESCRIBE_ACLS: _cluster(_O.DESCRIBE),
    ApiKey.CREATE_ACLS: _cluster(_O.ALTER),
    ApiKey.DELETE_ACLS: _cluster(_O.ALTER),
    ApiKey.DESCRIBE_CONFIGS: _settings(_O.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _settings(_O.ALTER_CONFIGS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _cluster(_O.ALTER),
    ApiKey.DESCRIBE_LOG_DIRS: _cluster(_O.DESCRIBE),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (Need(_O.ALTER, _R.TOPIC, _EACH),),
    ApiKey.CREATE_DELEGATION_TOKEN: (
        Need(_O.CREATE_TOKENS, _R.USER, _WHOLE, "the owner is another principal, whose name is the resource's"),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (
        Need(
            _O.DESCRIBE,
            _R.DELEGATION_TOKEN,
            _LEFT_OUT,
            "the client is neither owner, requester nor renewer of the token",
        ),
        Need(_O.DESCRIBE_TOKENS, _R.USER, _LEFT_OUT, "the resource is the token's owner", instead_of=1),
    ),
    ApiKey.DELETE_GROUPS: (Need(_O.DELETE, _R.GROUP, _EACH),),
    ApiKey.ELECT_LEADERS: _cluster(_O.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _settings(_O.ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _cluster(_O.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _cluster(_O.DESCRIBE),
    ApiKey.OFFSET_DELETE: (Need(_O.DELETE, _R.GROUP, _WHOLE), Need(_O.READ, _R.TOPIC, _EACH)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _cluster(_O.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: _cluster(_O.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _cluster(_O.DESCRIBE),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _cluster(_O.ALTER),
    ApiKey.DESCRIBE_QUORUM: _cluster(_O.DESCRIBE),
    ApiKey.UPDATE_FEATURES: _cluster(_O.ALTER),
    ApiKey.DESCRIBE_CLUSTER: (
        Need(_O.DESCRIBE, _R.CLUSTER, _HIDDEN, "the cluster's authorized operations are asked for"),
        Need(_O.ALTER, _R.CLUSTER, _WHOLE, "on a controller listener"),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (Need(_O.READ, _R.TOPIC, _EACH),),
    ApiKey.UNREGISTER_BROKER: _cluster(_O.ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _LEFT_OUT, "topics of a transaction"),
    ),
    ApiKey.LIST_TRANSACTIONS: (Need(_O.DESCRIBE, _R.TRANSACTIONAL_ID, _LEFT_OUT),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        *_MEMBER,
        Need(_O.DESCRIBE, _R.TOPIC, _WHOLE, "topics are named; others are left out of what an expression matches"),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (
        Need(_O.DESCRIBE, _R.GROUP, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "every assigned topic; one refusal refuses the group"),
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.LIST_CONFIG_RESOURCES: _cluster(_O.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "topics are named; others are left out of a list of all"),
    ),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        *_MEMBER,
        Need(_O.DESCRIBE, _R.TOPIC, _WHOLE, "every topic of the topology; all topics if it has an expression"),
        Need(_O.CREATE, _R.CLUSTER, _LEFT_OUT, "an internal topic is to be created; if refused, the status says so"),
        Need(_O.CREATE, _R.TOPIC, _LEFT_OUT, "an internal topic is to be created", instead_of=3),
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: (
        Need(_O.DESCRIBE, _R.GROUP, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "every topic of the topology; one refusal refuses the group"),
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: (*_MEMBER, Need(_O.DESCRIBE, _R.TOPIC, _WHOLE, "topics are named")),
    ApiKey.SHARE_GROUP_DESCRIBE: (
        Need(_O.DESCRIBE, _R.GROUP, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "every assigned topic; one refusal refuses the group"),
    ),
    ApiKey.SHARE_FETCH: (*_MEMBER, Need(_O.READ, _R.TOPIC, _EACH)),
    ApiKey.SHARE_ACKNOWLEDGE: (*_MEMBER, Need(_O.READ, _R.TOPIC, _EACH)),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _cluster(_O.CLUSTER_ACTION, _BROKERS_ONLY),
    ApiKey.READ_SHARE_GROUP_STATE: _cluster(_O.CLUSTER_ACTION, _BROKERS_ONLY),
    ApiKey.WRITE_SHARE_GROUP_STATE: _cluster(_O.CLUSTER_ACTION, _BROKERS_ONLY),
    ApiKey.DELETE_SHARE_GROUP_STATE: _cluster(_O.CLUSTER_ACTION, _BROKERS_ONLY),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _cluster(_O.CLUSTER_ACTION, _BROKERS_ONLY),
    ApiKey.ADD_RAFT_VOTER: _cluster(_O.ALTER),
    ApiKey.REMOVE_RAFT_VOTER: _cluster(_O.ALTER),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        Need(_O.DESCRIBE, _R.GROUP, _EACH),
        Need(_O.DESCRIBE, _R.TOPIC, _EACH, "topics are named; others are left out of a list of all"),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (*_MEMBER, Need(_O.READ, _R.TOPIC, _EACH)),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (Need(_O.DELETE, _R.GROUP, _WHOLE), Need(_O.READ, _R.TOPIC, _EACH)),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: _MEMBER,
    ApiKey.UNREGISTER_CONTROLLER: _cluster(_O.ALTER),
}
