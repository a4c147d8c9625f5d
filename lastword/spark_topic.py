"""A topic of `LogDir(spark, …)`: DataFrames in, DataFrames out, and what streams."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from pyspark.sql import DataFrame

from lastword.compaction.errors import UserError
from lastword.compaction.readers import EXPIRATION_MS
from lastword.compaction.rows.input_columns import check_sequence_column
from lastword.spark_transaction import SparkTransaction
from lastword.storage.files.locations import spark_location
from lastword.storage.ledger.table_columns import keep_columns
from lastword.storage.reading.time_travel import views_as_of
from lastword.storage.reading.view import misfit_policy, view_of
from lastword.streaming.append.auto_cdc import AutoCdcFlow, flow_columns, scd_type_of
from lastword.streaming.append.change_rows import change_rows, table_columns
from lastword.streaming.append.dataframes import DataFrameRows, dataframe_columns
from lastword.streaming.append.query import Grouping, start_append_query, stop_append_queries, stop_append_query
from lastword.streaming.append.source_rows import columns_of_words
from lastword.streaming.reading.changes import changes as every_change
from lastword.streaming.reading.changes import net_changes
from lastword.streaming.reading.dataframes import data_records, latest_records, log_records
from lastword.streaming.reading.decoding import as_table, decoded
from lastword.streaming.reading.tail import Tail, TailOptions
from lastword.streaming.reading.tail_source import streaming_frame
from lastword.topic import AsOf, ChangeBound, Keys, StartingOffsets, Topic
from lastword.topics.appending import GivenRows, check_envelope, read_words
from lastword.topics.arguments import check_decoder, read_keys
from lastword.topics.materializing import start_sink, start_table_query
from lastword.topics.positions import change_vectors, starting_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack

    from lastword.change_data.events.envelopes import Envelope
    from lastword.change_data.events.event_rows import FrameDecoder
    from lastword.change_data.frames.row_words import RowArguments
    from lastword.compaction.read_positions import Position
    from lastword.handle import Handle
    from lastword.storage.append.inputs import ArrowInput
    from lastword.storage.append.requests import AppendResult, EventSource
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.auto_cdc import Names
    from lastword.streaming.append.change_rows import Expression
    from lastword.streaming.append.upstream import Mirror, Upstream
    from lastword.streaming.reading.sinks import Sink
    from lastword.topics.appending import AppendArguments
    from lastword.topics.materializing import SinkArguments, TableQuery
    from lastword.topics.tables import TableArguments


class SparkBootstrap(NamedTuple):
    """The last words at one table version, and the position at which a tail goes on: the next offset of every partition."""

    rows: DataFrame
    position: Position


class SparkTopic(Topic):
    """A topic whose rows are DataFrames. Make one with `create_topic` or `topic` of `LogDir(spark, …)`."""

    def __init__(self, log_dir: Handle, log: TopicLog, spark: SparkSession) -> None:
        """Belong to `log_dir`, with its session; `log` is the storage below."""
        super().__init__(log_dir, log)
        self._spark = spark

    def append(self, rows: DataFrame | ArrowInput, **arguments: Unpack[AppendArguments]) -> AppendResult:
        """Append rows in one Delta commit, all of them or none: a DataFrame, whose source is read once, or what `Topic.append` takes.

        Arguments, columns, order and errors as `Topic.append`; in the expressions of a DataFrame all of Spark's SQL is allowed.
        """
        return super().append(rows, **arguments)

    def transaction(self, transactional_id: str, *, timeout_ms: int | None = None) -> SparkTransaction:
        """Begin a transaction that also takes DataFrames, as `Topic.transaction`."""
        return SparkTransaction(self._log, self._begun(transactional_id, timeout_ms), self._read_rows, self._clock)

    def append_stream(
        self,
        rows: DataFrame,
        *,
        name: str,
        trigger: Mapping[str, Any] | None = None,
        on_invalid: str = "dead-letter",
        mirror: Mirror | None = None,
        upstream: Upstream | None = None,
        transactional_id: str | None = None,
        micro_batches_per_transaction: int = 1,
        envelope: Envelope | None = None,
        events: EventSource | None = None,
        decoder: FrameDecoder | None = None,
        sequence_as: str = "",
    ) -> StreamingQuery:
        """Start a streaming query that appends every micro-batch in one Delta commit, exactly once, and return it.

        A stream with an `offset` column is a mirror: the topic keeps those offsets and takes records from this query alone.

        Args:
            rows: A streaming DataFrame with the columns of `append`.
            name: The query's identity in this topic: its checkpoint lives in the topic's folder, and the same name goes on where it
                stopped.
            trigger: Spark's, e.g. `{"availableNow": True}` or `{"processingTime": "5 seconds"}`.
            on_invalid: What a row does that the log refuses: `dead-letter` puts it among the dead letters, `fail` stops the query.
            mirror: The source of a mirror: it is asked before every micro-batch, and what it deleted unread is reported.
            upstream: The same of a stream that is no mirror.
            transactional_id: Every micro-batch, or every `micro_batches_per_transaction`, is one transaction. One that is left open by a
                stopped query goes on with it, and is committed, not aborted, when it times out: its micro-batches would not come again.
            micro_batches_per_transaction: Only with a `transactional_id`.
            envelope: The rows are change events of Debezium, with at least a key and a value, as those of Spark's Kafka source.
            events: Its events have the partition and offset of a source in the order columns `__order_1_partition` and `__order_2_offset`:
                which of them are in the log is known by their offsets then, whatever becomes of the checkpoint.
            decoder: A `RegistryDecoder`, if keys and values are framed for a schema registry.
            sequence_as: As `append`.

        Raises:
            QueryRefused: The checkpoint that belongs to `name` is gone; the text has the ways out.
            UserError: Arguments exclude each other, or a column has a wrong type.
        """
        if transactional_id is None and micro_batches_per_transaction != 1:
            message = f"query {name}: micro_batches_per_transaction = {micro_batches_per_transaction} needs a transactional_id"
            raise UserError(message)
        if mirror is not None and upstream is not None:
            message = f"query {name}: a mirror is the upstream of its topic; give mirror or upstream"
            raise UserError(message)
        check_decoder(decoder, envelope, subject=f"query {name}")
        check_sequence_column(dataframe_columns(rows.schema), sequence_as, topic=self.name)
        grouping = None
        if transactional_id is not None:
            grouping = Grouping(transactional_id=transactional_id, micro_batches=micro_batches_per_transaction)
        return start_append_query(
            self._log,
            rows,
            name=name,
            trigger=trigger or {},
            on_invalid=on_invalid,
            mirror=mirror,
            upstream=upstream,
            clock_ms=self._clock,
            grouping=grouping,
            envelope=envelope,
            source=events,
            decoder=decoder,
        )

    def create_auto_cdc_flow(
        self,
        source: DataFrame,
        keys: Names,
        sequence_by: Expression,
        *,
        apply_as_deletes: Expression | None = None,
        apply_as_truncates: Expression | None = None,
        ignore_null_updates: bool = False,
        column_list: Names | None = None,
        except_column_list: Names | None = None,
        sequence_as: str = "",
        stored_as_scd_type: int | str | None = None,
        name: str | None = None,
        table: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        on_invalid: str = "dead-letter",
    ) -> AutoCdcFlow:
        """Keep the newest row of each key of a stream of changes, exactly once, and return the flow; its target is the topic.

        Names and meaning of the arguments are those of Spark's `create_auto_cdc_flow`. A change that comes late puts no older row over a
        newer one, nor over a deletion. `topic.table()` is the table now. Rules: docs/semantics.md#A.52 to docs/semantics.md#A.56.

        Args:
            source: A streaming DataFrame of changes.
            keys: The columns that identify a row: names, or columns without a qualifier.
            sequence_by: What orders the changes of a key: a SQL expression or a column; of several columns a struct.
            apply_as_deletes: A condition (SQL or column): the change deletes its key.
            apply_as_truncates: A condition: the change deletes every key whose row is older.
            ignore_null_updates: A column that is null keeps the value of the key's last row.
            column_list: The columns of a row; all without it.
            except_column_list: Columns that are left out.
            sequence_as: What a text in `sequence_by` is compared as: `number`, `time` (in UTC where it says no time zone) or `text`.
            stored_as_scd_type: 1 or 2, of the Delta table at `table`: the newest row of each key, or every row with `_valid_from`,
                `_valid_to` and `_is_current`.
            name: The flow's identity in the topic, which its checkpoint belongs to; without it the topic's name.
            table: The path or URI of a Delta table that is kept as `materialize` does, beside the topic; without it there is none.
            trigger: Spark's, as for `append_stream`; of both queries.
            on_invalid: `dead-letter`, or `fail`: what a change without a key or a sequence does.

        Raises:
            UserError: An argument is not allowed, or names a column that the source does not have.
            QueryRefused: The checkpoint that belongs to `name` is gone.
        """
        named, subject = name or self.name, f"AUTO CDC flow {name or self.name}"
        scd_type = scd_type_of(stored_as_scd_type)
        if scd_type is not None and table is None:
            message = f"{subject}: stored_as_scd_type = {stored_as_scd_type} is of a Delta table: give its path or URI as table"
            raise UserError(message)
        changes = flow_columns(
            source,
            keys,
            sequence_by,
            apply_as_deletes=apply_as_deletes,
            apply_as_truncates=apply_as_truncates,
            ignore_null_updates=ignore_null_updates,
            column_list=column_list,
            except_column_list=except_column_list,
            sequence_as=sequence_as,
            subject=subject,
        )
        rows = change_rows(source, changes, subject=subject)
        columns = table_columns(source, changes)
        keep_columns(self._log.ledger, columns.as_details(), now_ms=self._clock())
        query = self.append_stream(rows, name=named, trigger=trigger, on_invalid=on_invalid, envelope=changes.envelope, sequence_as="text")
        if table is None:
            return AutoCdcFlow(query)

        def start_table() -> StreamingQuery:
            return self.materialize(table, trigger=trigger, history=scd_type == 2)  # noqa: PLR2004

        if (trigger or {}).get("availableNow"):
            return AutoCdcFlow(query, start_table=start_table)
        try:
            return AutoCdcFlow(query, table_query=start_table())
        except BaseException:
            stop_append_query(query)
            raise

    def records(self, *, isolation: str = "read_uncommitted", include_control: bool = False, as_of: AsOf | None = None) -> DataFrame:
        """Return the rows of the log of one table version. No order is promised: sort by partition and offset.

        Args:
            isolation: Kafka's isolation.level, `read_committed` or `read_uncommitted`.
            include_control: Show control rows, too: markers, and EMPTY rows that only hold a place.
            as_of: A table version, or a moment (datetime, ISO 8601 text); none: the newest version.

        Returns:
            partition, offset, timestamp, key, value, headers, and the columns of their producer.

        Raises:
            HistoryCleaned: That version is gone.
        """
        view = self._one_version(as_of, isolation)
        rows = log_records(self._spark, self._log, view)
        return rows if include_control else data_records(rows)

    def latest(
        self,
        *,
        isolation: str = "read_committed",
        as_of: AsOf | None = None,
        partitions: int | Iterable[int] | None = None,
        keys: Keys | None = None,
        value_format: str | None = None,
        schema: StructType | str | None = None,
        mode: str = "FAILFAST",
    ) -> DataFrame:
        """Return the last record of every (partition, key) that is not a tombstone.

        Args:
            isolation: As `ArrowTopic.latest`.
            as_of: As `ArrowTopic.latest`.
            partitions: As `ArrowTopic.latest`.
            keys: As `ArrowTopic.latest`.
            value_format: Decode `value`: json, avro or utf8 (`lastword.streaming.reading.decoding.decoded`); none: binary.
            schema: Of the decoded values: SQL DDL or a StructType; of Avro its schema.
            mode: As `ArrowTopic.table`; only with a `value_format`.

        Returns:
            partition, key, value, headers, timestamp, offset.

        Raises:
            HistoryCleaned: As `ArrowTopic.latest`.
            OffsetOutOfRange: As `ArrowTopic.latest`.
            UserError: As `ArrowTopic.latest`.
        """
        if value_format is None and misfit_policy(mode) == "null":
            message = f"mode = {mode!r} needs value_format: nothing is decoded without"
            raise UserError(message)
        chosen, wanted = self._chosen(partitions), read_keys(keys)
        views = views_as_of(self._log, as_of, isolation)
        found = [latest_records(self._spark, self._log, view, partitions=chosen, keys=wanted) for view in views]
        return decoded(reduce(DataFrame.unionByName, found), value_format, schema, mode=mode)

    def table(
        self,
        *,
        schema: str | None = None,
        isolation: str = "read_committed",
        as_of: AsOf | None = None,
        partitions: int | Iterable[int] | None = None,
        keys: Keys | None = None,
        mode: str = "FAILFAST",
    ) -> DataFrame:
        """Return the rows of `latest` as the table that they are: a column for each column of the source, with its type.

        JSON is VARIANT, times of day are text, and timestamps have microseconds; else the columns are those of `ArrowTopic.table`.

        Args:
            schema: As `ArrowTopic.table`.
            isolation: As `ArrowTopic.latest`.
            as_of: As `ArrowTopic.latest`.
            partitions: As `ArrowTopic.latest`.
            keys: As `ArrowTopic.latest`.
            mode: What a value does that does not fit its column: `FAILFAST` ends the read with a `SparkRuntimeException` that names the
                topic, partition, offset, key, column and value, `PERMISSIVE` makes it null.

        Raises:
            UserError: The columns are not known, or `schema` is no DDL. Errors else as `latest`.
        """
        rows = self.latest(isolation=isolation, as_of=as_of, partitions=partitions, keys=keys)
        return as_table(rows, self._table_columns(schema), topic=self.name, mode=mode)

    def bootstrap(self, *, isolation: str = "read_committed") -> SparkBootstrap:
        """Return the last words at one table version, and the offset vector from which `tail` continues exactly there.

        The vector is the last stable offset of every partition (`read_committed`) or its log end. Reading the rows later, or again, gives
        the same: they are of that version.
        """
        view = view_of(self._log.at(), isolation)
        return SparkBootstrap(rows=latest_records(self._spark, self._log, view), position=view.position)

    def tail(
        self,
        starting_offsets: StartingOffsets = "earliest",
        *,
        starting_timestamp: int | datetime | None = None,
        isolation: str = "read_committed",
        max_offsets_per_trigger: int | None = None,
        fail_on_data_loss: bool = True,
        on_missed_tombstones: str = "error",
        reader: str | None = None,
        reader_expiration_ms: int = EXPIRATION_MS,
    ) -> DataFrame:
        """Return a streaming DataFrame of the records from a position on.

        Offsets are all the progress there is: a query survives cleaning, VACUUM and restarts. What was compacted away is skipped. Every
        row of a micro-batch comes before those of the next, in no order inside of it: apply by offset.

        Args:
            starting_offsets: `earliest`, `latest` (as of this call), an offset for each partition, or the position of a bootstrap. It
                counts for a new query; one that has a checkpoint goes on from it.
            starting_timestamp: Milliseconds, or a datetime: begin at the first record that is not older. Not beside `starting_offsets`.
            isolation: As `latest`.
            max_offsets_per_trigger: About so many offsets a micro-batch at the most.
            fail_on_data_loss: Records that were deleted, or taken back by a RESTORE, before they were read end the query; else a warning
                says so.
            on_missed_tombstones: `error` ends the query when tombstones went before they were read; `warn` says so.
            reader: Register the tail under this name: tombstones that it has not read stay, and files that it read last.
            reader_expiration_ms: Until it has not been seen for so long.

        Returns:
            partition, offset, timestamp, key, value, headers. A value of null is a tombstone.

        Raises:
            ReaderBehind: The query missed what it must not miss; raised by the query.
            UserError: No such position, or an argument is not allowed.
        """
        options = TailOptions(
            isolation=isolation,
            max_offsets_per_trigger=max_offsets_per_trigger,
            fail_on_data_loss=fail_on_data_loss,
            on_missed_tombstones=on_missed_tombstones,
            reader=reader,
            reader_expiration_ms=reader_expiration_ms,
        )
        begin = starting_position(self._log, starting_offsets, starting_timestamp, isolation)
        return streaming_frame(Tail(self._log, self._spark, options, self._clock), begin)

    def changes(
        self,
        begin: ChangeBound = "earliest",
        end: ChangeBound = "latest",
        *,
        net: bool = False,
        isolation: str = "read_committed",
    ) -> DataFrame:
        """Return what changed from one point of the log to another (exclusive), with the values from before. No order is promised.

        Args:
            begin: What is below is known: `earliest`, `latest`, a moment (datetime, ISO 8601 text; the first record that is not older), an
                offset for each partition, or a `Position`.
            end: As `begin`, exclusive.
            net: A key changes once at most: from what it said at `begin` to what it says at `end`. Else each record makes a change at its
                offset.
            isolation: As `latest`.

        Returns:
            Columns of `latest`, and change_type string: insert, update_before, update_after or delete; a delete carries the value from
            before.

        Raises:
            HistoryCleaned: Cleaning has removed what the answer needs.
            OffsetOutOfRange: The end lies before the begin, or is not reached yet.
            UserError: `begin` or `end` is none of these.
        """
        told = net_changes if net else every_change
        vectors = change_vectors(self._log, begin, end, isolation)
        return told(self._log, self._spark, *vectors, isolation=isolation)

    @overload
    def materialize(self, path: str, *, trigger: Mapping[str, Any] | None = None, **arguments: Unpack[TableArguments]) -> TableQuery: ...

    @overload
    def materialize(
        self, path: Sink, *, checkpoint_location: str, trigger: Mapping[str, Any] | None = None, **arguments: Unpack[SinkArguments]
    ) -> StreamingQuery: ...

    def materialize(
        self,
        path: str | Sink,
        *,
        trigger: Mapping[str, Any] | None = None,
        checkpoint_location: str | None = None,
        **arguments: Any,
    ) -> StreamingQuery:
        """Keep a Delta table of typed rows in step with the topic, exactly once, and return the query that does.

        It is the table of `ArrowTopic.materialize`, and takes its arguments: Spark says when, the steps are taken by the driver without
        MERGE. Stopped or killed at any point, it goes on from there. Or any other sink: a function is called for each micro-batch.

        Args:
            path: The path or URI of a Delta table. Or a function `(rows, position)` that gets the newest record of each key of a
                micro-batch (`latest()`'s columns and `live`, false for a tombstone), from the log start on, and the position after them;
                it needs a `checkpoint_location`. A micro-batch may come again after a crash: a sink that keeps the position beside its
                rows knows it.
            trigger: Spark's.
            checkpoint_location: Of the query that calls a function; a table needs none.
            **arguments: Of a table, those of `ArrowTopic.materialize` without `follow`: schema, record_columns, history, mode,
                on_type_change, partition_by, deletion_vectors, column_mapping, properties, rebuild, isolation, max_offsets_per_step. Of a
                function, `key_format` (`utf8` for keys as text), `value_format`, `schema` and `mode` as `latest`, and those of `tail`.

        Returns:
            A `StreamingQuery`. That of a table has `progress` besides: commits, rows written and deleted, and the position.

        Raises:
            UserError: As `ArrowTopic.materialize`; by the query's `awaitTermination`, too.
            ReaderBehind: As `ArrowTopic.materialize`.
        """
        if callable(path):
            return start_sink(
                self._spark,
                self._log,
                path,
                trigger=trigger or {},
                checkpoint_location=checkpoint_location,
                clock_ms=self._clock,
                arguments=arguments,
            )
        return start_table_query(
            self._spark,
            self._log,
            path,
            trigger=trigger or {},
            checkpoint_location=checkpoint_location,
            storage_options=self._log_dir.storage_options,
            clock_ms=self._clock,
            arguments=arguments,
        )

    def dead_letters(self) -> DataFrame:
        """Return the refused rows of streams: when, from where, why, and the row itself."""
        return self._spark.read.format("delta").load(spark_location(self._log.paths.dead_letters))

    def stop_queries(self) -> None:
        """Stop the streaming queries of this process that append to the topic, between two micro-batches."""
        stop_append_queries(self._log)

    def forget(self) -> None:
        """Drop Delta's cached snapshots of the paths of a deleted topic, which another topic of the same name may take."""
        jvm = self._spark.sparkContext._jvm  # noqa: SLF001  no public way to reach a Scala object
        session = self._spark._jsparkSession  # noqa: SLF001
        for path in (self._log.paths.log, self._log.paths.dead_letters):
            jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(session, jvm.org.apache.hadoop.fs.Path(path))  # type: ignore[union-attr]

    def _read_rows(
        self, rows: Any, *, envelope: Envelope | None = None, decoder: FrameDecoder | None = None, **words: Unpack[RowArguments]
    ) -> GivenRows:
        if not hasattr(rows, "sparkSession"):
            return super()._read_rows(rows, envelope=envelope, decoder=decoder, **words)
        given = read_words(words, topic=self.name)
        check_envelope(envelope, given, topic=self.name)
        if envelope is not None:
            return GivenRows(DataFrameRows.of_events(rows, self._stats, envelope, self.name, decoder))
        if given is None:
            check_sequence_column(dataframe_columns(rows.schema), words.get("sequence_as", ""), topic=self.name)
            return GivenRows(DataFrameRows(rows, self._stats))
        subject, others = f"append to topic {self.name}", [name for name in rows.columns if name not in given.key]
        changes = columns_of_words(given, rows.columns, others, subject=subject)
        made = change_rows(rows, changes, subject=subject)
        columns = table_columns(rows, changes)
        return GivenRows(DataFrameRows(made, self._stats, given.policy), columns)
