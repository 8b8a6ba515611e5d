"""The overview: health, rates, disks, and what is wrong now."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.admin.model import LogDir
from kraftpy.console.cluster import or_none
from kraftpy.console.console import console_of
from kraftpy.console.plots import line_plot
from kraftpy.console.problems import State, problems
from kraftpy.protocol.errors import KafkaError

_MOST: Final = 10
_MOST_DISKS: Final = 20


async def overview(request: Request) -> Response:
    """Show the cluster at a glance."""
    console = console_of(request)
    cluster = console.cluster
    history = console.history
    description, topics, log_dirs, listed = await asyncio.gather(
        cluster.description(), cluster.topics(), cluster.log_dirs(), or_none(cluster.groups())
    )
    try:
        quorum = await cluster.quorum()
    except KafkaError:  # an older cluster, or no right to see it
        quorum = None
    groups, written = history.busiest("group", 1_000), history.busiest("topic", 1_000)
    if cluster is not console.clusters.own:  # the history is the console's: a user sees only what the ACLs allow
        may_see = {info.name for info in topics}, {each.group_id for each in listed or ()}
        written = [row for row in written if row["topic"] in may_see[0]]
        groups = [row for row in groups if row["group"] in may_see[1]]
    partitions = [each for info in topics for each in info.partitions]
    return console.render(
        request,
        "overview.html",
        title="Overview",
        cluster=description,
        quorum=quorum,
        topic_count=len(topics),
        partition_count=len(partitions),
        group_count=None if listed is None else len(listed),
        replica_count=sum(len(each.replicas) for each in partitions),
        offline=sum(each.leader < 0 for each in partitions),
        under_replicated=sum(not set(each.in_sync_replicas).issuperset(each.replicas) for each in partitions),
        log_dirs=sorted(log_dirs, key=_fullness)[:_MOST_DISKS],
        disk_count=len(log_dirs),
        problems=problems(State(cluster=description, topics=topics, log_dirs=log_dirs, quorum=quorum, groups=groups)),
        rates=history.cluster,
        sample_error=history.last_error,
        plot=line_plot(history.written, title="Records written per second", unit="records/s"),
        busiest=[row for row in written[:_MOST] if row["written_per_second"]],
        lagging=[row for row in groups[:_MOST] if row["lag"]],
        slowest=history.busiest("request", _MOST),
        silent=dict((history.cluster or {}).get("silent_endpoints", {})),
    )


def _fullness(directory: LogDir) -> tuple[float, int, str]:
    """Return what sorts directories: offline ones first, then the fullest disks."""
    is_known = directory.total_bytes > 0 and directory.usable_bytes >= 0
    free = directory.usable_bytes / directory.total_bytes if is_known else 1.0
    return (-1.0 if directory.error else round(free, 2)), directory.broker_id, directory.path
