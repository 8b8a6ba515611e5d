"""Load on a cluster while its nodes fail: an idempotent producer that waits for all in-sync replicas, and a group of
two consumers, all with librdkafka's defaults.

Every partition gets a record every `PACE_S`; a record holds its number within the partition and its time of sending.
The outage of a failure lasts until a record that was sent after the failure is acknowledged, or consumed, in *every*
partition. `proof` counts the records that are lost, repeated or out of order in the log at the end.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

PACE_S = 0.01
_RECORD = struct.Struct(">qd")
_PADDING = bytes(84)
_BOUND_S = 60.0
_QUIET = {"log_level": 0}


@dataclass(slots=True, kw_only=True)
class Outage:
    """The duration of the outage after a failure at `since`, in seconds; None until it is over."""

    since: float
    to_produce: set[int]
    to_consume: set[int]
    produced_s: float | None = None
    consumed_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Proof:
    """The result of comparing the log with the acknowledged records."""

    records: int = 0
    acknowledged: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    failed_requests: int = 0
    not_consumed: int = 0
    offsets_gone_back: int = 0

    @property
    def is_clean(self) -> bool:
        """True if there is nothing wrong."""
        wrong = self.lost + self.repeated + self.out_of_order + self.not_consumed + self.offsets_gone_back
        return wrong + self.failed_requests == 0


@dataclass(slots=True)
class _Seen:
    """The records and offsets of one partition."""

    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    consumed: set[int] = field(default_factory=set)
    committed: int = 0


class Load:
    """A context manager: the load runs within its block; call `proof` afterwards."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, group: str = "failover") -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._seen = [_Seen() for _ in range(partitions)]
        self._lock = threading.Lock()
        self._outages: list[Outage] = []
        self.failures: list[str] = []
        self._stop_sending = threading.Event()
        self._stop_reading = threading.Event()
        self._threads = [threading.Thread(target=self._produce, daemon=True)]
        self._threads += [threading.Thread(target=self._consume, daemon=True) for _ in range(2)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.wait(self.watch())
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop_sending.set()
        self._threads[0].join()
        deadline = time.monotonic() + _BOUND_S
        while any(each.acknowledged - each.consumed for each in self._seen) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._stop_reading.set()
        for thread in self._threads:
            thread.join()

    def watch(self) -> Outage:
        """Begin to measure an outage now."""
        everywhere = range(len(self._seen))
        outage = Outage(since=time.monotonic(), to_produce=set(everywhere), to_consume=set(everywhere))
        with self._lock:
            self._outages.append(outage)
        return outage

    def wait(self, outage: Outage, bound_s: float = _BOUND_S) -> None:
        """Wait until the outage is over. Raises RuntimeError after `bound_s`."""
        deadline = time.monotonic() + bound_s
        while outage.produced_s is None or outage.consumed_s is None:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"not over after {bound_s:g} s: nothing produced to {sorted(outage.to_produce)}, nothing consumed "
                    f"from {sorted(outage.to_consume)}; failed: {self.failures[:3]}"
                )
            time.sleep(0.005)
        with self._lock:
            self._outages.remove(outage)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, **_QUIET})
        while not self._stop_sending.is_set():
            until = time.monotonic() + PACE_S
            for partition, seen in enumerate(self._seen):
                value = _RECORD.pack(seen.sent, time.monotonic()) + _PADDING
                seen.sent += 1
                try:
                    producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                except BufferError:
                    seen.sent -= 1
            while (left := until - time.monotonic()) > 0:
                producer.poll(left)
        producer.flush(_BOUND_S)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.failures.append(f"produce: {error}")
            return
        number, sent_at = _RECORD.unpack_from(message.value())
        self._seen[message.partition()].acknowledged.add(number)
        with self._lock:
            for outage in self._outages:
                if sent_at >= outage.since and outage.to_produce:
                    outage.to_produce.discard(message.partition())
                    if not outage.to_produce:
                        outage.produced_s = time.monotonic() - outage.since

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "auto.offset.reset": "earliest",
                "on_commit": self._committed,
                **_QUIET,
            }
        )
        consumer.subscribe([self._topic])
        while not self._stop_reading.is_set():
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            number, sent_at = _RECORD.unpack_from(message.value())
            self._seen[message.partition()].consumed.add(number)
            with self._lock:
                for outage in self._outages:
                    if sent_at >= outage.since and outage.to_consume:
                        outage.to_consume.discard(message.partition())
                        if not outage.to_consume:
                            outage.consumed_s = time.monotonic() - outage.since
        consumer.close()

    def _committed(self, error: object, partitions: list[TopicPartition]) -> None:
        """Note a commit. librdkafka retries refused ones, so they are no failure; a confirmed one must not be lost."""
        for each in partitions:
            if error is None and each.error is None:
                seen = self._seen[each.partition]
                seen.committed = max(seen.committed, each.offset)

    def proof(self) -> Proof:
        """Read the topic from its start and compare."""
        proof = Proof(failed_requests=len(self.failures))
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": self._group, **_QUIET})
        asked = [TopicPartition(self._topic, number) for number in range(len(self._seen))]
        for each in consumer.committed(asked, timeout=_BOUND_S):
            proof.offsets_gone_back += each.offset < self._seen[each.partition].committed
        ends = [consumer.get_watermark_offsets(each, timeout=_BOUND_S)[1] for each in asked]
        consumer.assign([TopicPartition(self._topic, each.partition, 0) for each in asked])
        found: list[list[int]] = [[] for _ in asked]
        offsets = [0 for _ in asked]
        deadline = time.monotonic() + 2 * _BOUND_S
        while any(offset < end for offset, end in zip(offsets, ends, strict=True)) and time.monotonic() < deadline:
            for message in consumer.consume(5000, 0.2):
                if message.error() is None:
                    found[message.partition()].append(_RECORD.unpack_from(message.value())[0])
                    offsets[message.partition()] = message.offset() + 1
        consumer.close()
        for seen, numbers in zip(self._seen, found, strict=True):
            distinct = set(numbers)
            proof.records += len(numbers)
            proof.acknowledged += len(seen.acknowledged)
            proof.lost += len(seen.acknowledged - distinct)
            proof.repeated += len(numbers) - len(distinct)
            proof.out_of_order += sum(one > other for one, other in itertools.pairwise(numbers))
            proof.not_consumed += len(seen.acknowledged - seen.consumed)
        return proof
