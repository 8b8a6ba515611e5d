"""What can happen to a member of a consumer group, and what may follow: the words of `classic_membership`.

An effect that is answered by an event says so. Error codes are those of the wire; bytes are those of consumer_protocol.
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
    """Another member, as the leader is told."""

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
    """How many partitions each topic that exists has, for `DescribeTopics`."""

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
    """ConsumerGroupHeartbeat's answer to the heartbeat of that number; no assignment where it has not changed."""

    number: int
    error: ErrorCode = ErrorCode.NONE
    member_epoch: int = 0
    heartbeat_interval_ms: float = 0
    assignment: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRefused:
    """An offset commit was refused with an error that concerns membership."""

    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataChanged:
    """Partition counts as they are now."""

    partition_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PollOverdue:
    """The user has not asked for records within `max_poll_interval_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The user asks for records again, or wants to rejoin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """The consumer closes."""


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
    """Find the partition counts of `topics`; answer with `TopicsDescribed`."""

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

    None says that nothing has changed; a full one says everything else there is to say as well.
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
    """Take these away from the user, committing first unless `lost`; answer with `Revoked`."""

    partitions: tuple[TopicPartition, ...]
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Give these to the user beside what is held; `held` is everything now."""

    added: tuple[TopicPartition, ...]
    held: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """No retry helps: tell the user."""

    error: KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Outside of the group, holding nothing: what `Close` asked for is done."""


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
