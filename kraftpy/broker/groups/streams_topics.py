"""Creates missing internal topics of streams groups: repartition topics and changelogs (KIP-1071)."""

from __future__ import annotations

from collections.abc import Sequence

from kraftpy.broker.metadata.auto_creation import new_topic_id
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.metadata.topic_changes import change_topics
from kraftpy.config import BrokerConfig
from kraftpy.groups.streams.topology import InternalTopic
from kraftpy.metadata.commands import ConfigValue, CreateTopics, NewTopic
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode

_DEFAULT = -1


async def create_internal_topics(
    topics: Sequence[InternalTopic], metadata: MetadataLog, config: BrokerConfig, clock: Clock
) -> dict[str, str]:
    """Create topics with the partitions and settings the group chose. Returns an error text per failure."""
    command = CreateTopics(
        topics=tuple(_new_topic(topic) for topic in topics),
        time_ms=clock.now(),
        default_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
    )
    return {
        result.name: result.message or result.error.meaning
        for result in await change_topics(command, metadata, config)
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) and result.name is not None
    }


def _new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        topic_id=new_topic_id(),
        partitions=topic.partitions or _DEFAULT,
        replication_factor=topic.replication_factor if topic.replication_factor > 0 else _DEFAULT,
        configs=tuple(ConfigValue(name=name, value=value) for name, value in topic.configs),
    )
