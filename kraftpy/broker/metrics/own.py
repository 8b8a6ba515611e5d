"""The process, the disks and this node itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kraftpy import __version__
from kraftpy.metrics.families import Page, labels

if TYPE_CHECKING:
    from kraftpy.broker.metrics.node import Node
    from kraftpy.metrics.histograms import Histogram

STARTING, RECOVERY, RUNNING, STOPPING = 1, 2, 3, 6
"""Kafka's broker states (`org.apache.kafka.metadata.BrokerState`)."""
QUANTILES: Final = {"0.50": 0.5, "0.95": 0.95, "0.99": 0.99, "0.999": 0.999}
_US: Final = 1e6


def seconds(page: Page, name: str, histogram: Histogram) -> None:
    """Add a summary of durations."""
    found = histogram.quantiles(tuple(QUANTILES.values()))
    quantiles = {quantile: value / _US for quantile, value in zip(QUANTILES, found, strict=True)}
    page.summary(name, "", quantiles, histogram.count, histogram.total / _US)


def this_node(node: Node, page: Page, state: int) -> Iterator[None]:
    """Add what this node is, what it has survived, and what it sent."""
    yield
    roles = ",".join(node.config.process_roles)
    page.add("kraftpy_info", 1, labels(version=__version__, node_id=node.node_id, roles=roles))
    page.add("kraftpy_incidents_total", node.incidents.count)
    page.add("kafka_server_kafkaserver_brokerstate", state)
    sent = node.metrics.sent
    if sent is not None:
        page.add("kraftpy_sent_bytes_total", sent.in_all)
        page.add("kraftpy_sendfile_bytes_total", sent.from_files)
        page.add("kraftpy_sendfile_share", min(1.0, sent.from_files / sent.in_all) if sent.in_all else 0.0)
    for path, rounds in node.replica_manager.syncs:
        page.add("kraftpy_log_sync_rounds_total", rounds.rounds, labels(log_directory=path))
        page.add("kraftpy_log_sync_waiting", rounds.waiting, labels(log_directory=path))
    if node.metrics.traffic is not None:
        seconds(page, "kraftpy_log_sync_seconds", node.metrics.traffic.sync_times)
    for name, value in disk_bytes().items():
        page.add(f"kafka_server_kafkaserver_linux_disk_{name}", value)


def disk_bytes() -> dict[str, int]:
    """Return the bytes that this process had disks read and write; empty where the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {name: int(found[name]) for name in ("read_bytes", "write_bytes") if name in found}
