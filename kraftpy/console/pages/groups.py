"""Groups of all four kinds: the list, one group with its members, offsets and lag, and why it does not get on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.admin.model import GroupDescription
from kraftpy.client.model import ResourceType
from kraftpy.console.cluster import SHARE, Cluster, or_none
from kraftpy.console.console import console_of
from kraftpy.console.forms import Refused, number_of, text_of
from kraftpy.console.paging import page_of, sorted_by
from kraftpy.console.plots import line_plot
from kraftpy.diagnosis.group_causes import causes
from kraftpy.diagnosis.lag_ages import nothing_left
from kraftpy.diagnosis.observing import observe
from kraftpy.security.principal import parse_principal
from kraftpy.types import TopicPartition

_COLUMNS: Final = ("name", "kind", "state", "lag")
EXPLAIN_SECONDS: Final = 6
MOST_EXPLAIN_SECONDS: Final = 30
MOST_EXPLAINED: Final = 4
_explaining = 0


async def groups(request: Request) -> Response:
    """List groups."""
    console = console_of(request)
    query = dict(request.query_params)
    find, kind, state = (query.get(name, "").strip() for name in ("find", "kind", "state"))
    listed = await console.cluster.groups()
    rows: list[dict[str, Any]] = [
        {
            "name": each.group_id,
            "kind": each.group_type or "classic",
            "protocol": each.protocol_type,
            "state": each.state,
            "lag": console.history.last_lag(each.group_id),
        }
        for each in listed
        if find.lower() in each.group_id.lower()
    ]
    kinds, states = sorted({row["kind"] for row in rows}), sorted({row["state"] for row in rows})
    rows = [row for row in rows if kind in ("", row["kind"]) and state in ("", row["state"])]
    sort = sorted_by(rows, query, _COLUMNS, "name")
    return console.render(
        request,
        "groups.html",
        title="Groups",
        page=page_of(rows, query),
        sort=sort,
        find=find,
        kind=kind,
        state=state,
        kinds=kinds,
        states=states,
    )


async def group(request: Request) -> Response:
    """Show one group."""
    console = console_of(request)
    cluster = console.cluster
    query = dict(request.query_params)
    name = query.get("id", "")
    described = await cluster.group(name)
    rows, settings = await asyncio.gather(
        offset_rows(cluster, described), or_none(cluster.settings(ResourceType.GROUP, name))
    )
    if described.state == "Dead" and not rows:
        raise Refused(f"group {name!r} does not exist", 404)
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    shows_all = query.get("settings") == "all"
    return console.render(
        request,
        "group.html",
        title=f"Group {name}",
        group=described,
        is_share=described.group_type == SHARE,
        page=page_of(rows, query),
        members=page_of(described.members, query, "members"),
        lag=sum(lags) if lags else None,
        plot=line_plot(console.history.lag(name), title="Lag", unit="records"),
        settings=[each for each in settings or () if shows_all or not each.is_default],
        setting_names=[each.name for each in settings or ()],
        setting_count=len(settings or ()),
        shows_all=shows_all,
        explain_seconds=EXPLAIN_SECONDS,
        edited=next((each for each in settings or () if each.name == query.get("edit")), None),
    )


async def offset_rows(cluster: Cluster, described: GroupDescription) -> list[dict[str, Any]]:
    """Return a row per partition that the group has an offset in or is assigned to."""
    name = described.group_id
    owners: dict[TopicPartition, list[str]] = {}
    for member in described.members:
        for partition in member.partitions:
            owners.setdefault(partition, []).append(member.client_id)
    lags: Mapping[TopicPartition, int | None] = {}
    if described.group_type == SHARE:
        shared = await cluster.admin.list_share_group_offsets(name)
        at = {partition: each.start_offset for partition, each in shared.items()}
        lags = {partition: each.lag for partition, each in shared.items()}
    else:
        at = {partition: each.offset for partition, each in (await cluster.admin.list_group_offsets(name)).items()}
    partitions = sorted(at.keys() | owners.keys())
    places = await cluster.places(partitions)

    def row(partition: TopicPartition) -> dict[str, Any]:
        offset, place = at.get(partition), places.get(partition)
        lag = lags.get(partition)
        if lag is None and offset is not None and place is not None and place.end is not None:
            lag = max(0, place.end - offset)
        return {
            "partition": partition,
            "offset": offset,
            "first": None if place is None else place.first,
            "end": None if place is None else place.end,
            "lag": lag,
            "owners": owners.get(partition, []),
        }

    return [row(partition) for partition in partitions]


async def explain(request: Request) -> Response:
    """Watch a group for some seconds, and show why it does not get on; with a principal, also which rights it lacks."""
    global _explaining
    console = console_of(request)
    query = dict(request.query_params)
    name = text_of(query, "id")
    seconds = number_of(query, "seconds", EXPLAIN_SECONDS, low=0, high=MOST_EXPLAIN_SECONDS)
    principal = query.get("principal", "").strip()
    try:
        checked = parse_principal(principal) if principal else None
    except ValueError as error:
        raise Refused(str(error)) from None
    if _explaining >= MOST_EXPLAINED:
        raise Refused("other groups are being watched: try again in a moment", 503)
    _explaining += 1
    try:
        observed = await observe(
            console.cluster.admin, name, seconds=seconds, principal=None if checked is None else str(checked)
        )
        observed = replace(observed, nothing_left=await nothing_left(console.cluster.options, observed))
    finally:
        _explaining -= 1
    return console.render(
        request,
        "group_explain.html",
        title=f"Why group {name} does not get on",
        name=name,
        causes=causes(observed),
        observed=observed,
        seconds=seconds,
        principal=principal,
    )
