"""Topics: the list, and one topic with its partitions, sizes and settings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.model import ResourceType, TopicInfo
from kraftpy.console.console import console_of
from kraftpy.console.forms import text_of
from kraftpy.console.paging import page_of, sorted_by
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

_COLUMNS: Final = ("name", "partitions", "replicas", "size", "rate", "troubles")


async def topics(request: Request) -> Response:
    """List topics."""
    console = console_of(request)
    cluster = console.cluster
    found, sizes = await asyncio.gather(cluster.topics(), cluster.sizes())
    query = dict(request.query_params)
    wanted, only = query.get("find", "").strip().lower(), query.get("only", "")
    shows_internal = query.get("internal") == "yes"
    rates = console.history.rates()
    rows = [
        _row(info, sizes, rates)
        for info in found
        if (shows_internal or not info.is_internal) and wanted in info.name.lower()
    ]
    if only == "troubled":
        rows = [row for row in rows if row["troubles"]]
    sort = sorted_by(rows, query, _COLUMNS, "name")
    return console.render(
        request,
        "topics.html",
        title="Topics",
        page=page_of(rows, query),
        sort=sort,
        find=query.get("find", ""),
        only=only,
        shows_internal=shows_internal,
        internal_count=sum(info.is_internal for info in found),
    )


def _row(info: TopicInfo, sizes: Mapping[TopicPartition, int], rates: Mapping[str, float]) -> dict[str, Any]:
    offline = sum(each.leader < 0 for each in info.partitions)
    lacking = sum(
        each.leader >= 0 and not set(each.in_sync_replicas).issuperset(each.replicas) for each in info.partitions
    )
    known = [sizes[each.topic_partition] for each in info.partitions if each.topic_partition in sizes]
    return {
        "name": info.name,
        "is_internal": info.is_internal,
        "partitions": len(info.partitions),
        "replicas": max((len(each.replicas) for each in info.partitions), default=0),
        "size": sum(known) if known else None,
        "rate": rates.get(info.name),
        "offline": offline,
        "lacking": lacking,
        "troubles": offline + lacking,
    }


async def topic(request: Request) -> Response:
    """Show one topic."""
    console = console_of(request)
    cluster = console.cluster
    query = dict(request.query_params)
    name = text_of(query, "name")
    info = await cluster.topic(name)
    extents, sizes = await asyncio.gather(cluster.extents(info), cluster.sizes())
    try:
        settings, settings_error = await cluster.settings(ResourceType.TOPIC, name), None
    except KafkaError as error:  # no right to see them
        settings, settings_error = [], str(error)
    rows = [
        {
            "info": each,
            "extent": extents[each.partition],
            "size": sizes.get(each.topic_partition),
            "missing": sorted(set(each.replicas) - set(each.in_sync_replicas)),
        }
        for each in info.partitions
    ]
    counts = [each.count for each in extents.values()]
    shows_all = query.get("settings") == "all"
    return console.render(
        request,
        "topic.html",
        title=name,
        info=info,
        topic_id=base64.urlsafe_b64encode(info.topic_id).decode().rstrip("="),
        page=page_of(rows, query),
        record_count=sum(each for each in counts if each is not None),
        unknown_count=counts.count(None),
        total_size=sum(sizes.get(each.topic_partition, 0) for each in info.partitions),
        rate=console.history.rates().get(name),
        settings=[each for each in settings if shows_all or not each.is_default],
        setting_count=len(settings),
        shows_all=shows_all,
        setting_names=[each.name for each in settings if not each.is_read_only],
        settings_error=settings_error,
        edited=next((each for each in settings if each.name == query.get("edit")), None),
    )
