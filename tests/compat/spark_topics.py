"""Topics for Spark to read: what librdkafka writes into a broker, so that neither of the readers compared wrote it.

Times are seconds after the epoch, one a record, so that offsets by timestamp are known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import confluent_kafka
from compat.segment_rows import records_once_compacted
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

BOUND_SECONDS = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 3
COUNT = 300
"""Records of `plain`, dealt to its partitions in turn; the one at offset n of partition p is 3n + p seconds old."""
COMPACTED_KEYS = 20
DELETED_BEFORE = 12
"""The first offset left in `shortened`."""

QUICK = {"log.cleaner.backoff.ms": "50", "log.cleaner.min.cleanable.ratio": "0.01"}
"""Settings of the broker."""


class Topics:
    """Creates and fills them."""

    def __init__(self, bootstrap: str) -> None:
        self._servers = {"bootstrap.servers": bootstrap, "log_level": 2}  # it would tell of the broker's end
        self._admin = AdminClient(self._servers)
        self._open: list[confluent_kafka.Producer] = []

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        kept = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=kept)])[name].result(BOUND_SECONDS)
        return name

    def add_partitions(self, name: str, total: int) -> None:
        self._admin.create_partitions([NewPartitions(name, total)])[name].result(BOUND_SECONDS)

    def fill(self, name: str, records: Iterable[dict[str, Any]], **settings: str) -> None:
        """Each a dict of arguments of `Producer.produce`."""
        given = {key.replace("_", "."): value for key, value in settings.items()}
        producer = confluent_kafka.Producer({**self._servers, **given})
        failed: list[Any] = []
        for record in records:
            producer.produce(name, **record, on_delivery=lambda error, _: failed.append(error) if error else None)
        if producer.flush(BOUND_SECONDS) or failed:
            raise SystemExit(f"{name} could not be filled: {failed[:1]}")

    def fill_all(self, data: Path) -> None:
        """Fill every topic that the queries read; `data` is the broker's log directory."""
        self.fill(self.create("plain", PARTITIONS), numbered(0, COUNT))
        self.fill(self.create("odd", 2), odd_records())
        self.create("empty", 2)
        self.fill(self.create("appended", 1, message_timestamp_type="LogAppendTime"), numbered(0, 20, partitions=1))
        for codec in CODECS:
            large = ({**each, "value": os.urandom(40).hex().encode()} for each in numbered(0, 1_000, partitions=2))
            self.fill(self.create(f"codec.{codec}", 2), large, compression_type=codec, linger_ms="50")
        self._fill_shortened()
        self._fill_compacted(data)
        self._fill_transactions()

    def _fill_shortened(self) -> None:
        self.fill(self.create("shortened"), numbered(0, 40, partitions=1))
        before = confluent_kafka.TopicPartition("shortened", 0, DELETED_BEFORE)
        for future in self._admin.delete_records([before]).values():
            future.result(BOUND_SECONDS)

    def _fill_compacted(self, data: Path) -> None:
        """Every key is overwritten many times, and what is left has gaps."""
        name = self.create(
            "compacted", cleanup_policy="compact", internal_segment_bytes="20000", file_delete_delay_ms="0"
        )
        for turn in range(20):
            records = (
                {"key": b"%d" % (number % COMPACTED_KEYS), "value": os.urandom(100).hex().encode(), "partition": 0}
                for number in range(turn, turn + 50)
            )
            self.fill(name, records)
        records_once_compacted(data / f"{name}-0", COMPACTED_KEYS)

    def _fill_transactions(self) -> None:
        """Committed, aborted, and one that stays open, with records after it that are in none."""
        name = self.create("transactions", 2)
        done = self._transactional("done")
        for number in range(12):
            done.begin_transaction()
            for each in numbered(number * 10, number * 10 + 10, partitions=2):
                done.produce(name, **each)
            done.flush(BOUND_SECONDS)
            if number % 3 == 1:
                done.abort_transaction(BOUND_SECONDS)
            else:
                done.commit_transaction(BOUND_SECONDS)
        still_open = self._transactional("open")
        still_open.begin_transaction()
        still_open.produce(name, b"open", partition=0)
        still_open.flush(BOUND_SECONDS)
        self.fill(name, numbered(200, 210, partitions=2))

    def _transactional(self, name: str) -> confluent_kafka.Producer:
        settings = {"transactional.id": name, "transaction.timeout.ms": 900_000, "linger.ms": 0}
        producer = confluent_kafka.Producer({**self._servers, **settings})
        producer.init_transactions(BOUND_SECONDS)
        self._open.append(producer)
        return producer

    def close(self) -> None:
        """Abort what is open."""
        self._open.pop().abort_transaction(BOUND_SECONDS)

    def written(self, name: str, count: int) -> list[tuple[Any, ...]]:
        """The rows of a topic of `count` records: partition, key, value and headers, in the partitions' order."""
        consumer = confluent_kafka.Consumer(
            {**self._servers, "group.id": "spark-topics", "enable.auto.commit": False, "enable.partition.eof": True}
        )
        partitions = self._admin.list_topics(name, BOUND_SECONDS).topics[name].partitions
        consumer.assign([confluent_kafka.TopicPartition(name, each, 0) for each in partitions])
        rows: list[tuple[Any, ...]] = []
        ended: set[int] = set()
        deadline = time.monotonic() + BOUND_SECONDS
        while len(ended) < len(partitions):
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                rows.append((message.partition(), message.key(), message.value(), message.headers()))
            elif message is not None:
                if message.error().code() != confluent_kafka.KafkaError._PARTITION_EOF:
                    raise SystemExit(f"{name}: {message.error()}")
                ended.add(message.partition())
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} was not read to its end")
        consumer.close()
        if len(rows) != count:
            raise SystemExit(f"{name} has {len(rows)} records, not {count}")
        return sorted(rows, key=lambda row: row[0])


def numbered(first: int, end: int, *, partitions: int = PARTITIONS) -> Iterable[dict[str, Any]]:
    """Records whose value is their number, as is their time in seconds; every fifth has no key."""
    for number in range(first, end):
        yield {
            "key": b"key %d" % (number % 7) if number % 5 else None,
            "value": b"%d" % number,
            "partition": number % partitions,
            "timestamp": 1 + number * 1_000,
        }


def odd_records() -> Iterable[dict[str, Any]]:
    """Null and empty keys, values and headers, header names that come twice; times that do not ascend."""
    headers: list[list[tuple[str, bytes | None]]] = [
        [],
        [("a", b"1")],
        [("a", b"1"), ("a", None), ("ü", b"")],
        [("", b"\x00\xff")],
    ]
    for number in range(64):
        yield {
            "key": (None, b"", b"k", "ключ".encode())[number % 4],
            "value": (None, b"", b"v" * number)[number % 3],
            "headers": headers[(number // 2) % 4],
            "partition": number % 2,
            "timestamp": 1_000_000_000_000 + (number * 7_919) % 64_000,
        }
