"""Every error code of the protocol, and the exceptions that carry errors of peers.

A peer's mistake becomes an `ErrorCode` in the response, and is raised as `KafkaError` until then; malformed bytes raise
`ProtocolError` and close the connection. `retriable` means that the same request may succeed later, perhaps on another
broker.

Left out: codes added after Kafka 4.3; `ErrorCode.of` reads them as UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from enum import IntEnum

RETRIABLE = True
_MAX_MESSAGE_CHARACTERS = 1000


class ErrorCode(IntEnum):
    """An error code, with the name and number it has in the Kafka protocol."""

    retriable: bool
    meaning: str

    def __new__(cls, code: int, meaning: str, retriable: bool = False) -> ErrorCode:
        """Make a member: its number, its meaning, and whether a retry may help."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        member.retriable = retriable
        return member

    @classmethod
    def of(cls, code: int) -> ErrorCode:
        """Return the member for a number from the wire."""
        return cls._value2member_map_.get(code, cls.UNKNOWN_SERVER_ERROR)  # type: ignore[return-value]

    UNKNOWN_SERVER_ERROR = -1, "The broker failed in a way it did not foresee."
    NONE = 0, "Success."
    OFFSET_OUT_OF_RANGE = 1, "The offset lies outside of what the log holds."
    CORRUPT_MESSAGE = 2, "A batch does not match its checksum, is cut short, or breaks a rule of its topic.", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "The broker hosts no such topic or partition.", RETRIABLE
    INVALID_FETCH_SIZE = 4, "A fetch asked for a size that makes no sense."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at present.", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "The broker asked is not the partition's leader, or no replica of it.", RETRIABLE
    REQUEST_TIMED_OUT = 7, "The time given in the request ran out first.", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker cannot be reached."
    REPLICA_NOT_AVAILABLE = 9, "The replica asked for cannot serve at present.", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "A batch is larger than the topic or the broker allows."
    STALE_CONTROLLER_EPOCH = 11, "The request comes from a controller that has since been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata committed with an offset is too long."
    NETWORK_EXCEPTION = 13, "The connection went away before the answer came.", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still reading its state.", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "No coordinator can be had at present.", RETRIABLE
    NOT_COORDINATOR = 16, "The broker asked does not coordinate this group or transaction.", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic's name is not allowed, or the topic may not be used so."
    RECORD_LIST_TOO_LARGE = 18, "A batch is larger than a log segment."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than the topic demands; nothing was written.", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "The batch was written, but to fewer in-sync replicas than the topic demands.",
        RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "`acks` must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The group has moved on to another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member shares no protocol with the rest of its group, or offers none."
    INVALID_GROUP_ID = 24, "The group id is empty or not allowed."
    UNKNOWN_MEMBER_ID = 25, "The group knows no such member."
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside of the broker's limits."
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, "The principal may not do this with the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "The principal may not do this with the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "The principal may not do this with the cluster."
    INVALID_TIMESTAMP = 32, "A record's timestamp is too far from the broker's time."
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, "The request does not belong at this point of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "The broker does not speak this version of the API."
    TOPIC_ALREADY_EXISTS = 36, "A topic of this name exists."
    INVALID_PARTITIONS = 37, "The number of partitions is not allowed."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The replicas were assigned in a way that cannot be."
    INVALID_CONFIG = 40, "A setting is unknown or its value not allowed."
    NOT_CONTROLLER = 41, "The broker asked is not the controller.", RETRIABLE
    INVALID_REQUEST = 42, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The log's record format cannot do this."
    POLICY_VIOLATION = 44, "A policy of the broker forbids this."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The sequence number leaves a gap after the last one of this producer."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The batch was appended before."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is older than the current one."
    INVALID_TXN_STATE = 48, "The transaction is not in a state that allows this."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above the broker's limit."
    CONCURRENT_TRANSACTIONS = 51, "Another change to the same transaction is still under way.", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "The marker comes from a transaction coordinator that has since been replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "The principal may not use the transactional id."
    SECURITY_DISABLED = 54, "Security features are switched off."
    OPERATION_NOT_ATTEMPTED = 55, "Not tried, because something else in the request failed."
    KAFKA_STORAGE_ERROR = 56, "The disk failed under the log.", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = 59, "The partition remembers nothing of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition's replicas are being moved already."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, "The broker knows no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal neither owns the token nor may renew it."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Delegation tokens are not handed out over this kind of connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "The principal may not do this with the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "This type of principal is not supported."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The broker has no such fetch session.", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session is at another epoch.", RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader has no listener like the one that was asked.", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "Topics may not be deleted on this broker."
    FENCED_LEADER_EPOCH = 74, "The caller's leader epoch is older than the broker's.", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The caller's leader epoch is newer than the broker's.", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "The caller's version cannot carry the partition's compression type."
    STALE_BROKER_EPOCH = 77, "The broker has been registered anew since."
    OFFSET_NOT_AVAILABLE = 78, "A new leader does not know its high watermark yet.", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "Join again with the member id in this answer."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group has as many members as it may."
    FENCED_INSTANCE_ID = 82, "Another member has taken over this static instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "None of the replicas that may lead is available.", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition has the leader it should have.", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "No replicas of the partition are being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic."
    INVALID_RECORD = 87, "A record breaks a rule; its whole batch was refused."
    UNSTABLE_OFFSET_COMMIT = 88, "A transaction that is still open holds the offset back.", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "A quota is used up.", RETRIABLE
    PRODUCER_FENCED = 90, "A newer producer has taken over the transactional id."
    RESOURCE_NOT_FOUND = 91, "What the request refers to does not exist."
    DUPLICATE_RESOURCE = 92, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential is not good enough."
    INCONSISTENT_VOTER_SET = 94, "One of the two sides is not among the voters expected."
    INVALID_UPDATE_VERSION = 95, "The update version is not allowed."
    FEATURE_UPDATE_FAILED = 96, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The principal in a forwarded request could not be read."
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, "The position lies outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, "The broker hosts no topic of this id.", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "Another broker holds this id."
    BROKER_ID_NOT_REGISTERED = 102, "No broker is registered under this id."
    INCONSISTENT_TOPIC_ID = 103, "The log belongs to another topic id than the request names.", RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The request belongs to another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "A fetch session mixes topic names and topic ids.", RETRIABLE
    INELIGIBLE_REPLICA = 107, "A replica that may not be in sync was put among those that are."
    NEW_LEADER_ELECTED = 108, "The change was made, and another leader was elected."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset is only in tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The group has fenced the member: give up all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, "Another member still holds this instance id."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support the assignor."
    STALE_MEMBER_EPOCH = 113, "The member epoch is out of date: heartbeat first."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request came to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "There is no such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription is unknown or out of date."
    TELEMETRY_TOO_LARGE = 118, "The telemetry pushed is too large."
    INVALID_REGISTRATION = 119, "The controller does not accept the broker's registration."
    TRANSACTION_ABORTABLE = 120, "The transaction can only be aborted; afterwards the id can be used again."
    INVALID_RECORD_STATE = 121, "The record is not in a state that can be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, "The broker has no such share session.", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session is at another epoch.", RETRIABLE
    FENCED_STATE_EPOCH = 124, "The share group's state is at another epoch."
    INVALID_VOTER_KEY = 125, "The voter's key is not the receiver's."
    DUPLICATE_VOTER = 126, "The replica is a voter already."
    VOTER_NOT_FOUND = 127, "The replica is not a voter."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression cannot be read."
    REBOOTSTRAP_REQUIRED = 129, "What the client knows of the cluster is stale: start from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The epoch of the streams topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, "The streams topology is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, "The broker has as many share sessions as it may.", RETRIABLE


class KafkaError(Exception):
    """A failure with an error code: a handler raises it to answer with the code, a client when it has received one."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.meaning)
        self.code = code
        self.message = message or code.meaning

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class ProtocolError(Exception):
    """Malformed bytes from a peer. Their connection cannot be used any longer."""


class FrameTooLarge(ProtocolError):
    """A frame larger than its reader allows, refused as soon as its size was read."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a frame of {size} bytes; the limit is {limit}")
        self.size = size
        self.limit = limit


class TooManyElements(ProtocolError):
    """A message with more array elements and tagged fields than its reader allows."""


def shortened(message: str | None) -> str | None:
    """Return an error message that fits a response, even if a client made it quote a long text."""
    if message is None or len(message) <= _MAX_MESSAGE_CHARACTERS:
        return message
    return f"{message[: _MAX_MESSAGE_CHARACTERS - 3]}..."
