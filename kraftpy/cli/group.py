"""`kraftpy group list|describe|explain|alter|reset-offsets|delete`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, client_options, run
from kraftpy.cli.group_explain import explain
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, say, tell
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, parse_partitions
from kraftpy.cli.places import time_option
from kraftpy.cli.settings import Settings, config_option
from kraftpy.client.admin.reset_planning import apply_reset, partition_ends, plan_reset
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.admin.model import GroupDescription, GroupMember
    from kraftpy.client.admin.resets import Move, Reset

SHARE = "share"
"""The type of a share group."""


@click.group()
def group() -> None:
    """Manage consumer and share groups, their offsets and settings."""


@group.command(name="list")
@bootstrap_option
@format_option
def list_groups(bootstrap: str, form: str) -> None:
    """List groups.

    Prints a table at a terminal, and one name per line in a pipe.
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-group") as admin:
            return [
                {
                    "group": found.group_id,
                    "state": found.state,
                    "protocol_type": found.protocol_type,
                    "type": found.group_type,
                }
                for found in await admin.list_groups()
            ]

    print_rows(run(bootstrap, work()), form, plain="group", empty="no groups")


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@bootstrap_option
@click.option(
    "--offsets", "what", flag_value="offsets", default="offsets", help="Show offsets and lag by partition (default)."
)
@click.option("--members", "what", flag_value="members", help="Show members.")
@click.option("--state", "what", flag_value="state", help="Show state, protocol and coordinator.")
@click.option("--configs", "what", flag_value="configs", help="Show every setting and its source.")
@format_option
def describe(names: tuple[str, ...], bootstrap: str, what: str, form: str) -> None:
    """Show the offsets and lag of GROUPs in each partition.

    The lag in time, in milliseconds, is the age of the first record that the group has not read. Both lags are 0 if
    only transaction markers and aborted records follow: there is nothing left to read.

    Works for classic groups, consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071). A streams
    group's members read the partitions of their active tasks. A share group has start offsets: it is done with all
    records before them.
    """
    describer = {"offsets": _offset_rows, "members": _member_rows, "state": _state_rows, "configs": _config_rows}[what]
    nothing = {
        "offsets": "no committed offsets",
        "members": "no members",
        "state": "no groups",
        "configs": "no settings",
    }[what]

    async def work() -> list[dict[str, Any]]:
        rows = []
        async with admin_client(bootstrap, "kraftpy-group") as admin:
            for name in names:
                found = await describer(admin, name)
                rows += await _with_ages(bootstrap, found) if what == "offsets" else found
        return rows

    print_rows(run(bootstrap, work()), form, empty=nothing)


group.add_command(explain)


@group.command()
@click.argument("name", metavar="GROUP")
@bootstrap_option
@config_option
@click.option(
    "--delete-config",
    "-d",
    "deleted",
    multiple=True,
    metavar="NAME",
    help="Restore the broker's default of a setting; repeatable.",
)
def alter(name: str, bootstrap: str, settings: Settings, deleted: tuple[str, ...]) -> None:
    """Change the settings of GROUP, which need not exist yet.

    \b
      kraftpy group alter billing --config consumer.session.timeout.ms=60000
    """
    if not (settings or deleted):
        raise click.UsageError("nothing to change: give --config or --delete-config")

    async def work() -> None:
        from kraftpy.client import ResourceType

        async with admin_client(bootstrap, "kraftpy-group") as admin:
            await admin.alter_configs({(ResourceType.GROUP, name): {**settings, **dict.fromkeys(deleted)}})

    run(bootstrap, work())
    tell(f"altered group {name}")


@group.command(name="reset-offsets")
@click.argument("name", metavar="GROUP")
@bootstrap_option
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Topic, or some of its partitions; repeatable.",
)
@click.option("--all-topics", is_flag=True, help="Every topic that the group has offsets in.")
@click.option("--to-earliest", is_flag=True, help="Reset to the first available offset.")
@click.option("--to-latest", is_flag=True, help="Reset to the end.")
@click.option("--to-current", is_flag=True, help="Reset to the committed offset, or to the end without one.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Reset to this offset.")
@click.option(
    "--to-datetime", callback=time_option, metavar="TIME", help="Reset to the first record at or after a time."
)
@click.option("--shift-by", type=int, help="Shift by this many records; negative moves back.")
@click.option("--execute", is_flag=True, help="Apply the reset. Without this, only show it.")
@format_option
def reset_offsets(
    name: str,
    bootstrap: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    form: str,
    **targets: Any,
) -> None:
    """Reset the offsets of GROUP, which must have no members.

    Sets committed offsets, or a share group's start offsets.

    TIME is a date (2026-01-31T12:00:00), milliseconds since 1970, or 2h for two hours ago. An offset outside a
    log becomes the log's nearer end.

    \b
      kraftpy group reset-offsets billing --topic orders --to-earliest
      kraftpy group reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
    """
    reset = _reset(targets)
    try:
        wanted = [parse_partitions(text) for text in topics]
    except ValueError as error:
        raise click.UsageError(f"--topic {error}") from None
    if bool(wanted) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")

    async def work() -> list[Move]:
        async with admin_client(bootstrap, "kraftpy-group") as admin:
            described = (await admin.describe_groups([name]))[name]
            moves = await _plan(admin, described, wanted, reset)
            if execute:
                await apply_reset(admin, described, moves)
            rows[:] = [
                {
                    "group": name,
                    "topic": move.partition.topic,
                    "partition": move.partition.partition,
                    "start_offset" if described.group_type == SHARE else "committed_offset": move.committed,
                    "new_offset": move.offset,
                }
                for move in moves
            ]
            return moves

    rows: list[dict[str, Any]] = []
    moves = run(bootstrap, work())
    print_rows(
        rows,
        form,
        empty="no partitions",
    )
    for move in moves:
        if move.clamped:
            say(f"{move.partition}: moved to {move.offset}, the nearest offset its log holds")
    if not execute:
        say("nothing was changed: add --execute to apply this")


@group.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@bootstrap_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def delete(names: tuple[str, ...], bootstrap: str, yes: bool) -> None:
    """Delete GROUPs and their offsets. They must have no members. Asks for confirmation at a terminal."""
    if not yes and at_terminal():
        click.confirm(f"Delete {', '.join(names)} and all their offsets?", abort=True)

    async def work() -> None:
        async with admin_client(bootstrap, "kraftpy-group") as admin:
            await admin.delete_groups(list(names))

    run(bootstrap, work())
    for name in names:
        tell(f"deleted group {name}")


async def _offset_rows(admin: Admin, name: str) -> list[dict[str, Any]]:
    """Return a row per partition that has a committed offset or a member. Raises Failure if there is no such group."""
    described = (await admin.describe_groups([name]))[name]
    if described.group_type == SHARE:
        return await _share_rows(admin, described)
    committed = await admin.list_group_offsets(name)
    owners = {partition: member for member in described.members for partition in member.partitions}
    if described.state == "Dead" and not committed:
        raise Failure(f"group {name} does not exist")
    ends = await partition_ends(admin, set(committed) | set(owners))
    rows = []
    for partition in sorted(set(committed) | set(owners)):
        at = committed.get(partition)
        end = ends[partition].latest if partition in ends else None
        owner = owners.get(partition)
        rows.append(
            {
                "group": name,
                "state": described.state,
                "topic": partition.topic,
                "partition": partition.partition,
                "committed_offset": None if at is None else at.offset,
                "end_offset": end,
                "lag": None if at is None or end is None else max(0, end - at.offset),
                "lag_ms": None,
                "client": None if owner is None else f"{owner.client_id}@{owner.client_host}",
                "member": None if owner is None else owner.member_id,
            }
        )
    return rows


async def _share_rows(admin: Admin, described: GroupDescription) -> list[dict[str, Any]]:
    """Return a row per partition that a share group has read or has members for."""
    offsets = await admin.list_share_group_offsets(described.group_id)
    readers = Counter(partition for member in described.members for partition in member.partitions)
    ends = await partition_ends(admin, {*offsets, *readers})
    rows = []
    for partition in sorted({*offsets, *readers}):
        at = offsets.get(partition)
        rows.append(
            {
                "group": described.group_id,
                "state": described.state,
                "topic": partition.topic,
                "partition": partition.partition,
                "start_offset": None if at is None else at.start_offset,
                "end_offset": ends[partition].latest if partition in ends else None,
                "lag": None if at is None else at.lag,
                "lag_ms": None,
                "members": readers[partition],
            }
        )
    return rows


async def _with_ages(bootstrap: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with their lags in time: 0 if all is read, None if unknown.

    All is read, and the lag is 0, also if only transaction markers and aborted records follow.
    """
    from kraftpy.diagnosis.lag_ages import NOTHING, ages_ms

    places: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for row in rows:
        if row["lag"] == 0:
            row["lag_ms"] = 0
        elif row["lag"] is not None and row["end_offset"] is not None:
            place = row["committed_offset"] if "committed_offset" in row else row["start_offset"]
            where = TopicPartition(row["topic"], row["partition"])
            places[where], ends[where] = place, row["end_offset"]
    ages = await ages_ms(client_options(bootstrap, client_id="kraftpy-group"), places, ends)
    for row in rows:
        age = ages.get(TopicPartition(row["topic"], row["partition"]))
        if age == NOTHING and "committed_offset" in row:  # a share group's own settings say what is a record
            row["lag"] = row["lag_ms"] = 0
        elif age is not None and age != NOTHING:
            row["lag_ms"] = age
    return rows


async def _member_rows(admin: Admin, name: str) -> list[dict[str, Any]]:
    """Return a row per member."""
    described = (await admin.describe_groups([name]))[name]
    return [
        {
            "group": name,
            "state": described.state,
            "protocol": described.protocol,
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.client_host,
            "partitions": [str(partition) for partition in sorted(member.partitions)],
            **_of_newer_protocol(member),
        }
        for member in described.members
    ]


def _of_newer_protocol(member: GroupMember) -> dict[str, Any]:
    """Return the fields that only members of KIP-848's protocol have; share group members have some of them."""
    if member.member_epoch is None:
        return {}
    if member.target is None:
        return {"epoch": member.member_epoch}
    return {"epoch": member.member_epoch, "target": [str(partition) for partition in sorted(member.target)]}


async def _state_rows(admin: Admin, name: str) -> list[dict[str, Any]]:
    """Return the group's row. Raises Failure if the group does not exist."""
    described = (await admin.describe_groups([name]))[name]
    if described.state == "Dead":
        raise Failure(f"group {name} does not exist")
    return [
        {
            "group": name,
            "state": described.state,
            "type": described.group_type,
            "protocol": described.protocol,
            "epoch": described.group_epoch,
            "assignment_epoch": described.assignment_epoch,
            "members": len(described.members),
            "coordinator": described.coordinator,
        }
    ]


async def _config_rows(admin: Admin, name: str) -> list[dict[str, Any]]:
    """Return a row per setting, even if the group does not exist."""
    from kraftpy.client import ResourceType

    (entries,) = (await admin.describe_configs([(ResourceType.GROUP, name)])).values()
    return [
        {"group": name, "setting": entry.name, "value": entry.value, "source": entry.source.name.lower()}
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]


async def _plan(admin: Admin, described: GroupDescription, wanted: list[PartitionSet], reset: Reset) -> list[Move]:
    """Plan the move of each chosen partition. Raises Failure if the group has members or the reset is impossible."""
    chosen = [info.topic_partition for info in await chosen_partitions(admin, wanted)] if wanted else None
    try:
        return await plan_reset(admin, described, reset, chosen)
    except ValueError as error:
        raise Failure(str(error)) from None


def _reset(targets: dict[str, Any]) -> Reset:
    from kraftpy.client.admin.resets import Reset, Target

    given = []
    for target in Target:
        value = targets[target.value.removeprefix("--").replace("-", "_")]
        if value is not None and value is not False:
            given.append(Reset(target=target, number=0 if value is True else value))
    if len(given) != 1:
        raise click.UsageError(f"give one of {', '.join(target.value for target in Target)}")
    return given[0]
