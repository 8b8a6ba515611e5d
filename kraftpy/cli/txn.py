"""`kraftpy txn list|describe|find-hanging|abort`: transactions, and those that no coordinator will complete.

Works like Kafka's `kafka-transactions` tool (KIP-664): compares a partition's open transactions (DescribeProducers)
with those that the coordinators know (ListTransactions, DescribeTransactions), and ends a hanging one by writing a
marker (WriteTxnMarkers).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from kraftpy.cli.connect import admin_client, bootstrap_option, run
from kraftpy.cli.output import Failure, format_option, local_time, print_rows, tell
from kraftpy.cli.partitions import PartitionSet, chosen_partitions, parse_partitions, partitions_argument
from kraftpy.types import TopicPartition

if TYPE_CHECKING:
    from kraftpy.client import Admin
    from kraftpy.client.admin.model import ActiveProducer, TransactionDescription


@click.group()
def txn() -> None:
    """Show transactions, find hanging ones and abort them."""


@txn.command(name="list")
@bootstrap_option
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Show only this state, such as Ongoing; repeatable."
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=click.IntRange(min=0),
    multiple=True,
    help="Show only this producer's; repeatable.",
)
@click.option(
    "--duration-filter", type=click.IntRange(min=0), metavar="MS", help="Show only those open for longer than this."
)
@click.option(
    "--transactional-id-pattern", "pattern", metavar="REGEX", help="Show only ids that match, in RE2's syntax."
)
@format_option
def list_transactions(
    bootstrap: str,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_filter: int | None,
    pattern: str | None,
    form: str,
) -> None:
    """List the transactional ids of all coordinators.

    Prints a table at a terminal, and one id per line in a pipe.
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-txn") as admin:
            listed = await admin.list_transactions(
                states=states,
                producer_ids=producer_ids,
                running_longer_than_ms=-1 if duration_filter is None else duration_filter,
                pattern=pattern,
            )
        return [
            {
                "transactional_id": each.transactional_id,
                "coordinator": each.coordinator_id,
                "producer_id": each.producer_id,
                "state": each.state,
            }
            for each in listed
        ]

    print_rows(run(bootstrap, work()), form, plain="transactional_id", empty="no transactional ids")


@txn.command()
@click.argument("transactional_ids", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@bootstrap_option
@format_option
def describe(transactional_ids: tuple[str, ...], bootstrap: str, form: str) -> None:
    """Show transactions as their coordinators know them.

    Shows the producer, state, start time and partitions of each TRANSACTIONAL_ID.
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-txn") as admin:
            return [_described(each) for each in await admin.describe_transactions(transactional_ids)]

    print_rows(run(bootstrap, work()), form)


@txn.command(name="find-hanging")
@partitions_argument
@bootstrap_option
@click.option("--broker", type=int, metavar="ID", help="Check only partitions that this broker leads.")
@click.option(
    "--max-transaction-timeout",
    "max_minutes",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="The brokers' transaction.max.timeout.ms, in minutes: transactions written to more recently are skipped.",
)
@format_option
def find_hanging(wanted: list[PartitionSet], bootstrap: str, broker: int | None, max_minutes: int, form: str) -> None:
    """Find transactions that no coordinator will complete.

    Checks the partitions of the given topics, or of all topics.

    A read_committed consumer stops before such a transaction forever. `kraftpy txn abort` ends it.
    """

    async def work() -> list[dict[str, Any]]:
        async with admin_client(bootstrap, "kraftpy-txn") as admin:
            if not wanted:
                wanted.extend(PartitionSet(name, None) for name in await admin.list_topics(include_internal=True))
            partitions = [
                TopicPartition(each.topic, each.partition)
                for each in await chosen_partitions(admin, wanted)
                if broker is None or each.leader == broker
            ]
            now_ms = time.time_ns() // 1_000_000
            hanging = await admin.find_hanging_transactions(
                partitions, now_ms, max_transaction_timeout_ms=max_minutes * 60_000
            )
        return [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "producer_id": each.producer.producer_id,
                "producer_epoch": each.producer.producer_epoch,
                "coordinator_epoch": each.producer.coordinator_epoch,
                "start_offset": each.producer.current_transaction_start_offset,
                "last_timestamp": local_time(each.producer.last_timestamp_ms),
                "minutes": (now_ms - each.producer.last_timestamp_ms) // 60_000,
            }
            for each in hanging
        ]

    print_rows(run(bootstrap, work()), form, empty="no hanging transactions")


@txn.command()
@click.argument("where", metavar="TOPIC:PARTITION")
@bootstrap_option
@click.option("--start-offset", type=click.IntRange(min=0), help="First offset of the transaction.")
@click.option("--producer-id", type=click.IntRange(min=0), help="Its producer's id; requires --producer-epoch.")
@click.option("--producer-epoch", type=click.IntRange(min=0), help="The producer's epoch in the partition.")
@click.option(
    "--coordinator-epoch", type=click.IntRange(min=0), help="Epoch of the coordinator of its last marker there."
)
def abort(
    where: str,
    bootstrap: str,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a hanging transaction in one partition.

    Writes a marker without asking a coordinator: use it only on transactions that `find-hanging` reports. A committed
    transaction stays committed.

    \b
      kraftpy txn find-hanging
      kraftpy txn abort orders:3 --start-offset 1734
    """
    partition = _one_partition(where)
    is_by_producer = producer_id is not None and producer_epoch is not None
    is_half_named = (producer_id is None) != (producer_epoch is None)
    if is_half_named or is_by_producer == (start_offset is not None):
        raise click.UsageError("give either --start-offset, or --producer-id with --producer-epoch")

    async def work() -> tuple[int, int]:
        async with admin_client(bootstrap, "kraftpy-txn") as admin:
            if start_offset is not None:
                found = await _open_since(admin, partition, start_offset)
                # -1 if no marker of it was ever written: any coordinator epoch will do.
                its = (found.producer_id, found.producer_epoch, max(0, found.coordinator_epoch))
            else:
                assert producer_id is not None
                assert producer_epoch is not None
                its = (producer_id, producer_epoch, coordinator_epoch or 0)
            await admin.abort_transaction(partition, *its)
            return its[:2]

    producer = run(bootstrap, work())
    tell(f"aborted the transaction of producer {producer[0]}, epoch {producer[1]}, in {partition}")


async def _open_since(admin: Admin, partition: TopicPartition, start_offset: int) -> ActiveProducer:
    for producer in (await admin.describe_producers([partition]))[partition]:
        if producer.current_transaction_start_offset == start_offset:
            return producer
    raise Failure(f"no transaction is open in {partition} from offset {start_offset}")


def _one_partition(text: str) -> TopicPartition:
    try:
        topic, numbers = parse_partitions(text)
    except ValueError:
        topic, numbers = "", None
    if numbers is None or len(numbers) != 1:
        raise click.BadParameter(f"'{text}' is not TOPIC:PARTITION", param_hint="TOPIC:PARTITION")
    return TopicPartition(topic, next(iter(numbers)))


def _described(each: TransactionDescription) -> dict[str, Any]:
    is_open = each.started_at_ms >= 0
    return {
        "transactional_id": each.transactional_id,
        "coordinator": each.coordinator_id,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "state": each.state,
        "timeout_ms": each.timeout_ms,
        "started": local_time(each.started_at_ms) if is_open else None,
        "duration_ms": max(0, time.time_ns() // 1_000_000 - each.started_at_ms) if is_open else None,
        "partitions": [str(partition) for partition in sorted(each.partitions)],
    }
