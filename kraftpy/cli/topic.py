"""`kraftpy topic create|list|describe|alter|reassign|move-replica|refetch|delete`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.move_replica import move_replica
from kraftpy.cli.output import at_terminal, format_option, print_rows, tell
from kraftpy.cli.reassign import reassign
from kraftpy.cli.refetch import refetch
from kraftpy.cli.settings import Settings, config_option

if TYPE_CHECKING:
    from kraftpy.client import Admin, TopicInfo
    from kraftpy.client.model import PartitionInfo


def _assignment(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[int, list[int]]:
    """Parse `1:2,2:3` into partition -> brokers, in the form of Kafka's own tool."""
    assignment: dict[int, list[int]] = {}
    for number, part in enumerate(value.split(",") if value is not None else ()):
        brokers = [broker.strip() for broker in part.split(":")]
        if not all(broker.isascii() and broker.isdecimal() for broker in brokers):
            raise click.BadParameter(f"'{part}' is not a list of broker ids, as in 1:2:3", ctx, param)
        assignment[number] = list(map(int, brokers))
    return assignment


@click.group()
def topic() -> None:
    """Create, list, describe, alter, move and delete topics."""


topic.add_command(reassign)
topic.add_command(move_replica)
topic.add_command(refetch)


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(min=1),
    help="Number of partitions. Defaults to the broker's num.partitions.",
)
@click.option(
    "--replication-factor",
    "-r",
    type=click.IntRange(min=1),
    help="Replicas per partition. Defaults to the broker's default.",
)
@click.option(
    "--replica-assignment",
    "assignment",
    callback=_assignment,
    metavar="1:2,2:3",
    help="Brokers of each partition, preferred leader first; replaces both counts.",
)
@config_option
@click.option("--if-not-exists", is_flag=True, help="Do not fail if a topic exists.")
def create(
    names: tuple[str, ...],
    bootstrap: str,
    partitions: int | None,
    replication_factor: int | None,
    assignment: dict[int, list[int]],
    settings: Settings,
    if_not_exists: bool,
) -> None:
    """Create TOPICs.

    \b
      kraftpy topic create flights --partitions 6 --config retention.ms=-1
      kraftpy topic create flights --replica-assignment 1:2:3,2:3:1
    """
    if assignment and (partitions or replication_factor):
        raise click.UsageError("--replica-assignment cannot be used with --partitions or --replication-factor")

    async def work() -> list[str]:
        from kraftpy.client import NewTopic
        from kraftpy.protocol.errors import ErrorCode, KafkaError

        existing = []
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            for name in names:
                new = NewTopic(
                    name=name,
                    num_partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
                    replica_assignment=assignment,
                    config=settings,
                )
                try:
                    await admin.create_topics([new])
                except KafkaError as error:
                    if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                        raise
                    existing.append(name)
        return existing

    existing = run(bootstrap, work())
    for name in names:
        _tell(f"topic {name} already exists" if name in existing else f"created topic {name}")


@topic.command(name="list")
@bootstrap_option
@click.option("--internal", is_flag=True, help="Include internal topics such as __consumer_offsets.")
@format_option
def list_topics(bootstrap: str, internal: bool, form: str) -> None:
    """List topics.

    Prints a table at a terminal, and one name per line in a pipe.
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            infos = await admin.describe_topics()
        return [
            {
                "topic": info.name,
                "partitions": len(info.partitions),
                "replication_factor": max((len(partition.replicas) for partition in info.partitions), default=0),
                "internal": info.is_internal,
            }
            for info in infos
            if internal or not info.is_internal
        ]

    print_rows(run(bootstrap, work()), form, plain="topic", empty="no topics")


@topic.command()
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@bootstrap_option
@click.option("--configs", is_flag=True, help="Show every setting and its source instead of the partitions.")
@click.option("--unavailable", "only", flag_value="unavailable", help="Show only partitions without a leader.")
@click.option(
    "--under-replicated",
    "only",
    flag_value="under-replicated",
    help="Show only partitions with an out-of-sync replica.",
)
@click.option(
    "--under-min-isr",
    "only",
    flag_value="under-min-isr",
    help="Show only partitions with too few in-sync replicas for acks=all.",
)
@click.option(
    "--at-min-isr",
    "only",
    flag_value="at-min-isr",
    help="Show only partitions with no more in-sync replicas than acks=all needs.",
)
@format_option
def describe(names: tuple[str, ...], bootstrap: str, configs: bool, only: str | None, form: str) -> None:
    """Show the partitions of TOPICs, or of all topics.

    Shows leader, replicas, in-sync replicas and offsets of each partition.

    Eligible replicas are not in sync, but known to hold everything committed: any of them may become leader.
    """
    if configs and only:
        raise click.UsageError(f"--configs cannot be used with --{only}")

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            infos = await admin.describe_topic_partitions(list(names) or None)
            chosen = [info for info in infos if names or only or not info.is_internal]
            if configs:
                return await _config_rows(admin, chosen)
            return await _partition_rows(admin, await _filtered(admin, chosen, only))

    empty = "no topics" if only is None else "no such partitions"
    print_rows(run(bootstrap, work()), form, empty=empty)


@topic.command()
@click.argument("name", metavar="TOPIC")
@bootstrap_option
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="New total number of partitions.")
@config_option
@click.option(
    "--delete-config",
    "-d",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Restore the broker's default of a setting; repeatable.",
)
def alter(name: str, bootstrap: str, partitions: int | None, settings: Settings, deleted: tuple[str, ...]) -> None:
    """Change the settings of TOPIC, or add partitions to it.

    \b
      kraftpy topic alter flights --config retention.ms=60000 --delete-config segment.ms
      kraftpy topic alter flights --partitions 12
    """
    if not (partitions or settings or deleted):
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")

    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            if settings or deleted:
                from kraftpy.client import ResourceType

                changes = {**settings, **dict.fromkeys(deleted)}
                await admin.alter_configs({(ResourceType.TOPIC, name): changes})
            if partitions:
                await admin.create_partitions({name: partitions})

    run(bootstrap, work())
    _tell(f"altered topic {name}")


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@click.option("--if-exists", is_flag=True, help="Do not fail if a topic does not exist.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def delete(names: tuple[str, ...], bootstrap: str, if_exists: bool, yes: bool) -> None:
    """Delete TOPICs and all their records. Asks for confirmation at a terminal."""
    if not yes and at_terminal():
        click.confirm(f"Delete {', '.join(names)} and all their records?", abort=True)

    async def work() -> list[str]:
        from kraftpy.protocol.errors import ErrorCode, KafkaError

        missing = []
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            for name in names:
                try:
                    await admin.delete_topics([name])
                except KafkaError as error:
                    if not (if_exists and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                        raise
                    missing.append(name)
        return missing

    missing = run(bootstrap, work())
    for name in names:
        _tell(f"topic {name} does not exist" if name in missing else f"deleted topic {name}")


async def _filtered(admin: Admin, topics: Sequence[TopicInfo], only: str | None) -> list[PartitionInfo]:
    """Return the partitions to show, sorted."""
    partitions = [part for info in topics for part in sorted(info.partitions, key=lambda part: part.partition)]
    if only is None:
        return partitions
    from kraftpy.cli.cluster import if_served, minimums
    from kraftpy.cli.health import partition_health

    least = await minimums(admin, topics) if only.endswith("min-isr") else {}
    moves = await if_served(admin.list_partition_reassignments()) or {}
    found = []
    for part in partitions:
        health = partition_health(part, minimum=least.get(part.topic, 1), move=moves.get(part.topic_partition))
        is_shown = {
            "unavailable": health.is_offline,
            "under-replicated": health.is_under_replicated,
            "under-min-isr": health.is_below_minimum,
            "at-min-isr": health.is_at_minimum,
        }
        if is_shown[only]:
            found.append(part)
    return found


async def _partition_rows(admin: Admin, partitions: Sequence[PartitionInfo]) -> list[dict[str, Any]]:
    """Return a row per partition. Offsets are None if no leader can be asked."""
    from kraftpy.client import OffsetSpec

    led = [part.topic_partition for part in partitions if part.leader >= 0]
    starts = await admin.list_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST)) if led else {}
    ends = await admin.list_offsets(dict.fromkeys(led, OffsetSpec.LATEST)) if led else {}
    rows = []
    for part in partitions:
        start, end = starts.get(part.topic_partition), ends.get(part.topic_partition)
        rows.append(
            {
                "topic": part.topic,
                "partition": part.partition,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch,
                "replicas": list(part.replicas),
                "in_sync_replicas": list(part.in_sync_replicas),
                "eligible_replicas": list(part.eligible_leader_replicas or ()),
                "start_offset": None if start is None else start.offset,
                "end_offset": None if end is None else end.offset,
            }
        )
    return rows


async def _config_rows(admin: Admin, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
    """Return a row per setting."""
    from kraftpy.client import ResourceType

    described = await admin.describe_configs([(ResourceType.TOPIC, info.name) for info in topics]) if topics else {}
    return [
        {"topic": name, "setting": entry.name, "value": entry.value, "source": entry.source.name.lower()}
        for (_, name), entries in described.items()
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]


def _tell(text: str) -> None:
    tell(text)
