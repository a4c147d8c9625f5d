"""What Spark runs of `format("lastword")` with `readTable=true`: the newest row of each key, with the columns and types of the topic.

```
 driver      schema                       the columns that the topic's sources have named, or the option `schema`
             partitions()                 one table version, a task a partition of the topic
 executors   read(partition)              its newest records, decoded
```

Spark plans a Python data source once: a DataFrame or a view stays at the table version of its first read. `load()`, or CREATE OR REPLACE
TEMPORARY VIEW, reads a newer one.

JSON and times of day are text, as Python data sources have no VARIANT: `parse_json(column)` gives it, and `SparkTopic.table` has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from lastword.change_data.columns.table_columns import TableDecoder
from lastword.compaction.errors import UserError
from lastword.storage.log.topic_log import open_log
from lastword.storage.reading.arrow_frames import latest_batches
from lastword.storage.reading.view import misfit_policy, newest_view
from lastword.storage.tables.typed_rows import decode_batch, table_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from lastword.change_data.columns.table_columns import TableColumns
    from pyspark_lastword.options import SourceOptions


class TableReader(DataSourceReader):
    """Reads the newest rows of a topic, all of them at one table version."""

    def __init__(self, options: SourceOptions) -> None:
        """Find the columns; raise `UnknownTopic` without a topic, `UserError` where the columns are not known or `schema` is no DDL."""
        self._options = options
        self._table_columns: TableColumns = table_columns(open_log(options.path, options.storage_options), options.schema)
        self._names = self.schema.fieldNames()

    @property
    def schema(self) -> StructType:
        """The columns of the table as a schema of Spark."""
        return from_arrow_schema(self._decoder().schema, prefer_timestamp_ntz=True)

    def select(self, schema: StructType) -> TableReader:
        """Read only the columns of `schema`; raise `UserError` if the table lacks one of them, or has it with another type."""
        known = {field.name: field.dataType for field in self.schema}
        for field in schema:
            if known.get(field.name) != field.dataType:
                message = (
                    f'format("lastword"): column {field.name} {field.dataType.simpleString()}: the table has '
                    f"{', '.join(f'{name} {data_type.simpleString()}' for name, data_type in known.items())}; "
                    "to read other types, give the option schema"
                )
                raise UserError(message)
        self._names = schema.fieldNames()
        return self

    def partitions(self) -> list[InputPartition]:
        """Return a task for each partition of the topic: its number, and the view that all of them read."""
        view = newest_view(open_log(self._options.path, self._options.storage_options), self._options.isolation)
        return [InputPartition((view, number)) for number in range(view.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; raise `UserError` for a value that does not fit, or when VACUUM has taken a file."""
        view, number = partition.value
        decoder = self._decoder()
        try:
            for records in latest_batches(view, ("partition", "offset", "key", "value"), [number]):
                for rows in decode_batch(records, decoder, topic=view.topic):
                    yield rows.select(self._names)
        except FileNotFoundError as error:
            message = (
                f"topic {view.topic}: a file of table version {view.version} was removed by VACUUM: load() it, or create the view, again"
            )
            raise UserError(message) from error

    def _decoder(self) -> TableDecoder:
        return TableDecoder(self._table_columns, on_misfit=misfit_policy(self._options.mode), for_spark=True)
