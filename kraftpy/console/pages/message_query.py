"""The query of the message pages: what to read, from where, how to filter and how to decode.

The same query describes a list, a live tail and a download. Raises Refused for what cannot be read, and KafkaError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftpy.client.model import TopicInfo
from kraftpy.client.times import parse_time
from kraftpy.console.cluster import Cluster, Extent, now_ms
from kraftpy.console.decoding import FORMS, Decoder
from kraftpy.console.forms import Refused, number_of, text_of
from kraftpy.console.jsonpath import parse_filter
from kraftpy.console.reading import MOST_RECORDS, Wanted
from kraftpy.types import TopicPartition

PLACES: Final = ("newest", "earliest", "offset", "time", "live")
RECORDS: Final = 50
MOST_PARTITIONS: Final = 1_000
MOST_CURSOR: Final = 100
"""Partitions that a link to continue may name."""
NEWEST_SCANNED: Final = 20_000
"""Offsets before the ends, of all partitions together, among which the newest matching records are looked for."""
FIELDS: Final = (
    "topic",
    "partition",
    "from",
    "offset",
    "time",
    "at",
    "limit",
    "key",
    "find",
    "jsonpath",
    "keys",
    "values",
    "schema",
    "uncommitted",
)
_FAR: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query, read from a URL; `fields` are its texts, all of them present."""

    topic: str
    partition: int | None
    place: str
    limit: int
    fields: Mapping[str, str]
    wanted: Wanted
    """Without places."""


def parse_query(given: Mapping[str, str], most: int = MOST_RECORDS) -> Query:
    """Read a query. Raises Refused."""
    fields = {name: given.get(name, "") for name in FIELDS}
    topic = text_of(fields, "topic")
    place = fields["from"] or "newest"
    if place not in PLACES:
        raise Refused(f"from is not one of {', '.join(PLACES)}")
    fields["from"] = place
    limit = number_of(fields, "limit", RECORDS, low=1, high=most)
    try:
        wanted = Wanted(
            begin={},
            end={},
            most=limit,
            newest=place == "newest",
            text=fields["find"],
            key=fields["key"] or None,
            matches=parse_filter(fields["jsonpath"]) if fields["jsonpath"].strip() else None,
            keys=Decoder(fields["keys"] if fields["keys"] in FORMS and fields["keys"] != "avro" else "auto"),
            values=Decoder(fields["values"] or "auto", fields["schema"]),
            is_uncommitted=fields["uncommitted"] == "yes",
        )
    except ValueError as error:
        raise Refused(str(error)) from None
    partition = number_of(fields, "partition", -1, high=2**31 - 1) if fields["partition"] else None
    return Query(topic=topic, partition=partition, place=place, limit=limit, fields=fields, wanted=wanted)


async def places(
    cluster: Cluster, query: Query, info: TopicInfo
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return where each partition's read begins and ends. Partitions whose leader does not answer are left out."""
    extents = {
        TopicPartition(info.name, number): extent
        for number, extent in (await cluster.extents(info)).items()
        if query.partition is None or number == query.partition
    }
    if not extents:
        raise Refused(f"topic {info.name} has no partition {query.partition}", 404)
    if len(extents) > MOST_PARTITIONS:
        raise Refused(f"{len(extents):,} partitions are too many to be read at once: choose one")
    known = {name: extent for name, extent in extents.items() if extent.first is not None and extent.end is not None}
    ends = {name: _FAR if query.place == "live" else extent.end or 0 for name, extent in known.items()}
    if query.fields["at"]:
        given = parse_cursor(info.name, query.fields["at"])
        return {name: given[name] for name in known if name in given}, ends
    if query.place == "live":
        return {name: extent.end or 0 for name, extent in known.items()}, ends
    if query.place == "time":
        return await _at_time(cluster, query, known), ends
    return {name: _begin(query, extent, len(known)) for name, extent in known.items()}, ends


def _begin(query: Query, extent: Extent, count: int) -> int:
    first, end = extent.first or 0, extent.end or 0
    if query.place == "newest":
        behind = max(query.limit, NEWEST_SCANNED // count) if query.wanted.has_filter else query.limit
        return max(first, end - behind)
    if query.place == "offset":
        return max(first, number_of(query.fields, "offset", None))
    return first


async def _at_time(cluster: Cluster, query: Query, known: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, int]:
    try:
        time_ms = parse_time(text_of(query.fields, "time"), now_ms())
    except ValueError as error:
        raise Refused(str(error)) from None
    async with asyncio.timeout(10):
        found = await cluster.admin.list_offsets(dict.fromkeys(known, time_ms))
    return {
        name: extent.end or 0 if (place := found.get(name)) is None else place.offset for name, extent in known.items()
    }


def cursor_of(positions: Mapping[TopicPartition, int]) -> str | None:
    """Return positions as a text for a link; None if there are too many for one."""
    if not positions or len(positions) > MOST_CURSOR:
        return None
    return ",".join(f"{name.partition}:{offset}" for name, offset in sorted(positions.items()))


def parse_cursor(topic: str, text: str) -> dict[TopicPartition, int]:
    """Return the positions of a link. Raises Refused."""
    found: dict[TopicPartition, int] = {}
    parts: Sequence[str] = text.split(",", MOST_CURSOR + 1)
    for part in parts:
        number, colon, offset = part.partition(":")
        if not colon or len(parts) > MOST_CURSOR:
            raise Refused("at is not a list of partition:offset")
        fields = {"partition": number, "offset": offset}
        found[TopicPartition(topic, number_of(fields, "partition", None))] = number_of(fields, "offset", None)
    return found
