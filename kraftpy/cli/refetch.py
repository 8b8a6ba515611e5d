"""`kraftpy topic refetch`: throw a broker's copy of partitions away and have it copied anew from their leaders.

For a copy that is damaged on the disk. It is taken out of the partition's replicas, as a move to the other brokers, and
put back where it was once the broker has deleted it. So it is the controller who sees to it that nothing is lost: a
broker without its copy is no replica, is in no ISR and leads nothing until it has fetched everything again, and where
it led, a replica in sync leads first. A copy that is the only one in sync is not thrown away.

Until it is back the partition has one replica less. Where this is interrupted, the last line says how to put it back.

Left out: a broker that does not run (start it first: what is damaged is not delivered).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, say
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, partitions_argument

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.model import PartitionInfo

POLL_SECONDS = 0.2


@click.command()
@partitions_argument
@bootstrap_option
@click.option("--broker", type=click.IntRange(min=0), required=True, metavar="ID", help="Whose copy is thrown away.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@format_option
def refetch(wanted: list[PartitionSet], bootstrap: str, broker: int, yes: bool, form: str) -> None:
    """Throw a broker's copy of partitions away and copy it anew from their leaders.

    For a copy that `kraftpy log verify` or the broker's own log found damaged. Refused where it is the only copy in
    sync. The partition has one replica less until the new copy is in sync, when the command returns.

    What is damaged in every other copy, too, cannot be fetched: where disks fail in numbers, verify the others first.

    \b
      kraftpy topic refetch flights:0 --broker 2
    """
    if not wanted:
        raise click.UsageError("name the partitions, as in flights:0")
    if not yes and at_terminal():
        click.confirm(f"Delete broker {broker}'s copy of {_list(wanted)} and fetch it anew?", abort=True)

    async def work() -> list[dict[str, Any]]:
        from kraftpy.client import Admin

        async with Admin(bootstrap_servers=bootstrap, client_id="kraftpy-topic") as admin:
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
    """Refuse, before anything is done, what would lose records or could not be finished. Raises Failure."""
    alive = {node.node_id for node in (await admin.describe_cluster()).nodes}
    if broker not in alive:
        raise Failure(f"broker {broker} does not run; start it, then throw its copy away")
    moving = await admin.list_partition_reassignments([info.topic_partition for info in infos])
    for info in infos:
        name = info.topic_partition
        if broker not in info.replicas:
            raise Failure(f"broker {broker} has no copy of {name}: its replicas are {_brokers(info.replicas)}")
        if name in moving:
            raise Failure(f"{name} is on the move; see `kraftpy topic reassign --verify`")
        if not alive.intersection(info.in_sync_replicas).difference({broker}):
            raise Failure(f"broker {broker} has the only copy of {name} in sync: without it records would be lost")


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
        say(f"{name} may lack its replica on broker {broker}: with this, `kraftpy topic reassign --plan` puts it back")
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
    """Whether the broker has let go of its copy: put back before that, it would go on with the old one."""
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
