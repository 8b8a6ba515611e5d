"""The PySpark job: read the topic, parse the JSON, delays per carrier and per hour, all of it as Parquet.

The topic is read once; rows are counted on the way (`Observation`), so that the audit speaks of what Spark really
read. The JVM's output goes to a file: people at a terminal need no log lines, and a failure still leaves them
something to read.

Delays are in minutes. "Late" is 15 minutes or more, as the U.S. Department of Transportation counts. An hour is the
scheduled local one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kraftpy.demo.java import Java

FLIGHT_SCHEMA = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, sched_arr_time int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, air_time int, "
    "distance int, hour int, minute int, time_hour timestamp"
)
LATE_MINUTES = 15
_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The departures of one carrier or one hour; delays in minutes."""

    group: str
    flights: int
    cancelled: int
    mean: float
    median: float
    ninth_decile: float
    late_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What the job found and counted."""

    rows: int
    distinct_rows: int
    unparsed: int
    per_carrier: tuple[Delays, ...]
    per_hour: tuple[Delays, ...]


@contextlib.contextmanager
def spark_session(java: Java, scratch: Path) -> Iterator[SparkSession]:
    """A quiet local session with two cores; the JVM has ended when the block is left, however it is left."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    scratch.mkdir(parents=True, exist_ok=True)
    quiet = (scratch / "log4j2.properties").resolve()
    quiet.write_text(_QUIET)
    environment = {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "kraftpy demo",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.local.dir": str((scratch / "blocks").resolve()),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": (scratch / "warehouse").resolve().as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with _environment(environment), (scratch / "spark.log").open("wb") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Spark warns of pandas 3, which nothing here uses
        warnings.simplefilter("ignore", RuntimeWarning)  # and, where it is interrupted, of a JVM we end below
        gateway = launch_gateway(
            conf,  # type: ignore[no-untyped-call]
            popen_kwargs={"stdout": log, "stderr": log},
        )
        try:
            interrupt = signal.getsignal(signal.SIGINT)
            context = SparkContext(conf=conf, gateway=gateway)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, interrupt)  # Spark's own speaks to the JVM in the middle of another call
            session = SparkSession(context)
            try:
                yield session
            finally:
                session.stop()
        finally:
            _end_gateway(gateway.proc)
            gateway.shutdown()
            SparkContext._gateway = None
            SparkContext._jvm = None


def _end_gateway(process: subprocess.Popen[bytes]) -> None:
    """The JVM ends when its standard input does; one that does not is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def analyse(spark: SparkSession, bootstrap: str, topic: str, parquet: Path) -> Analysis:
    """Read every record of `topic`, write `flights`, `carriers` and `hours` below `parquet`, return what was found."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    records = (
        spark.read.format("kraftpy").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    )
    row = f.from_json(f.col("value").cast("string"), FLIGHT_SCHEMA)
    flights = records.select("partition", "offset", f.col("timestamp").alias("event_time"), row.alias("row"))
    counted = Observation("rows")
    flights.observe(
        counted,
        f.count(f.lit(1)).alias("rows"),
        f.count_if(f.col("row.carrier").isNull()).alias("unparsed"),
    ).select("partition", "offset", "event_time", "row.*").write.mode("overwrite").parquet(str(parquet / "flights"))
    counts = counted.get

    written = spark.read.parquet(str(parquet / "flights"))
    distinct_rows = written.select("partition", "offset").distinct().count()
    return Analysis(
        rows=counts["rows"],
        distinct_rows=distinct_rows,
        unparsed=counts["unparsed"],
        per_carrier=_delays(written, "carrier", parquet / "carriers"),
        per_hour=_delays(written, "hour", parquet / "hours"),
    )


def _delays(flights: DataFrame, column: str, parquet: Path) -> tuple[Delays, ...]:
    """Departure delays by a column, in its order, also as Parquet."""
    from pyspark.sql import functions as f

    delay = f.col("dep_delay")
    grouped = flights.groupBy(column).agg(
        f.count(f.lit(1)).alias("flights"),
        f.count_if(f.col("dep_time").isNull()).alias("cancelled"),
        f.avg(delay).alias("mean"),
        f.percentile_approx(delay, 0.5).cast("double").alias("median"),
        f.percentile_approx(delay, 0.9).cast("double").alias("ninth_decile"),
        f.avg((delay >= LATE_MINUTES).cast("int")).alias("late_share"),
    )
    ordered = grouped.orderBy(column).coalesce(1)
    ordered.write.mode("overwrite").parquet(str(parquet))
    return tuple(
        Delays(
            group=str(row[column]),
            flights=row["flights"],
            cancelled=row["cancelled"],
            mean=_number(row["mean"]),
            median=_number(row["median"]),
            ninth_decile=_number(row["ninth_decile"]),
            late_share=_number(row["late_share"]),
        )
        for row in flights.sparkSession.read.parquet(str(parquet)).orderBy(column).collect()
    )


def _number(value: float | None) -> float:
    """A group in which every flight was cancelled has no delays."""
    return float("nan") if value is None else float(value)
