"""Read and write Kafka topics with PySpark. Imports the client only.

Spark finds the format `kraftpy` by itself; `configure` makes the one setting that has to precede the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Let sessions push filters into Python sources. Needed by the option `pushdown`; changes nothing else."""
    return builder.config("spark.sql.python.filterPushdown.enabled", "true")
