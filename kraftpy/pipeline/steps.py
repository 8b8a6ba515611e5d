"""The steps of a pipeline as plain functions: topic, bronze, silver and quarantine, windows, topic and Parquet.

They take and return streaming or batch DataFrames. A project's transformations call them; a query that is not
declarative, or a test, can use the very same steps. Columns:

    bronze      the reader's columns: key, value, topic, partition, offset, timestamp, timestampType
    good        the fields of the value, and topic, partition, offset, timestamp of its record
    quarantined the columns of bronze and `reason`: why the value is not good
    windowed    `start` and `end` of the window, the columns it is grouped by, `n`
    records     key and value (JSON), in the form the sink takes

Every row of bronze is in exactly one of `good` and `quarantined`. Values are parsed by Spark's `from_json`, not by the
reader's `value.format` (docs/decisions/0031).

Left out: watermarks. A declarative pipeline has them in SQL (`counts.sql` of the template), because Spark 4.3 resolves
a DataFrame with a watermark before it knows the pipeline's own tables. For the same reason no function here asks a
DataFrame for its columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BRONZE = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of records, in the reader's form."""
_PLACE = ("topic", "partition", "offset", "timestamp")
_DAMAGED = "_damaged"
COMMAND_CONFIG = "KRAFTPY_COMMAND_CONFIG"
"""The environment variable that names a properties file with client settings."""
_PROJECT_S = "spark.kraftpy.command.config"


def security(spark: SparkSession) -> dict[str, str]:
    """Return the reader's and the sink's options for TLS and SASL, from a properties file with client settings.

    The environment names the file, or else the project does. If neither does, there are no such options. Raises
    ConfigError, OSError.
    """
    path = os.environ.get(COMMAND_CONFIG) or spark.conf.get(_PROJECT_S, "")
    if not path:
        return {}
    from kraftpy.config.sources import parse_properties

    found = parse_properties(Path(path).read_text(encoding="utf-8"), path)
    return {f"kafka.{name}": value for name, value in found.items() if name.startswith(("security.", "ssl.", "sasl."))}


def bronze(spark: SparkSession, topic: str, *, bootstrap_servers: str, **options: str) -> DataFrame:
    """Stream the topic's records unchanged, from the earliest on. `options` are the reader's."""
    chosen = {"kafka.bootstrap.servers": bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("kraftpy").options(**{**chosen, **options}).load()


def good(records: DataFrame, *, fields: Mapping[str, str], required: Sequence[str]) -> DataFrame:
    """Select values that are JSON objects of these fields (name -> SQL type) with all required ones, as columns.

    Raises ValueError for a field with the name of a bronze column, or a required name that is not a field.
    """
    read = _read(records, fields)
    return read.where(_reason(fields, required).isNull()).select(*fields, *_PLACE)


def quarantined(records: DataFrame, *, fields: Mapping[str, str], required: Sequence[str]) -> DataFrame:
    """Select the records that `good` leaves out, unchanged, with the reason. Raises as `good` does."""
    read = _read(records, fields).select(*BRONZE, _reason(fields, required).alias("reason"))
    return read.where("reason is not null")


def windowed(rows: DataFrame, *, time: str, window: str, by: Sequence[str], watermark: str) -> DataFrame:
    """Count rows per window of `time` and combination of `by`; rows may be late by up to `watermark`."""
    from pyspark.sql import functions as f

    groups = [f.window(time, window).alias("window"), *(f.col(name) for name in by)]
    counted = rows.withWatermark(time, watermark).groupBy(*groups).agg(f.count(f.lit(1)).alias("n"))
    start, end = f.col("window").getField("start").alias("start"), f.col("window").getField("end").alias("end")
    return counted.select(start, end, *by, "n")


def as_records(rows: DataFrame, *, key: str) -> DataFrame:
    """Convert rows to records: the key as text, and all columns as a JSON object."""
    from pyspark.sql import functions as f

    return rows.select(f.col(key).cast("string").alias("key"), f.to_json(f.struct("*")).alias("value"))


def to_topic(
    records: DataFrame,
    topic: str,
    *,
    bootstrap_servers: str,
    checkpoint: str,
    delivery: str = "exactly_once",
    **options: str,
) -> StreamingQuery:
    """Start a query that writes all available rows to a topic and ends. The sink's `delivery` is its guarantee.

    `options` are the sink's.
    """
    chosen = {"kafka.bootstrap.servers": bootstrap_servers, "topic": topic, "delivery": delivery, **options}
    writer = records.writeStream.format("kraftpy").options(**chosen).option("checkpointLocation", checkpoint)
    return writer.outputMode("append").trigger(availableNow=True).start()


def to_parquet(rows: DataFrame, path: str, *, checkpoint: str, partition_by: Sequence[str] = ()) -> StreamingQuery:
    """Start a query that appends all available rows to Parquet files and ends: each row once (Spark's file sink)."""
    writer = rows.writeStream.format("parquet").option("path", path).option("checkpointLocation", checkpoint)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    return writer.outputMode("append").trigger(availableNow=True).start()


def _read(records: DataFrame, fields: Mapping[str, str]) -> DataFrame:
    """Return the columns of bronze and the fields of its values.

    A generator makes sure that each value is parsed once; each field taken from one `from_json` may parse it again.
    """
    from pyspark.sql import functions as f

    clash = sorted(set(BRONZE) & set(fields))
    if clash:
        raise ValueError(f"fields named as columns of records: {', '.join(clash)}")
    schema = ", ".join(f"`{name}` {of_type}" for name, of_type in {**fields, _DAMAGED: "string"}.items())
    parsed = f.from_json(f.col("value").cast("string"), schema, {"columnNameOfCorruptRecord": _DAMAGED})
    return records.select(*BRONZE, f.inline_outer(f.array(parsed)))


def _reason(fields: Mapping[str, str], required: Sequence[str]) -> Column:
    """Say why a value is not good; null if it is."""
    from pyspark.sql import functions as f

    unknown = sorted(set(required) - set(fields))
    if unknown:
        raise ValueError(f"required, but no fields: {', '.join(unknown)}")
    is_blank = f.col("value").cast("string").rlike(r"^\s*$")  # `from_json` yields null for it, and reports no damage
    reason = f.when(f.col("value").isNull(), "no value")
    reason = reason.when(f.col(_DAMAGED).isNotNull() | is_blank, "not of the schema")
    for name in required:
        reason = reason.when(f.col(name).isNull(), f"no {name}")
    return reason
