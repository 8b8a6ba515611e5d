"""Settings: every text for every setting is a value or a ConfigError, and a value that was accepted can be used.

The first two bytes pick the setting, or the file of settings; the rest is its text.
"""

from __future__ import annotations

from collections.abc import Iterator

import hostile

from kraftpy.broker.share.partitions import duration_ms
from kraftpy.config.broker import BrokerConfig
from kraftpy.config.broker_settings import BROKER_TABLE
from kraftpy.config.group import GROUP_SETTINGS, check_group_settings, group_settings
from kraftpy.config.listeners import parse_listeners, parse_protocol_map
from kraftpy.config.quorum import parse_voters
from kraftpy.config.settings import ConfigError, parse_table, render
from kraftpy.config.sources import parse_properties
from kraftpy.config.topic import topic_config
from kraftpy.config.topic_settings import TOPIC_TABLE

ALLOWED = (ConfigError,)
_BROKER = BrokerConfig()
_BROKER_SETTINGS = parse_table(BROKER_TABLE)
_TOPIC_SETTINGS = parse_table(TOPIC_TABLE)


def one(data: bytes) -> None:
    """Try one input. It chooses a table and one of its settings, and holds the text."""
    if len(data) < 2:
        return
    text = data[2:].decode("utf-8", "replace")
    match data[0] % 8:
        case 0 | 1:
            names = sorted(GROUP_SETTINGS)
            name = names[data[1] % len(names)]
            check_group_settings({name: text}, _BROKER)
            reset = group_settings({name: text}, _BROKER).share_auto_offset_reset
            if reset.startswith("by_duration"):
                duration_ms(reset.partition(":")[2])
        case 2 | 3:
            names = sorted(_TOPIC_SETTINGS)
            name = names[data[1] % len(names)]
            topic_config({name: text}, _BROKER)
        case 4:
            names = sorted(_BROKER_SETTINGS)
            value = _BROKER_SETTINGS[names[data[1] % len(names)]].parse(text)
            render(value)
        case 6:
            parse_properties(text)
        case _:
            parse_listeners("listeners", text.split(","))
            parse_protocol_map(text)
            parse_voters(text.split(","))


def seeds() -> Iterator[tuple[str, bytes]]:
    """Each setting with a text, and hostile texts for some."""
    for table, count in ((0, len(GROUP_SETTINGS)), (2, len(_TOPIC_SETTINGS))):
        for number in range(count):
            text = hostile.SETTING_VALUES[number % len(hostile.SETTING_VALUES)]
            yield f"each-{table}-{number}", bytes((table, number)) + text.encode()[:1000]
    reset = sorted(GROUP_SETTINGS).index("share.auto.offset.reset")
    for number, text in enumerate(hostile.DURATIONS):
        yield f"duration-{number}", bytes((0, reset)) + text.encode()[:1000]
    yield "properties", b"\6\0a=b\n# c\nd : e\\\n f\n\\u0041=1\n"
    yield "listeners", b"\7\0PLAINTEXT://:9092,X://[::1]:0"
    yield "voters", b"\7\0001@localhost:9093,2@[::1]:1"
