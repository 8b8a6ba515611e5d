"""Broker, topic and group settings under Kafka's names: type, default, one line of documentation, and origin.

    config, warnings, notes = load(file_text, os.environ, ["num.partitions=3"])
    config.log_dirs, config.topic_defaults.retention_ms
    topic_config({"retention.ms": "60000"}, config)

The facts are those of Kafka 4.3; the tables are `broker_settings`, `security_settings`, `topic_settings`,
`group_settings` and `other_settings`. The content of DescribeConfigs is in `describe`, which is imported on demand.
"""

from __future__ import annotations

from kraftpy.config.broker import BROKER_SETTINGS, BrokerConfig, Origin, WrittenSetting
from kraftpy.config.listeners import Listener
from kraftpy.config.quorum import Address, Voter
from kraftpy.config.settings import ConfigError, ConfigType, Setting
from kraftpy.config.sources import Loaded, load
from kraftpy.config.topic import (
    TOPIC_SETTINGS,
    TopicConfig,
    topic_config,
)

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "Address",
    "BrokerConfig",
    "ConfigError",
    "ConfigType",
    "Listener",
    "Loaded",
    "Origin",
    "Setting",
    "TopicConfig",
    "Voter",
    "WrittenSetting",
    "load",
    "topic_config",
]
