"""Creates topics on first use: users' topics with defaults, internal topics with their own settings.

As in Kafka, a default that is set on this broker (`num.partitions`, `default.replication.factor`) takes precedence over
the active controller's.

Dead letter queues are users' topics with two settings.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from kraftpy.broker.internal_topics import settings_of
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.broker.metadata.topic_changes import change_topics
from kraftpy.config import BrokerConfig
from kraftpy.metadata.commands import ConfigValue, CreateTopics, NewTopic
from kraftpy.metadata.image import Topic
from kraftpy.metadata.topics import METADATA_TOPIC, topic_name_problem
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicId

MOST_AT_ONCE: Final = 100
"""Topics that one request may create; any further ones are created when the client asks again."""


def new_topic_id() -> TopicId:
    """Return a random topic id that is not reserved and whose text form does not start with '-', like an option."""
    while True:
        topic_id = uuid.uuid4().bytes
        if not topic_id.startswith(b"\xf8") and topic_id[:15] != bytes(15):
            return TopicId(topic_id)


async def auto_create_topics(
    names: Sequence[str],
    metadata: MetadataLog,
    config: BrokerConfig,
    clock: Clock,
    configs: tuple[ConfigValue, ...] = (),
) -> dict[str, ErrorCode]:
    """Create topics with the defaults and some settings; return an error code for each that could not be created.

    At most `MOST_AT_ONCE` topics are created; the others get LEADER_NOT_AVAILABLE, after which clients ask again.
    Invalid names get INVALID_TOPIC_EXCEPTION; the metadata log, which is not a topic, is unknown.
    """
    wanted = list(dict.fromkeys(names))
    refused = {name: ErrorCode.INVALID_TOPIC_EXCEPTION for name in wanted if topic_name_problem(name) is not None}
    if METADATA_TOPIC in wanted:
        refused[METADATA_TOPIC] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wanted = [name for name in wanted if name not in refused]
    refused.update(dict.fromkeys(wanted[MOST_AT_ONCE:], ErrorCode.LEADER_NOT_AVAILABLE))
    command = CreateTopics(
        topics=tuple(_new_topic(name, config, configs) for name in wanted[:MOST_AT_ONCE]),
        time_ms=clock.now(),
        default_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
    )
    for result in await change_topics(command, metadata, config):
        # A topic that another request has created meanwhile serves as well.
        if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) and result.name is not None:
            refused[result.name] = result.error
    return refused


async def found_or_created(name: str, metadata: MetadataLog, config: BrokerConfig, clock: Clock) -> Topic | None:
    """Return an internal topic, creating it on first use; None if it cannot be created now."""
    if metadata.image.topic(name) is None:
        await auto_create_topics([name], metadata, config, clock)
    return metadata.image.topic(name)


def _new_topic(name: str, config: BrokerConfig, configs: tuple[ConfigValue, ...]) -> NewTopic:
    internal = settings_of(name, config)
    if internal is None:
        return NewTopic(
            name=name,
            topic_id=new_topic_id(),
            partitions=config.num_partitions if "num.partitions" in config.given else -1,
            replication_factor=(
                config.default_replication_factor if "default.replication.factor" in config.given else -1
            ),
            configs=configs,
        )
    return NewTopic(
        name=name,
        topic_id=new_topic_id(),
        partitions=internal.partitions,
        replication_factor=internal.replication_factor,
        configs=tuple(ConfigValue(name=setting, value=value) for setting, value in internal.configs),
    )
