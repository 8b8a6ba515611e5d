"""Reading and writing with PySpark. Imports the client only.

Spark finds the format `kraftpy` by itself; `configure` is for what has to be said before a session begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Let sessions push filters into Python sources: the option `pushdown` needs it, and nothing else changes."""
    return builder.config("spark.sql.python.filterPushdown.enabled", "true")
