"""A node's listener for monitors: metrics in both formats, health, and strangers on its port."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from broker_wire import connect, fetch, produce_values
from one_broker import create, running, until
from prometheus_client.core import GaugeMetricFamily, Metric
from scraped import Scraped, health, scraped

from kraftpy.broker.broker import Broker
from kraftpy.broker.broker_proof import SOFTWARE
from kraftpy.broker.metrics import checks, scraping, server, throughput
from kraftpy.broker.metrics.ends import _History
from kraftpy.broker.metrics.pages import Monitoring
from kraftpy.broker.startup import StartupError
from kraftpy.client import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer, ResourceType, ShareConsumer
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.metadata.journal import Journal
from kraftpy.metadata.records import Record
from kraftpy.metrics.catalogue import CATALOGUE, Kind
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.types import TopicPartition

ON = "kraftpy.metrics.listener=127.0.0.1:0"
NO_LEADER = "the metadata quorum has no leader that this node knows"
NEEDS_MORE = (
    "kafka_server_quota_",  # a client with a quota
    "kafka_server_sharepartitionmetrics_",  # a share group
    "kafka_server_transaction_coordinator_metrics_transaction_count",  # a transaction
    "kafka_server_fetcherlagmetrics_",  # a follower
    "kafka_server_socket_server_metrics_connections_software",  # an open connection
    "kafka_server_socketservermetrics_connections",
    "kraftpy_client_metrics_forwarded",  # a collector of OpenTelemetry's
    "kraftpy_client_metrics_lost",
    "kraftpy_log_sync_rounds",  # a sync
    "kraftpy_log_sync_waiting",
    "kafka_consumergroup_",  # a group
    "kafka_server_raft_channel_metrics_",  # other nodes
    "kafka_server_raftchannelmetrics_",
)


def port_of(broker: Broker) -> int:
    return cast("Monitoring", broker.metrics.monitor).port


async def scrape(broker: Broker, *, openmetrics: bool = False) -> Scraped:
    return await asyncio.to_thread(scraped, port_of(broker), openmetrics=openmetrics)


async def ask(broker: Broker, path: str) -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(health, port_of(broker), path)


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "_FRESH_S", 0.0)


def produce_and_fetch(port: int) -> None:
    with connect(f"127.0.0.1:{port}") as connection:
        produce_values(connection, "a", b"one", b"two", b"three")
        fetch(connection, "a", 0)


@pytest.mark.parametrize("openmetrics", [False, True])
async def test_all_that_the_catalogue_has_is_shown_and_nothing_else(tmp_path: Path, openmetrics: bool) -> None:
    async with running(tmp_path, ON) as broker:
        await create(broker, ["a"])
        await asyncio.to_thread(produce_and_fetch, broker.advertised[0].port)
        page = await scrape(broker, openmetrics=openmetrics)
    expected = {
        name.removesuffix("_total"): meaning.kind.value
        for name, meaning in CATALOGUE.items()
        if not name.startswith(NEEDS_MORE)
    }
    own = {name: kind for name, kind in page.types.items() if name.startswith(("kafka_", "kraftpy_"))}
    assert own == expected
    assert page.of("process_open_fds") > 0
    for name, meaning in CATALOGUE.items():
        labels = page.labels(name) - ({"quantile"} if meaning.kind is Kind.SUMMARY else set())
        assert labels <= set(meaning.labels), name


async def test_traffic_and_requests_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        await create(broker, ["a"])
        await asyncio.to_thread(produce_and_fetch, broker.advertised[0].port)
        page = await scrape(broker)
    prefix = "kafka_server_brokertopicmetrics_"
    assert page.samples[f"{prefix}messagesin_total"] == {(): 3, (("topic", "a"),): 3}
    assert page.of(f"{prefix}bytesin_total", topic="a") == page.of("kafka_log_log_size", topic="a") > 0
    assert page.of(f"{prefix}bytesout_total", topic="a") == page.of(f"{prefix}bytesin_total", topic="a")
    assert page.of(f"{prefix}totalproducerequests_total", topic="a") == 1
    assert page.of(f"{prefix}totalfetchrequests_total", topic="a") == 1
    prefix = "kafka_network_requestmetrics_"
    assert page.of(f"{prefix}requests_total", request="Produce") == 1
    assert page.of(f"{prefix}errors_total", request="Produce", error="NONE") == 1
    for request in ("Produce", "Fetch", "FetchConsumer"):
        parts = [
            page.of(f"{prefix}{part}timems_sum", request=request)
            for part in ("requestqueue", "local", "remote", "throttle", "responsequeue", "responsesend")
        ]
        assert page.of(f"{prefix}totaltimems_sum", request=request) == pytest.approx(sum(parts), abs=0.01)
        assert page.of(f"{prefix}totaltimems", request=request, quantile="0.99") > 0
    assert page.of("kafka_topic_partition_current_offset", topic="a", partition="0") == 3
    assert page.of("kafka_brokers") == 1


async def test_groups_transactions_and_quotas_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        listener = broker.advertised[0]
        options = {"bootstrap_servers": f"{listener.host}:{listener.port}"}
        async with Admin(**options) as admin:
            await admin.create_topics([NewTopic(name="a", num_partitions=1, replication_factor=1)])
            await admin.alter_client_quotas({"client-id": "limited"}, {"producer_byte_rate": 1000})
            change = {"share.auto.offset.reset": "earliest"}
            await admin.alter_configs({(ResourceType.GROUP, "sharers"): change})
        async with Producer(**options, transactional_id="transfer") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                await producer.send("a", b"one")
        async with Producer(**options, client_id="limited", linger_ms=0) as producer:
            await (await producer.send("a", bytes(20_000)))
        reading = {"group_id": "readers", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with Consumer("a", **options, **reading) as consumer:
            await anext(consumer)
            await consumer.commit({TopicPartition("a", 0): OffsetAndMetadata(1)})
            async with ShareConsumer("a", **options, group_id="sharers") as sharer:
                await anext(sharer)
                page = await scrape(broker)
    prefix = "kafka_server_transaction_coordinator_metrics_"
    assert page.of(f"{prefix}transactional_id_count") == 1
    assert page.of(f"{prefix}transaction_count", state="CompleteCommit") == 1
    assert page.of(f"{prefix}num_partitions", state="active") == 50
    assert page.of("kafka_server_quota_rate_limit", resource="Produce", clientId="limited") == 1000
    assert page.of("kafka_server_quota_throttle_time", resource="Produce", clientId="limited") > 0
    assert page.of("kafka_network_requestmetrics_throttletimems_sum", request="Produce") > 0
    assert page.of("kafka_consumergroup_members", consumergroup="readers") == 1
    assert page.of("kafka_consumergroup_current_offset", consumergroup="readers", topic="a", partition="0") == 1
    lag = page.of("kafka_consumergroup_lag", consumergroup="readers", topic="a", partition="0")
    assert lag == page.of("kafka_topic_partition_current_offset", topic="a", partition="0") - 1 == 2
    assert page.of("kafka_server_sharepartitionmetrics_inflightmessagecount", group="sharers", topic="a") >= 1
    assert page.of("kafka_server_sharesessioncache_sharesessionscount") == 1
    assert page.of("kafka_server_group_coordinator_metrics_group_count", protocol="share") == 1
    assert page.of("kafka_server_brokertopicmetrics_totalsharefetchrequests_total", topic="a") >= 1
    assert not {name for name in CATALOGUE if name.startswith("kafka_consumergroup_")} - page.samples.keys()


class _More:
    """A collector as other parts of the node register it."""

    def __init__(self, *names: str, fails: bool = False) -> None:
        self.names = names
        self.fails = fails

    def collect(self) -> Iterator[Metric]:
        for name in self.names:
            yield GaugeMetricFamily(name, "More.", value=5)
        if self.fails:
            raise RuntimeError("no")


async def test_registered_collectors_are_shown_and_cannot_break_a_page(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        first, clashing, failing = _More("more_a"), _More("more_a", "kafka_brokers"), _More("more_b", fails=True)
        for each in (first, clashing, failing):
            broker.metrics.register(each)
        page = await scrape(broker)
        assert page.of("more_a") == page.of("more_b") == 5
        assert page.of("kafka_brokers") == 1
        assert page.of("kraftpy_collectors_failed_total") == 1
        broker.metrics.unregister(first)
        broker.metrics.unregister(clashing)
        assert "more_a" not in (await scrape(broker, openmetrics=True)).types


async def test_nothing_is_counted_without_the_listener(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        assert (broker.metrics.monitor, broker.metrics.traffic, broker.metrics.requests) == (None, None, None)
        assert broker.replicas.traffic is None
        broker.metrics.register(_More("more"))  # never asked
    script = (
        "import sys, kraftpy.broker.server;"
        "print([name for name in ('prometheus_client', 'h11', 'http.client') if name in sys.modules])"
    )
    output = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", script], text=True)
    assert output.strip() == "[]"


# --- health -----------------------------------------------------------------------------------------------------------


async def test_connections_are_counted_by_the_software_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than a few are named, and a broker's version, which proves that it is one, is not shown."""
    monkeypatch.setattr(throughput, "_MOST_SOFTWARE", 2)
    async with running(tmp_path, ON) as broker:
        port = broker.advertised[0].port

        async def connected(name: str, version: str) -> asyncio.StreamWriter:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            asked = ApiVersionsRequest(client_software_name=name, client_software_version=version)
            writer.write(encode_request(ApiKey.API_VERSIONS, 3, 1, "c", asked))
            await reader.readexactly(4)
            return writer

        software = [("apache-kafka-java", "4.3.1")] * 3 + [(SOFTWARE, "1.claim")] * 2 + [("a", "1"), ("b", "2")]
        writers = [await connected(*each) for each in software]
        page = await scrape(broker)
        found = page.samples["kafka_server_socket_server_metrics_connections_software"]
        assert {tuple(dict(labels).values())[:2]: count for labels, count in found.items()} == {
            ("apache-kafka-java", "4.3.1"): 3, (SOFTWARE, "-"): 2, ("other", "-"): 2,
        }  # fmt: skip
        for writer in writers:
            writer.close()


async def test_a_node_in_order_is_alive_and_ready_and_its_cluster_is_well(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        for path in ("/livez", "/readyz", "/clusterz"):
            status, found = await ask(broker, path)
            assert (status, found["status"], found["reasons"], found["node_id"]) == (200, "ok", [], 1)
        _, found = await ask(broker, "/clusterz")
        assert (found["brokers"], found["leader"], found["cluster_id"]) == (1, 1, broker.image.cluster_id)


async def test_a_node_that_starts_or_stops_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        monitor = cast("Monitoring", broker.metrics.monitor)
        monitor._is_started = False
        status, found = await ask(broker, "/readyz")
        assert (status, found["reasons"]) == (503, ["the node is starting"])
        assert (await ask(broker, "/livez"))[0] == 200
        monitor._is_started = True
        monitor.stopping()
        status, found = await ask(broker, "/readyz")
        assert (status, found["reasons"]) == (503, ["the node is stopping"])
        assert (await scrape(broker)).of("kafka_server_kafkaserver_brokerstate") == 6


async def test_reasons_say_what_is_wrong(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        epoch, broker.lifecycle.broker_epoch = broker.lifecycle.broker_epoch, 99
        assert (await ask(broker, "/readyz"))[1]["reasons"] == ["this broker is fenced"]
        broker.lifecycle.broker_epoch = -1
        assert (await ask(broker, "/readyz"))[1]["reasons"] == ["this broker is not registered"]
        broker.lifecycle.broker_epoch = epoch
        broker.directories.failures[broker.directories.paths[0]] = "Input/output error"
        status, found = await ask(broker, "/livez")
        assert (status, found["reasons"]) == (503, ["every log directory has failed"])
        assert (await ask(broker, "/readyz"))[1]["reasons"] == ["every log directory has failed"]
        page = await scrape(broker)
        assert page.of("kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert page.of("kafka_log_logmanager_logdirectoryoffline") == 1
        broker.directories.failures.clear()


async def test_without_the_directory_of_its_metadata_a_node_is_not_alive(tmp_path: Path) -> None:
    """Another directory may fail: this one has the metadata."""
    first, other = tmp_path / "first", tmp_path / "other"
    async with running(tmp_path, ON, f"log.dirs={first},{other}") as broker:
        broker.directories.failures[str(other)] = "Input/output error"
        for path in ("/livez", "/readyz"):
            assert (await ask(broker, path))[1]["reasons"] == []
        broker.directories.failures = {str(first): "Input/output error"}
        for path in ("/livez", "/readyz"):
            status, found = await ask(broker, path)
            reasons = ["the log directory of the metadata has failed: Input/output error"]
            assert (status, found["reasons"]) == (503, reasons)
        broker.directories.failures.clear()


async def test_a_node_whose_disk_is_full_says_that_it_cannot_write_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: Journal) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running(tmp_path, ON) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_sync_entries", full)
            refused = await create(broker, ["a"])
            assert refused.topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            trouble = "the metadata journal cannot be written: No space left on device"
            status, found = await ask(broker, "/readyz")
            assert (status, sorted(found["reasons"])) == (503, sorted([trouble, NO_LEADER]))
            assert (await ask(broker, "/livez"))[0] == 200, "a restart would free no space"
            assert (await ask(broker, "/clusterz"))[1]["reasons"] == [NO_LEADER]
        assert (await create(broker, ["b"])).topics[0].error_code == ErrorCode.NONE
        for path in ("/livez", "/readyz", "/clusterz"):
            assert (await ask(broker, path))[1]["reasons"] == []


async def test_a_broker_that_has_much_metadata_to_act_on_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_MOST_BEHIND", 3)
    may_act = asyncio.Event()
    async with running(tmp_path, ON) as broker:
        act = broker.metadata._publisher._changed

        async def act_later(records: Sequence[Record] | None) -> None:
            await may_act.wait()
            await act(records)

        broker.metadata._publisher._changed = act_later
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(4):
                    before = broker.metadata.applied_index
                    tasks.create_task(create(broker, [f"t{number}"]))
                    await until(lambda before=before: broker.metadata.applied_index > before)
                    if number == 2:
                        assert (await ask(broker, "/readyz"))[1]["reasons"] == []
                status, found = await ask(broker, "/readyz")
                assert (status, found["reasons"]) == (503, ["this node has yet to act on 4 entries of the metadata"])
                assert (await ask(broker, "/livez"))[0] == 200
                may_act.set()
        finally:
            may_act.set()  # else the broker could not stop either
        assert (await ask(broker, "/readyz"))[1]["reasons"] == []


def checked(port: int, host: str = "127.0.0.1") -> subprocess.CompletedProcess[str]:
    """Run the image's health check."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
    environment = {**kept, "KAFKA_KRAFTPY_METRICS_LISTENER": f"{host}:{port}"}
    command = [sys.executable, "-m", "kraftpy.cli.container", "healthy"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


async def test_the_image_s_health_check_asks_whether_the_node_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        found = await asyncio.to_thread(checked, port_of(broker), "0.0.0.0")
        assert (found.returncode, found.stderr) == (0, "")
        cast("Monitoring", broker.metrics.monitor).stopping()
        found = await asyncio.to_thread(checked, port_of(broker))
        assert (found.returncode, found.stderr) == (1, "kraftpy: the node is stopping\n")
        port = port_of(broker)
    found = await asyncio.to_thread(checked, port)
    assert found.returncode == 1
    assert "Connection refused" in found.stderr


# --- HTTP -------------------------------------------------------------------------------------------------------------


async def raw(port: int, data: bytes) -> bytes:
    """Send bytes; return all that comes until the other end closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", b"405"),
        (b"POST /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nabcd", b"413"),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 20_000, b"431"),
        (b"HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n", b"200"),
        (b"GET /livez?verbose=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\nGET /livez HTTP/1.1\r\nhost: a\r\n\r\n", b"200"),
    ],
)
async def test_odd_requests_are_answered_once_and_closed(tmp_path: Path, request_: bytes, status: bytes) -> None:
    async with running(tmp_path, ON) as broker:
        answer = await raw(port_of(broker), request_)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert answer.endswith(b"\r\n\r\n") == request_.startswith(b"HEAD")


async def test_requests_that_do_not_arrive_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_S", 0.05)
    async with running(tmp_path, ON) as broker:
        assert await raw(port_of(broker), b"GET /livez HTTP/1.1\r\n") == b""


async def test_strangers_cannot_keep_monitors_away(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as broker:
        port = port_of(broker)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * server._MOST_CONNECTIONS)]
        monitoring = cast("Monitoring", broker.metrics.monitor)
        await until(lambda: len(monitoring._server._connections) == server._MOST_CONNECTIONS)
        assert (await ask(broker, "/livez"))[0] == 200
        for _, writer in idle:
            writer.close()


async def test_an_answer_that_is_not_read_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ANSWER_S", 0.2)
    async with running(tmp_path, ON) as broker:
        broker.metrics.register(_Large())
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker), limit=1024)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")
        monitoring = cast("Monitoring", broker.metrics.monitor)
        await until(lambda: monitoring._server._connections)
        await until(lambda: not monitoring._server._connections)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(_Large.BYTES)
        writer.close()


class _Large:
    BYTES = 32 << 20

    def collect(self) -> Iterable[Metric]:
        metric = GaugeMetricFamily("large", "Large.", labels=["x"])
        for number in range(64):
            metric.add_metric([f"{number}" + "x" * (self.BYTES // 64)], 1)
        return [metric]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["9404", ":9404", "a b:1", "host:99999", "host:"])
def test_the_host_and_the_port_have_to_be_named(address: str) -> None:
    with pytest.raises(ConfigError, match="expected host:port"):
        BrokerConfig.of({"kraftpy.metrics.listener": address})


@pytest.mark.parametrize(
    ("address", "is_open"), [("127.0.0.1:9404", False), ("[::1]:9404", False), ("0.0.0.0:9404", True)]
)
def test_a_listener_that_others_can_reach_is_warned_of(address: str, is_open: bool) -> None:
    warnings = load("", {}, [f"kraftpy.metrics.listener={address}"]).warnings
    assert any("anyone who can reach" in each for each in warnings) == is_open


@pytest.mark.parametrize("missing", ["prometheus_client", "h11"])
def test_a_node_without_the_extra_says_how_to_get_it(tmp_path: Path, missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None; import kraftpy.__main__ as kraftpy; sys.exit(kraftpy.main())"
    )
    settings = (f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0", ON)
    command = [sys.executable, "-c", script, "server", *(part for each in settings for part in ("--override", each))]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert "kraftpy.metrics.listener needs the extra metrics (pip install 'kraftpy[metrics]'): " in line
    assert missing in line


async def test_a_taken_port_is_a_failed_start(tmp_path: Path) -> None:
    async with running(tmp_path / "a", ON) as broker:
        with pytest.raises(BaseExceptionGroup) as failed:
            async with running(tmp_path / "b", f"kraftpy.metrics.listener=127.0.0.1:{port_of(broker)}"):
                pass
        assert failed.group_contains(
            StartupError, match="kraftpy.metrics.listener: cannot listen on .*: the port is taken"
        )


# --- the lag in seconds -----------------------------------------------------------------------------------------------


def test_the_age_of_an_offset_is_interpolated_between_scrapes() -> None:
    history = _History()
    for now, end in ((0.0, 100), (10.0, 100), (20.0, 200), (30.0, 200), (40.0, 200)):
        history.see(now, end)
    assert history.age(50.0, 200) == 0.0
    assert history.age(50.0, 149) == pytest.approx(35.0)  # half of the records of 10 to 20 were there at 15
    assert history.age(50.0, 20) == 50.0  # before the first scrape
    history.see(60.0, 10)  # truncated
    assert history.age(61.0, 5) == 1.0


def test_a_history_is_bounded_and_keeps_its_first_end() -> None:
    history = _History()
    for number in range(10_000):
        history.see(float(number), number)
    assert len(history.ends) <= 64
    assert history.ends[0] == 0
    assert list(history.ends) == sorted(history.ends)
    assert history.age(10_000.0, 9_990) == pytest.approx(9.0)
