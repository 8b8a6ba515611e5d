"""`kraftpy load`: write new records of topics to Parquet files, a Delta table or an Iceberg table. Made for cron."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kraftpy.cli.audit import audit_topic_option, window_option
from kraftpy.cli.connect import bootstrap_option, probe, security_options
from kraftpy.cli.output import Failure, format_option, print_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from kraftpy.spark.load import Loaded, LoadOptions, Table
    from kraftpy.spark.load_tasks import TimeUnit


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option(
    "--to",
    "kind",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Kind of table.",
)
@click.option("--table", required=True, metavar="TABLE", help="A directory; for iceberg, namespace.table.")
@click.option("--catalog", metavar="URI", help="Database of the iceberg catalog, such as sqlite:///catalog.db.")
@click.option("--warehouse", type=click.Path(file_okay=False, path_type=Path), help="Directory for new iceberg tables.")
@click.option("--name", default="kraftpy", show_default=True, help="Name of this load in the table.")
@click.option(
    "--by",
    type=click.Choice(["day", "hour"]),
    default="day",
    show_default=True,
    help="Partition the table by this unit of time.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_committed skips aborted transactions.",
)
@click.option(
    "--max-records-per-partition", type=click.IntRange(min=1), help="Offsets of each partition in one commit, at most."
)
@click.option("--audit-tier", metavar="NAME", help="Count the records in the audit topic, as this tier.")
@audit_topic_option
@window_option
@click.option("--metrics-listener", metavar="HOST:PORT", help="Show metrics to Prometheus while the load runs.")
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write metrics to this file at the end, for node_exporter's textfile collector (.prom).",
)
@click.option("--allow-data-loss", is_flag=True, help="If records are gone, continue at the log's start.")
@bootstrap_option
@format_option
def load(
    topics: tuple[str, ...],
    kind: str,
    table: str,
    catalog: str | None,
    warehouse: Path | None,
    name: str,
    by: str,
    isolation_level: str,
    max_records_per_partition: int | None,
    audit_tier: str | None,
    audit_topic: str,
    window_minutes: int,
    metrics_listener: str | None,
    metrics_file: Path | None,
    allow_data_loss: bool,
    bootstrap: str,
    form: str,
) -> None:
    """Load new records of TOPICS into a table, each exactly once.

    The table stores the next load's starting point in the same commit as the records, so an interrupted load can simply
    be run again. Needs the extra `load`, `delta` or `iceberg`.

    \b
      kraftpy load flights --table /data/flights
      kraftpy load flights --to delta --table /data/flights
      kraftpy load flights --to iceberg --table events.flights --catalog sqlite:////data/catalog.db --warehouse /data
    """
    try:
        from kraftpy.spark.load import LoadConflict, LoadOptions
        from kraftpy.spark.load import load as run
        from kraftpy.spark.load_tasks import TimeUnit
        from kraftpy.spark.offsets import DataLossError

        unit = TimeUnit.DAY if by == "day" else TimeUnit.HOUR
        target = _table(kind, table, catalog, warehouse, name, unit)
    except ModuleNotFoundError as missing:
        extra = "load" if kind == "parquet" else kind
        raise Failure(f"{missing.name} is not installed: pip install 'kraftpy[{extra}]'") from None
    except ValueError as error:
        raise Failure(str(error)) from None
    probe(bootstrap)
    options = LoadOptions(
        bootstrap_servers=bootstrap,
        topics=topics,
        security=security_options(),
        isolation_level=isolation_level,
        max_records_per_partition=max_records_per_partition,
        fail_on_data_loss=not allow_data_loss,
        time_unit=unit,
        window_ms=window_minutes * 60_000,
    )
    from kraftpy.cli.load_metrics import watched

    try:
        with watched(target, name, metrics_listener, metrics_file) as shown:
            batches = run(options, shown, on_loaded=_teller(options, name, audit_tier, audit_topic))
    except (DataLossError, LoadConflict) as error:
        raise Failure(str(error)) from None
    rows = [{"batch": batch.batch_id, "records": batch.rows, "files": len(batch.files)} for batch in batches]
    print_rows(rows, form, empty="no new records")


def _teller(options: LoadOptions, name: str, tier: str | None, topic: str) -> Callable[[Loaded], None] | None:
    """Return a callback that counts each batch in the audit topic; a batch may be counted again after a failure."""
    if tier is None:
        return None
    from kraftpy.audit.counts import tallies_of
    from kraftpy.audit.topic import create_topic, publish

    create_topic(options.bootstrap_servers, topic, **options.security)

    def tell(loaded: Loaded) -> None:
        tallies = tallies_of(
            loaded.counts,
            tier=tier,
            source=f"{name}/{loaded.batch_id}",
            window_ms=loaded.window_ms,
            now_ms=time.time_ns() // 1_000_000,
        )
        publish(options.bootstrap_servers, topic, tallies, **options.security)

    return tell


def _table(kind: str, table: str, catalog: str | None, warehouse: Path | None, name: str, unit: TimeUnit) -> Table:
    if kind != "iceberg":
        if catalog is not None or warehouse is not None:
            raise click.UsageError("--catalog and --warehouse require --to iceberg")
        if kind == "delta":
            from kraftpy.spark.load_delta import LoadedDeltaTable

            return LoadedDeltaTable(Path(table), name, unit)
        from kraftpy.spark.load_parquet import ParquetTable

        return ParquetTable(Path(table), name)
    if catalog is None or warehouse is None:
        raise click.UsageError("--to iceberg requires --catalog and --warehouse")
    if "." not in table:
        raise click.UsageError("--table must be namespace.table with --to iceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    from kraftpy.spark.load_iceberg import LoadedIcebergTable

    database = SqlCatalog("kraftpy", uri=catalog, warehouse=warehouse.absolute().as_uri())
    return LoadedIcebergTable(database, table, name, unit)
