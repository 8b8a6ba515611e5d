"""Metrics that clients push reach a collector, which may be slow, refuse or be gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kraftpy.telemetry.forwarding import MAX_QUEUED, MAX_QUEUED_BYTES, MOST_ATTEMPTS, Forwarder

BOUND_SECONDS = 20.0


class Collector(ThreadingHTTPServer):
    """Answers with `statuses`, one by one, and 200 after that."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses: list[int] = []
        self.received: list[tuple[str, str | None, bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.may_answer.wait(BOUND_SECONDS)
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.server.received.append((self.path, self.headers["Content-Type"], body))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def forward() -> Iterator[Callable[..., tuple[Forwarder, list[str]]]]:
    started = []

    def start(url: str) -> tuple[Forwarder, list[str]]:
        lines: list[str] = []
        started.append(Forwarder(url, lines.append, first_pause_seconds=0.001))
        return started[-1], lines

    yield start
    for each in started:
        each.stop()


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


Forward = Callable[..., tuple[Forwarder, list[str]]]


def test_payloads_arrive_in_order(collector: Collector, forward: Forward) -> None:
    forwarder, lines = forward(collector.url)
    for number in range(5):
        forwarder.put(b"%d" % number)
    _until(lambda: forwarder.sent == 5)
    assert collector.received == [("/v1/metrics", "application/x-protobuf", b"%d" % number) for number in range(5)]
    assert lines == []


def test_a_collector_that_cannot_now_is_asked_again(collector: Collector, forward: Forward) -> None:
    collector.statuses = [503, 429, 502, 504]
    forwarder, lines = forward(collector.url)
    forwarder.put(b"a")
    _until(lambda: forwarder.sent == 1)
    assert [body for _, _, body in collector.received] == [b"a"] * 5
    assert lines == []


def test_what_is_refused_is_lost_and_the_next_is_sent(collector: Collector, forward: Forward) -> None:
    collector.statuses = [400]
    forwarder, lines = forward(collector.url)
    forwarder.put(b"bad")
    forwarder.put(b"good")
    _until(lambda: forwarder.sent == 1)
    assert forwarder.lost == 1
    assert lines == [f"{collector.url}: client metrics are lost: status 400"]


def test_a_collector_that_never_can_costs_the_payload(collector: Collector, forward: Forward) -> None:
    collector.statuses = [503] * MOST_ATTEMPTS
    forwarder, lines = forward(collector.url)
    forwarder.put(b"a")
    forwarder.put(b"b")
    _until(lambda: forwarder.sent == 1)
    assert [body for _, _, body in collector.received] == [b"a"] * MOST_ATTEMPTS + [b"b"]
    assert len(lines) == forwarder.lost == 1


def test_no_collector_at_all(forward: Forward) -> None:
    forwarder, lines = forward("http://127.0.0.1:1/v1/metrics")
    forwarder.put(b"a")
    _until(lambda: forwarder.lost == 1)
    assert "ConnectionRefusedError" in lines[0]


def test_the_queue_is_bounded_while_the_collector_hangs(collector: Collector, forward: Forward) -> None:
    collector.may_answer.clear()
    forwarder, _ = forward(collector.url)
    forwarder.put(b"first")
    _until(lambda: not forwarder._queue)  # it is being sent
    for number in range(MAX_QUEUED + 10):
        forwarder.put(b"%d" % number)
    assert forwarder.lost == 10
    forwarder.put(bytes(MAX_QUEUED_BYTES))
    assert forwarder.lost == 10 + MAX_QUEUED
    collector.may_answer.set()
    _until(lambda: forwarder.sent == 2)


def test_a_stop_does_not_wait_for_the_collector(forward: Forward) -> None:
    forwarder, _ = forward("http://127.0.0.1:1/")
    forwarder._first_pause = 1_000.0
    forwarder.put(b"a")
    thread = forwarder._thread
    assert thread is not None
    forwarder.stop()
    thread.join(BOUND_SECONDS)
    assert not thread.is_alive()
    forwarder.put(b"b")
    assert not forwarder._queue
