"""Producers and consumers that say what they have seen: an interceptor for `kraftpy.client`.

    with AuditInterceptor(bootstrap_servers="127.0.0.1:9092", tier="producer") as audit:
        async with Producer(bootstrap_servers="127.0.0.1:9092", interceptors=[audit]) as producer:
            ...

A record counts for a producer when it was acknowledged, for a consumer when it was handed out; at its own timestamp. A
thread of its own publishes what changed every `interval_ms`, and all that is left when the block is left. One object
may serve several clients of one tier.

Left out: what a process that is killed had counted since the last time; the books then show the next tier with more. A
record that failed for its producer, but was written all the same, shows likewise.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from typing import Self

from kraftpy.audit.counts import DEFAULT_WINDOW_MS, Counter, Tally, latest
from kraftpy.audit.topic import DEFAULT_TOPIC, create_topic, publish
from kraftpy.client import KafkaError, RecordMetadata
from kraftpy.client.interceptors import Records

logger = logging.getLogger(__name__)

MAX_WINDOWS = 100_000
"""Topics' windows that one source counts; with more it goes on under another name, for a tier's sources are summed."""


class AuditInterceptor:
    """Counts and publishes. A context manager: leaving it publishes what is left. Raises KafkaError where it cannot."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        tier: str,
        topic: str = DEFAULT_TOPIC,
        window_ms: int = DEFAULT_WINDOW_MS,
        interval_ms: float = 10_000,
    ) -> None:
        self._servers, self._topic, self._tier, self._window_ms = bootstrap_servers, topic, tier, window_ms
        self._counter = self._new_counter()
        self._interval_ms = interval_ms
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._unpublished: list[Tally] = []  # who publishes has it
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kraftpy audit", daemon=True)

    def __enter__(self) -> Self:
        create_topic(self._servers, self._topic)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self.publish()

    # --- what clients call --------------------------------------------------------------------------------------------

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """A producer's record was delivered, or failed and does not count."""
        if error is None:
            with self._lock:
                self._counter.add(metadata.topic, metadata.timestamp_ms)

    def on_consume(self, records: Records) -> None:
        """A consumer hands these out."""
        with self._lock:
            for partition, each in records.items():
                for record in each:
                    self._counter.add(partition.topic, record.timestamp_ms)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish what has changed, now. Raises KafkaError; what was not published is kept for the next time.

        One caller at a time: what is said of a window last counts.
        """
        with self._publishing:
            with self._lock:
                changed = self._counter.changed(time.time_ns() // 1_000_000)
                self._unpublished = latest(self._unpublished + changed)
                if len(self._counter) >= MAX_WINDOWS:
                    self._counter = self._new_counter()
            if self._unpublished:
                publish(self._servers, self._topic, self._unpublished)
                self._unpublished = []

    def _new_counter(self) -> Counter:
        """Under a name that nothing has counted by: a process that is started again must not replace what it said."""
        source = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        return Counter(tier=self._tier, source=source, window_ms=self._window_ms)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_ms / 1000):
            try:
                self.publish()
            except KafkaError as failed:
                logger.warning("the audit's counts are published later: %s", failed)
