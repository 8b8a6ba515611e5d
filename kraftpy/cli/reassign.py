"""`kraftpy topic reassign`: move partitions to other brokers; watch, cancel and throttle the moves.

A throttle works as in Kafka's own tool: a rate for each broker involved, and the throttled replicas in the settings of
each topic (KIP-73). --wait, --verify and --cancel remove it once nothing moves any more.

Left out: plans that name log directories (`kraftpy topic move-replica` moves replicas between those of one broker).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, say
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, partitions_argument

if TYPE_CHECKING:
    from kraftpy.cli.moves import Replicas
    from kraftpy.client import Admin, TopicPartition
    from kraftpy.client.admin.model import Reassignment
    from kraftpy.client.model import Node

POLL_SECONDS = 0.5


def _broker_ids(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    numbers = value.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise click.BadParameter(f"'{value}' is not a list of broker ids, as in 1,2,3", ctx, param)
    return tuple(dict.fromkeys(map(int, numbers)))


@click.command()
@partitions_argument
@bootstrap_option
@click.option("--brokers", callback=_broker_ids, metavar="1,2,3", help="Spread the partitions over these brokers.")
@click.option("--replication-factor", "-r", type=click.IntRange(min=1), help="Number of replicas of each partition.")
@click.option(
    "--plan",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the moves, in the JSON of Kafka's own tool.",
)
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Copy at most this many bytes per second and broker.",
)
@click.option("--execute", is_flag=True, help="Start the moves. Without this, only show them.")
@click.option("--wait", is_flag=True, help="Wait until the partitions have moved.")
@click.option("--verify", is_flag=True, help="Show moves in progress; remove throttles of finished ones.")
@click.option("--cancel", is_flag=True, help="Cancel moves in progress and restore the old replicas.")
@format_option
def reassign(
    wanted: list[PartitionSet],
    bootstrap: str,
    brokers: tuple[int, ...] | None,
    replication_factor: int | None,
    plan: Path | None,
    throttle: int | None,
    execute: bool,
    wait: bool,
    verify: bool,
    cancel: bool,
    form: str,
) -> None:
    """Move partitions to other brokers.

    Replicas that can stay are not moved. Without --brokers, partitions are spread over all brokers. Brokers that are
    advertised with the same host share it: replicas of a partition are on different hosts first. --verify and --cancel
    apply to the named partitions, or to all moves.

    \b
      kraftpy topic reassign flights --brokers 2,3,4
      kraftpy topic reassign flights --brokers 2,3,4 --execute --wait --throttle 10000000
      kraftpy topic reassign --plan moves.json --execute
      kraftpy topic reassign --verify
      kraftpy topic reassign flights:0,1 --cancel
    """
    if verify or cancel:
        if (verify and cancel) or execute or plan or brokers or replication_factor or throttle:
            raise click.UsageError("--verify and --cancel cannot be used with other options")
        print_rows(run(bootstrap, _moving(bootstrap, wanted, cancel=cancel)), form, empty="nothing is moving")
        if cancel:
            say("the moves were cancelled")
        return
    if (plan is None) == (not wanted):
        raise click.UsageError("give either partitions or --plan")
    if plan is not None and (brokers or replication_factor):
        raise click.UsageError("--brokers and --replication-factor cannot be used with --plan")
    if (wait or throttle) and not execute:
        raise click.UsageError("--wait and --throttle require --execute")
    planned = None if plan is None else _read(plan)

    async def work() -> list[dict[str, Any]]:
        from kraftpy.cli.moves import changes, spread
        from kraftpy.cli.throttles import lift_throttle, set_throttle

        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            names = _sets(planned) if planned is not None else wanted
            current = {info.topic_partition: info.replicas for info in await chosen_partitions(admin, names)}
            if planned is None:
                nodes = await _nodes(admin, brokers)
                racks = {node.node_id: node.rack for node in nodes}
                hosts = {node.node_id: node.host for node in nodes}
                try:
                    target = spread(current, racks, replication_factor, hosts)
                except ValueError as error:
                    raise Failure(str(error)) from None
            else:
                target = planned
            moves = changes(current, target)
            if execute and moves:
                if throttle:
                    await set_throttle(admin, throttle, current, moves)
                await admin.alter_partition_reassignments(moves)
                if wait:
                    await _until_moved(admin, moves)
                    await lift_throttle(admin)
        return [
            {
                "topic": name.topic,
                "partition": name.partition,
                "replicas": list(current[name]),
                "new_replicas": list(replicas),
            }
            for name, replicas in moves.items()
        ]

    rows = run(bootstrap, work())
    print_rows(rows, form, empty="every partition is in place")
    if rows and not execute:
        say("nothing was changed: add --execute to apply this")


async def _moving(bootstrap: str, wanted: list[PartitionSet], *, cancel: bool) -> list[dict[str, Any]]:
    """Return the moves in progress, cancelling them if `cancel`."""
    from kraftpy.cli.throttles import lift_throttle

    async with admin_client(bootstrap, "kraftpy-topic") as admin:
        partitions = None
        if wanted:
            partitions = [info.topic_partition for info in await chosen_partitions(admin, wanted)]
        moves = await admin.list_partition_reassignments(partitions)
        if cancel and moves:
            await admin.alter_partition_reassignments(dict.fromkeys(moves))
        await lift_throttle(admin)
    return [_move_row(name, move) for name, move in sorted(moves.items())]


def _move_row(name: TopicPartition, move: Reassignment) -> dict[str, Any]:
    return {
        "topic": name.topic,
        "partition": name.partition,
        "replicas": list(move.replicas),
        "adding": list(move.adding),
        "removing": list(move.removing),
    }


async def _until_moved(admin: Admin, moves: dict[TopicPartition, Replicas]) -> None:
    """Wait until none of the partitions is moving, reporting how many are left."""
    told = -1
    while left := await admin.list_partition_reassignments(moves):
        if at_terminal() and len(left) != told:
            told = len(left)
            say(f"{told} of {len(moves)} partitions are moving")
        await asyncio.sleep(POLL_SECONDS)


async def _nodes(admin: Admin, brokers: tuple[int, ...] | None) -> list[Node]:
    """Return the brokers to spread over. Raises Failure if one is not alive.

    Brokers that are advertised at one address, with different ports, share a host.
    """
    alive = {node.node_id: node for node in (await admin.describe_cluster()).nodes}
    if brokers is None:
        return [*alive.values()]
    if missing := [broker for broker in brokers if broker not in alive]:
        raise Failure(f"broker {missing[0]} is not alive")
    return [alive[broker] for broker in brokers]


def _sets(planned: dict[TopicPartition, Replicas]) -> list[PartitionSet]:
    return [PartitionSet(name.topic, frozenset([name.partition])) for name in planned]


def _read(plan: Path) -> dict[TopicPartition, Replicas]:
    from kraftpy.cli.moves import parse_plan
    from kraftpy.config import ConfigError
    from kraftpy.config.texts import text_of

    try:
        return parse_plan(text_of(plan.read_bytes(), str(plan)))
    except ConfigError as error:
        raise Failure(str(error)) from None
    except ValueError as error:
        raise Failure(f"{plan}: {error}") from None
