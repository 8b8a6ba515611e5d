"""The events and effects of a member of a consumer group: the vocabulary of `classic_membership`.

An effect's docstring names the event that answers it, if any. Error codes are those of the wire; bytes are those of
`consumer_protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

# --- what can happen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """The topics to read, resolved to names."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The user gave up what `Revoke` named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """Another member, as JoinGroup's answer describes it to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """JoinGroup's answer."""

    error: ErrorCode = ErrorCode.NONE
    generation_id: int = -1
    protocol_name: str | None = None
    leader: str = ""
    member_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsDescribed:
    """The partition count of each existing topic, for `DescribeTopics`."""

    partition_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """SyncGroup's answer."""

    error: ErrorCode = ErrorCode.NONE
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """Heartbeat's answer."""

    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswered:
    """The answer to the ConsumerGroupHeartbeat with that number. No assignment means that it has not changed."""

    number: int
    error: ErrorCode = ErrorCode.NONE
    member_epoch: int = 0
    heartbeat_interval_ms: float = 0
    assignment: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused:
    """An offset commit was refused with an error about membership."""

    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChanged:
    """The current partition counts."""

    partition_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOverdue:
    """The user has not asked for records within `max_poll_interval_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The user asks for records again, or wants to rejoin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The consumer is being closed."""


Event = (
    Subscribed
    | Tick
    | Revoked
    | Joined
    | TopicsDescribed
    | Synced
    | HeartbeatAnswered
    | ConsumerHeartbeatAnswered
    | CommitRefused
    | MetadataChanged
    | PollOverdue
    | Resume
    | Close
)


# --- what may follow --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetCoordinator:
    """Look the coordinator up again before the next request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJoin:
    """Send JoinGroup; answer with `Joined`."""

    member_id: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopics:
    """Look up the partition counts of `topics`; answer with `TopicsDescribed`."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSync:
    """Send SyncGroup; answer with `Synced`."""

    member_id: str
    generation_id: int
    protocol_name: str
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHeartbeat:
    """Send Heartbeat; answer with `HeartbeatAnswered`."""

    member_id: str
    generation_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendLeave:
    """Send LeaveGroup; its answer does not matter."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendConsumerHeartbeat:
    """Send ConsumerGroupHeartbeat (KIP-848); answer with `ConsumerHeartbeatAnswered`.

    A field of None has not changed. A full heartbeat leaves nothing else out.
    """

    number: int
    member_id: str
    member_epoch: int
    topics: tuple[str, ...] | None
    owned: tuple[TopicPartition, ...] | None
    is_full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendConsumerLeave:
    """Send ConsumerGroupHeartbeat with an epoch that means to leave; its answer does not matter."""

    member_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """Take these partitions away from the user, committing first unless `lost`; answer with `Revoked`."""

    partitions: tuple[TopicPartition, ...]
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Give these partitions to the user in addition; `held` is the whole assignment now."""

    added: tuple[TopicPartition, ...]
    held: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Report an error that no retry fixes to the user."""

    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member is outside the group and holds nothing: what `Close` asked for is done."""


Effect = (
    ForgetCoordinator
    | SendJoin
    | DescribeTopics
    | SendSync
    | SendHeartbeat
    | SendLeave
    | SendConsumerHeartbeat
    | SendConsumerLeave
    | Revoke
    | Assign
    | Fail
    | Left
)
