"""The API table: each API's key, versions, first flexible version, request and response.

The table is plain data and imports no message; `Api.request` and `Api.response` import theirs on demand. An API that is
not in the table is neither advertised nor answered, though `ApiKey` may name it.

Produce is advertised from version 0 though nothing below 3 can be stored: librdkafka takes a broker with a higher
minimum for one without compression.

Left out: the APIs between Kafka's brokers and controllers, and any other that is in `ApiKey` but not in `APIS`.

KIP-35 (versions), KIP-482 (flexible versions), KIP-511 (the ApiVersions response header stays at version 0).
"""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module
from typing import Any, Final


class ApiKey(IntEnum):
    """The number that opens a request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class Api:
    """An API served here. `flexible` is its first flexible version, or greater than `last` if it has none."""

    __slots__ = ("first", "flexible", "key", "last")

    def __init__(self, key: ApiKey, first: int, last: int, flexible: int) -> None:
        self.key = key
        self.first = first
        self.last = last
        self.flexible = flexible

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    @property
    def name(self) -> str:
        """The API's name in snake case, such as `list_offsets`: also the name of its module."""
        return self.key.name.lower()

    @property
    def request(self) -> type[Any]:
        """The class of its request."""
        return self._message("Request")

    @property
    def response(self) -> type[Any]:
        """The class of its response."""
        return self._message("Response")

    def _message(self, suffix: str) -> type[Any]:
        words = "".join(word.capitalize() for word in self.name.split("_"))
        found: type[Any] = getattr(import_module(f"kraftpy.protocol.messages.{self.name}"), words + suffix)
        return found


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, 0, 13, 9),
        Api(ApiKey.FETCH, 4, 18, 12),
        Api(ApiKey.LIST_OFFSETS, 1, 11, 6),
        Api(ApiKey.METADATA, 0, 13, 9),
        Api(ApiKey.OFFSET_COMMIT, 2, 10, 8),
        Api(ApiKey.OFFSET_FETCH, 1, 10, 6),
        Api(ApiKey.FIND_COORDINATOR, 0, 6, 3),
        Api(ApiKey.JOIN_GROUP, 0, 9, 6),
        Api(ApiKey.HEARTBEAT, 0, 4, 4),
        Api(ApiKey.LEAVE_GROUP, 0, 5, 4),
        Api(ApiKey.SYNC_GROUP, 0, 5, 4),
        Api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5),
        Api(ApiKey.LIST_GROUPS, 0, 5, 3),
        Api(ApiKey.SASL_HANDSHAKE, 0, 1, 2),
        Api(ApiKey.API_VERSIONS, 0, 5, 3),
        Api(ApiKey.CREATE_TOPICS, 2, 7, 5),
        Api(ApiKey.DELETE_TOPICS, 1, 6, 4),
        Api(ApiKey.DELETE_RECORDS, 0, 2, 2),
        Api(ApiKey.INIT_PRODUCER_ID, 0, 5, 2),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, 0, 5, 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3),
        Api(ApiKey.END_TXN, 0, 5, 3),
        Api(ApiKey.WRITE_TXN_MARKERS, 1, 2, 1),
        Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, 3),
        Api(ApiKey.DESCRIBE_ACLS, 1, 3, 2),
        Api(ApiKey.CREATE_ACLS, 1, 3, 2),
        Api(ApiKey.DELETE_ACLS, 1, 3, 2),
        Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, 4),
        Api(ApiKey.ALTER_CONFIGS, 0, 2, 2),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, 2),
        Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, 2),
        Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2),
        Api(ApiKey.CREATE_PARTITIONS, 0, 3, 2),
        Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, 2),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, 2),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, 2),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, 2),
        Api(ApiKey.DELETE_GROUPS, 0, 3, 2),
        Api(ApiKey.ELECT_LEADERS, 0, 2, 2),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0),
        Api(ApiKey.OFFSET_DELETE, 0, 0, 1),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, 1),
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0),
        Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0),
        Api(ApiKey.DESCRIBE_QUORUM, 0, 2, 0),
        Api(ApiKey.UPDATE_FEATURES, 0, 2, 0),
        Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0),
        Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, 0),
        Api(ApiKey.UNREGISTER_BROKER, 0, 0, 0),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, 0),
        Api(ApiKey.LIST_TRANSACTIONS, 0, 2, 0),
        Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, 0),
        Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 0),
        Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0, 0),
        Api(ApiKey.PUSH_TELEMETRY, 0, 0, 0),
        Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, 0),
        Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
        Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, 0),
        Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, 0),
        Api(ApiKey.SHARE_FETCH, 1, 2, 0),
        Api(ApiKey.SHARE_ACKNOWLEDGE, 1, 2, 0),
        Api(ApiKey.ADD_RAFT_VOTER, 0, 1, 0),
        Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, 0),
        Api(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 0),
        Api(ApiKey.READ_SHARE_GROUP_STATE, 0, 0, 0),
        Api(ApiKey.WRITE_SHARE_GROUP_STATE, 0, 1, 0),
        Api(ApiKey.DELETE_SHARE_GROUP_STATE, 0, 0, 0),
        Api(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, 0, 1, 0),
        Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, 0),
        Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, 0),
        Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, 0),
        Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, 0),
        Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, 0),
        Api(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, 0, 0, 0),
        Api(ApiKey.UNREGISTER_CONTROLLER, 0, 0, 0),
    )
}
"""The APIs that the broker advertises, by API key."""

_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)

API_VERSIONS: dict[ApiKey, tuple[int, int]] = {api.key: (api.first, api.last) for api in APIS.values()}
"""First and last version of each API served here."""


def request_header_version(key: int, version: int) -> int:
    """Return 2 (tagged fields) for a flexible version, otherwise 1. Raises KeyError for an unknown API."""
    return 2 if version >= APIS[key].flexible else 1


def response_header_version(key: int, version: int) -> int:
    """Return 1 (tagged fields) for a flexible version, else 0; always 0 for ApiVersions, so that any client can read
    it.
    """
    return 1 if version >= APIS[key].flexible and key != _API_VERSIONS else 0
