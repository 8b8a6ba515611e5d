"""The metrics of this process's clients for Prometheus, under the names that the JMX exporter gives those of Java.

    from kraftpy.client.exposition import ClientCollector, serve

    prometheus_client.REGISTRY.register(ClientCollector())    # beside the application's own metrics
    with serve("127.0.0.1:9405"):                             # or an endpoint of its own
        ...

`record-send-rate` of the group producer-metrics is `kafka_producer_producer_metrics_record_send_rate`, with the tags as
labels. The label `client` numbers the clients of the process, which may have the same id. Needs prometheus-client,
which the extra `metrics` installs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kraftpy.client.metrics import ClientMetrics, MetricName, of_this_process

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry

_DOMAINS = {"producer": "kafka.producer", "admin-client": "kafka.admin.client"}
_CONSUMER = "kafka.consumer"


class NoPrometheusClient(Exception):
    """The package prometheus-client is not installed. The message says how to install it."""

    def __init__(self) -> None:
        super().__init__("prometheus-client is not installed: pip install 'kraftpy[metrics]'")


class ClientCollector:
    """A collector as prometheus-client defines it: the clients of this process, or some chosen ones."""

    def __init__(self, clients: Iterable[ClientMetrics] | None = None) -> None:
        self._clients = None if clients is None else list(clients)

    def describe(self) -> list[Metric]:
        """Return nothing: the names depend on the clients."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Return the values as of now, a family each. They may be asked for from any thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Metric] = {}
        now_ms = time.monotonic() * 1000
        for client in of_this_process() if self._clients is None else self._clients:
            for name, value in client.values(now_ms).items():
                shown, labels = exposed(client.kind, name)
                labels["client"] = str(client.number)
                family = families.get(shown)
                if family is None:
                    make = CounterMetricFamily if shown.endswith("_total") else GaugeMetricFamily
                    meaning = f"{name.name} of Kafka's {name.group}."
                    family = families[shown] = make(shown, meaning)
                family.add_sample(shown, labels, value)
        yield from families.values()


def exposed(kind: str, name: MetricName) -> tuple[str, dict[str, str]]:
    """Return a metric's name and labels as the JMX exporter writes them."""
    words = f"{_DOMAINS.get(kind, _CONSUMER)} {name.group} {name.name}"
    labels = {label.replace("-", "_"): value for label, value in name.tags}
    return "".join(char if char.isalnum() else "_" for char in words), labels


def registry(*more: Collector) -> CollectorRegistry:
    """Return a registry with the clients of this process and other collectors. Raises NoPrometheusClient."""
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError:
        raise NoPrometheusClient from None
    made = CollectorRegistry()
    for each in (ClientCollector(), *more):
        made.register(each)
    return made


def host_and_port(address: str) -> tuple[str, int]:
    """Parse `host:port`; an address of IPv6 is in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def serve(address: str, *more: Collector) -> Iterator[int]:
    """Answer Prometheus at `host:port` from a thread, within the block; yield the port.

    Port 0 picks any free one. There is neither TLS nor a login. Raises NoPrometheusClient, ValueError or OSError.
    """
    host, port = host_and_port(address)
    shown = registry(*more)
    from prometheus_client import start_http_server

    server, thread = start_http_server(port, host, registry=shown)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write(path: Path, *more: Collector) -> None:
    """Write the metrics to a file, atomically, for node_exporter's textfile collector. Raises as `serve` does."""
    shown = registry(*more)
    from prometheus_client import write_to_textfile

    write_to_textfile(str(path), shown)
