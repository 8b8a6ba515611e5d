"""Changes of groups: reset offsets, after a preview; alter settings; delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.admin.model import GroupDescription
from kraftpy.client.admin.reset_planning import apply_reset, plan_reset
from kraftpy.client.admin.resets import Move, Reset, Target
from kraftpy.client.model import ResourceType
from kraftpy.client.times import parse_time
from kraftpy.console.cluster import now_ms
from kraftpy.console.console import after_change, console_of
from kraftpy.console.forms import Refused, needs_typed, number_of, read_form, text_of
from kraftpy.console.pages.setting_changes import alter_setting
from kraftpy.types import TopicPartition

_TARGETS: Final = {
    "earliest": Target.EARLIEST,
    "latest": Target.LATEST,
    "current": Target.CURRENT,
    "offset": Target.OFFSET,
    "time": Target.TIME,
    "shift": Target.SHIFT,
}


async def preview(request: Request) -> Response:
    """Show where the offsets would go."""
    fields = dict(request.query_params)
    described, moves = await _planned(request, fields)
    return console_of(request).render(
        request,
        "group_reset.html",
        title=f"Reset the offsets of {described.group_id}",
        group=described,
        moves=moves,
        plan=_text(moves),
    )


async def reset(request: Request) -> Response:
    """Make the moves that the preview showed; refuse if the group's offsets are no longer those."""
    fields = await read_form(request)
    admin = console_of(request).cluster.admin
    name = text_of(fields, "id")
    described = (await admin.describe_groups([name]))[name]
    moves = _moves(text_of(fields, "plan"))
    try:
        now = await plan_reset(admin, described, Reset(target=Target.CURRENT), [move.partition for move in moves])
    except ValueError as error:
        raise Refused(str(error), 409) from None
    if {move.partition: move.committed for move in now} != {move.partition: move.committed for move in moves}:
        raise Refused("the group's offsets or its topics have changed since the preview: nothing was reset", 409)
    await apply_reset(admin, described, moves)
    return after_change("/group", "reset", id=name)


async def _planned(request: Request, fields: Mapping[str, str]) -> tuple[GroupDescription, list[Move]]:
    cluster = console_of(request).cluster
    name = text_of(fields, "id")
    target = _TARGETS.get(fields.get("to", ""))
    if target is None:
        raise Refused(f"to is not one of {', '.join(_TARGETS)}")
    described = (await cluster.admin.describe_groups([name]))[name]
    chosen = None
    if topic := fields.get("topic", ""):
        numbers = [each.partition for each in (await cluster.topic(topic)).partitions]
        if fields.get("partition", ""):
            numbers = [number_of(fields, "partition", None)]
        chosen = [TopicPartition(topic, number) for number in numbers]
    try:
        moves = await plan_reset(cluster.admin, described, Reset(target=target, number=_number(fields, target)), chosen)
    except ValueError as error:
        raise Refused(str(error), 409) from None
    return described, moves


def _number(fields: Mapping[str, str], target: Target) -> int:
    if target is Target.TIME:
        try:
            return parse_time(text_of(fields, "number"), now_ms())
        except ValueError as error:
            raise Refused(str(error)) from None
    if target is Target.OFFSET:
        return number_of(fields, "number", None)
    return number_of(fields, "number", None, low=-(2**62)) if target is Target.SHIFT else 0


def _text(moves: list[Move]) -> str:
    """Return moves as a text, for the form that makes them."""
    return json.dumps([[*move.partition, move.committed, move.offset] for move in moves], separators=(",", ":"))


def _moves(text: str) -> list[Move]:
    """Return the moves of such a text. Raises Refused."""
    try:
        moves = [
            Move(TopicPartition(str(topic), int(partition)), None if at is None else int(at), int(offset), False)
            for topic, partition, at, offset in json.loads(text)
        ]
    except (ValueError, TypeError, RecursionError):
        raise Refused("the plan cannot be read") from None
    if not moves or any(move.offset < 0 for move in moves):
        raise Refused("there is nothing to reset")
    return moves


async def alter(request: Request) -> Response:
    """Set one setting of a group, or restore its default."""
    fields = await read_form(request)
    name = text_of(fields, "id")
    await alter_setting(request, fields, ResourceType.GROUP, name)
    return after_change("/group", "altered", id=name)


async def delete(request: Request) -> Response:
    """Delete a group whose name was typed."""
    fields = await read_form(request)
    name = text_of(fields, "id")
    needs_typed(fields, name)
    await console_of(request).cluster.admin.delete_groups([name])
    return after_change("/groups", "group deleted")
