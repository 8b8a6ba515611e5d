"""`kraftpy topic move-replica`: move a broker's replicas to another of its log directories (KIP-113).

Nothing moves between brokers; `kraftpy topic reassign` does that. `kraftpy cluster log-dirs` shows moves in progress.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, at_terminal, format_option, print_rows, say
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, partitions_argument

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.types import TopicPartition

POLL_SECONDS = 0.2


@click.command(name="move-replica")
@partitions_argument
@bootstrap_option
@click.option("--broker", type=click.IntRange(min=0), required=True, metavar="ID", help="Broker whose replicas move.")
@click.option("--to", "path", required=True, metavar="DIRECTORY", help="Target directory, as written in its log.dirs.")
@click.option("--wait", is_flag=True, help="Wait until the replicas have moved.")
@format_option
def move_replica(wanted: list[PartitionSet], bootstrap: str, broker: int, path: str, wait: bool, form: str) -> None:
    """Move replicas to another log directory of their broker.

    The replicas stay available meanwhile. Naming a replica's current directory cancels its move.

    \b
      kraftpy topic move-replica flights:0 --broker 1 --to /disks/b
      kraftpy topic move-replica flights --broker 1 --to /disks/b --wait
    """
    if not wanted:
        raise click.UsageError("name the partitions, as in flights:0")

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-topic") as admin:
            infos = await chosen_partitions(admin, wanted)
            names = [info.topic_partition for info in infos if broker in info.replicas]
            if not names:
                raise Failure(f"broker {broker} has no replica of these partitions")
            errors = await admin.alter_replica_log_dirs(broker, dict.fromkeys(names, path))
            for name, error in errors.items():
                if error:
                    raise Failure(f"cannot move {name}: {error.name}: {_MEANINGS.get(error.name, 'see the log')}")
            if wait:
                await _until_there(admin, broker, names, path)
            return await _rows(admin, broker, names)

    print_rows(run(bootstrap, work()), form)


_MEANINGS = {
    "LOG_DIR_NOT_FOUND": "the directory is not among the broker's log.dirs",
    "KAFKA_STORAGE_ERROR": "the directory or the replica is offline or not writable",
    "INVALID_REPLICA_ASSIGNMENT": "the directory is cordoned: it gets no new replicas (cordoned.log.dirs)",
    "REPLICA_NOT_AVAILABLE": "the broker does not have it yet and will create it there",
}


async def _rows(admin: Admin, broker: int, names: list[TopicPartition]) -> list[dict[str, Any]]:
    directories = await admin.describe_log_dirs([broker])
    rows = []
    for name in names:
        held = {each.path: each.partitions[name] for each in directories if name in each.partitions}
        here = next((path for path, part in held.items() if not part.is_future), None)
        future = next((path for path, part in held.items() if part.is_future), None)
        rows.append(
            {
                "topic": name.topic,
                "partition": name.partition,
                "broker": broker,
                "directory": here,
                "moving_to": future,
                "lag": held[future].offset_lag if future is not None else None,
            }
        )
    return rows


async def _until_there(admin: Admin, broker: int, names: list[TopicPartition], path: str) -> None:
    """Wait until none of them is moving, reporting how many are left. Raises Failure if one did not move."""
    told = -1
    while moving := [row for row in await _rows(admin, broker, names) if row["moving_to"] is not None]:
        if at_terminal() and len(moving) != told:
            told = len(moving)
            say(f"{told} of {len(names)} replicas are moving")
        await asyncio.sleep(POLL_SECONDS)
    for row in await _rows(admin, broker, names):
        if row["directory"] != path.rstrip("/"):
            raise Failure(f"{row['topic']}-{row['partition']} did not move: it is in {row['directory']}")
