"""Deletes a topic's records before an offset of each partition: a preview, and the deletion that it has shown.

Invariants: the offsets of the preview are those that are deleted up to, so records that have arrived meanwhile are
kept; nothing is deleted if another topic has got the name meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.model import ResourceType, TopicInfo
from kraftpy.client.times import parse_time
from kraftpy.console.cluster import Cluster, Extent, now_ms, or_none
from kraftpy.console.console import after_change, console_of
from kraftpy.console.forms import Refused, needs_typed, number_of, read_form, text_of
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

_BEFORE: Final = ("offset", "time", "end")
_COMPACTED: Final = (
    "the topic is compacted (cleanup.policy=compact), and the cluster deletes no records of such a topic before an "
    "offset; a record with the same key and no value deletes one"
)
_INTERNAL: Final = "the topic is internal, and the cluster deletes no records of such a topic"
_WORDS: Final = {
    ErrorCode.POLICY_VIOLATION: _COMPACTED,
    ErrorCode.INVALID_TOPIC_EXCEPTION: _INTERNAL,
    ErrorCode.OFFSET_OUT_OF_RANGE: "an offset is not in the log any more: the topic has lost records since the preview",
}
"""Refusals of the cluster, for which it sends a code alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """The records of one partition that would be deleted."""

    partition: int
    extent: Extent
    before: int | None
    """The offset of the first record that is kept; None if no leader tells where the log begins and ends."""
    is_moved: bool = False
    """The log has no such offset: the nearer end was taken."""

    @property
    def count(self) -> int:
        """The offsets that go: at least the number of records."""
        return 0 if self.before is None or self.extent.first is None else self.before - self.extent.first

    @property
    def left(self) -> int | None:
        """The offsets that stay."""
        return None if self.before is None or self.extent.end is None else self.extent.end - self.before


async def preview(request: Request) -> Response:
    """Show how many records of each partition would be deleted."""
    console = console_of(request)
    fields = dict(request.query_params)
    info = await console.cluster.topic(text_of(fields, "name"))
    await _check_policy(console.cluster, info)
    deletions = await _planned(console.cluster, info, fields)
    plan = [[each.partition, each.before] for each in deletions if each.count]
    return console.render(
        request,
        "topic_records.html",
        title=f"Delete records of {info.name}",
        info=info,
        deletions=deletions,
        total=sum(each.count for each in deletions),
        plan=json.dumps(plan, separators=(",", ":")) if plan else "",
        partition_count=len(plan),
    )


async def delete(request: Request) -> Response:
    """Delete what the preview showed, if the topic's name was typed."""
    fields = await read_form(request)
    name = text_of(fields, "name")
    needs_typed(fields, name)
    before = _offsets_of(name, text_of(fields, "plan"))
    cluster = console_of(request).cluster
    (info,) = await cluster.admin.describe_topics([name])
    if info.topic_id.hex() != fields.get("topic_id", ""):
        raise Refused("the topic was deleted and created anew since the preview: nothing was deleted", 409)
    try:
        await cluster.admin.delete_records(before)
    except KafkaError as error:
        raise await _explained(cluster, error, before) from None
    return after_change("/topic", "records deleted", name=name)


async def _check_policy(cluster: Cluster, info: TopicInfo) -> None:
    """Refuse at once what the cluster would refuse after the preview. Raises Refused."""
    if info.is_internal:
        raise Refused(_INTERNAL, 409)
    settings = await or_none(cluster.settings(ResourceType.TOPIC, info.name))  # None: no right to see them
    if any(each.name == "cleanup.policy" and each.value == "compact" for each in settings or ()):
        raise Refused(_COMPACTED, 409)


async def _planned(cluster: Cluster, info: TopicInfo, fields: Mapping[str, str]) -> list[Deletion]:
    wanted = fields.get("before", "")
    if wanted not in _BEFORE:
        raise Refused(f"before is not one of {', '.join(_BEFORE)}")
    chosen = [each.topic_partition for each in info.partitions]
    if fields.get("partition", ""):
        number = number_of(fields, "partition", None)
        chosen = [each for each in chosen if each.partition == number]
        if not chosen:
            raise Refused(f"{info.name} has no partition {number}", 404)
    offset = number_of(fields, "number", None) if wanted == "offset" else None
    at_ms = _time_of(fields) if wanted == "time" else None
    extents = await cluster.places(chosen)
    at_time = {}
    if at_ms is not None and extents:
        found = await cluster.admin.list_offsets(dict.fromkeys(extents, at_ms))
        at_time = {name: place.offset for name, place in found.items() if place is not None}
    unknown = Extent(first=None, end=None)
    deletions = []
    for name in sorted(chosen):
        extent = extents.get(name, unknown)
        before, is_moved = extent.end, False
        if extent.first is None or extent.end is None:
            before = None
        elif offset is not None:
            before = min(max(offset, extent.first), extent.end)
            is_moved = before != offset
        elif at_ms is not None:  # without a record at or after the time, all records are older
            before = max(extent.first, min(at_time.get(name, extent.end), extent.end))
        deletions.append(Deletion(partition=name.partition, extent=extent, before=before, is_moved=is_moved))
    return deletions


def _time_of(fields: Mapping[str, str]) -> int:
    try:
        return parse_time(text_of(fields, "number"), now_ms())
    except ValueError as error:
        raise Refused(str(error)) from None


def _offsets_of(name: str, plan: str) -> dict[TopicPartition, int]:
    """Return the offsets of a preview's plan. Raises Refused."""
    try:
        before = {TopicPartition(name, int(partition)): int(offset) for partition, offset in json.loads(plan)}
    except (ValueError, TypeError, RecursionError):
        raise Refused("the plan cannot be read") from None
    # -1 would mean everything, also what has come since the preview.
    if not before or any(each.partition < 0 or offset < 0 for each, offset in before.items()):
        raise Refused("there is nothing to delete")
    if any(each.partition >= 1 << 31 or offset >= 1 << 63 for each, offset in before.items()):
        raise Refused("the plan cannot be read")
    return before


async def _explained(cluster: Cluster, error: KafkaError, before: Mapping[TopicPartition, int]) -> Exception:
    """Return a failure in words, with what was deleted all the same."""
    extents = await cluster.places(list(before))
    done = [name for name, extent in extents.items() if extent.first is not None and extent.first >= before[name]]
    words = _WORDS.get(error.code)
    if not done:
        return error if words is None else Refused(f"{words}: nothing was deleted", 409)
    listed = ", ".join(str(name.partition) for name in sorted(done)[:20])
    more = f" and {len(done) - 20} more" if len(done) > 20 else ""
    named = f"partition {listed}" if len(done) == 1 else f"partitions {listed}{more}"
    return Refused(f"{words or error}. The records of {named} were deleted", 409)
