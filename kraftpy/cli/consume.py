"""`kraftpy consume`: print a topic's records as text for people or JSON lines for programs.

With a group, offsets are committed only after their records were written and flushed: if the reader stops early, the
rest is delivered again, and nothing is skipped. A topic that is read to its end is committed to its end, also if
transaction markers and aborted records are the last that it has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, client_options, run
from kraftpy.cli.output import Failure, at_terminal, json_line, local_time, say, write_lines
from kraftpy.cli.places import time_option
from kraftpy.client.json_records import record_row, shown
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client import Consumer, ConsumerRecord

POLL_MS = 500
POLL_RECORDS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedParts:
    """The parts of a record that a text line has, in the order shown."""

    time: bool
    partition: bool
    offset: bool
    key: bool
    headers: bool
    separator: str

    def line(self, record: ConsumerRecord) -> str:
        """Format the record as text: the chosen parts, then its value."""
        parts = []
        if self.time:
            parts.append(local_time(record.timestamp_ms))
        if self.partition:
            parts.append(f"{record.topic}-{record.partition}")
        if self.offset:
            parts.append(str(record.offset))
        if self.key:
            parts.append(shown(record.key))
        if self.headers:
            parts.append(",".join(f"{name}={shown(value)}" for name, value in record.headers))
        return self.separator.join([*parts, shown(record.value)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The part of the topic to read. `start` is an offset or a named place; `time_ms`, if given, takes precedence."""

    topic: str
    partitions: frozenset[int]
    group: str | None
    start: int | str
    time_ms: int | None
    follow: bool
    max_messages: int | None


@click.command()
@click.argument("topic")
@bootstrap_option
@click.option("--from-beginning", "-B", is_flag=True, help="Start at the first record (default without --follow).")
@click.option("--from-end", "-E", is_flag=True, help="Start after the last record (default with --follow).")
@click.option("--offset", "-o", type=click.IntRange(min=0), help="Start at this offset of each partition.")
@click.option("--from-time", callback=time_option, metavar="TIME", help="Start at the first record at or after a time.")
@click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Read only this partition; repeatable.",
)
@click.option("--group", "-g", help="Read as a member of this consumer group and commit offsets.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--follow", "-f", is_flag=True, help="Keep waiting for new records until Ctrl-C.")
@click.option(
    "--json/--text", "as_json", default=None, help="Output format. Default: text at a terminal, JSON lines in a pipe."
)
@click.option("--show-key", "-k", "key", is_flag=True, help="Show the key.")
@click.option("--show-headers", "-H", "headers", is_flag=True, help="Show the headers.")
@click.option("--show-time", "-T", "time", is_flag=True, help="Show the time.")
@click.option("--show-partition", "-P", "partition", is_flag=True, help="Show topic and partition.")
@click.option("--show-offset", "-O", "offset_shown", is_flag=True, help="Show the offset.")
@click.option("--separator", "-s", default="\t", help="Separator between the parts of a text line. Default: a tab.")
@click.option("--read-committed", is_flag=True, help="Skip records of aborted and open transactions.")
def consume(topic: str, bootstrap: str, as_json: bool | None, read_committed: bool, **options: Any) -> None:
    """Print the records of TOPIC.

    Stops at the current end of the topic, or waits for new records with --follow.

    TIME is a date (2026-01-31T12:00:00), milliseconds since 1970, or 2h for two hours ago. With --group, reading
    continues from the group's committed offsets; the starting options apply only to partitions without one.

    \b
      kraftpy consume flights --max-messages 10 --show-key --show-offset
      kraftpy consume flights --from-time 2h --follow
      kraftpy consume flights | jq .value
    """
    plan = _plan(topic, options)
    if as_json or (as_json is None and not at_terminal()):
        line: Callable[[ConsumerRecord], str] = _json_record
    else:
        line = PrintedParts(
            time=options["time"],
            partition=options["partition"],
            offset=options["offset_shown"],
            key=options["key"],
            headers=options["headers"],
            separator=options["separator"].replace("\\t", "\t"),
        ).line
    run(bootstrap, _read(bootstrap, plan, read_committed, line))


def _plan(topic: str, options: dict[str, Any]) -> Plan:
    """Check the options that say what to read. Raises UsageError."""
    names = ("from_beginning", "from_end", "offset", "from_time")
    given = [name for name in names if options[name] not in (None, False)]
    if len(given) > 1:
        shown_names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{shown_names} are mutually exclusive")
    if options["group"] and options["partitions"]:
        raise click.UsageError("--partition cannot be used with --group, which assigns partitions itself")
    if options["group"] and options["offset"] is not None:
        raise click.UsageError("--offset cannot be used with --group: use `kraftpy group reset-offsets`")
    if options["group"] and options["from_time"] is not None:
        raise click.UsageError("--from-time cannot be used with --group: use `kraftpy group reset-offsets`")
    start: int | str = "latest" if options["follow"] and not options["group"] else "earliest"
    if options["from_beginning"]:
        start = "earliest"
    elif options["from_end"]:
        start = "latest"
    elif options["offset"] is not None:
        start = options["offset"]
    return Plan(
        topic=topic,
        partitions=frozenset(options["partitions"]),
        group=options["group"],
        start=start,
        time_ms=options["from_time"],
        follow=options["follow"],
        max_messages=options["max_messages"],
    )


def _json_record(record: ConsumerRecord) -> str:
    return json_line(record_row(record))


async def _read(bootstrap: str, plan: Plan, read_committed: bool, line: Callable[[ConsumerRecord], str]) -> None:
    """Print the records that the plan asks for. Raises Failure and KafkaError."""
    from kraftpy.client import Consumer

    options = client_options(
        bootstrap,
        client_id="kraftpy-consume",
        group_id=plan.group,
        enable_auto_commit=False,
        auto_offset_reset=plan.start if isinstance(plan.start, str) else "earliest",
        isolation_level="read_committed" if read_committed else "read_uncommitted",
    )
    consumer = Consumer(**options)
    async with consumer:
        info = await consumer.partitions_for(plan.topic)
        if plan.group is None:
            await _go_to_start(consumer, plan, [part.partition for part in info.partitions])
        else:
            consumer.subscribe([plan.topic])
        ends = None if plan.follow else Ends(consumer)
        progress = None if plan.group is None else Progress(consumer, ends)
        left = sys.maxsize if plan.max_messages is None else plan.max_messages
        while left and not (ends and await ends.are_reached()):
            found = await consumer.getmany(timeout_ms=POLL_MS, max_records=min(left, POLL_RECORDS))
            for partition, records in found.items():
                kept = ends.keep(partition, records) if ends else records
                write_lines(map(line, kept))
                left -= len(kept)
            if progress is not None:
                await progress.commit(found)
        if progress is not None:
            await progress.commit({partition: [] for partition in consumer.assignment()})


async def _go_to_start(consumer: Consumer, plan: Plan, existing: list[int]) -> None:
    """Assign the partitions and seek to the start. Raises Failure if one does not exist."""
    missing = plan.partitions - set(existing)
    if missing:
        raise Failure(f"topic {plan.topic} has no partition {min(missing)}")
    partitions = [TopicPartition(plan.topic, number) for number in sorted(plan.partitions or existing)]
    consumer.assign(partitions)
    if plan.time_ms is not None:
        ends = await consumer.end_offsets(partitions)
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, plan.time_ms))
        for partition in partitions:
            place = found[partition]
            consumer.seek(partition, ends[partition] if place is None else place.offset)
    elif isinstance(plan.start, int):
        for partition in partitions:
            consumer.seek(partition, plan.start)
    elif plan.start == "earliest":
        consumer.seek_to_beginning()
    else:
        consumer.seek_to_end()


class Ends:
    """The ends of the partitions when they were first seen: the place to stop reading."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._ends: dict[TopicPartition, int] = {}

    async def are_reached(self) -> bool:
        """Return whether there are partitions and all are read. A group may take a while to assign them."""
        assigned = self._consumer.assignment()
        new = sorted(assigned - self._ends.keys())
        if new:
            self._ends.update(await self._consumer.end_offsets(new))
        for partition in sorted(assigned):
            if await self._consumer.position(partition) < self._ends[partition]:
                return False
        return bool(assigned)

    def keep(self, partition: TopicPartition, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Return those records that lie before the end."""
        end = self.of(partition)
        return [record for record in records if record.offset < end]

    def of(self, partition: TopicPartition) -> int:
        """Return the end of a partition; a very large offset if it was not seen yet."""
        return self._ends.get(partition, sys.maxsize)


class Progress:
    """The places up to which a group's records were written, and their commits."""

    def __init__(self, consumer: Consumer, ends: Ends | None) -> None:
        self._consumer = consumer
        self._ends = ends
        self._committed: dict[TopicPartition, int] = {}

    async def commit(self, written: Mapping[TopicPartition, list[ConsumerRecord]]) -> None:
        """Commit the positions of the partitions of these records, and of earlier ones, but nothing behind the end.

        If a position cannot be determined, commits what was written, and raises the KafkaError then.
        """
        from kraftpy.client import ErrorCode, KafkaError

        failure: KafkaError | None = None
        places: dict[TopicPartition, int] = {}
        for partition in sorted(written.keys() | self._committed.keys() & self._consumer.assignment()):
            try:
                place = await self._consumer.position(partition)
            except KafkaError as error:
                failure = error
                if not written.get(partition):
                    continue
                place = written[partition][-1].offset + 1
            place = place if self._ends is None else min(place, self._ends.of(partition))
            if self._committed.get(partition) != place:
                places[partition] = place
        if places:
            await _commit(self._consumer, places)
            self._committed |= places
        if failure is not None and failure.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise failure


async def _commit(consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
    """Commit. If the partitions were reassigned, report it: the only cost is that some records are read again."""
    from kraftpy.client import ErrorCode, KafkaError

    moved = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    try:
        await consumer.commit(offsets)
    except KafkaError as error:
        if error.code not in moved:
            raise
        say(f"partitions were reassigned before offsets were committed; some records will be read again ({error})")
