"""Three nodes as Prometheus sees them, and every expression of dashboards and alerts against what they show."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from scraped import OPEN_METRICS, Scraped, get, health, parse_prometheus, scraped

from kraftpy.metrics.catalogue import CATALOGUE, Kind
from kraftpy.testing import Cluster

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "docs" / "monitoring"
BOUND_SECONDS = 60.0
TOPIC, OTHER_TOPIC, GROUP, PARTITIONS, RECORDS = "flights", "airports", "readers", 3, 300
ADDED_BY_PROMETHEUS = {"instance", "job"}
NOT_SHOWN_HERE = {
    "kafka_server_sharepartitionmetrics_inflightmessagecount",  # needs a share group
    "kafka_server_transaction_coordinator_metrics_transaction_count",  # needs a transaction
    "kafka_server_quota_throttle_time",  # needs a quota
    "up",  # Prometheus's own
}


class Monitored(NamedTuple):
    cluster: Cluster
    ports: dict[int, int]

    def pages(self) -> dict[int, Scraped]:
        return {node: scraped(port) for node, port in self.ports.items() if self.cluster.is_running(node)}

    def eventually(self, check: Callable[[dict[int, Scraped]], None]) -> dict[int, Scraped]:
        """Scrape until a check passes; the pages."""
        deadline = time.monotonic() + BOUND_SECONDS
        while True:
            pages = self.pages()
            try:
                check(pages)
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return pages


def metrics_port(cluster: Cluster, node: int) -> int:
    """Find the port on which a node answers monitors: the settings leave it to the system."""
    for connection in psutil.Process(cluster.pid(node)).net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            try:
                status, _, _ = get(connection.laddr.port, "/livez")
            except OSError:  # another listener
                continue
            if status == 200:
                return int(connection.laddr.port)
    raise AssertionError(f"node {node} has no listener for monitors")


@pytest.fixture(scope="module")
def monitored() -> Iterator[Monitored]:
    settings = {"kraftpy.metrics.listener": "127.0.0.1:0", "min.insync.replicas": "2"}
    with Cluster(brokers=3, settings=settings, keep_on_failure=True) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for topic in (TOPIC, OTHER_TOPIC):
            admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(BOUND_SECONDS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(BOUND_SECONDS) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([TOPIC])
        read = 0
        deadline = time.monotonic() + BOUND_SECONDS
        while read < RECORDS and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                read += 1
        assert read == RECORDS
        consumer.commit(asynchronous=False)
        for number in range(30):
            producer.produce(TOPIC, b"%d" % number, partition=0)
        assert producer.flush(BOUND_SECONDS) == 0
        yield Monitored(cluster, {node: metrics_port(cluster, node) for node in (1, 2, 3)})
        consumer.close()


def total(pages: dict[int, Scraped], name: str, **labels: str) -> float:
    values = [page.of(name, **labels) for page in pages.values() if matches(page, name, labels)]
    assert values, (name, labels)
    return sum(values)


def matches(page: Scraped, name: str, labels: dict[str, str]) -> int:
    return sum(labels.items() <= dict(each).items() for each in page.samples.get(name, {}))


def test_each_series_of_topics_and_groups_is_shown_by_one_node(monitored: Monitored) -> None:
    def check(pages: dict[int, Scraped]) -> None:
        assert total(pages, "kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert total(pages, "kafka_brokers") == 3
        assert total(pages, "kafka_topic_partitions", topic=TOPIC) == PARTITIONS
        assert total(pages, "kafka_topic_partition_current_offset", topic=TOPIC) == RECORDS + 30
        assert total(pages, "kafka_consumergroup_current_offset_sum", consumergroup=GROUP) == RECORDS
        assert total(pages, "kafka_consumergroup_lag_sum", consumergroup=GROUP) == 30
        assert total(pages, "kafka_consumergroup_members", consumergroup=GROUP) == 1
        assert total(pages, "kafka_server_raftmetrics_current_state", current_state="leader") == 1
        assert total(pages, "kafka_server_raftmetrics_current_state", current_state="follower") == 2

    pages = monitored.eventually(check)
    for name in CATALOGUE:
        if name.startswith(("kafka_topic_", "kafka_consumergroup_", "kafka_broker")):
            shown = [labels for page in pages.values() for labels in page.samples.get(name, {})]
            assert len(shown) == len(set(shown)), name


def test_what_leaders_send_followers_receive(monitored: Monitored) -> None:
    monitored.cluster.wait_in_sync()
    before = monitored.pages()
    producer = Producer({"bootstrap.servers": monitored.cluster.bootstrap_servers, "acks": "all"})
    for number in range(50):
        producer.produce(OTHER_TOPIC, bytes(1000), partition=number % PARTITIONS)
    assert producer.flush(BOUND_SECONDS) == 0

    def check(pages: dict[int, Scraped]) -> None:
        def grown(name: str, **labels: str) -> float:
            return total(pages, name, **labels) - total(before, name, **labels)

        written = grown("kafka_server_brokertopicmetrics_bytesin_total", topic=OTHER_TOPIC)
        assert written > 50_000
        assert grown("kafka_server_brokertopicmetrics_messagesin_total", topic=OTHER_TOPIC) == 50
        assert grown("kafka_log_log_size", topic=OTHER_TOPIC) == 3 * written
        assert grown("kafka_server_brokertopicmetrics_replicationbytesin_total") >= 2 * written
        assert grown("kafka_server_brokertopicmetrics_replicationbytesout_total") >= 2 * written
        assert total(pages, "kafka_network_requestmetrics_totaltimems_count", request="FetchFollower") > 0
        assert total(pages, "kafka_network_requestmetrics_remotetimems_sum", request="Produce") > 0

    monitored.eventually(check)


def test_a_monitor_sees_a_node_go_and_come_back(monitored: Monitored) -> None:
    def well(pages: dict[int, Scraped]) -> None:
        for node in pages:
            for path in ("/livez", "/readyz", "/clusterz"):
                status, found = health(monitored.ports[node], path)
                assert (status, found["reasons"]) == (200, [])

    monitored.eventually(well)
    with monitored.cluster.kill(3):

        def degraded(pages: dict[int, Scraped]) -> None:
            assert pages.keys() == {1, 2}
            assert total(pages, "kafka_server_replicamanager_underreplicatedpartitions") >= PARTITIONS
            assert max(page.of("kafka_controller_kafkacontroller_fencedbrokercount") for page in pages.values()) == 1
            for node in pages:
                status, found = health(monitored.ports[node], "/clusterz")
                assert status == 503
                assert found["fenced_brokers"] == [3]
                assert any("under-replicated" in reason for reason in found["reasons"])
                assert health(monitored.ports[node], "/readyz")[0] == 200

        monitored.eventually(degraded)
    monitored.cluster.wait_in_sync()
    monitored.ports[3] = metrics_port(monitored.cluster, 3)
    monitored.eventually(well)

    def grown(pages: dict[int, Scraped]) -> None:
        assert total(pages, "kafka_server_replicamanager_isrexpands_total") >= 1

    monitored.eventually(grown)


def test_coordinators_ask_leaders_for_the_ends_of_partitions_elsewhere(monitored: Monitored) -> None:
    """Each partition has one replica, so at most one of them is on the coordinator's node."""
    servers = {"bootstrap.servers": monitored.cluster.bootstrap_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic("alone", PARTITIONS, 1)])["alone"].result(BOUND_SECONDS)
    producer = Producer({**servers, "acks": "all"})
    for number in range(30):
        producer.produce("alone", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(BOUND_SECONDS) == 0
    group = Consumer({**servers, "group.id": "elsewhere"})
    group.commit(offsets=[TopicPartition("alone", each, 4) for each in range(PARTITIONS)], asynchronous=False)
    group.close()

    def check(pages: dict[int, Scraped]) -> None:
        for each in range(PARTITIONS):
            labels = {"consumergroup": "elsewhere", "topic": "alone", "partition": str(each)}
            assert total(pages, "kafka_consumergroup_lag", **labels) == 6
        assert total(pages, "kafka_consumergroup_lag_sum", consumergroup="elsewhere") == 18

    monitored.eventually(check)
    for page in monitored.eventually(check).values():
        if matches(page, "kafka_consumergroup_lag_seconds", {"consumergroup": "elsewhere"}):
            assert page.of("kafka_consumergroup_lag_seconds", consumergroup="elsewhere") > 0


# --- expressions ------------------------------------------------------------------------------------------------------


def shown_by(pages: dict[int, Scraped]) -> dict[str, set[str]]:
    """The labels of every sample that some node shows."""
    shown: dict[str, set[str]] = {}
    for page in pages.values():
        for name in page.samples:
            shown.setdefault(name, set()).update(page.labels(name))
    return shown


def as_confluent(monitored: Monitored) -> dict[int, Scraped]:
    found = {}
    for node, port in monitored.ports.items():
        _, _, text = get(port, "/metrics?rules=confluent")
        text = text.replace("persec counter\n", "persec untyped\n")  # the parser would add _total; Prometheus does not
        found[node] = Scraped(parse_prometheus(text))
        assert get(port, "/metrics?rules=confluent", OPEN_METRICS)[2].endswith("# EOF\n")
    return found


def public() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((ROOT / "tests" / "metrics" / "public_dashboards.toml").read_text())[
        "dashboard"
    ]
    return found


@pytest.mark.parametrize("dashboard", public(), ids=lambda each: each["name"])
def test_public_dashboards_light_up(monitored: Monitored, dashboard: dict[str, Any]) -> None:
    pages = as_confluent(monitored) if dashboard.get("rules") == "confluent" else monitored.pages()
    shown = shown_by(pages)
    for line in dashboard["metrics"]:
        name, *labels = line.split()
        assert name in shown, name
        assert set(labels) <= shown[name], line
    for name, reason in dashboard.get("left_out", {}).items():
        assert name not in shown, name
        assert reason


_NAME = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?")
_GROUPING = re.compile(r"\b(?:by|without|on)\s*\(([^)]*)\)")
_FUNCTIONS = {"sum", "max", "min", "rate", "increase", "topk", "min_over_time", "label_values"}
_WORDS = _FUNCTIONS | {"by", "on", "instance", "job"}


def named_in(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics in an expression, each with the labels that it is selected and grouped by."""
    grouped = {label.strip() for each in _GROUPING.findall(expression) for label in each.split(",")}
    bare = re.sub(r'"[^"]*"', '""', re.sub(r"\[[^]]*\]", "", _GROUPING.sub("", expression)))
    for name, selected in _NAME.findall(bare):
        if name not in _WORDS:
            yield name, grouped | set(re.findall(r"(\w+)\s*[=!]", selected))


def dashboard_expressions() -> list[str]:
    found = json.loads((MONITORING / "dashboard.json").read_text())
    expressions = [target["expr"] for panel in found["panels"] for target in panel.get("targets", ())]
    return expressions + [each["query"] for each in found["templating"]["list"] if each["type"] == "query"]


def alert_expressions() -> list[str]:
    text = (MONITORING / "alerts.yaml").read_text()
    return [" ".join(each.split()) for each in re.findall(r"expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels):)", text, re.S)]


@pytest.mark.parametrize("expression", [*dashboard_expressions(), *alert_expressions()])
def test_our_own_expressions_find_what_nodes_show(monitored: Monitored, expression: str) -> None:
    shown = shown_by(monitored.pages())
    names = list(named_in(expression))
    assert names
    for name, labels in names:
        if name in NOT_SHOWN_HERE:
            known = set(CATALOGUE[name].labels) if name in CATALOGUE else set()
        else:
            assert name in shown, name
            known = shown[name]
        assert labels <= known | ADDED_BY_PROMETHEUS, (name, labels)


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool (Debian's package prometheus)")
    return found


def test_promtool_accepts_the_rules_and_the_configuration(tmp_path: Path) -> None:
    tool = promtool()
    subprocess.run([tool, "check", "rules", MONITORING / "alerts.yaml"], check=True, capture_output=True)
    subprocess.run([tool, "check", "config", MONITORING / "prometheus.yaml"], check=True, capture_output=True)
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, expression in enumerate(dashboard_expressions()):
        if "label_values" not in expression:
            known = expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
            lines += [f"      - record: x{number}", f"        expr: {json.dumps(known)}"]
    rules = tmp_path / "rules.yaml"
    rules.write_text("\n".join(lines) + "\n")
    run = subprocess.run([tool, "check", "rules", rules], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_promtool_finds_nothing_in_a_page_but_kafka_s_own_names(monitored: Monitored) -> None:
    tool = promtool()
    _, _, text = get(monitored.ports[1], "/metrics")
    run = subprocess.run([tool, "check", "metrics"], input=text, check=False, capture_output=True, text=True)
    found = {line.split(" ", 1)[1] for line in (run.stdout + run.stderr).splitlines()}
    assert found <= {
        "label names should be written in 'snake_case' not 'camelCase'",
        'non-histogram and non-summary metrics should not have "_count" suffix',
        'non-histogram and non-summary metrics should not have "_sum" suffix',
    }


def test_every_alert_has_a_metric_that_the_catalogue_worries_about() -> None:
    worrying = {name for name, meaning in CATALOGUE.items() if meaning.worry}
    names = {name for expression in alert_expressions() for name, _ in named_in(expression)}
    assert names - worrying <= {"up", "process_open_fds", "process_max_fds"}
    assert all(CATALOGUE[name].kind in (Kind.COUNTER, Kind.GAUGE, Kind.SUMMARY) for name in names & worrying)
