"""A Spark session for tests: quiet, local, with two cores, and a JVM that has ended when the test has."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kraftpy.spark.java import Java

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compile little and collect in one thread: a JVM of tests ends before more would be worth its time."""
_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def spark_session(java: Java, scratch: Path, *, jars: Sequence[Path] = ()) -> Iterator[SparkSession]:
    """Start a session. The JVM's output goes to a file in `scratch`; it always ends with the block.

    `jars` are libraries that Spark does not come with.
    """
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
        "spark.app.name": "kraftpy tests",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{SHORT_LIVED} -Dlog4j2.configurationFile={quiet.as_uri()}",
        "spark.local.dir": str((scratch / "blocks").resolve()),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": (scratch / "warehouse").resolve().as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if jars:
        settings["spark.jars"] = ",".join(path.resolve().as_uri() for path in jars)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with _environment(environment), (scratch / "spark.log").open("wb") as log, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Spark warns of pandas 3, which nothing here uses
        warnings.simplefilter("ignore", RuntimeWarning)  # and, if it is interrupted, of a JVM that is ended below
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
