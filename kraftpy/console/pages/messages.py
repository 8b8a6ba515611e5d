"""Messages: lists, one record, a live tail, downloads, and a form that produces one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kraftpy.client.json_records import record_row
from kraftpy.client.producer.producer import Producer
from kraftpy.console.cluster import PATIENCE_MS
from kraftpy.console.console import Console, after_change, console_of
from kraftpy.console.decoding import FORMS, Decoder, hex_text
from kraftpy.console.forms import Refused, number_of, read_form, text_of
from kraftpy.console.pages.message_query import PLACES, Query, cursor_of, parse_query, places
from kraftpy.console.reading import Found, Reader, Shown, Wanted
from kraftpy.protocol.errors import KafkaError
from kraftpy.types import TopicPartition

MOST_DOWNLOADED: Final = 10_000
DOWNLOAD_SECONDS: Final = 60.0
TAIL_SECONDS: Final = 1.0
MOST_TAILED: Final = 500
"""Rows after which a live tail waits for a person."""
_MOST_OF_ONE: Final = 1_000_000
"""Characters of a value that its own page shows."""


async def messages(request: Request) -> Response:
    """List messages of a topic, or begin a live tail."""
    console = console_of(request)
    given = dict(request.query_params)
    if not given.get("topic"):
        return await _choose(request, console)
    query = parse_query(given)
    info = await console.cluster.topic(query.topic)
    begin, end = await places(console.cluster, query, info)
    values: dict[str, Any] = {
        "title": f"Messages of {query.topic}",
        "query": query,
        "fields": query.fields,
        "partition_count": len(info.partitions),
        "unread": [each.partition for each in info.partitions if each.leader < 0],
        "forms": FORMS,
        "places": PLACES,
        "download": {name: text for name, text in query.fields.items() if text and name != "limit"},
    }
    if query.place == "live":
        cursor = cursor_of(begin)
        if cursor is None:
            raise Refused(f"{len(begin):,} partitions are too many for a live tail: choose one")
        values |= {"found": Found(), "next": None, "tail": {**_present(query), "at": cursor, "shown": 0}}
        return console.render(request, "messages.html", **values)
    found = await console.reader.read(replace(query.wanted, begin=begin, end=end))
    cursor = cursor_of(found.positions) if found.stopped_by and not query.wanted.newest else None
    follow = None if cursor is None else {**_present(query), "at": cursor}
    return console.render(request, "messages.html", **values, found=found, next=follow, tail=None)


def _present(query: Query) -> dict[str, Any]:
    return {name: text for name, text in query.fields.items() if text}


async def _choose(request: Request, console: Console) -> Response:
    topics = await console.cluster.topics()
    return console.render(
        request,
        "messages_topic.html",
        title="Messages",
        topics=[info.name for info in topics if not info.is_internal][:1_000],
        topic_count=len(topics),
    )


async def tail(request: Request) -> Response:
    """Return the rows that are new since the cursor, and the row that asks for the next ones."""
    console = console_of(request)
    query = parse_query({**request.query_params, "from": "live"})
    shown = number_of(dict(request.query_params), "shown", 0, high=10**9)
    info = await console.cluster.topic(query.topic)
    begin, end = await places(console.cluster, query, info)
    found = await console.reader.read(replace(query.wanted, begin=begin, end=end, most=200, most_seconds=TAIL_SECONDS))
    found.records.reverse()
    shown += len(found.records)
    values = {**_present(query), "at": cursor_of({**begin, **found.positions}), "shown": shown}
    return console.render(
        request, "messages_tail.html", found=found, tail=values, query=query, is_full=shown >= MOST_TAILED, title=""
    )


async def download(request: Request) -> Response:
    """Send messages as JSON lines, with the same filters as the list."""
    console = console_of(request)
    given = dict(request.query_params)
    query = parse_query({**given, "limit": given.get("limit") or str(MOST_DOWNLOADED)}, MOST_DOWNLOADED)
    if query.place == "live":
        raise Refused("a live tail cannot be downloaded")
    info = await console.cluster.topic(query.topic)
    begin, end = await places(console.cluster, query, info)
    wanted = replace(query.wanted, begin=begin, end=end, most_seconds=DOWNLOAD_SECONDS)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(query.topic, safe='')}.jsonl"}
    reader = console.downloader  # now: the answer is sent when nobody asks any more
    lines = _newest_lines(reader, wanted) if wanted.newest else _lines(reader, wanted)
    return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)


async def _lines(reader: Reader, wanted: Wanted) -> AsyncIterator[bytes]:
    left = wanted.most
    async with aclosing(reader.chunks(wanted, Found())) as chunks:
        async for chunk in chunks:
            yield _json_lines(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                return


async def _newest_lines(reader: Reader, wanted: Wanted) -> AsyncIterator[bytes]:
    found = await reader.read(wanted)
    yield _json_lines(found.records)


def _json_lines(records: list[Shown]) -> bytes:
    lines = [json.dumps(record_row(each.record), ensure_ascii=False) for each in records]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")


async def _one(request: Request, given: Mapping[str, str], values: Decoder) -> Shown:
    """Return the record at an offset. Raises Refused if there is none."""
    console = console_of(request)
    partition = TopicPartition(text_of(given, "topic"), number_of(given, "partition", None, high=2**31 - 1))
    offset = number_of(given, "offset", None)
    info = await console.cluster.topic(partition.topic)
    extent = (await console.cluster.extents(info)).get(partition.partition)
    if extent is None:
        raise Refused(f"topic {partition.topic} has no partition {partition.partition}", 404)
    found = await console.reader.read(
        Wanted(
            begin={partition: offset},
            end={partition: min(offset + 1, extent.end or 0)},
            most=1,
            values=values,
            is_uncommitted=True,
            is_whole=True,
        )
    )
    if not found.records:
        raise Refused(f"{partition} has no record at offset {offset:,}", 404)
    return found.records[0]


async def message(request: Request) -> Response:
    """Show one record, its value in any form."""
    given = dict(request.query_params)
    try:
        values = Decoder(given.get("values") or "auto", given.get("schema", ""))
    except ValueError as error:
        raise Refused(str(error)) from None
    shown = await _one(request, given, values)
    value = shown.record.value
    return console_of(request).render(
        request,
        "message.html",
        title=f"{shown.record.topic} {shown.record.partition}:{shown.record.offset}",
        shown=shown,
        text=shown.value.text[:_MOST_OF_ONE],
        is_cut=len(shown.value.text) > _MOST_OF_ONE,
        hex=None if value is None or shown.value.form == "hex" else hex_text(value[:4_096]),
        forms=FORMS,
        chosen=values.form,
        schema=given.get("schema", ""),
    )


async def raw(request: Request) -> Response:
    """Send the bytes of one record's value."""
    given = dict(request.query_params)
    shown = await _one(request, given, Decoder("hex"))
    name = f"{shown.record.topic}-{shown.record.partition}-{shown.record.offset}.bin"
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(shown.record.value or b"", media_type="application/octet-stream", headers=headers)


async def new(request: Request) -> Response:
    """Show the form of a new message."""
    topic = text_of(request.query_params, "topic")
    return _form(request, {"topic": topic}, None)


def _form(request: Request, fields: Mapping[str, str], error: str | None) -> Response:
    names = ("topic", "partition", "key", "value", "headers", "form", "tombstone")
    return console_of(request).render(
        request,
        "message_new.html",
        status=200 if error is None else 400,
        title="Produce a message",
        fields={name: fields.get(name, "") for name in names},
        error=error,
    )


async def produce(request: Request) -> Response:
    """Produce one message; show the form again with the reason if that fails."""
    console = console_of(request)
    fields = await read_form(request)
    topic = text_of(fields, "topic")
    try:
        is_hex = fields.get("form") == "hex"
        options = {**console.cluster.options, "max_block_ms": PATIENCE_MS, "delivery_timeout_ms": PATIENCE_MS}
        async with Producer(**options, allow_auto_create_topics=False) as producer:
            sent = await producer.send_and_wait(
                topic,
                None if fields.get("tombstone") else _bytes(fields.get("value", ""), is_hex, "value"),
                _bytes(fields["key"], is_hex, "key") if fields.get("key") else None,
                partition=number_of(fields, "partition", None) if fields.get("partition") else None,
                headers=_headers(fields.get("headers", "")),
            )
    except (KafkaError, Refused, ValueError) as error:
        return _form(request, fields, str(error))
    return after_change(
        "/message", "produced", topic=topic, partition=str(sent.partition), offset=str(max(0, sent.offset))
    )


def _bytes(text: str, is_hex: bool, name: str) -> bytes:
    if not is_hex:
        return text.replace("\r\n", "\n").encode()
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused(f"{name} is not hex") from None


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """Return headers written as lines `name: value`. Raises Refused."""
    headers: list[tuple[str, bytes | None]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, value = line.partition(":")
        if not colon:
            raise Refused(f"{line!r:.80} is not of the form name: value")
        headers.append((name.strip(), value.strip().encode()))
    return headers
