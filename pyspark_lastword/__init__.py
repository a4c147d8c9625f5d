"""`format("lastword")`: a topic as a Spark source, batch and streaming, with the columns and options of Spark's Kafka source.

```python
spark.read.format("lastword").load("data/fruit-prices")
spark.readStream.format("lastword").option("startingOffsets", "earliest").load("data/fruit-prices")  # Spark 4.2
```

PySpark finds this module by its name (`pyspark_…`) in every session, so it imports nothing but PySpark's own interface.

`readers` plans on the driver and reads in Python workers, for batches and streams alike; `stream` is the stream of it; `table` reads the
newest rows with their own columns, `readTable=true`.

Columns: key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int (0, CreateTime), and
with `includeHeaders=true` headers array<struct<key string, value binary>>. Options: `pyspark_lastword.options`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_lastword.options import SourceOptions
    from pyspark_lastword.readers import TopicBatchReader
    from pyspark_lastword.stream import TopicStreamReader
    from pyspark_lastword.table import TableReader

__all__ = ["DefaultSource"]

_COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"


class DefaultSource(DataSource):
    """The source that `format("lastword")` names."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lastword"

    def schema(self) -> str | StructType:
        """Return the columns; raise `InvalidConfiguration` with everything that is wrong with the options."""
        options = self._parse_options()
        return _table_reader(options).schema if options.read_table else _COLUMNS + (_HEADERS if options.include_headers else "")

    def reader(self, schema: StructType) -> TopicBatchReader | TableReader:
        """Return what reads a batch; raises `UserError` for a `schema` that a table does not have."""
        from pyspark_lastword.readers import TopicBatchReader  # noqa: PLC0415

        options = self._parse_options(streaming=False)
        return _table_reader(options).select(schema) if options.read_table else TopicBatchReader(options, schema.fieldNames())

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802  PySpark's name
        """Return what reads micro-batches; raises `UserError` on a Spark that does not say where a stream is."""
        options = self._parse_options(streaming=True)
        try:
            from pyspark_lastword.stream import TopicStreamReader  # noqa: PLC0415
        except ModuleNotFoundError as error:
            if error.name != "pyspark.sql.streaming.datasource":
                raise
            from lastword.compaction.errors import UserError  # noqa: PLC0415

            message = (
                'format("lastword") streams on Spark 4.2 and reads batches on Spark 4.0 and 4.1: for a stream there, use SparkTopic.tail()'
            )
            raise UserError(message) from None
        return TopicStreamReader(options, schema.fieldNames())

    def _parse_options(self, *, streaming: bool | None = None) -> SourceOptions:
        from pyspark_lastword.options import SourceOptions  # noqa: PLC0415  PySpark imports this module in sessions that never use it

        return SourceOptions.parse(self.options, streaming=streaming)


def _table_reader(options: SourceOptions) -> TableReader:
    from pyspark_lastword.table import TableReader  # noqa: PLC0415

    return TableReader(options)
