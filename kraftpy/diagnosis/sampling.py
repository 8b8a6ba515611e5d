"""Samples of a cluster, and the rates between two of them: what `kraftpy top` shows.

    before = await sample(admin)
    ...
    for row in rows(before, await sample(admin)): ...

A topic's rate is the movement of its partitions' ends, so transaction markers count, and compaction does not; a group's
is the movement of its committed offsets. Both work with any Kafka cluster. The times of requests come from the metrics
endpoints of brokers, under the names of Kafka's JMX exporter.

At most `MOST_GROUPS` groups are sampled, those with members first; the others are counted.
"""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kraftpy.client.model import OffsetSpec, PartitionInfo
from kraftpy.endpoints import EndpointError, fetch
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client import Admin

MOST_GROUPS: Final = 200
_MOST_PAGE_BYTES: Final = 32 << 20
_TIME: Final = re.compile(
    r'^kafka_network_requestmetrics_totaltimems\{(?=[^}]*quantile="0\.99")[^}]*request="([^"]*)"[^}]*\} (\S+)',
    re.MULTILINE,
)
_WAITS: Final = frozenset({"Fetch", "FetchConsumer", "FetchFollower", "ShareFetch", "JoinGroup", "SyncGroup"})
"""Requests that wait for records or members, so that their time says nothing."""
_PLAIN: Final = {"Accept": "text/plain"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSample:
    """A group at one time."""

    state: str
    committed: Mapping[TopicPartition, int]
    lag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A cluster at one time."""

    at: float
    """Seconds of a clock that never goes back."""
    time_ms: int
    brokers: int
    controller: int
    partitions: Mapping[TopicPartition, PartitionInfo]
    internal: frozenset[str] = frozenset()
    """The names of internal topics."""
    ends: Mapping[TopicPartition, int]
    groups: Mapping[str, GroupSample]
    groups_left_out: int = 0
    requests: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By metrics endpoint and API: the time that 99 % of its requests take at most, in ms."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """The metrics endpoints that did not answer, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsEndpoints:
    """Metrics endpoints of brokers, and how they are asked."""

    urls: Sequence[str] = ()
    trusted: str | None = None
    """The path of a PEM file with the authorities to trust; None: the system's."""
    login: bytes | None = field(default=None, repr=False)
    """The name:password to show them."""


NO_ENDPOINTS: Final = MetricsEndpoints()


async def sample(admin: Admin, endpoints: MetricsEndpoints = NO_ENDPOINTS) -> Sample:
    """Take a sample. A group that cannot be read is left out. Raises KafkaError if the cluster cannot be asked."""
    cluster = await admin.describe_cluster()
    topics = await admin.describe_topics()
    partitions = {TopicPartition(each.topic, each.partition): each for info in topics for each in info.partitions}
    led = {name: OffsetSpec.LATEST for name, each in partitions.items() if each.leader >= 0}
    found = await admin.list_offsets(led) if led else {}
    ends = {name: each.offset for name, each in found.items() if each is not None}
    listed = [each for each in await admin.list_groups() if each.group_type != "share"]
    listed.sort(key=lambda each: each.state in ("Empty", "Dead"))
    groups: dict[str, GroupSample] = {}
    for each in listed[:MOST_GROUPS]:
        try:
            offsets = {name: at.offset for name, at in (await admin.list_group_offsets(each.group_id)).items()}
        except KafkaError:
            continue
        lag = sum(max(0, ends[name] - offset) for name, offset in offsets.items() if name in ends)
        groups[each.group_id] = GroupSample(state=each.state, committed=offsets, lag=lag)
    requests, silent = await _request_times(endpoints)
    return Sample(
        at=time.monotonic(),
        time_ms=time.time_ns() // 1_000_000,
        brokers=len(cluster.nodes),
        controller=cluster.controller_id,
        partitions=partitions,
        internal=frozenset(info.name for info in topics if info.is_internal),
        ends=ends,
        groups=groups,
        groups_left_out=max(0, len(listed) - MOST_GROUPS),
        requests=requests,
        silent=silent,
    )


async def _request_times(endpoints: MetricsEndpoints) -> tuple[dict[tuple[str, str], float], dict[str, str]]:
    headers = dict(_PLAIN)
    if endpoints.login is not None:
        headers["Authorization"] = f"Basic {b64encode(endpoints.login).decode()}"
    times: dict[tuple[str, str], float] = {}
    silent: dict[str, str] = {}
    for url in endpoints.urls:
        try:
            page = await asyncio.to_thread(fetch, url, _MOST_PAGE_BYTES, trusted=endpoints.trusted, headers=headers)
        except EndpointError as error:
            silent[url] = str(error)
            continue
        times.update({(url, api): value for api, value in request_times(page.decode("utf-8", "replace"))})
    return times, silent


def request_times(page: str) -> Iterator[tuple[str, float]]:
    """Yield the APIs of a page in Prometheus's text format, with the 99th percentile of their time in ms."""
    for api, text in _TIME.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if api not in _WAITS and value == value:  # no NaN
            yield api, value


def rows(before: Sample, after: Sample) -> list[dict[str, Any]]:
    """Return what changed between two samples: a row for the cluster, then topics, groups and requests.

    The busiest topics, the groups with the largest lag and the slowest requests come first.
    """
    seconds = max(after.at - before.at, 1e-6)
    topics = _topics(before, after, seconds)
    groups: list[dict[str, Any]] = [
        {
            "kind": "group",
            "group": name,
            "state": now.state,
            "lag": now.lag,
            "read_per_second": _rate(before.groups[name].committed, now.committed, seconds)
            if name in before.groups
            else None,
            "lag_per_second": round((now.lag - before.groups[name].lag) / seconds, 1)
            if name in before.groups
            else None,
        }
        for name, now in after.groups.items()
    ]
    requests: list[dict[str, Any]] = [
        {"kind": "request", "endpoint": endpoint, "request": api, "p99_ms": value}
        for (endpoint, api), value in after.requests.items()
    ]
    cluster = {
        "kind": "cluster",
        "time_ms": after.time_ms,
        "brokers": after.brokers,
        "controller": after.controller,
        "topics": len({name.topic for name in after.partitions}),
        "partitions": len(after.partitions),
        "offline": sum(_is_offline(each) for each in after.partitions.values()),
        "under_replicated": sum(_lacks_replicas(each) for each in after.partitions.values()),
        "written_per_second": _rate(before.ends, after.ends, seconds),
        "groups": len(after.groups) + after.groups_left_out,
        "groups_left_out": after.groups_left_out,
        "silent_endpoints": dict(after.silent),
    }
    return [
        cluster,
        *sorted(topics, key=lambda row: (-row["written_per_second"], row["topic"])),
        *sorted(groups, key=lambda row: (-row["lag"], row["group"])),
        *sorted(requests, key=lambda row: -row["p99_ms"]),
    ]


def _topics(before: Sample, after: Sample, seconds: float) -> list[dict[str, Any]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for name in after.partitions:
        if name.topic not in after.internal:
            by_topic.setdefault(name.topic, []).append(name)
    return [
        {
            "kind": "topic",
            "topic": topic,
            "partitions": len(names),
            "offline": sum(_is_offline(after.partitions[name]) for name in names),
            "under_replicated": sum(_lacks_replicas(after.partitions[name]) for name in names),
            "written_per_second": _rate(
                before.ends, {name: after.ends[name] for name in names if name in after.ends}, seconds
            ),
        }
        for topic, names in by_topic.items()
    ]


def _rate(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], seconds: float) -> float:
    """Return the offsets by which partitions have moved on, in a second. One that is new, or went back, has not."""
    return round(sum(max(0, offset - before.get(name, offset)) for name, offset in after.items()) / seconds, 1)


def _is_offline(info: PartitionInfo) -> bool:
    return info.leader < 0


def _lacks_replicas(info: PartitionInfo) -> bool:
    return not set(info.in_sync_replicas).issuperset(info.replicas)
