"""`kraftpy top` against a real broker, and its arithmetic without one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kraftpy.cli import cli
from kraftpy.client import BlockingAdmin, BlockingProducer, NewTopic, TopicPartition
from kraftpy.client.model import PartitionInfo
from kraftpy.diagnosis.sampling import GroupSample, Sample, request_times, rows
from kraftpy.testing.cluster import EmbeddedBroker

PAGE = """\
# TYPE kafka_network_requestmetrics_totaltimems summary
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.5"} 1.0
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"} 12.5
kafka_network_requestmetrics_totaltimems{quantile="0.99",request="Metadata",} 3
kafka_network_requestmetrics_totaltimems{request="FetchConsumer",quantile="0.99"} 500
kafka_network_requestmetrics_totaltimems{request="Idle",quantile="0.99"} NaN
kafka_network_requestmetrics_totaltimems_count{request="Produce"} 7
"""
ONE, TWO = TopicPartition("a", 0), TopicPartition("a", 1)


def _sample(at: float, ends: dict[TopicPartition, int], committed: dict[TopicPartition, int], lag: int) -> Sample:
    return Sample(
        at=at,
        time_ms=0,
        brokers=2,
        controller=1,
        partitions={
            ONE: PartitionInfo(topic="a", partition=0, leader=1, replicas=(1, 2), in_sync_replicas=(1,)),
            TWO: PartitionInfo(topic="a", partition=1, leader=-1, replicas=(2,), in_sync_replicas=(2,)),
        },
        ends=ends,
        groups={"g": GroupSample(state="Stable", committed=committed, lag=lag)},
        groups_left_out=3,
        requests={("http://x", "Produce"): 12.5},
    )


def test_rates_are_movements_of_offsets() -> None:
    before = _sample(10.0, {ONE: 100}, {ONE: 40, TWO: 9}, 60)
    after = _sample(12.0, {ONE: 150, TWO: 9}, {ONE: 70, TWO: 3}, 80)
    cluster, topic, group, request = rows(before, after)
    assert (cluster["offline"], cluster["under_replicated"], cluster["groups"]) == (1, 1, 4)
    assert topic["written_per_second"] == cluster["written_per_second"] == 25.0  # a partition that is new has no rate
    assert (group["lag"], group["read_per_second"], group["lag_per_second"]) == (80, 15.0, 10.0)
    assert request == {"kind": "request", "endpoint": "http://x", "request": "Produce", "p99_ms": 12.5}


def test_times_of_requests_are_read_without_those_that_wait() -> None:
    assert list(request_times(PAGE)) == [("Produce", 12.5), ("Metadata", 3.0)]


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture
def page() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"offsets.topic.num.partitions": "1"}) as made:
        with BlockingAdmin(bootstrap_servers=made.bootstrap) as admin:
            admin.create_topics([NewTopic(name="busy", num_partitions=2), NewTopic(name="quiet", num_partitions=1)])
            with BlockingProducer(bootstrap_servers=made.bootstrap) as producer:
                producer.send("quiet", b"value", partition=0)
                producer.flush()
            admin.alter_group_offsets("readers", {TopicPartition("quiet", 0): 0})
        yield made
        assert "Traceback" not in made.log_text


def _top(bootstrap: str, *options: str, status: int = 0) -> Result:
    environment = {"KRAFTPY_BOOTSTRAP_SERVERS": bootstrap, "COLUMNS": "150"}
    result = CliRunner().invoke(cli, ["top", *options], env=environment)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_one_interval_in_json(broker: EmbeddedBroker, page: str) -> None:
    end = threading.Event()

    def write() -> None:
        with BlockingProducer(bootstrap_servers=broker.bootstrap) as producer:
            while not end.is_set():
                producer.send("busy", b"value", partition=1)
                producer.flush()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        result = _top(broker.bootstrap, "--once", "--json", "--interval", "1", "--metrics", page)
    finally:
        end.set()
        writing.join()
    found: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["kind"] for row in found] == ["cluster", "topic", "topic", "group", "request", "request"]
    assert (found[0]["brokers"], found[0]["offline"], found[0]["under_replicated"]) == (1, 0, 0)
    assert found[1]["topic"] == "busy"
    assert found[1]["written_per_second"] > 0
    assert (found[2]["topic"], found[2]["written_per_second"]) == ("quiet", 0)
    assert (found[3]["group"], found[3]["lag"], found[3]["read_per_second"]) == ("readers", 1, 0)
    assert [row["request"] for row in found[4:]] == ["Produce", "Metadata"]


def test_tables_at_a_terminal(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kraftpy.cli.top.at_terminal", lambda: True)
    gone = "http://127.0.0.1:1/metrics"
    shown = _top(broker.bootstrap, "--once", "--interval", "0.1", "--lines", "1", "--metrics", gone).stdout
    assert "1 brokers, controller 1; " in shown
    assert "topics, 1 more" in shown
    assert "readers" in shown
    assert f"no metrics: {gone}: ConnectionRefusedError" in shown


def test_it_is_live_until_interrupted(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    import kraftpy.diagnosis.sampling as sampling

    monkeypatch.setattr("kraftpy.cli.top.at_terminal", lambda: True)
    counted, rows_of = [0], sampling.rows

    def interrupted_later(before: Sample, after: Sample) -> list[dict[str, Any]]:
        counted[0] += 1
        if counted[0] == 3:
            raise KeyboardInterrupt
        return rows_of(before, after)

    monkeypatch.setattr(sampling, "rows", interrupted_later)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert "readers" in _top(broker.bootstrap, "--interval", "0.1").stdout
    assert counted[0] == 3


def test_what_is_no_url_is_refused(broker: EmbeddedBroker) -> None:
    assert "expected a URL" in _top(broker.bootstrap, "--metrics", "localhost:9464", status=2).output


def test_no_broker_is_a_failure() -> None:
    assert "cannot reach a broker" in _top("127.0.0.1:1", "--once", status=1).output
