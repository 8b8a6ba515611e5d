"""Segments seen from outside: what other clients' batches become on our disk, and what others' classes make of it.

Batches of librdkafka, kafka-python and aiokafka, with every codec, are dumped, compacted, fetched back by another
library and read from the file by the record parsers of kafka-python and aiokafka: each record as it was sent, with key,
value, headers and timestamp. Segments and indexes that Apache Kafka's own classes wrote lie in `java_segments`, with
what those classes read in them. The reverse, its classes on our files, is `java_suite.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords
from click.testing import CliRunner
from compat.clients import LIBRARIES, Client, Message
from compat.segment_rows import record_row, records_once_compacted, segment_rows
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

from kraftpy.cli import cli
from kraftpy.cli.segments import read_batches
from kraftpy.protocol.compression import XERIAL_MAGIC, Compression
from kraftpy.protocol.record_batch import HEADER_BYTES
from kraftpy.testing.cluster import EmbeddedBroker

pytestmark = pytest.mark.timeout(300)  # thirty topics are written, compacted and read first

JAVA = Path(__file__).parent / "java_segments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
NOW = 1_700_000_000_000
KEYS = 20
ROUNDS = 4
SETTINGS = {"log.cleaner.backoff.ms": "50", "log.cleaner.min.cleanable.ratio": "0.01"}
COMPACT = {"cleanup.policy": "compact", "internal.segment.bytes": "3000", "file.delete.delay.ms": "0"}
SMALL_BATCHES: dict[str, dict[str, Any]] = {
    "confluent-kafka": {"batch.num.messages": 10},
    "kafka-python": {"batch_size": 1000},
    "aiokafka": {"max_batch_size": 1000},
}
PARSERS: dict[str, Callable[[bytes], Any]] = {"kafka-python": KafkaPythonRecords, "aiokafka": AioKafkaRecords}


@dataclass(frozen=True)
class Written:
    """A topic that a client wrote, and what another one fetched from it."""

    topic: str
    codec: str
    sent: list[Message]
    fetched: list[Message]
    directory: Path

    @property
    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))


def of_every_kind() -> list[Message]:
    messages = [
        Message(b"value", b"key", timestamp=NOW),
        Message(b"no key", timestamp=NOW + 5),
        Message(None, b"no value", timestamp=NOW - 5),
        Message(b"", b"", timestamp=NOW),
        Message(b"headers", b"h", (("name", b"value"), ("name", b""), ("\u00fc", b"\xff\x00")), NOW + 1),
        Message("\u00e4\u20ac\U0001f600".encode(), os.urandom(30), timestamp=NOW + 2),
        Message(b"flights go on time, or late, or not at all. " * 3000, b"more than one block", timestamp=NOW + 3),
    ]
    return messages + [Message(os.urandom(90), b"%d" % each, timestamp=NOW + 10 + each) for each in range(20)]


def keyed() -> list[Message]:
    """Every key several times over, some deleted at last."""
    rounds = [
        Message(
            os.urandom(30).hex().encode() + b"." * 30,
            b"key %d" % key,
            (("round", b"%d" % each),),
            NOW + each * KEYS + key,
        )
        for each in range(ROUNDS)
        for key in range(KEYS)
    ]
    return rounds + [Message(None, b"key %d" % key, timestamp=NOW + 1000 + key) for key in range(0, KEYS, 4)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Written]]:
    """Topics `client.codec` and `client.codec.compact`, and the files that a broker leaves of them."""
    home = tmp_path_factory.mktemp("segments")
    data = home / "data"
    made: list[tuple[str, str, Client, list[Message]]] = []
    found: dict[str, Written] = {}
    with EmbeddedBroker(home, settings={**SETTINGS, "log.dirs": str(data)}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for number, client in enumerate(LIBRARIES):
            reader = LIBRARIES[(number + 1) % len(LIBRARIES)]
            for codec in CODECS:
                made.append((f"{client.name}.{codec}", codec, reader, of_every_kind()))
                made.append((f"{client.name}.{codec}.compact", codec, reader, keyed()))
        topics = [NewTopic(name, 1, 1, config=COMPACT if name.endswith(".compact") else {}) for name, *_ in made]
        for future in admin.create_topics(topics).values():
            future.result(20)
        by_name = {client.name: client for client in LIBRARIES}
        for name, codec, _, sent in made:
            client = by_name[name.partition(".")[0]]
            more = SMALL_BATCHES[client.name] if name.endswith(".compact") else {}
            client.produce(broker.bootstrap, name, sent, codec=codec, **more)
        for name, codec, reader, sent in made:
            directory = data / f"{name}-0"
            count = records_once_compacted(directory, KEYS) if name.endswith(".compact") else len(sent)
            fetched = reader.consume(broker.bootstrap, name, count)
            found[name] = Written(name, codec, sent, fetched, directory)
    yield found
    verified = CliRunner().invoke(cli, ["log", "verify", str(data)])
    assert verified.exit_code == 0, verified.stderr


def expected_row(offset: int, message: Message) -> dict[str, Any]:
    assert message.timestamp is not None
    return record_row(offset, message.timestamp, message.key, message.value, list(message.headers))


def check_compacted(rows: list[dict[str, Any]], sent: list[Message]) -> None:
    """Check that every record left keeps its offset, and that the last record of each key is there."""
    assert rows == [expected_row(row["offset"], sent[row["offset"]]) for row in rows]
    offsets = [row["offset"] for row in rows]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == len(sent) - 1
    last = {message.key: offset for offset, message in enumerate(sent)}
    assert set(last.values()) <= set(offsets)
    assert len(offsets) < len(sent)


NAMES = [f"{client.name}.{codec}" for client in LIBRARIES for codec in CODECS]


@pytest.mark.parametrize("name", NAMES)
def test_a_client_s_records_are_on_the_disk_as_they_were_sent(written: dict[str, Written], name: str) -> None:
    topic = written[name]
    rows = [row for path in topic.segments for row in segment_rows(path)]
    assert topic.codec in {row["compression"] for row in rows if row["kind"] == "batch"}
    assert [row for row in rows if row["kind"] == "record"] == [
        expected_row(offset, message) for offset, message in enumerate(topic.sent)
    ]


def test_both_framings_of_snappy_are_among_them(written: dict[str, Written]) -> None:
    framings = {
        client.name: {
            bytes(batch.data[HEADER_BYTES:]).startswith(XERIAL_MAGIC)
            for path in written[f"{client.name}.snappy"].segments
            for batch in read_batches(path)
            if batch.header.compression == Compression.SNAPPY
        }
        for client in LIBRARIES
    }
    assert framings == {"confluent-kafka": {False}, "kafka-python": {True}, "aiokafka": {True}}


@pytest.mark.parametrize("name", NAMES)
def test_compaction_keeps_the_last_of_each_key_as_it_was_sent(written: dict[str, Written], name: str) -> None:
    topic = written[f"{name}.compact"]
    rows = [row for path in topic.segments for row in segment_rows(path)]
    codecs = {row["compression"] for row in rows if row["kind"] == "batch" and row["records_count"]}
    assert topic.codec in codecs, "cleaned batches keep their codec"
    check_compacted([row for row in rows if row["kind"] == "record"], topic.sent)


@pytest.mark.parametrize("name", [*NAMES, *(f"{name}.compact" for name in NAMES)])
def test_another_library_fetches_what_was_sent(written: dict[str, Written], name: str) -> None:
    topic = written[name]
    rows = [expected_row(message.offset or 0, message) for message in topic.fetched]
    if name.endswith(".compact"):
        check_compacted(rows, topic.sent)
    else:
        assert rows == [expected_row(offset, message) for offset, message in enumerate(topic.sent)]


@pytest.mark.parametrize("parser", sorted(PARSERS))
@pytest.mark.parametrize("name", [*NAMES, *(f"{name}.compact" for name in NAMES)])
def test_other_parsers_read_our_files(written: dict[str, Written], name: str, parser: str) -> None:
    for path in written[name].segments:
        ours = list(segment_rows(path))
        theirs, batches = parsed(PARSERS[parser], path.read_bytes())
        assert theirs == [row for row in ours if row["kind"] == "record"]
        assert batches == sum(row["kind"] == "batch" for row in ours)


def parsed(parser: Callable[[bytes], Any], data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Records and the number of batches."""
    rows: list[dict[str, Any]] = []
    batches = parser(data)
    done = 0
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        done += 1
        rows += [record_row(each.offset, each.timestamp, each.key, each.value, list(each.headers)) for each in batch]
    return rows, done


# --- written by Apache Kafka's classes --------------------------------------------------------------------------------

JAVA_SEGMENTS = sorted(JAVA.glob("*/*.log"))


def test_every_kind_of_java_segment_is_there() -> None:
    kinds = {path.parent.name for path in JAVA_SEGMENTS}
    assert kinds == {*CODECS, "log-append-time", "idempotent", "transactional", "compacted"}


@pytest.mark.parametrize("path", JAVA_SEGMENTS, ids=lambda path: path.parent.name)
def test_a_java_segment_holds_for_us_what_it_holds_for_java(path: Path) -> None:
    lines = (path.parent / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(segment_rows(path)) == [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", JAVA_SEGMENTS, ids=lambda path: path.parent.name)
def test_a_java_segment_and_its_indexes_are_sound_to_us(path: Path) -> None:
    files = [str(path), str(path.with_suffix(".index")), str(path.with_suffix(".timeindex"))]
    verified = CliRunner().invoke(cli, ["log", "verify", *files])
    assert verified.exit_code == 0, verified.stderr
    assert [json.loads(line)["ok"] for line in verified.stdout.splitlines()] == [True] * 3
