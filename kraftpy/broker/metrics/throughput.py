"""Bytes and records by topic (BrokerTopicMetrics), and the times of requests (RequestMetrics)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kraftpy.broker.broker_proof import SOFTWARE
from kraftpy.metrics.families import Page, labels
from kraftpy.metrics.request_times import PARTS, ApiTimes
from kraftpy.metrics.traffic import COUNTED
from kraftpy.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kraftpy.broker.connection import Connection
    from kraftpy.broker.metrics.node import Node

_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_TOPIC_NAMES: Final = {
    "bytes_in": "bytesin",
    "messages_in": "messagesin",
    "bytes_out": "bytesout",
    "bytes_rejected": "bytesrejected",
    "produce_requests": "totalproducerequests",
    "fetch_requests": "totalfetchrequests",
    "share_fetch_requests": "totalsharefetchrequests",
    "failed_produce_requests": "failedproducerequests",
    "failed_fetch_requests": "failedfetchrequests",
}
_QUANTILES: Final = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}
"""The quantiles of Kafka's histograms, as the JMX exporter's rules write them."""
_REQUEST: Final = "kafka_network_requestmetrics_"
_US_PER_MS: Final = 1000
_TOPICS_AT_ONCE: Final = 100
_MOST_SOFTWARE: Final = 100
_MOST_SOFTWARE_TEXT: Final = 64


def topic_traffic(node: Node, page: Page) -> Iterator[None]:
    """Add what went through this node's partitions."""
    traffic = node.metrics.traffic
    if traffic is None or not node.config.is_broker:
        return
    families = {name: page.family(f"{_TOPIC}{_TOPIC_NAMES[name]}_total") for name in _TOPIC_NAMES}
    totals = {name: traffic.total(name) for name in COUNTED}
    totals["produce_requests"] += traffic.unknown_produce_requests
    totals["fetch_requests"] += traffic.unknown_fetch_requests
    for name, add in families.items():
        add("", totals[name])
    page.add(f"{_TOPIC}replicationbytesin_total", totals["replication_bytes_in"])
    page.add(f"{_TOPIC}replicationbytesout_total", traffic.replication_bytes_out)
    page.add(f"{_TOPIC}producemessageconversions_total", 0)
    page.add(f"{_TOPIC}fetchmessageconversions_total", 0)
    for number, (topic, counted) in enumerate(list(traffic.topics.items()), 1):
        labelled = labels(topic=topic)
        for name, add in families.items():
            add(labelled, getattr(counted, name))
        if not number % _TOPICS_AT_ONCE:
            yield


def request_times(node: Node, page: Page) -> Iterator[None]:
    """Add the parts of requests' times, by API."""
    requests = node.metrics.requests
    if requests is None:
        return
    counts, errors = page.family(f"{_REQUEST}requests_total"), page.family(f"{_REQUEST}errors_total")
    for times in requests.all():
        for version, count in sorted(times.versions.items()):
            counts(labels(request=times.name, version=version), count)
        for code, count in sorted(times.errors.items()):
            errors(labels(request=times.name, error=ErrorCode.of(code).name), count)
        _add_parts(times, page)
        yield


def _add_parts(times: ApiTimes, page: Page) -> None:
    labelled = labels(request=times.name)
    for part, histogram in zip(PARTS, times.histograms(), strict=True):
        found = histogram.quantiles(tuple(_QUANTILES.values()))
        quantiles = {name: value / _US_PER_MS for name, value in zip(_QUANTILES, found, strict=True)}
        name = f"{_REQUEST}{part.replace('_', '')}timems"
        page.summary(name, labelled, quantiles, histogram.count, histogram.total / _US_PER_MS)


def connections(node: Node, page: Page) -> Iterator[None]:
    """Add connections, and what waits on them."""
    open_now = node.connections
    queued = blocked = 0
    by_listener = Counter(dict.fromkeys(node.metrics.accepted, 0))
    by_software: Counter[tuple[str, str, str]] = Counter()
    waiting: Counter[str] = Counter({"Produce": 0, "Fetch": 0})
    for number, connection in enumerate(open_now, 1):
        queued += connection.queued_requests
        blocked += connection.responses.unread_since is not None
        by_listener[connection.listener] += 1
        by_software[*_software_of(connection), connection.listener] += 1
        if connection.counted is not None:
            waiting[connection.counted.name] += 1
        if not number % 1000:
            yield
    page.add("kafka_network_requestchannel_requestqueuesize", queued)
    page.add("kafka_network_requestchannel_responsequeuesize", blocked)
    for name, count in sorted(waiting.items()):
        page.add("kafka_server_delayedoperationpurgatory_purgatorysize", count, labels(delayedOperation=name))
    prefix = "kafka_server_socket_server_metrics_connection_"
    for listener, count in sorted(by_listener.items()):
        labelled = labels(listener=listener, networkProcessor=0)
        accepted = node.metrics.accepted[listener]
        page.add(f"{prefix}count", count, labelled)
        page.add(f"{prefix}creation_total", accepted, labelled)
        page.add(f"{prefix}close_total", accepted - count, labelled)
    for (name, version, listener), count in _named(by_software):
        of_jmx = labels(clientSoftwareName=name, clientSoftwareVersion=version, listener=listener)
        of_confluent = labels(client_software_name=name, client_software_version=version, listener=listener)
        page.add("kafka_server_socket_server_metrics_connections_software", count, of_jmx)
        page.add("kafka_server_socketservermetrics_connections", count, of_confluent)
    memory = node.request_memory
    page.add("kafka_network_socketserver_memorypoolused", memory.held)
    page.add("kafka_network_socketserver_memorypoolavailable", max(0, memory.limit - memory.held))
    page.add("kraftpy_request_memory_bytes", memory.held)


def _software_of(connection: Connection) -> tuple[str, str]:
    """Return name and version; a broker's version is its proof of being one, and nobody else's business."""
    name, version = connection.software
    return name[:_MOST_SOFTWARE_TEXT], "-" if name == SOFTWARE else version[:_MOST_SOFTWARE_TEXT]


def _named(by_software: Counter[tuple[str, str, str]]) -> list[tuple[tuple[str, str, str], int]]:
    """Return the most frequent, and the sum of all others by listener: clients say they are of any software."""
    most = by_software.most_common(_MOST_SOFTWARE)
    others: Counter[tuple[str, str, str]] = Counter()
    for (_, _, listener), count in (by_software - Counter(dict(most))).items():
        others["other", "-", listener] += count
    return [*most, *others.items()]


def quotas(node: Node, page: Page) -> Iterator[None]:
    """Add what clients with quotas use."""
    throttle, limit = page.family("kafka_server_quota_throttle_time"), page.family("kafka_server_quota_rate_limit")
    resources = {"producer_byte_rate": "Produce", "consumer_byte_rate": "Fetch", "request_percentage": "Request"}
    for number, (key, user, client_id, most, wait_ms) in enumerate(node.client_quotas.usage(), 1):
        names = {"user": user, "clientId": client_id}
        labelled = labels(resource=resources.get(key, key), **{k: v for k, v in names.items() if v is not None})
        throttle(labelled, wait_ms)
        limit(labelled, most)
        if not number % 500:
            yield
