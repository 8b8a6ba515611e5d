"""The settings of the group coordinator, under Kafka's names (dots and underscores exchanged).

Left out: `offsets.topic.*` (the shell creates the partition), `offsets.commit.timeout.ms` (the shell's append has its
own bound), `group.consumer.assignment.interval.ms` and `group.share.assignment.interval.ms`
(KIP-1263; new targets are made at once).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kraftpy.config.group import GroupSettings

INT32_MAX = 2**31 - 1

Settings = Callable[[str], GroupSettings]
"""The settings of a single group, by its id, as they are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """What a `GroupCoordinator` may decide by. Kafka's defaults, except for the initial rebalance delay."""

    group_min_session_timeout_ms: int = 6_000
    """A JoinGroup that asks for a shorter session is refused."""
    group_max_session_timeout_ms: int = 1_800_000
    """A JoinGroup that asks for a longer session is refused."""
    group_max_size: int = INT32_MAX
    """Members a group may have."""
    group_initial_rebalance_delay_ms: int = 0
    """How long an empty group waits for further members before its first generation (Kafka: 3000)."""
    group_consumer_session_timeout_ms: int = 45_000
    """How long a member of the consumer protocol may be silent."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """How often such a member shall send a heartbeat."""
    group_consumer_max_size: int = INT32_MAX
    """Members a group of the consumer protocol may have."""
    group_consumer_migration_policy: str = "bidirectional"
    """Whether a group may pass to the other protocol with members in it: also disabled, upgrade or downgrade."""
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors such members may ask for; the first is the one where nobody asks."""
    group_streams_session_timeout_ms: int = 45_000
    """How long a member of a streams group may be silent."""
    group_streams_heartbeat_interval_ms: int = 5_000
    """How often such a member shall send a heartbeat."""
    group_streams_max_size: int = INT32_MAX
    """Members a streams group may have."""
    group_streams_num_standby_replicas: int = 0
    """Standby tasks of each task with state."""
    group_streams_initial_rebalance_delay_ms: int = 3_000
    """How long an empty streams group waits for further members before its first assignment."""
    group_share_session_timeout_ms: int = 45_000
    """How long a member of a share group may be silent."""
    group_share_heartbeat_interval_ms: int = 5_000
    """How often such a member shall send a heartbeat."""
    group_share_max_size: int = 200
    """Members a share group may have."""
    group_share_assignors: tuple[str, ...] = ("simple",)
    """The assignor of share groups, which nobody asks for."""
    group_share_initialize_retry_interval_ms: int = 30_000
    """How long the answer of share coordinators that were asked to initialize partitions is waited for."""
    kraftpy_group_coordinator_max_bytes: int = 268_435_456
    """Memory that all coordinators of a broker may use for groups and offsets; what would add to it is refused."""
    kraftpy_group_max_bytes: int = 8_388_608
    """Memory that the members of one classic group may use with what they say of themselves."""
    offset_metadata_max_bytes: int = 4_096
    """Characters of metadata a committed offset may carry (`offset.metadata.max.bytes`)."""
    offsets_retention_minutes: int = 10_080
    """How long offsets nobody needs are kept."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often expired offsets are looked for."""

    def settings(self, group_id: str) -> GroupSettings:
        """The settings of any group, where none of its own are known."""
        return GroupSettings(
            consumer_session_timeout_ms=self.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=self.group_consumer_heartbeat_interval_ms,
            streams_session_timeout_ms=self.group_streams_session_timeout_ms,
            streams_heartbeat_interval_ms=self.group_streams_heartbeat_interval_ms,
            streams_num_standby_replicas=self.group_streams_num_standby_replicas,
            streams_initial_rebalance_delay_ms=self.group_streams_initial_rebalance_delay_ms,
            share_session_timeout_ms=self.group_share_session_timeout_ms,
            share_heartbeat_interval_ms=self.group_share_heartbeat_interval_ms,
        )

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets_retention_minutes` as a span of milliseconds."""
        return self.offsets_retention_minutes * 60_000
