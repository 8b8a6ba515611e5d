"""Transactions: those that are open, all transactional ids, and those that hang."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from kraftpy.client.admin.model import ActiveProducer, TransactionDescription
from kraftpy.console.cluster import Cluster, now_ms, or_none
from kraftpy.console.console import after_change, console_of
from kraftpy.console.forms import Refused, number_of, read_form, text_of
from kraftpy.console.paging import page_of
from kraftpy.types import TopicPartition

_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
MOST_DESCRIBED: Final = 100
MOST_SEARCHED: Final = 10_000
"""Partitions that one search for hanging transactions asks about."""
_SECONDS: Final = 20.0
_MAX_MINUTES: Final = 15


async def transactions(request: Request) -> Response:
    """List transactional ids, the open transactions first."""
    console = console_of(request)
    query = dict(request.query_params)
    listed = await console.cluster.transactions()
    states = sorted({each.state for each in listed})
    find, state = query.get("find", "").strip(), query.get("state", "")
    open_ids = [each.transactional_id for each in listed if each.state in _OPEN]
    described = await asyncio.gather(*(_described(console.cluster, name) for name in open_ids[:MOST_DESCRIBED]))
    now = now_ms()
    opened: list[dict[str, Any]] = [
        {
            "transaction": each,
            "age_ms": now - each.started_at_ms if each.started_at_ms >= 0 else None,
            "is_late": each.started_at_ms >= 0 and now - each.started_at_ms > each.timeout_ms,
        }
        for each in described
        if each is not None and each.state in _OPEN
    ]
    opened.sort(key=lambda row: -(row["age_ms"] or 0))
    rows = [each for each in listed if find.lower() in each.transactional_id.lower() and state in ("", each.state)]
    return console.render(
        request,
        "transactions.html",
        title="Transactions",
        opened=opened,
        open_count=len(opened) + max(0, len(open_ids) - MOST_DESCRIBED),
        page=page_of(rows, query),
        states=states,
        state=state,
        find=find,
        max_minutes=_MAX_MINUTES,
    )


async def _described(cluster: Cluster, name: str) -> TransactionDescription | None:
    found = await or_none(cluster.admin.describe_transactions([name]))  # None: it has just expired
    return found[0] if found else None


async def transaction(request: Request) -> Response:
    """Show one transactional id."""
    console = console_of(request)
    name = text_of(request.query_params, "id")
    (described,) = await console.cluster.admin.describe_transactions([name])
    is_open = described.started_at_ms >= 0
    return console.render(
        request,
        "transaction.html",
        title=f"Transactional id {name}",
        each=described,
        is_open=is_open,
        age_ms=now_ms() - described.started_at_ms if is_open else None,
        page=page_of(sorted(described.partitions), dict(request.query_params)),
    )


async def hanging(request: Request) -> Response:
    """Search one topic, or all, for transactions that no coordinator will complete."""
    console = console_of(request)
    query = dict(request.query_params)
    topic = query.get("topic", "").strip()
    minutes = number_of(query, "minutes", _MAX_MINUTES, high=10_000)
    infos = [await console.cluster.topic(topic)] if topic else await console.cluster.topics()
    led = [each.topic_partition for info in infos for each in info.partitions if each.leader >= 0]
    if len(led) > MOST_SEARCHED:
        raise Refused(f"{len(led):,} partitions are too many for one search: name a topic")
    async with asyncio.timeout(_SECONDS):
        found = await console.cluster.admin.find_hanging_transactions(
            led, now_ms(), max_transaction_timeout_ms=minutes * 60_000
        )
    return console.render(
        request,
        "transactions_hanging.html",
        title="Hanging transactions",
        page=page_of(found, query),
        topic=topic,
        minutes=minutes,
        searched=len(led),
    )


async def abort(request: Request) -> Response:
    """Abort a hanging transaction in one partition, if it is still the one that was shown."""
    console = console_of(request)
    fields = await read_form(request)
    partition = TopicPartition(text_of(fields, "topic"), number_of(fields, "partition", None))
    producer_id, start = number_of(fields, "producer", None), number_of(fields, "start", None)
    hanging = await console.cluster.admin.find_hanging_transactions(
        [partition], now_ms(), max_transaction_timeout_ms=number_of(fields, "minutes", _MAX_MINUTES) * 60_000
    )
    for each in hanging:
        if _is(each.producer, producer_id, start):
            epoch = max(0, each.producer.coordinator_epoch)
            await console.cluster.admin.abort_transaction(partition, producer_id, each.producer.producer_epoch, epoch)
            return after_change("/transactions", "aborted")
    raise Refused(f"no such transaction hangs in {partition} any more: nothing was aborted", 409)


def _is(producer: ActiveProducer, producer_id: int, start: int) -> bool:
    return producer.producer_id == producer_id and producer.current_transaction_start_offset == start
