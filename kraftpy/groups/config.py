"""The settings of the group coordinator, under Kafka's names (with underscores for dots).

Left out: `offsets.topic.*` (the shell creates the partition), `offsets.commit.timeout.ms` (the shell's append has its
own timeout).
"""

from __future__ import annotations

from collections.abc import Callable

from kraftpy.config.group import GroupSettings
from kraftpy.frozen import frozen

INT32_MAX = 2**31 - 1

Settings = Callable[[str], GroupSettings]
"""Looks up the current settings of a single group by its id."""


@frozen
class GroupConfig:
    """The settings of a `GroupCoordinator`. Defaults are Kafka's, except that nothing delays a classic group's first
    generation, or new assignments."""

    group_min_session_timeout_ms: int = 6_000
    """JoinGroup requests with a shorter session timeout are refused."""
    group_max_session_timeout_ms: int = 1_800_000
    """JoinGroup requests with a longer session timeout are refused."""
    group_max_size: int = INT32_MAX
    """Maximum number of members in a group."""
    group_initial_rebalance_delay_ms: int = 0
    """How long an empty group waits for more members before its first generation (Kafka: 3000)."""
    group_consumer_assignment_interval_ms: int = 0
    """Minimum time between two assignments of a consumer group (Kafka: 1000)."""
    group_consumer_session_timeout_ms: int = 45_000
    """How long a member of the consumer protocol may go without a heartbeat."""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """How often a member of the consumer protocol should send a heartbeat."""
    group_consumer_max_size: int = INT32_MAX
    """The protocol changes allowed to a group with members: bidirectional, upgrade, downgrade or disabled."""
    group_consumer_migration_policy: str = "bidirectional"
    """True if a group with members may migrate to the other protocol. Also: disabled, upgrade, downgrade."""
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors a member may ask for; the first is the default."""
    group_streams_assignment_interval_ms: int = 0
    """Minimum time between two assignments of a streams group (Kafka: 1000)."""
    group_streams_session_timeout_ms: int = 45_000
    """How long a member of a streams group may go without a heartbeat."""
    group_streams_heartbeat_interval_ms: int = 5_000
    """How often a member of a streams group should send a heartbeat."""
    group_streams_max_size: int = INT32_MAX
    """Maximum number of members in a streams group."""
    group_streams_num_standby_replicas: int = 0
    """Number of standby replicas for each stateful task."""
    group_streams_initial_rebalance_delay_ms: int = 3_000
    """How long an empty streams group waits for more members before its first assignment."""
    group_share_assignment_interval_ms: int = 0
    """Minimum time between two assignments of a share group (Kafka: 1000)."""
    group_share_session_timeout_ms: int = 45_000
    """How long a member of a share group may go without a heartbeat."""
    group_share_heartbeat_interval_ms: int = 5_000
    """How often a member of a share group should send a heartbeat."""
    group_share_max_size: int = 200
    """Maximum number of members in a share group."""
    group_share_assignors: tuple[str, ...] = ("simple",)
    """The assignor of share groups. Members cannot choose one."""
    group_share_initialize_retry_interval_ms: int = 30_000
    """How long to wait for the share coordinators to initialize partitions before asking them again."""
    kraftpy_group_coordinator_max_bytes: int = 268_435_456
    """Memory that all coordinators of a broker may use for groups and offsets; additions beyond it are refused."""
    kraftpy_group_max_bytes: int = 8_388_608
    """Memory that the protocol metadata of one classic group's members may use."""
    has_authorizer: bool = False
    """True if the broker has an authorizer: a member whose rights are unknown then sees no topics."""
    offset_metadata_max_bytes: int = 4_096
    """Maximum length of a committed offset's metadata, in characters (`offset.metadata.max.bytes`)."""
    offsets_retention_minutes: int = 10_080
    """How long unused offsets are kept."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often the coordinator looks for expired offsets."""

    def settings(self, group_id: str) -> GroupSettings:
        """Return the settings of a group that has no overrides."""
        return GroupSettings(
            consumer_assignment_interval_ms=self.group_consumer_assignment_interval_ms,
            share_assignment_interval_ms=self.group_share_assignment_interval_ms,
            streams_assignment_interval_ms=self.group_streams_assignment_interval_ms,
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
        """`offsets_retention_minutes` in milliseconds."""
        return self.offsets_retention_minutes * 60_000
