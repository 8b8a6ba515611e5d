"""Sends what clients push to an OpenTelemetry collector, by OTLP over HTTP, from a thread of its own.

    forwarder = Forwarder("http://collector:4318/v1/metrics", report)
    forwarder.put(payload)      # never waits
    forwarder.stop()

A payload is an `ExportMetricsServiceRequest`. At most `MAX_QUEUED` payloads of `MAX_QUEUED_BYTES` together wait; beyond
that, the oldest ones are dropped. A payload that the collector cannot take now (it is not reachable, or answers 429,
502, 503 or 504) is sent up to `MOST_ATTEMPTS` times, with pauses that double up to `MOST_PAUSE_SECONDS`; one that it
refuses is dropped. `report` is called in this thread, with a line, for a payload that is lost.

A server's certificate must be valid for the endpoint's host. Redirects and proxies are not used.

The protocol: OpenTelemetry's OTLP specification, section OTLP/HTTP.
"""

from __future__ import annotations

import http.client
import threading
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from kraftpy import __version__
from kraftpy.endpoints import https_context

MAX_QUEUED: Final = 1_000
MAX_QUEUED_BYTES: Final = 16 << 20
MOST_ATTEMPTS: Final = 5
FIRST_PAUSE_SECONDS: Final = 1.0
MOST_PAUSE_SECONDS: Final = 30.0
_TIMEOUT_SECONDS: Final = 10.0
_MOST_ANSWER_BYTES: Final = 64 * 1024
_RETRYABLE: Final = frozenset({429, 502, 503, 504})


class _Refused(Exception):
    """The collector refuses the payload for good."""


class Forwarder:
    """The queue to one collector, and the thread that empties it. The thread starts with the first payload."""

    def __init__(
        self, endpoint: str, report: Callable[[str], None], *, first_pause_seconds: float = FIRST_PAUSE_SECONDS
    ) -> None:
        self.endpoint = endpoint
        self._report = report
        self._first_pause = first_pause_seconds
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = self.lost = 0
        """Payloads that the collector took, and those that were dropped."""

    def put(self, payload: bytes) -> None:
        """Queue a payload. Never waits for the collector."""
        with self._changed:
            if self._has_ended.is_set():
                return
            self._queue.append(payload)
            self._queued_bytes += len(payload)
            while len(self._queue) > MAX_QUEUED or self._queued_bytes > MAX_QUEUED_BYTES:
                self._queued_bytes -= len(self._queue.popleft())
                self.lost += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="client metrics", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """End the thread, without the payloads that are still queued."""
        self._has_ended.set()
        with self._changed:
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify()

    def _run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while True:
            with self._changed:
                while not self._queue and not self._has_ended.is_set():
                    self._changed.wait()
                if self._has_ended.is_set():
                    break
                payload = self._queue.popleft()
                self._queued_bytes -= len(payload)
            connection = self._deliver(payload, connection)
        if connection is not None:
            connection.close()

    def _deliver(
        self, payload: bytes, connection: http.client.HTTPConnection | None
    ) -> http.client.HTTPConnection | None:
        """Send a payload until it is taken or lost; return the connection to use for the next one."""
        pause, reason = self._first_pause, ""
        for attempt in range(MOST_ATTEMPTS):
            if attempt:
                if self._has_ended.wait(pause):
                    return connection
                pause = min(2 * pause, MOST_PAUSE_SECONDS)
            try:
                connection = connection or self._connect()
                if (status := self._post(connection, payload)) not in _RETRYABLE:
                    self.sent += 1
                    return connection
                reason = f"status {status}"
            except _Refused as error:
                reason = str(error)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
                if connection is not None:
                    connection.close()
                    connection = None
        self.lost += 1
        self._report(f"{self.endpoint}: client metrics are lost: {reason}")
        return connection

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.endpoint)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_SECONDS, context=https_context())
        return http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_SECONDS)

    def _post(self, connection: http.client.HTTPConnection, payload: bytes) -> int:
        """Send a payload; return the status, which is 2xx or retryable. Raises _Refused for any other."""
        parts = urlsplit(self.endpoint)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"Content-Type": "application/x-protobuf", "User-Agent": f"kraftpy/{__version__}"}
        connection.request("POST", path, payload, headers)
        with connection.getresponse() as answer:
            answer.read(_MOST_ANSWER_BYTES)
            is_complete = answer.isclosed()
        if not is_complete:
            connection.close()
        if answer.status in _RETRYABLE or 200 <= answer.status < 300:
            return answer.status
        raise _Refused(f"status {answer.status}")
