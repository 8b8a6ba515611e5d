"""The settings of share partitions and of the coordinators of their state, with Kafka's defaults."""

from __future__ import annotations

from kraftpy.frozen import frozen


@frozen
class ShareCoordinatorConfig:
    """Kafka's `share.coordinator.*`, without the prefix."""

    snapshot_update_records_per_snapshot: int = 500
    cold_partition_snapshot_interval_ms: int = 300_000
    kraftpy_share_coordinator_max_bytes: int = 134_217_728
    """Memory for share-partition state that all coordinators of a broker share; beyond it, new ones are refused."""


@frozen
class SharePartitionConfig:
    """The settings of one group: its own overrides, or the broker's `group.share.*`."""

    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2000
    record_lock_duration_ms: int = 30_000
    renew_acknowledge_enable: bool = True
    has_dead_letters: bool = False
    """True if records that are given up are written to a dead letter queue first (KIP-1191)."""
