"""An interceptor for `kraftpy.client` with which producers and consumers publish their record counts.

    with AuditInterceptor(bootstrap_servers="127.0.0.1:9092", tier="producer") as audit:
        async with Producer(bootstrap_servers="127.0.0.1:9092", interceptors=[audit]) as producer:
            ...

A record counts, at its own timestamp, once it is acknowledged to a producer or returned to a consumer. A separate
thread publishes changed counts every `interval_ms`; leaving the block publishes the rest. One object may serve several
clients of one tier.

Left out: counts since the last publication if the process is killed; the books then show more at the next tier. A
record that failed for its producer but was written all the same looks alike.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from typing import Any, Self

from kraftpy.audit.counts import DEFAULT_WINDOW_MS, Counter, Tally, latest
from kraftpy.audit.topic import DEFAULT_TOPIC, create_topic, publish
from kraftpy.client import KafkaError, RecordMetadata
from kraftpy.client.interceptors import Records

logger = logging.getLogger(__name__)

MAX_WINDOWS = 100_000
"""Windows that one source counts, over all topics; beyond that, counting continues as a new source of the tier."""


class AuditInterceptor:
    """Counts records and publishes tallies. Leaving the context publishes the rest. Raises KafkaError if it cannot."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        tier: str,
        topic: str = DEFAULT_TOPIC,
        window_ms: int = DEFAULT_WINDOW_MS,
        interval_ms: float = 10_000,
        **options: Any,
    ) -> None:
        """`options` are the options of any client, such as `security_protocol`."""
        self._options = options
        self._servers, self._topic, self._tier, self._window_ms = bootstrap_servers, topic, tier, window_ms
        self._counter = self._new_counter()
        self._interval_ms = interval_ms
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._unpublished: list[Tally] = []  # guarded by `_publishing`
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kraftpy audit", daemon=True)

    def __enter__(self) -> Self:
        create_topic(self._servers, self._topic, **self._options)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self.publish()

    # --- called by clients --------------------------------------------------------------------------------------------

    def on_acknowledgement(self, metadata: RecordMetadata, error: KafkaError | None) -> None:
        """Count a delivered record; a failed one does not count."""
        if error is None:
            with self._lock:
                self._counter.add(metadata.topic, metadata.timestamp_ms)

    def on_consume(self, records: Records) -> None:
        """Count records that a consumer returns."""
        with self._lock:
            for partition, each in records.items():
                for record in each:
                    self._counter.add(partition.topic, record.timestamp_ms)

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish what has changed, now. Raises KafkaError; unpublished tallies are kept for the next time.

        Only one caller publishes at a time, because a window's last tally is the one that counts.
        """
        with self._publishing:
            with self._lock:
                changed = self._counter.changed(time.time_ns() // 1_000_000)
                self._unpublished = latest(self._unpublished + changed)
                if len(self._counter) >= MAX_WINDOWS:
                    self._counter = self._new_counter()
            if self._unpublished:
                publish(self._servers, self._topic, self._unpublished, **self._options)
                self._unpublished = []

    def _new_counter(self) -> Counter:
        """Create a counter with a new source name: a restarted process must not replace its earlier tallies."""
        source = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        return Counter(tier=self._tier, source=source, window_ms=self._window_ms)

    def _run(self) -> None:
        while not self._ending.wait(self._interval_ms / 1000):
            try:
                self.publish()
            except KafkaError as failed:
                logger.warning("cannot publish the audit's counts now, will retry: %s", failed)
