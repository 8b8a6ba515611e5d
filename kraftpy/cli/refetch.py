"""`kraftpy topic refetch`: discard a broker's copy of partitions and fetch it again from their leaders.

Meant for a copy that is damaged on disk. The broker is removed from the partition's replicas by a reassignment to the
others, and put back in its place once it has deleted the copy. So the controller makes sure that nothing is lost: a
broker without its copy is no replica, is in no ISR and leads nothing until it has fetched everything again, and if it
was the leader, an in-sync replica takes over first. The only copy in sync is never discarded.

Meanwhile the partition has one replica less. If the command is interrupted, its last line says how to put it back.

Left out: a broker that is down (start it first: it never serves what is damaged).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, say
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, partitions_argument

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.model import PartitionInfo

POLL_SECONDS = 0.2


@click.command()
@partitions_argument
@bootstrap_option
@click.option(
    "--broker", type=click.IntRange(min=0), required=True, metavar="ID", help="Broker whose copy is discarded."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@format_option
def refetch(wanted: list[PartitionSet], bootstrap: str, broker: int, yes: bool, form: str) -> None:
    """Replace a broker's copy of partitions.

    Discards the copy and fetches it again from the leaders.

    For a copy that `kraftpy log verify` or the broker itself found damaged. Refuses to discard the only copy in
    sync. The partition has one replica less until the command returns, when the new copy is in sync.

    If all other copies are damaged as well, there is nothing to fetch: after several disk failures, verify them first.

    \b
      kraftpy topic refetch flights:0 --broker 2
    """
    if not wanted:
        raise click.UsageError("name the partitions, as in flights:0")
    if not yes and at_terminal():
        click.confirm(f"Delete broker {broker}'s copy of {_list(wanted)} and fetch it again?", abort=True)

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            infos = await chosen_partitions(admin, wanted)
            await _check(admin, infos, broker)
            return [await _refetch(admin, info, broker) for info in infos]

    print_rows(run(bootstrap, work()), form)


def _list(wanted: list[PartitionSet]) -> str:
    return ", ".join(
        each.topic if each.partitions is None else f"{each.topic}:{','.join(map(str, sorted(each.partitions)))}"
        for each in wanted
    )


async def _check(admin: Admin, infos: list[PartitionInfo], broker: int) -> None:
    """Refuse, before anything is done, if records would be lost or the refetch could not finish. Raises Failure."""
    alive = {node.node_id for node in (await admin.describe_cluster()).nodes}
    if broker not in alive:
        raise Failure(f"broker {broker} is not running: start it first")
    if all(directory.is_cordoned for directory in await admin.describe_log_dirs([broker]) if not directory.error):
        raise Failure(f"broker {broker} gets no new replicas: all of its log directories are cordoned")
    moving = await admin.list_partition_reassignments([info.topic_partition for info in infos])
    for info in infos:
        name = info.topic_partition
        if broker not in info.replicas:
            raise Failure(f"broker {broker} has no copy of {name}: its replicas are {_brokers(info.replicas)}")
        if name in moving:
            raise Failure(f"{name} is being moved: see `kraftpy topic reassign --verify`")
        if not alive.intersection(info.in_sync_replicas).difference({broker}):
            raise Failure(f"broker {broker} has the only in-sync copy of {name}: discarding it would lose records")


async def _refetch(admin: Admin, info: PartitionInfo, broker: int) -> dict[str, Any]:
    from kraftpy.cli.moves import render_plan

    name, replicas = info.topic_partition, tuple(info.replicas)
    others = tuple(replica for replica in replicas if replica != broker)
    await admin.alter_partition_reassignments({name: others})
    try:
        await _until(f"{name}: the others take over", lambda: _is_given_up(admin, name, broker))
        await _until(f"{name}: broker {broker} deletes its copy", lambda: _is_gone(admin, name, broker))
        await admin.alter_partition_reassignments({name: replicas})
        await _until(f"{name}: broker {broker} fetches it", lambda: _is_back(admin, name, broker, replicas))
    except BaseException:
        say(f"{name} may lack its replica on broker {broker}; restore it with `kraftpy topic reassign --plan`:")
        click.echo(render_plan({name: replicas}), err=True)
        raise
    found = await _partition(admin, name)
    sizes = [
        directory.partitions[name].size_bytes
        for directory in await admin.describe_log_dirs([broker])
        if name in directory.partitions
    ]
    return {
        "topic": name.topic,
        "partition": name.partition,
        "broker": broker,
        "leader": found.leader,
        "replicas": list(found.replicas),
        "isr": list(found.in_sync_replicas),
        "size_bytes": sum(sizes),
    }


async def _until(what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
    if at_terminal():
        say(what)
    while True:
        if await is_so():
            return
        await asyncio.sleep(POLL_SECONDS)


async def _partition(admin: Admin, name: Any) -> PartitionInfo:
    return (await chosen_partitions(admin, [PartitionSet(name.topic, frozenset([name.partition]))]))[0]


async def _is_given_up(admin: Admin, name: Any, broker: int) -> bool:
    return broker not in (await _partition(admin, name)).replicas


async def _is_gone(admin: Admin, name: Any, broker: int) -> bool:
    """Return whether the broker has deleted its copy: added back before that, it would continue with the old one."""
    return all(name not in directory.partitions for directory in await admin.describe_log_dirs([broker]))


async def _is_back(admin: Admin, name: Any, broker: int, replicas: tuple[int, ...]) -> bool:
    found = await _partition(admin, name)
    return (
        broker in found.in_sync_replicas
        and tuple(found.replicas) == replicas
        and not await admin.list_partition_reassignments([name])
    )


def _brokers(ids: Any) -> str:
    return ",".join(map(str, ids))
