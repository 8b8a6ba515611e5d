"""Brokers, the metadata quorum, features, reassignments; one broker with its directories and settings."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.admin.model import ConfigSource, LogDir, QuorumDescription, QuorumReplica
from kraftpy.client.model import Node, ResourceType, TopicInfo
from kraftpy.console.cluster import now_ms, or_none
from kraftpy.console.console import after_change, console_of
from kraftpy.console.forms import Refused, number_of, read_form, text_of
from kraftpy.console.pages.setting_changes import alter_setting
from kraftpy.console.paging import page_of
from kraftpy.protocol.errors import KafkaError


async def brokers(request: Request) -> Response:
    """Show the brokers and the quorum."""
    console = console_of(request)
    cluster = console.cluster
    description, topics, log_dirs, quorum, features, moves = await asyncio.gather(
        cluster.description(),
        cluster.topics(),
        cluster.log_dirs(),
        or_none(cluster.quorum()),
        or_none(cluster.features()),
        or_none(cluster.reassignments()),
    )
    levels = [] if features is None else sorted(features.finalized.keys() | features.supported.keys())
    return console.render(
        request,
        "brokers.html",
        title="Brokers",
        cluster=description,
        brokers=page_of(_rows(description.nodes, topics, log_dirs), dict(request.query_params)),
        quorum=quorum,
        replicas=[] if quorum is None else _quorum_rows(quorum),
        features=[
            {
                "name": name,
                "level": features.finalized.get(name),
                "range": features.supported.get(name),
            }
            for name in levels
            if features is not None
        ],
        moves=page_of(sorted((moves or {}).items()), dict(request.query_params), "moves"),
    )


def _rows(nodes: Iterable[Node], topics: list[TopicInfo], log_dirs: list[LogDir]) -> list[dict[str, Any]]:
    """Return a row per broker, in one pass over all partitions."""
    led: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    in_sync: Counter[int] = Counter()
    for info in topics:
        for each in info.partitions:
            led[each.leader] += 1
            replicas.update(each.replicas)
            in_sync.update(each.in_sync_replicas)
    sizes: dict[int, int] = {}
    for directory in log_dirs:
        size = sum(log.size_bytes for log in directory.partitions.values())
        sizes[directory.broker_id] = sizes.get(directory.broker_id, 0) + size
    dirs = Counter(each.broker_id for each in log_dirs)
    return [
        {
            "node": node,
            "replicas": replicas[node.node_id],
            "led": led[node.node_id],
            "lacking": max(0, replicas[node.node_id] - in_sync[node.node_id]),
            "dirs": dirs[node.node_id],
            "size": sizes.get(node.node_id),
        }
        for node in sorted(nodes, key=lambda node: node.node_id)
    ]


def _quorum_rows(quorum: QuorumDescription) -> list[dict[str, Any]]:
    """Return a row per voter and observer. Times are compared with the leader's own, so that clocks do not matter."""
    voters = {each.node_id for each in quorum.voters}
    leader = next((each for each in quorum.voters if each.node_id == quorum.leader_id), None)

    def row(each: QuorumReplica) -> dict[str, Any]:
        end = max(quorum.high_watermark, -1 if leader is None else leader.log_end_offset)
        return {
            "id": each.node_id,
            "role": "leader" if each.node_id == quorum.leader_id else "voter" if each.node_id in voters else "observer",
            "end": each.log_end_offset if each.log_end_offset >= 0 else None,
            "lag": max(0, end - each.log_end_offset) if each.log_end_offset >= 0 else None,
            "caught_up": each.last_caught_up_ms,
            "fetched": each.last_fetch_ms,
        }

    return [row(each) for each in sorted(quorum.voters + quorum.observers, key=lambda each: each.node_id)]


async def broker(request: Request) -> Response:
    """Show one broker, or with the id "default" the settings that all brokers share."""
    console = console_of(request)
    cluster = console.cluster
    query = dict(request.query_params)
    name = _resource(text_of(query, "id"))
    description, log_dirs = await asyncio.gather(cluster.description(), cluster.log_dirs())
    node = next((node for node in description.nodes if str(node.node_id) == name), None)
    if name and node is None:
        raise Refused(f"there is no broker {name}", 404)
    try:
        settings, settings_error = await cluster.settings(ResourceType.BROKER, name), None
    except KafkaError as error:  # a broker that does not answer
        settings, settings_error = [], str(error)
    shows_all = query.get("settings") == "all"
    find = query.get("find", "").strip().lower()
    shown = [
        each
        for each in settings
        if find in each.name.lower()
        and (shows_all or find or each.source not in (ConfigSource.DEFAULT_CONFIG, ConfigSource.UNKNOWN))
    ]
    return console.render(
        request,
        "broker.html",
        title=f"Broker {name}" if name else "All brokers",
        name=name,
        node=node,
        is_fenced=node is not None and node.node_id in description.fenced,
        log_dirs=[each for each in log_dirs if str(each.broker_id) == name],
        now=now_ms(),
        settings=page_of(shown, query),
        setting_count=len(settings),
        setting_names=[each.name for each in settings if not each.is_read_only],
        settings_error=settings_error,
        shows_all=shows_all,
        find=query.get("find", ""),
        edited=next((each for each in settings if each.name == query.get("edit")), None),
    )


async def alter(request: Request) -> Response:
    """Set one setting of a broker or of all, or restore its default."""
    fields = await read_form(request)
    name = _resource(text_of(fields, "id"))
    await alter_setting(request, fields, ResourceType.BROKER, name)
    return after_change("/broker", "altered", id=name or "default")


def _resource(text: str) -> str:
    """Return the name that the wire has for a broker's settings: "" for those of all brokers. Raises Refused."""
    return "" if text == "default" else str(number_of({"id": text}, "id", None, high=2**31 - 1))
