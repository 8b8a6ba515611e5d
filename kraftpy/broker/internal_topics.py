"""The topics that brokers keep for themselves, and the settings they are created with."""

from __future__ import annotations

from kraftpy.config import BrokerConfig
from kraftpy.frozen import frozen

CONSUMER_OFFSETS = "__consumer_offsets"
"""Groups and their committed offsets; compacted."""

TRANSACTION_STATE = "__transaction_state"
"""Transactional ids and their transactions; compacted."""

SHARE_GROUP_STATE = "__share_group_state"
"""The state of records that share groups were handed; pruned by the coordinators, not by age."""

_SMALLEST_SEGMENT_BYTES = 1 << 20
"""The smallest `segment.bytes` that a topic may have; `offsets.topic.segment.bytes` may be lower."""


@frozen
class InternalTopic:
    """Partitions, replication factor and settings of a new internal topic."""

    partitions: int
    replication_factor: int
    configs: tuple[tuple[str, str], ...]


def settings_of(name: str, config: BrokerConfig) -> InternalTopic | None:
    """Return the settings to create an internal topic with; None for a user's topic."""
    if name == CONSUMER_OFFSETS:
        return InternalTopic(
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(max(_SMALLEST_SEGMENT_BYTES, config.offsets_topic_segment_bytes))),
            ),
        )
    if name == TRANSACTION_STATE:
        return InternalTopic(
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=config.transaction_state_log_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
                ("segment.bytes", str(max(_SMALLEST_SEGMENT_BYTES, config.transaction_state_log_segment_bytes))),
                ("unclean.leader.election.enable", "false"),
            ),
        )
    if name == SHARE_GROUP_STATE:
        return InternalTopic(
            partitions=config.share_coordinator_state_topic_num_partitions,
            replication_factor=config.share_coordinator_state_topic_replication_factor,
            configs=(
                ("cleanup.policy", "delete"),
                ("compression.type", "producer"),
                ("min.insync.replicas", str(config.share_coordinator_state_topic_min_isr)),
                ("retention.bytes", "-1"),
                ("retention.ms", "-1"),
                (
                    "segment.bytes",
                    str(max(_SMALLEST_SEGMENT_BYTES, config.share_coordinator_state_topic_segment_bytes)),
                ),
                ("unclean.leader.election.enable", "false"),
            ),
        )
    return None
