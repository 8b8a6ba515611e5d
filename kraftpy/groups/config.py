"""The settings of the group coordinator, under Kafka's names (dots and underscores exchanged).

Left out: `offsets.topic.*` (the shell creates the partition), `offsets.commit.timeout.ms` (the shell's append has its
own bound), settings of single groups, `group.consumer.assignment.interval.ms` (KIP-1263; new targets are made at once).
"""

from __future__ import annotations

from dataclasses import dataclass

INT32_MAX = 2**31 - 1


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
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors such members may ask for; the first is the one where nobody asks."""
    offset_metadata_max_bytes: int = 4_096
    """Characters of metadata a committed offset may carry (`offset.metadata.max.bytes`)."""
    offsets_retention_minutes: int = 10_080
    """How long offsets nobody needs are kept."""
    offsets_retention_check_interval_ms: int = 600_000
    """How often expired offsets are looked for."""

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets_retention_minutes` as a span of milliseconds."""
        return self.offsets_retention_minutes * 60_000
