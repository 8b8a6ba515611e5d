"""The problems of a cluster now, in sentences: a pure function of what the cluster said.

    for problem in problems(state): print(problem.text)

Each problem has a severity: `bad` if records cannot be written, read or kept safe, `warning` otherwise. At most
`MOST_OF_A_KIND` of a kind are named, and a last one counts the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from kraftpy.client.admin.model import ClusterDescription, LogDir, QuorumDescription
from kraftpy.client.model import PartitionInfo, TopicInfo
from kraftpy.protocol.errors import ErrorCode

MOST_OF_A_KIND: Final = 10
FULL: Final = 0.85
"""The part of a disk above which it is a problem."""
_BEHIND_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and the page that shows more of it."""

    text: str
    is_bad: bool = True
    page: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A cluster as it described itself. None: it gave no answer."""

    cluster: ClusterDescription | None = None
    topics: Sequence[TopicInfo] = ()
    log_dirs: Sequence[LogDir] = ()
    quorum: QuorumDescription | None = None
    groups: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    """Rows of groups, with `group`, `state` and `lag`."""


def problems(state: State) -> list[Problem]:
    """Return what is wrong, the bad things first."""
    found = [
        *_of_brokers(state),
        *_limited(list(_of_partitions(state.topics)), "topics have a problem", "/topics?only=troubled"),
        *_of_disks(state.log_dirs),
        *_of_quorum(state.quorum),
        *_limited(list(_of_groups(state.groups)), "groups do not read", "/groups"),
    ]
    return sorted(found, key=lambda problem: not problem.is_bad)


def _limited(found: list[Problem], what: str, page: str) -> list[Problem]:
    found.sort(key=lambda problem: not problem.is_bad)
    if len(found) <= MOST_OF_A_KIND:
        return found
    left = len(found) - MOST_OF_A_KIND
    return [
        *found[:MOST_OF_A_KIND],
        Problem(text=f"{left:,} more {what}", is_bad=found[MOST_OF_A_KIND].is_bad, page=page),
    ]


def _of_brokers(state: State) -> Iterable[Problem]:
    if state.cluster is None:
        return
    if state.cluster.controller_id < 0:
        yield Problem(text="The cluster has no active controller", page="/brokers")
    for node in sorted(state.cluster.fenced):
        yield Problem(text=f"Broker {node} is fenced: it leads nothing and serves no client", page="/brokers")
    known = {node.node_id for node in state.cluster.nodes}
    missing: dict[int, int] = {}
    for info in state.topics:
        for each in info.partitions:
            for replica in each.replicas:
                if replica not in known:
                    missing[replica] = missing.get(replica, 0) + 1
    for node, count in sorted(missing.items()):
        yield Problem(text=f"Broker {node}, which has {count:,} replicas, is not in the cluster", page="/brokers")


def _of_partitions(topics: Iterable[TopicInfo]) -> Iterable[Problem]:
    for info in topics:
        page = f"/topic?name={quote(info.name, safe='')}"
        offline = [each for each in info.partitions if each.leader < 0]
        if offline:
            yield Problem(text=f"{_some(offline, 'has', 'have')} no leader", page=page)
        lacking = [
            each
            for each in info.partitions
            if each.leader >= 0 and not set(each.in_sync_replicas).issuperset(each.replicas)
        ]
        if lacking:
            missing = {replica for each in lacking for replica in set(each.replicas) - set(each.in_sync_replicas)}
            listed = ", ".join(map(str, sorted(missing)))
            yield Problem(
                text=f"{_some(lacking, 'is', 'are')} under-replicated: {listed} not in sync", is_bad=False, page=page
            )


def _some(partitions: Sequence[PartitionInfo], singular: str, plural: str) -> str:
    """Return one partition by its name, or how many of a topic there are, with the verb."""
    first = partitions[0]
    if len(partitions) == 1:
        return f"{first.topic_partition} {singular}"
    return f"{len(partitions):,} partitions of {first.topic} {plural}"


def _of_disks(log_dirs: Iterable[LogDir]) -> Iterable[Problem]:
    for each in log_dirs:
        name = f"{each.path} of broker {each.broker_id}"
        if each.error is not ErrorCode.NONE:
            yield Problem(text=f"Log directory {name} is offline", page="/brokers")
        elif each.total_bytes > 0 and each.usable_bytes >= 0:
            used = 1 - each.usable_bytes / each.total_bytes
            if used >= FULL:
                yield Problem(text=f"The disk of {name} is {used:.0%} full", is_bad=used >= 0.95, page="/brokers")


def _of_quorum(quorum: QuorumDescription | None) -> Iterable[Problem]:
    if quorum is None:
        return
    if quorum.leader_id < 0:
        yield Problem(text="The metadata quorum has no leader", page="/brokers")
        return
    now = max((each.last_caught_up_ms for each in quorum.voters), default=-1)
    for each in quorum.voters:
        if each.node_id == quorum.leader_id or now < 0:
            continue
        if each.last_caught_up_ms < 0 or now - each.last_caught_up_ms > _BEHIND_MS:
            yield Problem(text=f"Voter {each.node_id} of the metadata quorum is behind", is_bad=False, page="/brokers")


def _of_groups(groups: Iterable[Mapping[str, Any]]) -> Iterable[Problem]:
    for row in groups:
        if row["lag"] and row["state"] in ("Empty", "Dead"):
            records = "1 record" if row["lag"] == 1 else f"{row['lag']:,} records"
            yield Problem(
                text=f"Group {row['group']} has {records} to read, and no member",
                is_bad=False,
                page=f"/group?id={quote(row['group'], safe='')}",
            )
