"""Clients push their metrics (KIP-714): over the wire, and with librdkafka."""

from __future__ import annotations

import asyncio
import threading
import zlib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from broker_wire import StartBroker, ask, connect
from one_broker import BOUND_SECONDS, running, until

from kraftpy.client import Admin, ResourceType
from kraftpy.config import ConfigError, load
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.compression import Compression, compress
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from kraftpy.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kraftpy.protocol.messages.push_telemetry import PushTelemetryRequest
from kraftpy.telemetry.instances import shown
from kraftpy.telemetry.otlp import read

METRICS = 16
HERE = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS
# OTLP for a gauge "a" of 1.0, in a resource without attributes
GAUGE = bytes.fromhex("0a16121412120a01612a0d0a0b21000000000000f03f3a00")


def _subscribe(connection: Any, name: str, **settings: str) -> None:
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value) for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=METRICS, resource_name=name, configs=configs)
    found = ask(connection, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, IncrementalAlterConfigsRequest(resources=[resource]))
    assert found.responses[0].error_code == ErrorCode.NONE


def _asked(connection: Any, instance_id: bytes = bytes(16)) -> GetTelemetrySubscriptionsResponse:
    found: GetTelemetrySubscriptionsResponse = ask(
        connection, HERE, 0, GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    )
    return found


def _pushed(connection: Any, to: GetTelemetrySubscriptionsResponse, **more: Any) -> int:
    request = PushTelemetryRequest(
        client_instance_id=to.client_instance_id, subscription_id=to.subscription_id, metrics=GAUGE
    )
    for name, value in more.items():
        setattr(request, name, value)
    error: int = ask(connection, ApiKey.PUSH_TELEMETRY, 0, request).error_code
    return error


def test_a_client_asks_and_pushes(start_broker: StartBroker) -> None:
    broker = start_broker(settings={"telemetry.max.bytes": "5000"})
    with connect(broker.bootstrap) as connection:
        nothing = _asked(connection)
        assert (nothing.requested_metrics, nothing.push_interval_ms) == ([], 300_000)
        _subscribe(connection, "mine", metrics="a.,b.", interval_ms="100", match="client_software_name=good")
        _subscribe(connection, "all", metrics="*", match="client_id=nobody")
    with connect(broker.bootstrap) as connection:
        said = ApiVersionsRequest(client_software_name="good", client_software_version="1.0")
        ask(connection, ApiKey.API_VERSIONS, 3, said)
        found = _asked(connection)
        assert found.error_code == ErrorCode.NONE
        assert sorted(found.requested_metrics) == ["a.", "b."]
        assert found.push_interval_ms == 100
        assert found.accepted_compression_types == [4, 3, 1, 2]
        assert (found.telemetry_max_bytes, found.delta_temporality) == (5_000, True)
        assert len(set(found.client_instance_id)) > 1
        for codec in Compression:
            packed = compress(codec, GAUGE)
            error = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            while error == ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                error = ErrorCode(_pushed(connection, found, compression_type=codec, metrics=packed))
            assert error == ErrorCode.NONE, codec


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"metrics": b"\x0a\x05"}, ErrorCode.INVALID_RECORD),
        ({"metrics": b"not gzip", "compression_type": 1}, ErrorCode.INVALID_RECORD),
        ({"metrics": zlib.compress(bytes(5_001), wbits=31), "compression_type": 1}, ErrorCode.INVALID_RECORD),
        ({"metrics": bytes(5_001)}, ErrorCode.TELEMETRY_TOO_LARGE),
        ({"metrics": b""}, ErrorCode.NONE),
        ({"compression_type": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"subscription_id": 1}, ErrorCode.UNKNOWN_SUBSCRIPTION_ID),
        ({"client_instance_id": bytes(16)}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_pushes_that_are_refused(start_broker: StartBroker, wrong: dict[str, Any], error: ErrorCode) -> None:
    broker = start_broker(settings={"telemetry.max.bytes": "5000"})
    with connect(broker.bootstrap) as connection:
        assert _pushed(connection, _asked(connection), **wrong) == error
        assert _asked(connection).error_code == ErrorCode.NONE


async def test_an_instance_ends_with_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        address = broker.advertised[0]

        def used() -> None:
            with connect(f"{address.host}:{address.port}") as connection:
                found = _asked(connection)
                assert _asked(connection, found.client_instance_id).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED

        await asyncio.to_thread(used)
        await until(lambda: len(broker.telemetry._instances) == 0)


async def test_librdkafka_pushes_what_it_is_asked_for(tmp_path: Path) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    pytest.importorskip("prometheus_client")
    async with running(tmp_path) as broker:
        address = broker.advertised[0]
        bootstrap = f"{address.host}:{address.port}"
        async with Admin(bootstrap_servers=bootstrap) as admin:
            await admin.alter_configs(
                {
                    (ResourceType.CLIENT_METRICS, "fast"): {
                        "metrics": "*",
                        "interval.ms": "200",
                        "match": "client_software_name=.*",
                    }
                }
            )
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "client.id": "pusher", "enable.metrics.push": True}
        )

        def produced() -> None:
            for _ in range(20):
                producer.produce("t", b"value")
            assert producer.flush(BOUND_SECONDS) == 0

        await asyncio.to_thread(produced)
        found: dict[str, Any] = {}

        def has_arrived() -> bool:
            found.update((family.name, family) for family in broker.telemetry.collect())
            return "kafka_client_producer_connection_creation" in found

        await until(has_arrived)
        sample = found["kafka_client_producer_connection_creation"].samples[0]
        assert sample.labels["client_id"] == "pusher"
        assert sample.labels["client_software_name"] in ("librdkafka", "confluent-kafka-python")
        assert found["kraftpy_client_metrics_pushes"].samples[0].value >= 1
        assert found["kraftpy_client_metrics_unreadable"].samples[0].value == 0
        assert any(
            sample.value > 0
            for name, family in found.items()
            if name.startswith("kafka_client_producer_") and family.type == "gauge"
            for sample in family.samples
        )
        await asyncio.to_thread(producer.close)


class _Collector(BaseHTTPRequestHandler):
    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
        pass


async def test_a_collector_gets_what_is_pushed(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Collector) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1/metrics"
        async with running(tmp_path, f"kraftpy.telemetry.otlp.endpoint={url}") as broker:
            address = broker.advertised[0]

            def pushed() -> bytes:
                with connect(f"{address.host}:{address.port}") as connection:
                    found = _asked(connection)
                    packed = compress(Compression.ZSTD, GAUGE)
                    assert _pushed(connection, found, compression_type=Compression.ZSTD, metrics=packed) == 0
                    return found.client_instance_id

            instance_id = await asyncio.to_thread(pushed)
            await until(lambda: _Collector.bodies)
        server.shutdown()
        thread.join()
    (point,) = read(_Collector.bodies.pop()).points
    assert (point.name, point.value) == ("a", 1.0)
    assert dict(point.attributes) == {
        "client_id": "test",
        "client_instance_id": shown(instance_id),
        "client_software_name": "unknown",
        "client_software_version": "unknown",
    }


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://c/", "http://", "http://a b/", "http://c:x/"])
def test_a_collector_is_named_by_a_url(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"kraftpy\.telemetry\.otlp\.endpoint"):
        load("", {}, [f"kraftpy.telemetry.otlp.endpoint={endpoint}"])
    load("", {}, ["kraftpy.telemetry.otlp.endpoint=https://[::1]:4318/v1/metrics"])
