"""The metrics of clients, their names, and the endpoint that shows them."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
import threading
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families as parsed

from kraftpy.cli import cli
from kraftpy.client import (
    Admin,
    BlockingConsumer,
    BlockingProducer,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    RangeReader,
    ShareConsumer,
    TopicPartition,
)
from kraftpy.client.exposition import host_and_port, serve
from kraftpy.client.metrics import MOST_TOPICS, WINDOW_MS, ClientMetrics, MetricName, Metrics, Sampled, of_this_process
from kraftpy.client.producer.metrics import ProducerMetrics
from kraftpy.client.ranges.metrics import metrics_of
from kraftpy.protocol.apis import ApiKey

if TYPE_CHECKING:
    from kraftpy.testing.cluster import EmbeddedBroker

NAMES = Path(__file__).parents[1] / "compat" / "kafka_client_metrics.tsv"
"""Group, name and tags of the metrics of Java's clients: printed by compat/java_client/MetricsPusher.java."""
OURS = {"reader-metrics", "reader-node-metrics", "reader-fetch-manager-metrics", "consumer-share-metrics"}
READING = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}


@pytest.fixture
def bootstrap(kraftpy_server: EmbeddedBroker) -> str:
    return kraftpy_server.bootstrap


@pytest.fixture
async def topic(bootstrap: str) -> str:
    name = f"measured-{uuid.uuid4().hex[:8]}"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(name=name, num_partitions=2)])
        await admin.describe_cluster()
    return name


def of(found: Metrics, group: str, name: str, **tags: str) -> float:
    """The only value of this name with these tags besides the client's id; tags have underscores for dashes."""
    wanted = {key.replace("_", "-"): value for key, value in tags.items()}
    values = [
        value
        for key, value in found.items()
        if (key.group, key.name) == (group, name)
        and {tag: each for tag, each in key.tags if tag != "client-id"} == wanted
    ]
    assert len(values) == 1, (group, name, tags, len(values))
    return values[0]


async def eventually(client: Producer | Consumer, group: str, name: str, value: float) -> Metrics:
    """Wait until a client's value is that."""
    async with asyncio.timeout(30):
        while of(client.metrics(), group, name) != value:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.05)
    return client.metrics()


# --- values over time -------------------------------------------------------------------------------------------------


def test_values_are_kept_for_two_windows() -> None:
    sampled = Sampled()
    assert math.isnan(sampled.average(0))
    assert math.isnan(sampled.most(0))
    assert sampled.rate(0) == 0
    for value, at in ((10.0, 1_000.0), (20.0, 2_000.0)):
        sampled.record(value, at)
    assert (sampled.average(2_000), sampled.most(2_000)) == (15, 20)
    assert sampled.rate(2_000) == pytest.approx(30 / (WINDOW_MS / 1000)), "never of less than a window"
    sampled.record(6.0, 1_000 + WINDOW_MS)
    assert (sampled.average(1_000 + WINDOW_MS), sampled.most(1_000 + WINDOW_MS)) == (12, 20)
    at = 1_000 + 1.5 * WINDOW_MS
    assert sampled.rate(at) == pytest.approx(36 / (1.5 * WINDOW_MS / 1000))
    assert sampled.count_rate(at) == pytest.approx(3 / (1.5 * WINDOW_MS / 1000))
    at = 1_000 + 2 * WINDOW_MS
    assert (sampled.average(at), sampled.most(at)) == (6, 6), "the first window is over"
    at = 1_000 + 3 * WINDOW_MS
    assert math.isnan(sampled.average(at))
    assert sampled.rate(at) == 0
    assert (sampled.count, sampled.total) == (3, 36)


def test_topics_and_brokers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kraftpy.client.metrics.MOST_TOPICS", 2)
    monkeypatch.setattr("kraftpy.client.producer.metrics.MOST_TOPICS", 2)
    metrics = ProducerMetrics("bounded", 1)
    for number in range(5):
        metrics.sent(f"host:{number}", 10, 0)
        metrics.answered(f"host:{number}", ApiKey.PRODUCE, 1, 10, 0, 0)
        metrics._topic(f"t{number}").failed.record(1, 0)
    found = metrics.values(0)
    assert len({name.tags for name in found if name.group == "producer-node-metrics"}) == 2
    assert len({name.tags for name in found if name.group == "producer-topic-metrics"}) == 2
    assert MOST_TOPICS >= 1_000


# --- clients ----------------------------------------------------------------------------------------------------------


async def test_a_producer_measures_its_batches(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, client_id="p", compression_type="gzip") as producer:
        for number in range(100):
            await producer.send(topic, bytes(1_000), partition=number % 2)
        await producer.flush()
        found = producer.metrics()
    assert of(found, "producer-metrics", "record-send-total") == 100
    assert of(found, "producer-metrics", "record-send-rate") == pytest.approx(100 / 30)
    assert of(found, "producer-topic-metrics", "record-send-total", topic=topic) == 100
    assert of(found, "producer-metrics", "record-error-total") == 0
    size = of(found, "producer-topic-metrics", "byte-total", topic=topic)
    assert (
        0 < of(found, "producer-metrics", "batch-size-avg") <= of(found, "producer-metrics", "batch-size-max") <= size
    )
    assert size < 10_000
    assert 0 < of(found, "producer-metrics", "compression-rate-avg") < 0.1
    latency = of(found, "producer-metrics", "request-latency-avg")
    assert 0 < latency <= of(found, "producer-metrics", "request-latency-max")
    assert 0 <= of(found, "producer-metrics", "record-queue-time-avg") < 30_000
    assert of(found, "producer-metrics", "produce-throttle-time-max") == 0
    assert of(found, "producer-metrics", "buffer-available-bytes") == of(
        found, "producer-metrics", "buffer-total-bytes"
    )
    assert of(found, "producer-metrics", "connection-count") == 1
    assert of(found, "producer-metrics", "requests-in-flight") == 0
    assert 0 <= of(found, "producer-metrics", "metadata-age") < 300
    sent, received = (of(found, "producer-metrics", f"{which}-total") for which in ("request", "response"))
    assert sent == received >= 3
    assert of(found, "producer-node-metrics", "request-total", node_id="node-1") == sent
    assert of(found, "producer-metrics", "outgoing-byte-total") > size
    assert all(dict(name.tags)["client-id"] == "p" for name in found)


async def test_records_that_are_not_delivered_are_counted(bootstrap: str, topic: str) -> None:
    """The topic refuses what is larger than it allows."""
    async with Admin(bootstrap_servers=bootstrap) as admin:
        small = f"{topic}-small"
        await admin.create_topics([NewTopic(name=small, num_partitions=1, config={"max.message.bytes": "500"})])
    producer = Producer(bootstrap_servers=bootstrap)
    async with producer:
        deliveries = [await producer.send(small, bytes(400)) for _ in range(2)]
        large = await producer.send(small, bytes(4_000))
        with pytest.raises(KafkaError):
            await large
        for each in deliveries:
            await each
        found = producer.metrics()
    assert of(found, "producer-metrics", "record-error-total") == 1
    assert of(found, "producer-topic-metrics", "record-error-total", topic=small) == 1
    assert of(found, "producer-metrics", "batch-split-total") >= 1


async def test_a_consumer_measures_fetches_lag_and_commits(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(100):
            await producer.send(topic, b"%03d" % number, partition=0 if number < 90 else 1)
    async with Consumer(
        topic, group_id=f"g-{topic}", bootstrap_servers=bootstrap, client_id="c", enable_auto_commit=False, **READING
    ) as consumer:
        assert of(consumer.metrics(), "consumer-fetch-manager-metrics", "records-consumed-total") == 0
        read = 0
        async with asyncio.timeout(30):
            while read < 100:
                read += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
        await consumer.getmany(timeout_ms=1)
        await consumer.commit()
        # An answer without records comes after the last with some: then lags are those of the end.
        fetches = "consumer-fetch-manager-metrics"
        async with asyncio.timeout(30):
            for each in ("0", "1"):
                while of(consumer.metrics(), fetches, "records-lag", topic=topic, partition=each):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        found = consumer.metrics()
    assert (
        of(found, fetches, "records-consumed-total") == of(found, fetches, "records-consumed-total", topic=topic) == 100
    )
    assert of(found, fetches, "bytes-consumed-total") > 300
    assert of(found, fetches, "fetch-total") >= 1
    assert 0 < of(found, fetches, "fetch-latency-avg") <= of(found, fetches, "fetch-latency-max")
    assert of(found, fetches, "records-lag-max") >= 90
    assert of(found, fetches, "records-lead-min") == 0
    assert of(found, fetches, "records-lead", topic=topic, partition="0") == 90
    group = "consumer-coordinator-metrics"
    assert of(found, group, "assigned-partitions") == 2
    assert of(found, group, "commit-total") == 1
    assert of(found, group, "commit-latency-avg") > 0
    assert of(found, group, "join-total") >= 1
    assert of(found, group, "sync-total") >= 1
    assert of(found, group, "rebalance-total") >= 1
    assert 0 <= of(found, group, "last-rebalance-seconds-ago") < 60
    assert of(found, "consumer-metrics", "last-poll-seconds-ago") < 60
    assert of(found, "consumer-metrics", "time-between-poll-max") > 0


async def test_a_consumer_of_a_group_that_the_coordinator_assigns(bootstrap: str, topic: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        await producer.send_and_wait(topic, b"one")
    options = {"group_id": f"n-{topic}", "group_protocol": "consumer", "auto_offset_reset": "earliest"}
    async with Consumer(topic, bootstrap_servers=bootstrap, **options) as consumer:
        async with asyncio.timeout(30):
            await anext(consumer)
        found = await eventually(consumer, "consumer-coordinator-metrics", "assigned-partitions", 2)
    assert of(found, "consumer-coordinator-metrics", "heartbeat-total") >= 1
    assert 0 <= of(found, "consumer-coordinator-metrics", "last-heartbeat-seconds-ago") < 60


def test_blocking_clients_and_range_readers(bootstrap: str, topic: str) -> None:
    with BlockingProducer(bootstrap_servers=bootstrap) as producer:
        producer.send_many(topic, ((None, b"%d" % number) for number in range(50)))
        producer.flush()
        assert of(producer.metrics(), "producer-metrics", "record-send-total") == 50
    with BlockingConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.getmany(timeout_ms=10_000)
        assert of(consumer.metrics(), "consumer-fetch-manager-metrics", "records-consumed-total") > 0
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    mine = uuid.uuid4().hex
    kept = metrics_of(mine)
    with RangeReader(bootstrap, client_id=mine) as reader, RangeReader(bootstrap, client_id=mine) as other:
        ends = reader.latest(partitions)
        for partition, end in ends.items():
            for _ in (reader if partition.partition else other).read(partition, 0, end):
                pass
        found = reader.metrics()
        assert other.metrics().keys() == found.keys(), "they share them"
    assert of(found, "reader-fetch-manager-metrics", "records-consumed-total") == 50
    assert of(found, "reader-fetch-manager-metrics", "records-consumed-total", topic=topic) == 50
    assert of(found, "reader-fetch-manager-metrics", "fetch-total") >= 1
    assert of(found, "reader-metrics", "connection-count") >= 1
    assert of(kept.values(0), "reader-metrics", "connection-count") == 0


async def test_every_name_is_java_s(bootstrap: str, topic: str) -> None:
    java = {tuple(line.split("\t")) for line in NAMES.read_text().splitlines() if not line.startswith("#")}
    found: Metrics = {}
    async with (
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(topic, group_id=f"names-{topic}", bootstrap_servers=bootstrap, **READING) as consumer,
        ShareConsumer(bootstrap_servers=bootstrap, group_id=f"share-{topic}") as sharer,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        await producer.send_and_wait(topic, b"one")
        async with asyncio.timeout(30):
            await anext(consumer)
        await consumer.commit()
        for client in (producer, consumer, sharer, admin):
            found |= client.metrics()
    names = {(name.group, name.name, ",".join(sorted(tag for tag, _ in name.tags))) for name in found}
    assert {group for group, _, _ in names} >= {
        "producer-metrics", "producer-topic-metrics", "producer-node-metrics", "consumer-metrics",
        "consumer-fetch-manager-metrics", "consumer-coordinator-metrics", "consumer-node-metrics",
    }  # fmt: skip
    of_java = {each for each in names if each[0].startswith(("producer", "consumer-")) and "share" not in each[0]}
    assert of_java - java == set()


# --- Prometheus -------------------------------------------------------------------------------------------------------


def page(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    shown: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parsed(text):
        for sample in family.samples:
            shown.setdefault(sample.name, []).append((sample.labels, sample.value))
    return shown


async def test_prometheus_is_shown_all_clients_of_the_process(bootstrap: str, topic: str) -> None:
    options = {"bootstrap_servers": bootstrap, "client_id": f"shown-{topic}"}
    with serve("127.0.0.1:0") as port:
        async with Producer(**options) as first, Producer(**options) as second:
            await first.send_and_wait(topic, b"one")
            await second.send_and_wait(topic, b"two")
            shown = await asyncio.to_thread(page, port)
            sent = [
                (labels["client"], value)
                for labels, value in shown["kafka_producer_producer_metrics_record_send_total"]
                if labels["client_id"] == options["client_id"]
            ]
            assert [value for _, value in sent] == [1, 1]
            assert len({client for client, _ in sent}) == 2
            labels, _ = shown["kafka_producer_producer_topic_metrics_byte_rate"][0]
            assert labels.keys() == {"client_id", "client", "topic"}
        shown = await asyncio.to_thread(page, port)
        ids = {labels["client_id"] for samples in shown.values() for labels, _ in samples}
        assert options["client_id"] not in ids, "closed clients are not shown"


async def test_pages_can_be_made_while_clients_work(bootstrap: str, topic: str) -> None:
    with serve("127.0.0.1:0") as port:
        over = threading.Event()
        failures: list[Exception] = []

        def work() -> None:
            while not over.is_set():
                try:
                    page(port)
                except Exception as error:  # it is shown below
                    failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(20):
            async with Producer(bootstrap_servers=bootstrap) as producer:
                await producer.send_and_wait(topic, b"one")
        over.set()
        await asyncio.to_thread(thread.join)
        assert failures == []


def test_clients_that_are_forgotten_are_not_kept() -> None:
    name = uuid.uuid4().hex
    made = ClientMetrics("producer", name)
    assert made in of_this_process()
    del made
    gc.collect()
    assert name not in {each.client_id for each in of_this_process()}


@pytest.mark.parametrize("address", ["9405", ":9405", "host:", "host:x", "host:70000", "host:²"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        host_and_port(address)
    assert host_and_port("[::1]:0") == ("::1", 0)


# --- kraftpy load -----------------------------------------------------------------------------------------------------


def test_a_load_writes_its_metrics(bootstrap: str, topic: str, tmp_path: Path) -> None:
    with BlockingProducer(bootstrap_servers=bootstrap) as producer:
        producer.send_many(topic, ((None, b"%d" % number) for number in range(50)))
    file = tmp_path / "load.prom"
    command = ["load", topic, "--table", str(tmp_path / "table"), "--metrics-file", str(file)]
    command += ["--metrics-listener", "127.0.0.1:0"]
    environment = {"KRAFTPY_BOOTSTRAP_SERVERS": bootstrap}
    ran = CliRunner().invoke(cli, command, env=environment)
    assert ran.exit_code == 0, (ran.output, ran.exception)
    assert json.loads(ran.stdout)["records"] == 50
    assert re.search(r"metrics are at http://127\.0\.0\.1:[1-9]\d*/metrics", ran.stderr)
    shown = {sample.name: sample for family in parsed(file.read_text()) for sample in family.samples}
    assert shown["kraftpy_load_records_total"].value == 50
    assert shown["kraftpy_load_batches_total"].labels == {"load": "kraftpy"}
    assert shown["kraftpy_load_last_success_timestamp_seconds"].value > 1.7e9
    assert shown["kafka_consumer_reader_fetch_manager_metrics_records_consumed_total"].value >= 50
    offsets = [
        sample.value
        for family in parsed(file.read_text())
        for sample in family.samples
        if sample.name == "kraftpy_load_next_offset"
    ]
    assert sum(offsets) == 50


def test_each_load_of_a_process_shows_its_readers(bootstrap: str, topic: str, tmp_path: Path) -> None:
    """Although a reader of an earlier load is still kept, as one is that failed and has not been collected yet."""
    kept = metrics_of("kraftpy")
    environment = {"KRAFTPY_BOOTSTRAP_SERVERS": bootstrap}
    for number in (1, 2):
        with BlockingProducer(bootstrap_servers=bootstrap) as producer:
            producer.send_many(topic, ((None, b"%d" % number) for number in range(50)))
        file = tmp_path / f"{number}.prom"
        command = ["load", topic, "--table", str(tmp_path / "table"), "--metrics-file", str(file)]
        ran = CliRunner().invoke(cli, command, env=environment)
        assert ran.exit_code == 0, (ran.output, ran.exception)
        name = "kafka_consumer_reader_fetch_manager_metrics_records_consumed_total"
        samples = [sample for family in parsed(file.read_text()) for sample in family.samples if sample.name == name]
        assert [sample.value for sample in samples if sample.labels.get("topic") == topic] == [50 * number]
    assert kept.values(0)


def test_a_load_that_fails_says_so_in_its_metrics(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "load.prom"
    command = ["load", "no-such-topic", "--table", str(tmp_path / "table"), "--metrics-file", str(file)]
    ran = CliRunner().invoke(cli, command, env={"KRAFTPY_BOOTSTRAP_SERVERS": bootstrap})
    assert ran.exit_code == 1
    assert "kraftpy_load_records_total" in file.read_text()
    assert "last_success" not in file.read_text()
    ran = CliRunner().invoke(
        cli, [*command, "--metrics-listener", "9405"], env={"KRAFTPY_BOOTSTRAP_SERVERS": bootstrap}
    )
    assert ran.exit_code == 2
    assert "'9405' is not host:port" in ran.output


def test_names_are_those_of_the_jmx_exporter() -> None:
    name = MetricName("consumer-fetch-manager-metrics", "records-lag-max", (("client-id", "a"),))
    from kraftpy.client.exposition import exposed

    shown = exposed("consumer", name)
    assert shown == ("kafka_consumer_consumer_fetch_manager_metrics_records_lag_max", {"client_id": "a"})
