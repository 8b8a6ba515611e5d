"""`kraftpy topic create|list|describe|alter|delete`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, run
from kraftpy.cli.output import at_terminal, format_option, print_rows

if TYPE_CHECKING:
    from kraftpy.client import Admin, TopicInfo

Settings = dict[str, str]


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Settings:
    """NAME=VALUE options as a mapping. Names and values are the broker's to judge: it may know others than we do."""
    settings = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{value}' is not NAME=VALUE", ctx, param)
        settings[name.strip()] = text.strip()
    return settings


config_option = click.option(
    "--config",
    "-c",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_settings,
    help="A topic setting, such as retention.ms=3600000; may be repeated.",
)


@click.group()
def topic() -> None:
    """Create, look at, change and delete topics."""


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@bootstrap_option
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Else what the broker has as num.partitions.")
@click.option("--replication-factor", "-r", type=click.IntRange(min=1), help="Else the broker's default.")
@config_option
@click.option("--if-not-exists", is_flag=True, help="An existing topic is no failure.")
def create(
    names: tuple[str, ...],
    bootstrap: str,
    partitions: int | None,
    replication_factor: int | None,
    settings: Settings,
    if_not_exists: bool,
) -> None:
    """Create TOPICs.

    \b
      kraftpy topic create flights --partitions 6 --config retention.ms=-1
    """

    async def work() -> list[str]:
        from kraftpy.client import NewTopic
        from kraftpy.protocol.errors import ErrorCode, KafkaError

        existing = []
        async with _admin(bootstrap) as admin:
            for name in names:
                new = NewTopic(
                    name=name,
                    num_partitions=partitions or -1,
                    replication_factor=replication_factor or -1,
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
        _tell(f"topic {name} exists already" if name in existing else f"created topic {name}")


@topic.command(name="list")
@bootstrap_option
@click.option("--internal", is_flag=True, help="Also those the broker keeps for itself, such as __consumer_offsets.")
@format_option
def list_topics(bootstrap: str, internal: bool, form: str) -> None:
    """List the topics: a table at a terminal, a name a line in a pipe."""

    async def work() -> list[dict[str, Any]]:
        async with _admin(bootstrap) as admin:
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
@click.option("--configs", is_flag=True, help="Show every setting and where it comes from, in place of the partitions.")
@format_option
def describe(names: tuple[str, ...], bootstrap: str, configs: bool, form: str) -> None:
    """Show the partitions of TOPICs (of all without a name), with their leaders, replicas and offsets."""

    async def work() -> list[dict[str, Any]]:
        async with _admin(bootstrap) as admin:
            infos = await admin.describe_topics(list(names) or None)
            chosen = [info for info in infos if names or not info.is_internal]
            return await (_config_rows if configs else _partition_rows)(admin, chosen)

    print_rows(run(bootstrap, work()), form, empty="no topics")


@topic.command()
@click.argument("name", metavar="TOPIC")
@bootstrap_option
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="Raise the number of partitions to this.")
@config_option
@click.option("--delete-config", "-d", "deleted", multiple=True, metavar="NAME", help="Back to the broker's default.")
def alter(name: str, bootstrap: str, partitions: int | None, settings: Settings, deleted: tuple[str, ...]) -> None:
    """Change the settings of TOPIC, or add partitions to it.

    \b
      kraftpy topic alter flights --config retention.ms=60000 --delete-config segment.ms
      kraftpy topic alter flights --partitions 12
    """
    if not (partitions or settings or deleted):
        raise click.UsageError("nothing to change: give --partitions, --config or --delete-config")

    async def work() -> None:
        async with _admin(bootstrap) as admin:
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
@click.option("--if-exists", is_flag=True, help="A topic that is not there is no failure.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def delete(names: tuple[str, ...], bootstrap: str, if_exists: bool, yes: bool) -> None:
    """Delete TOPICs and all their records. At a terminal you are asked first."""
    if not yes and at_terminal():
        click.confirm(f"Delete {', '.join(names)} with all records?", abort=True)

    async def work() -> list[str]:
        from kraftpy.protocol.errors import ErrorCode, KafkaError

        missing = []
        async with _admin(bootstrap) as admin:
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
        _tell(f"there is no topic {name}" if name in missing else f"deleted topic {name}")


async def _partition_rows(admin: Admin, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
    """A row per partition. Offsets are None where no leader can be asked."""
    from kraftpy.client import OffsetSpec

    led = [part.topic_partition for info in topics for part in info.partitions if part.leader >= 0]
    starts = await admin.list_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST)) if led else {}
    ends = await admin.list_offsets(dict.fromkeys(led, OffsetSpec.LATEST)) if led else {}
    rows = []
    for info in topics:
        for part in sorted(info.partitions, key=lambda part: part.partition):
            start, end = starts.get(part.topic_partition), ends.get(part.topic_partition)
            rows.append(
                {
                    "topic": info.name,
                    "partition": part.partition,
                    "leader": part.leader,
                    "leader_epoch": part.leader_epoch,
                    "replicas": list(part.replicas),
                    "in_sync_replicas": list(part.in_sync_replicas),
                    "start_offset": None if start is None else start.offset,
                    "end_offset": None if end is None else end.offset,
                }
            )
    return rows


async def _config_rows(admin: Admin, topics: Sequence[TopicInfo]) -> list[dict[str, Any]]:
    """A row per setting."""
    from kraftpy.client import ResourceType

    described = await admin.describe_configs([(ResourceType.TOPIC, info.name) for info in topics]) if topics else {}
    return [
        {"topic": name, "setting": entry.name, "value": entry.value, "source": entry.source.name.lower()}
        for (_, name), entries in described.items()
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]


def _admin(bootstrap: str) -> Admin:
    from kraftpy.client import Admin

    return Admin(bootstrap_servers=bootstrap, client_id="kraftpy-topic")


def _tell(text: str) -> None:
    click.echo(text)
