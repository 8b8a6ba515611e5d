"""A share group hands out each record until it is acknowledged, to one consumer at a time, and counts how often.

    delivered-after-acknowledged   a record was acquired after its acceptance or rejection had been acknowledged
    concurrent-delivery            a record was acquired while another consumer's lock on it lasted
    repeated-count                 two deliveries of a record have the same delivery count
    count-falls                    a later delivery has a lower count than an earlier one
    count-skips                    a count is higher than deliveries, and members given up, can explain
    over-delivered                 a record was delivered more often than its limit
    unknown-record                 a delivered record was never sent there, or its send failed
    undelivered                    the group had read everything ("drained"), but not an acknowledged record
    unacknowledged                 likewise, and a record it had got was never accepted or rejected

Read from: `send`; `acquire` {group, records: [[key, offset, value, delivery count], ...]}, with `lock_ms` and
`delivery_limit` beside the value if they are known; `acknowledge` {group, records: [[key, offset, "accept" | "release"
| "reject"], ...]}; `drained` notes {group}, with `keys` if other keys were sent to as well. A record archived because
of its delivery count counts as acknowledged.

Locks and counts are kept in the leader's memory until an acknowledgement is made durable (KIP-932), so that after the
first fault of a history concurrent-delivery, repeated-count and count-falls are allowed; so is count-skips, since a
client library that lost an answer retries by itself, and an acquisition whose answer was lost is never seen.

A client library fetches ahead: records handed to a member may have been acquired at any time since its previous
request. So a delivery comes after an acknowledgement, or after another delivery, only if the member's previous request
did too; and a member that is given up may have received unseen deliveries, which count.

A member that is given up (a crash, an unknown outcome) returns its records: its connection ends, its share session
with it, and with that its locks (KIP-932), long before they run out.

Left out: several groups' isolation from each other is judged group by group.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.checkers.realtime import asked_at
from chaos.checkers.verdict import Findings, Options, Verdict
from chaos.checkers.versions import sends, versions
from chaos.history import FAULT, History, Key, Op, Process, Type, Value

NAME = "queue"

Place = tuple[str, Key, int]
"""Group, key, offset."""


@dataclass(slots=True)
class _Record:
    deliveries: list[tuple[Op, int]] = field(default_factory=list)
    """Acquisitions with the delivery count they reported, in order of completion."""
    since: list[int] = field(default_factory=list)
    """The earliest place in the history at which each acquisition may have been made."""
    ends: list[tuple[Op, str]] = field(default_factory=list)
    """Acknowledgements that happened or may have."""


def check(history: History, options: Options) -> Verdict:
    """Judge share groups."""
    findings = Findings(NAME, options)
    records: dict[Place, _Record] = {}
    values: dict[Place, Value] = {}
    calm = min((op.index for op in history.notes(FAULT)), default=1 << 62)
    asked: dict[Process, int] = {}
    """The place of each member's last request."""
    gone = {op.process: asked_at(history, op) for op in history.completions if op.type is Type.INFO}
    """The place of a request that its process did not survive."""
    for op in history.completed("acquire", "acknowledge"):
        findings.verdict.examined += 1
        if op.f == "acquire" and op.type is Type.OK:
            since = asked.get(op.process, asked_at(history, op))
            asked[op.process] = asked_at(history, op)
            for key, offset, value, count in op.value["records"]:
                place = (op.value["group"], key, offset)
                values.setdefault(place, value)
                record = records.setdefault(place, _Record())
                record.deliveries.append((op, count))
                record.since.append(since)
        elif op.f == "acquire":
            asked.setdefault(op.process, asked_at(history, op))
        elif op.type is not Type.FAIL:
            for key, offset, kind in op.value["records"]:
                records.setdefault((op.value["group"], key, offset), _Record()).ends.append((op, kind))
    unanswered = sorted(since for process, since in gone.items() if process in asked)
    for place, record in records.items():
        _after_the_end(history, findings, place, record)
        _counts(history, findings, place, record, unanswered, calm)
        _locks(history, findings, place, record, calm, gone)
    _contents(history, findings, records, values)
    _drained(history, findings, records)
    return findings.verdict


def _where(place: Place) -> str:
    return f"{place[0]}: {place[1]} at offset {place[2]}"


def _after_the_end(history: History, findings: Findings, place: Place, record: _Record) -> None:
    final = [op for op, kind in record.ends if op.type is Type.OK and kind in ("accept", "reject")]
    if not final:
        return
    for (op, count), since in zip(record.deliveries, record.since, strict=True):
        if since > final[0].index:
            text = f"{_where(place)} was delivered again after it had been acknowledged"
            findings.add("delivered-after-acknowledged", text, (final[0], op), place=place, count=count)


def _counts(
    history: History, findings: Findings, place: Place, record: _Record, unanswered: list[int], calm: int
) -> None:
    by_count: dict[int, Op] = {}
    earlier: list[tuple[int, int, Op]] = []
    """Completed deliveries: place, highest count so far, process."""
    for number, (op, count) in enumerate(record.deliveries):
        first = by_count.setdefault(count, op)
        if first is not op:
            text = f"{_where(place)} was delivered twice with count {count}"
            findings.add("repeated-count", text, (first, op), allowed=op.index > calm, place=place, count=count)
        limit = op.extra.get("delivery_limit")
        if limit is not None and count > limit:
            text = f"{_where(place)} was delivered {count} times, and {limit} is the limit"
            findings.add("over-delivered", text, (op,), place=place, count=count)
        before = bisect.bisect_left(earlier, (record.since[number],))
        if before and count < earlier[before - 1][1]:
            text = f"{_where(place)} was delivered with count {count} after {earlier[before - 1][1]}"
            who = (earlier[before - 1][2], op)
            findings.add("count-falls", text, who, allowed=op.index > calm, place=place, count=count)
        open_then = sum(since < op.index for since in record.since[number + 1 :])
        most = 1 + number + open_then + bisect.bisect_left(unanswered, op.index)
        if count > most:
            text = f"{_where(place)} was delivered with count {count}, and {most} is the most that can be"
            findings.add("count-skips", text, (op,), allowed=op.index > calm, place=place, count=count)
        highest = earlier[-1] if earlier else (0, 0, op)
        earlier.append((op.index, count, op) if count > highest[1] else (op.index, highest[1], highest[2]))


def _locks(
    history: History, findings: Findings, place: Place, record: _Record, calm: int, gone: Mapping[Process, int]
) -> None:
    """The lock begins when the acquisition is asked for, at the earliest, and ends with any acknowledgement of it, or
    with its holder."""
    for (op, _), (other, _), since in zip(record.deliveries, record.deliveries[1:], record.since[1:], strict=False):
        lock_ms = op.extra.get("lock_ms")
        if lock_ms is None or other.process == op.process or since < op.index:
            continue
        expires = history.invocation(op).time + lock_ms * 1_000_000
        given_back = any(asked_at(history, end) < other.index and end.process == op.process for end, _ in record.ends)
        is_gone = gone.get(op.process, other.index) < other.index
        if other.time < expires and not given_back and not is_gone:
            text = f"{_where(place)} was delivered to process {other.process} while process {op.process} had it"
            findings.add("concurrent-delivery", text, (op, other), allowed=other.index > calm, place=place)


def _contents(history: History, findings: Findings, records: dict[Place, _Record], values: dict[Place, Value]) -> None:
    known = versions(history)
    for place, value in values.items():
        _, key, offset = place
        writer = known.writer_of.get(key, {}).get(value)
        stands_at = [o for k, o, v in sends(writer) if (k, v) == (key, value)] if writer is not None else []
        if writer is None or writer.type is Type.FAIL or (stands_at[0] is not None and offset not in stands_at):
            text = f"{_where(place)} was delivered as {value!r}, which was not sent there"
            op = records[place].deliveries[0][0]
            findings.add("unknown-record", text, (writer, op), place=place, value=value)


def _drained(history: History, findings: Findings, records: dict[Place, _Record]) -> None:
    known = versions(history)
    for drained in history.notes("drained"):
        group = drained.value["group"]
        if not any(place[0] == group for place in records):
            continue
        for op in known.ops:
            for key, offset, value in sends(op):
                if op.type is not Type.OK or offset is None or key not in drained.value.get("keys", (key,)):
                    continue
                place = (group, key, offset)
                record = records.get(place, _Record())
                limit = max((op.extra.get("delivery_limit", 0) for op, _ in record.deliveries), default=0)
                spent = limit and max(count for _, count in record.deliveries) >= limit
                if not record.deliveries and not record.ends:
                    text = f"{_where(place)} ({value!r}) was never delivered"
                    findings.add("undelivered", text, (op, drained), place=place, value=value)
                elif not spent and not any(kind in ("accept", "reject") for _, kind in record.ends):
                    text = f"{_where(place)} ({value!r}) was delivered, and never accepted or rejected"
                    ops = (op, record.deliveries[-1][0] if record.deliveries else None, drained)
                    findings.add("unacknowledged", text, ops, place=place, value=value)
