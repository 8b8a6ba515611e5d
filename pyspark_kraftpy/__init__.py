"""What Spark finds by itself: `spark.read.format("kraftpy")`, without registration.

Spark imports every top-level module named `pyspark_*` in a worker when a session first needs a Python data source,
and takes its `DefaultSource`. So this module imports nothing of its own until a source is used; all the work is in
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
    """Topics of a Kafka broker as rows: the columns and options of Spark's own Kafka source."""

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "kraftpy"

    def schema(self) -> StructType | str:
        """Kafka's seven columns, and `headers` where `includeHeaders` is true. Raises OptionError."""
        from kraftpy.spark.source import default_schema

        return default_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader for the columns of `schema`; a schema the user gave prunes them. Raises OptionError."""
        from kraftpy.spark.source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream reader for the columns of `schema`. Raises OptionError."""
        from kraftpy.spark.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch sink for rows of `schema`, Kafka's sink columns. Raises OptionError."""
        from kraftpy.spark.sink import BatchSink

        return BatchSink(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A sink for a streaming query's rows, made anew for every batch. Raises OptionError."""
        from kraftpy.spark.sink import StreamSink

        return StreamSink(self.options, schema, overwrite=overwrite)
