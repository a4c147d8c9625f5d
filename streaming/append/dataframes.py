"""A DataFrame as the input of an append: small ones come to this process, large ones are written by Spark's tasks.

```
 small   tasks hand over their rows as Arrow, 64 MiB in all     ──► lastword.storage.append.writing, here          one Spark job
 large   validate ──► a shuffle by partition, in source order ──► number and write a file a slice, in the tasks    one Spark job
```

Both use the same functions over Arrow batches. What is small is not known beforehand: a task whose rows exceed its share says so and the
append goes the large way, as do the next ones, until tasks write rows that would have fitted (`DataFrameRows._choose_writer`). When another
append commits first, rows in memory are numbered again; a large DataFrame is computed again.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import groupby, pairwise, starmap
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.change_data.events.event_rows import event_rows
from lastword.compaction.errors import InvalidRecords
from lastword.compaction.rows.batches import join_batches
from lastword.compaction.rows.input_columns import (
    COLUMNS,
    EVENT,
    IGNORED_COLUMNS,
    ORDER_PREFIX,
    RECORD_KEY,
    REFUSAL,
    SOURCE_TIME,
    UNCHANGED,
    ColumnKind,
    EventPolicy,
    InputColumn,
    check_event_columns,
    check_names,
)
from lastword.storage.append.plan import Written
from lastword.storage.append.writing import ArrowRows, PartitionAppend, Refusals, SliceFiles, validated_events
from lastword.storage.files.schema import HEADERS_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from lastword.change_data.events.envelopes import Envelope
    from lastword.change_data.events.event_rows import FrameDecoder
    from lastword.storage.append.plan import AppendPlan
    from lastword.storage.append.requests import AppendStats
    from lastword.storage.files.data_files import DataFile

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_POSITION: Final = f"{ORDER_PREFIX}~position"
#: The partition of a validated row, -1 for a refused one; the Spark partition that it goes to.
_AT, _TASK, _REASON, _DETAIL = "__at", "__task", "__reason", "__detail"
#: The number of a row in its Arrow batch. It orders the two rows of an event that changes its key, which have the same position.
_ROW: Final = "__row"
_KINDS: Final[tuple[tuple[tuple[type[T.DataType], ...], ColumnKind], ...]] = (
    ((T.NullType,), ColumnKind.NULL),
    ((T.BinaryType,), ColumnKind.BYTES),
    ((T.StringType,), ColumnKind.TEXT),
    ((T.ByteType, T.ShortType, T.IntegerType, T.LongType), ColumnKind.WHOLE),
    ((T.TimestampType,), ColumnKind.TIME),
    ((T.BooleanType,), ColumnKind.FLAG),
    ((T.DecimalType, T.FloatType, T.DoubleType, T.DateType, T.TimestampNTZType), ColumnKind.ORDERED),
)
_VALIDATED_DDL: Final = {
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp_ltz",
    "key": "binary",
    "value": "binary",
    "headers": HEADERS_TYPE,
}
_PRODUCER_DDL: Final = {
    "producer_id": "bigint",
    "producer_epoch": "int",
    "sequence": "int",
    "transactional": "boolean",
    "control": "string",
}


def dataframe_columns(schema: T.StructType) -> dict[str, InputColumn]:
    """Return the columns of a DataFrame; raises `InvalidRecords` for one that comes more than once."""
    check_names(schema.names)
    return {field.name: InputColumn(_kind(field.dataType), field.dataType.simpleString()) for field in schema.fields}


def _kind(data_type: T.DataType) -> ColumnKind:
    if isinstance(data_type, T.ArrayType) and data_type.simpleString() == HEADERS_TYPE:
        return ColumnKind.HEADERS
    if isinstance(data_type, T.StructType):
        parts = [_kind(field.dataType) for field in data_type.fields]
        is_ordered = bool(parts) and not {ColumnKind.OTHER, ColumnKind.NULL, ColumnKind.HEADERS} & set(parts)
        ordered = ColumnKind.ORDERED_TEXT if {ColumnKind.TEXT, ColumnKind.ORDERED_TEXT} & set(parts) else ColumnKind.ORDERED
        return ordered if is_ordered else ColumnKind.OTHER
    return next((kind for types, kind in _KINDS if isinstance(data_type, types)), ColumnKind.OTHER)


#: The driver writes a DataFrame whose rows take at most so many bytes in memory, and each task hands over at most an equal share.
MAX_COLLECTED_BYTES: Final = 64 * 2**20
_MOST_SKEWED: Final = 6


class DataFrameRows:
    """A batch DataFrame, or a micro-batch, as the input of an append."""

    def __init__(
        self,
        rows: DataFrame,
        stats: AppendStats,
        policy: EventPolicy | None = None,
        *,
        max_collected_bytes: int | None = None,
        events: tuple[Task, list[T.StructField]] | None = None,
    ) -> None:
        """Take a DataFrame with the columns of `Topic.append`; `stats` knows whether the last one was large.

        `policy` is given if the rows are change events; `events` if a task must read them first: this task, and the columns it returns.
        """
        self._rows, self._stats, self.policy = rows, stats, policy
        self._max_collected_bytes = MAX_COLLECTED_BYTES if max_collected_bytes is None else max_collected_bytes
        self._read: Task = events[0] if events else iter
        fields = events[1] if events else rows.schema.fields
        self._fields = [T.StructField(field.name, field.dataType) for field in fields if field.name not in IGNORED_COLUMNS]
        self._fields.append(T.StructField(_POSITION, T.LongType()))
        self._collected: ArrowRows | None = None

    @staticmethod
    def of_events(
        rows: DataFrame, stats: AppendStats, envelope: Envelope, topic: str, decoder: FrameDecoder | None = None
    ) -> DataFrameRows:
        """Take a DataFrame of events in an envelope, which Spark's tasks read; raises `InvalidRecords` for one without key and value."""
        check_event_columns(dataframe_columns(rows.schema), topic=topic)
        return DataFrameRows(rows, stats, envelope.policy, events=_read_events(rows.schema, envelope, decoder))

    @property
    def columns(self) -> Mapping[str, InputColumn]:
        """The columns, and the position of a row in the DataFrame as the last order column."""
        return dataframe_columns(T.StructType(self._fields))

    def write(self, plan: AppendPlan) -> Written:
        """Write the rows here or in tasks; see `lastword.storage.append.requests.InputRows`."""
        is_tried = self._collected is None and not self._stats.is_large
        if is_tried:
            self._collected = self._collect()
        if self._collected is not None:
            self._stats.skewed = 0
            return self._collected.write(plan)
        written = self._write_in_tasks(plan)
        self._choose_writer(written.row_bytes, is_tried=is_tried)
        return written

    def _choose_writer(self, row_bytes: int, *, is_tried: bool) -> None:
        """Decide whether the driver or Spark's tasks write the next rows. Tasks have written `row_bytes`; `is_tried`: the driver could not.

        Rows that fit into the share of one task always can. Where tasks had unequal shares the next try is after 2, 4, 8 … 64 appends.
        """
        stats, fits = self._stats, row_bytes < self._max_collected_bytes
        if row_bytes < self._share_bytes:
            stats.left_to_tasks = 0
        elif fits and is_tried:
            stats.skewed = min(stats.skewed + 1, _MOST_SKEWED)
            stats.left_to_tasks = 2**stats.skewed
        elif fits:
            stats.left_to_tasks = max(0, stats.left_to_tasks - 1)
        stats.is_large = not fits or stats.left_to_tasks > 0

    def _collect(self) -> ArrowRows | None:
        """Return the rows, in no order; None when they are too many bytes."""
        rows = self._add_positions().coalesce(self._tasks)
        handed = rows.mapInArrow(_hand_over(self._share_bytes, self._read), T.StructType(self._fields)).toArrow()
        is_whole = not len(handed) or pc.min(handed.column(_POSITION)).as_py() >= 0
        return ArrowRows(handed, self.policy) if is_whole else None

    @property
    def _tasks(self) -> int:
        return max(1, self._rows.sparkSession.sparkContext.defaultParallelism)

    @property
    def _share_bytes(self) -> int:
        """How many bytes of rows one of the tasks may hand over."""
        return self._max_collected_bytes // self._tasks

    def _add_positions(self) -> DataFrame:
        names = [f"`{name}`" for name in self._rows.columns if name not in IGNORED_COLUMNS]
        return self._rows.selectExpr(*names, f"monotonically_increasing_id() AS `{_POSITION}`")

    def _write_in_tasks(self, plan: AppendPlan) -> Written:
        spark_partitions = min(len(plan.actives), max(2, self._tasks))
        types = {field.name: field.dataType.simpleString() for field in self._fields}
        shape = plan.rules.shape
        columns = _VALIDATED_DDL | (_PRODUCER_DDL if shape.has_producers else {})
        columns |= {"source_sequence": "string"} if shape.has_sequences else {}
        columns |= {UNCHANGED: "string", COLUMNS: "string", SOURCE_TIME: "bigint"} if shape.has_events else {}
        columns |= {name: types[name] for name in shape.order}
        columns |= {RECORD_KEY: "binary", "raw": "string", _REASON: "string", _DETAIL: "string", _AT: "int", _TASK: "int", _ROW: "int"}
        ddl = ", ".join(f"`{name}` {data_type}" for name, data_type in columns.items())
        validated = self._add_positions().mapInArrow(_validate(plan, spark_partitions, list(columns), self._read), ddl)
        order = ["offset"] if shape.has_offsets else [f"`{name}`" for name in shape.order]
        # Spark 4.0 has no repartitionById: a hash may give two partitions to the same task, and leave another task without rows.
        repartition = validated.repartitionById if hasattr(validated, "repartitionById") else validated.repartition
        spread = repartition(spark_partitions, F.col(_TASK)).sortWithinPartitions(_AT, *order, _ROW)
        return _together(spread.mapInArrow(_write(plan), "done binary").collect())


def _read_events(schema: T.StructType, envelope: Envelope, decoder: FrameDecoder | None) -> tuple[Task, list[T.StructField]]:
    """Return a task that turns change events into input rows of an append (`event_rows`), and the columns of these rows."""
    headers = T.ArrayType(T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())]))
    made: dict[str, T.DataType] = {"headers": headers, SOURCE_TIME: T.LongType()}
    made |= dict.fromkeys(("key", "value", RECORD_KEY), T.BinaryType())
    made |= dict.fromkeys(("source_sequence", EVENT, REFUSAL, UNCHANGED, COLUMNS), T.StringType())
    kept = [field for field in schema.fields if field.name not in {*made, "partition", "offset", *IGNORED_COLUMNS}]
    fields = [*starmap(T.StructField, made.items()), *kept]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield event_rows(batch, envelope, decoder).select([*(field.name for field in fields), _POSITION])

    return read, fields


def _together(rows: Sequence[Any]) -> Written:
    """Return what the tasks wrote; raise what one of them found wrong with its rows."""
    parts = [pickle.loads(bytes(row[0])) for row in rows]  # noqa: S301  our own, from our tasks
    for part in parts:
        if isinstance(part, InvalidRecords):
            raise part
    return Written.together(parts)


def _hand_over(share_bytes: int, read: Task) -> Task:
    """Return a task that reads rows and hands them over; when they exceed `share_bytes`, it stops after a row at position -1."""

    def hand_over(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size = 0
        for batch in read(batches):
            size += batch.nbytes
            if size > share_bytes:
                nulls = {field.name: pa.nulls(1, field.type) for field in batch.schema}
                yield pa.record_batch({**nulls, _POSITION: pa.array([-1], pa.int64())}, schema=batch.schema)
                return
            yield batch

    return hand_over


def _validate(plan: AppendPlan, spark_partitions: int, columns: Sequence[str], read: Task) -> Task:
    """Return a task that reads rows, validates them and adds the log partition and the Spark partition that each goes to."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in read(batches):
            validated = validated_events(batch, plan)
            refused = np.flatnonzero(validated.code).tolist()
            reasons, details = [None] * len(batch), [None] * len(batch)
            for row in refused:
                reasons[row], details[row] = validated.reason(row).value, validated.details[row]  # type: ignore[call-overload]
            partition = validated.rows.column("partition").fill_null(-1).to_numpy(zero_copy_only=False)
            at = np.where(validated.code == 0, partition, -1).astype(np.int32)
            given = {name: validated.rows.column(name) for name in validated.rows.schema.names}
            given |= {_REASON: pa.array(reasons, pa.string()), _DETAIL: pa.array(details, pa.string())}
            numbers = np.arange(len(batch), dtype=np.int32)
            given |= {_AT: pa.array(at), _TASK: pa.array(at % spark_partitions, pa.int32()), _ROW: pa.array(numbers)}
            yield pa.record_batch([given[name] for name in columns], names=list(columns))

    return run


def _write(plan: AppendPlan) -> Task:
    """Return a task that numbers and writes the rows of its partitions, one after the other, each in order; refused rows come first."""

    def rows_by_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            at = batch.column(_AT).to_numpy()
            bounds = [0, *(np.flatnonzero(np.diff(at)) + 1).tolist(), len(at)]
            yield from ((int(at[start]), batch.slice(start, end - start)) for start, end in pairwise(bounds) if end > start)

    def large(rows: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for partition, mine in groupby(rows, key=itemgetter(0)):
            yield from ((partition, batch) for batch in join_batches(batch for _, batch in mine))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = rows_by_partition(batches)
        yield _write_result(lambda: _written_in_order(plan, large(rows) if plan.rules.shape.has_sequences else rows))

    return run


def _write_result(write: Callable[[], Written]) -> pa.RecordBatch:
    """Write the rows of a task, and return the result as one pickled row.

    If rows are invalid, the row has the `InvalidRecords` error: the Spark job does not fail.
    """
    try:
        done: Written | InvalidRecords = write()
    except InvalidRecords as error:
        done = error
    return pa.record_batch([pa.array([pickle.dumps(done)], pa.binary())], names=["done"])


def _written_in_order(plan: AppendPlan, rows: Iterator[tuple[int, pa.RecordBatch]]) -> Written:
    """Write validated rows that come partition by partition; -1 is that of refused ones."""
    refusals, files = Refusals(plan), list["DataFile"]()
    current, append, slices, row_bytes = -1, None, None, 0
    try:
        for partition, batch in rows:
            row_bytes += batch.nbytes
            refusals.see(batch)
            if partition < 0:
                reasons, details = batch.column(_REASON).to_pylist(), batch.column(_DETAIL).to_pylist()
                refusals.add(batch, np.arange(len(batch)), reasons, details)
                continue
            if partition != current or append is None or slices is None:
                files += slices.close() if slices is not None else []
                current, append, slices = partition, PartitionAppend(plan, partition, refusals), SliceFiles(plan, partition)
            for part in append.take(batch):
                slices.write(part)
        files += slices.close() if slices is not None else []
    except BaseException:
        if slices is not None:
            slices.abandon()
        raise
    return replace(refusals.write_letters(files), row_bytes=row_bytes)
