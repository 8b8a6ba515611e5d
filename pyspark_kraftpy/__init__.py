"""The module through which Spark finds `spark.read.format("kraftpy")` without registration.

Spark imports every top-level module named `pyspark_*` in a worker when a session first needs a Python data source, and
uses its `DefaultSource`. This module therefore imports nothing of its own until a source is used; all the work is in
`kraftpy.spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Topics of a Kafka broker as rows, with the columns and options of Spark's own Kafka source."""

    def __init__(self, options: dict[str, str]) -> None:
        """Create a source. Raises UnsupportedSparkError if PySpark is too old."""
        from kraftpy.spark.versions import check_version

        check_version()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name to pass to `format`."""
        return "kraftpy"

    def schema(self) -> StructType | str:
        """Return Kafka's seven columns, and `headers` if `includeHeaders` is true. Raises OptionError."""
        from kraftpy.spark.source import default_schema

        return default_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader for the columns of `schema`; a user's schema prunes them. Raises OptionError."""
        from kraftpy.spark.source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader for the columns of `schema`. Raises OptionError."""
        from kraftpy.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch sink for rows with the columns of `schema`. Raises OptionError."""
        from kraftpy.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a sink for a streaming query's rows, a new one for every batch. Raises OptionError."""
        from kraftpy.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite=overwrite)
