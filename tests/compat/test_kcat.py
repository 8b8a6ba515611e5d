"""kcat at the command line: lists, offsets, times and groups, as its manual shows them."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time

import pytest
from compat.clients import CONFLUENT, Message

from kraftpy.testing.cluster import EmbeddedBroker

BOUND_SECONDS = 40.0
START_MS = 1_700_000_000_000
_names = itertools.count()


@pytest.fixture
def topic(kraftpy_server: EmbeddedBroker) -> str:
    """A topic with one partition and 100 messages, a second apart."""
    name = f"kcat-{next(_names)}-{time.time_ns()}"
    sent = [Message(b"%d" % i, timestamp=START_MS + 1000 * i) for i in range(100)]
    CONFLUENT.produce(kraftpy_server.bootstrap, name, sent)
    return name


def kcat(broker: EmbeddedBroker, *arguments: str) -> str:
    command = ["kcat", "-b", broker.bootstrap, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=BOUND_SECONDS).stdout


def numbers(output: str) -> list[int]:
    return [int(line) for line in output.splitlines()]


def test_list(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    text = kcat(kraftpy_server, "-L", "-t", topic)
    assert f"broker 1 at {kraftpy_server.bootstrap} (controller)" in text
    assert re.search(rf'topic "{topic}" with 1 partitions:\n +partition 0, leader 1, replicas: 1, isrs: 1\n', text)
    everything = json.loads(kcat(kraftpy_server, "-L", "-J"))
    assert topic in {each["topic"] for each in everything["topics"]}
    assert everything["brokers"] == [{"id": 1, "name": kraftpy_server.bootstrap}]


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        (["beginning"], range(100)),
        (["97"], range(97, 100)),
        (["-3"], range(97, 100)),
        ([f"s@{START_MS + 90_000}"], range(90, 100)),
        ([f"s@{START_MS + 89_001}"], range(90, 100)),
        ([f"s@{START_MS + 10_000}", f"e@{START_MS + 20_000}"], range(10, 20)),
        ([f"s@{START_MS + 100_000}"], range(0)),
        (["end"], range(0)),
    ],
    ids=["beginning", "offset", "last", "from a time", "between two", "until a time", "after the last", "end"],
)
def test_where_to_start(kraftpy_server: EmbeddedBroker, topic: str, positions: list[str], expected: range) -> None:
    options = [argument for position in positions for argument in ("-o", position)]
    found = kcat(kraftpy_server, "-C", "-q", "-e", "-t", topic, "-p", "0", *options)
    assert numbers(found) == list(expected)


def test_query_offsets_by_time(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    answer = kcat(kraftpy_server, "-Q", "-t", f"{topic}:0:{START_MS + 42_000}")
    assert answer == f"{topic} [0] offset 42\n"


def test_a_group_goes_on_where_it_was(kraftpy_server: EmbeddedBroker, topic: str) -> None:
    group = ["-q", "-X", "auto.offset.reset=earliest", "-G", f"group-{topic}"]
    assert numbers(kcat(kraftpy_server, "-c", "60", *group, topic)) == list(range(60))
    assert numbers(kcat(kraftpy_server, "-c", "40", *group, topic)) == list(range(60, 100))
    assert kcat(kraftpy_server, "-e", *group, topic) == ""
