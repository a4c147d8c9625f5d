"""A topic of `LogDir("data")`: no Spark and no JVM; reads return Arrow tables, and `scan_*` Polars lazy frames.

```python
topic = LogDir("data").topic("fruit-prices")
topic.latest().to_pandas()                           # the same rows as SparkTopic.latest()
topic.scan_latest().filter(...).collect()            # lazy: only the columns and files that the answer needs
words = topic.bootstrap()                            # and go on from words.position
```

Reads need no more than permission to read. `isolation` is Kafka's isolation.level: `read_committed` shows nothing at or past the last
stable offset and nothing of an aborted transaction. Rules: docs/semantics.md#1.2, docs/semantics.md#A.2, docs/semantics.md#A.11,
docs/semantics.md#A.42.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar, overload

import pyarrow as pa
from polars.exceptions import PolarsError

from lastword.change_data.columns.table_columns import TableDecoder
from lastword.compaction.errors import HistoryCleaned
from lastword.compaction.read_positions import Position, parse_offsets
from lastword.storage.append.dead_letters import read_dead_letters
from lastword.storage.files.data_reader import named_errors
from lastword.storage.files.schema import RECORD_COLUMNS, dead_letter_arrow_schema
from lastword.storage.reading import arrow_changes, arrow_frames, arrow_rows
from lastword.storage.reading.time_travel import views_as_of
from lastword.storage.reading.view import LATEST_COLUMNS, misfit_policy
from lastword.storage.tables.typed_rows import decode_batch
from lastword.topic import AsOf, ChangeBound, Keys, StartingOffsets, Topic
from lastword.topics.arguments import read_columns, read_keys
from lastword.topics.positions import change_vectors
from lastword.topics.tables import TableFollower, TableProgress, check_follow, keep_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import polars as pl
    from typing_extensions import Unpack

    from lastword.storage.reading.view import View
    from lastword.topics.tables import TableArguments

T = TypeVar("T")
#: The number of rows that `table` decodes at a time.
DECODED_ROWS: Final = 16_384


class ArrowBootstrap(NamedTuple):
    """The last words at one table version, and the position from which a reader goes on there, as `SparkTopic.tail` takes it."""

    rows: pa.Table
    position: Position


class ArrowTopic(Topic):
    """A topic whose rows are Arrow tables. Make one with `create_topic` or `topic` of `LogDir("data")`."""

    def latest(
        self,
        *,
        isolation: str = "read_committed",
        as_of: AsOf | None = None,
        partitions: int | Iterable[int] | None = None,
        keys: Keys | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the last record of every (partition, key) that is not a tombstone, by partition and offset.

        Keyless records have no last word.

        Args:
            isolation: Kafka's isolation.level, `read_committed` or `read_uncommitted`.
            as_of: The past: a table version, a moment (datetime or ISO 8601 text, by the time of the Delta commits), or an offset vector
                {partition: offset}, which shows what the records below those offsets said.
            partitions: One partition, or several; none: all.
            keys: One key, or several, as bytes or as text (UTF-8); none: all.
            columns: Columns of the log in the place of those below.

        Returns:
            partition int32, key binary, value binary, headers list<struct<key string, value binary>>, timestamp timestamp[us, UTC], offset
            int64.

        Raises:
            UserError: A value is not allowed.
            HistoryCleaned: Cleaning has passed the point that `as_of` names, and the files that held it are gone.
            OffsetOutOfRange: `as_of` names offsets that are not reached yet.
        """
        named, chosen, wanted = read_columns(columns) or LATEST_COLUMNS, self._chosen(partitions), read_keys(keys)
        if as_of is None:
            return self._reading(isolation, lambda view: arrow_frames.latest(view, named, partitions=chosen, keys=wanted))
        views = views_as_of(self._log, as_of, isolation)
        each = range(views[0].partitions) if chosen is None else sorted(set(chosen))

        def words() -> pa.Table:
            found = [arrow_frames.latest(view, named, partitions=[partition], keys=wanted) for partition in each for view in views]
            return pa.concat_tables(found) if found else arrow_frames.latest(views[0], named, partitions=[], keys=wanted)

        return self._of_the_past(words)

    def table(
        self,
        *,
        schema: str | None = None,
        isolation: str = "read_committed",
        as_of: AsOf | None = None,
        partitions: int | Iterable[int] | None = None,
        keys: Keys | None = None,
        mode: str = "FAILFAST",
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows of `latest` as the table that they are: a column for each column of the source, with its type.

        Args:
            schema: The columns as SQL DDL, `id bigint, price decimal(10,2), at timestamp, meta json`; none: those that the topic's sources
                say (change events with a schema, `schema` of an `Envelope` or of a source, the DataFrame of an AUTO CDC flow).
            isolation: As `latest`.
            as_of: As `latest`.
            partitions: As `latest`.
            keys: As `latest`.
            mode: What a value does that does not fit its column: `FAILFAST` raises an error, `PERMISSIVE` makes it null.
            limit: The most rows; no other is decoded.

        Returns:
            The columns of the key, where the value does not have them, and those of the value, by partition and offset. Types:
            `lastword.change_data.columns.column_types`. Columns that a row lacks are null; fields of a value that are no columns are left
            out.

        Raises:
            UserError: The columns are not known, or `schema` is no DDL. A value does not fit its column: the text names the topic,
                partition, offset, key, column and value. Errors else as `latest`.
        """
        columns, chosen_mode = self._table_columns(schema), misfit_policy(mode)
        found = self.latest(
            isolation=isolation, as_of=as_of, partitions=partitions, keys=keys, columns=["partition", "offset", "key", "value"]
        )
        chosen = found if limit is None else found.slice(0, limit)
        return decode_rows(chosen, TableDecoder(columns, on_misfit=chosen_mode), topic=self.name)

    def scan_latest(
        self,
        *,
        isolation: str = "read_committed",
        partitions: int | Iterable[int] | None = None,
        keys: Keys | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> pl.LazyFrame:
        """Return the rows of `latest` as a lazy frame: columns and predicates are pushed down to the files. No order is promised.

        The files are those of the newest version now: collect it before VACUUM removes them (24 hours by default).

        Args:
            isolation: As `latest`.
            partitions: As `latest`.
            keys: As `latest`.
            columns: As `latest`.
        """
        chosen = self._chosen(partitions)
        named, wanted = read_columns(columns) or LATEST_COLUMNS, read_keys(keys)
        return arrow_frames.scan_latest(self._view(isolation), named, partitions=chosen, keys=wanted)

    def collect_latest(
        self,
        query: Callable[[pl.LazyFrame], T],
        *,
        isolation: str = "read_committed",
        partitions: int | Iterable[int] | None = None,
        keys: Keys | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> T:
        """Return what `query` collects from `scan_latest`, asked again of the newest version when VACUUM removed a file meanwhile.

        Args:
            query: Takes the lazy frame of `scan_latest` and collects it.
            isolation: As `latest`.
            partitions: As `latest`.
            keys: As `latest`.
            columns: As `latest`.
        """
        chosen, wanted = self._chosen(partitions), read_keys(keys)

        def collected(view: View) -> T:
            try:
                return query(arrow_frames.scan_latest(view, read_columns(columns) or LATEST_COLUMNS, partitions=chosen, keys=wanted))
            except (OSError, PolarsError) as error:
                gone = self._log.missing_files(view.files.path.tolist())
                if gone:
                    raise FileNotFoundError(gone[0]) from error
                raise

        return self._reading(isolation, collected)

    def records(
        self,
        *,
        isolation: str = "read_uncommitted",
        include_control: bool = False,
        as_of: AsOf | None = None,
        partitions: int | Iterable[int] | None = None,
        from_offsets: StartingOffsets | None = None,
        to_offsets: StartingOffsets | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows of the log from `from_offsets` to `to_offsets` (exclusive), by partition and offset, of one table version.

        Offsets that cleaning took are missing without a word.

        Args:
            isolation: As `latest`.
            include_control: Show control rows, too: markers, and EMPTY rows that only hold a place.
            as_of: A table version, or a moment (datetime, ISO 8601 text); none: the newest version.
            partitions: As `latest`.
            from_offsets: `earliest`, `latest`, an offset for each partition, or a `Position`.
            to_offsets: As `from_offsets`.
            columns: Columns of the log in the place of those below.

        Returns:
            partition, offset, timestamp, key, value, headers, and the columns of their producer.

        Raises:
            UserError: As `latest`.
            HistoryCleaned: As `latest`.
        """
        chosen = self._chosen(partitions)

        def read(view: View) -> pa.Table:
            return arrow_rows.records(
                view,
                read_columns(columns) or RECORD_COLUMNS,
                control=include_control,
                begin=_vector(view, from_offsets, "from_offsets"),
                end=_vector(view, to_offsets, "to_offsets"),
                partitions=chosen,
            )

        if as_of is None:
            return self._reading(isolation, read)
        view = self._one_version(as_of, isolation)
        return self._of_the_past(lambda: read(view))

    def record_batches(
        self,
        *,
        isolation: str = "read_uncommitted",
        include_control: bool = False,
        partitions: int | Iterable[int] | None = None,
        from_offsets: StartingOffsets | None = None,
        to_offsets: StartingOffsets | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `records` as record batches, in the same order; a file is opened when its rows are asked for.

        Args:
            isolation: As `records`.
            include_control: As `records`.
            partitions: As `records`.
            from_offsets: As `records`.
            to_offsets: As `records`.
            columns: As `records`.

        Raises:
            HistoryCleaned: VACUUM removed a file of this table version before it was opened. Errors else as `records`.
        """
        view, chosen = self._view(isolation), self._chosen(partitions)
        begin, end = (_vector(view, given, name) for given, name in ((from_offsets, "from_offsets"), (to_offsets, "to_offsets")))
        try:
            with named_errors(view.location, may_be_gone=True):
                yield from arrow_rows.record_batches(
                    view, read_columns(columns) or RECORD_COLUMNS, control=include_control, begin=begin, end=end, partitions=chosen
                )
        except FileNotFoundError as error:
            message = f"topic {view.topic}: VACUUM removed files of table version {view.version} while it was read ({error}); read again"
            raise HistoryCleaned(message) from error

    def scan_records(
        self,
        *,
        isolation: str = "read_uncommitted",
        include_control: bool = False,
        partitions: int | Iterable[int] | None = None,
        from_offsets: StartingOffsets | None = None,
        to_offsets: StartingOffsets | None = None,
        columns: str | Sequence[str] | None = None,
    ) -> pl.LazyFrame:
        """Return the rows of `records` as a lazy frame; as `scan_latest`.

        Args:
            isolation: As `records`.
            include_control: As `records`.
            partitions: As `records`.
            from_offsets: As `records`.
            to_offsets: As `records`.
            columns: As `records`.
        """
        view = self._view(isolation)
        return arrow_frames.scan_records(
            view,
            read_columns(columns) or RECORD_COLUMNS,
            control=include_control,
            begin=_vector(view, from_offsets, "from_offsets"),
            end=_vector(view, to_offsets, "to_offsets"),
            partitions=self._chosen(partitions),
        )

    def changes(
        self,
        begin: ChangeBound = "earliest",
        end: ChangeBound = "latest",
        *,
        net: bool = False,
        isolation: str = "read_committed",
    ) -> pa.Table:
        """Return what changed from one point of the log to another (exclusive), with the values from before, by partition and offset.

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
        told = arrow_changes.net_changes if net else arrow_changes.changes
        vectors = change_vectors(self._log, begin, end, isolation)
        return self._of_the_past(lambda: told(self._log, *vectors, isolation=isolation))

    def bootstrap(self, *, isolation: str = "read_committed") -> ArrowBootstrap:
        """Return the last words at one table version, and the position from which a reader goes on exactly there.

        Its offsets are the last stable offsets (`read_committed`) or the log ends: give it to `from_offsets` of `records`, to
        `SparkTopic.tail`, or its offsets to `startingOffsets` of `format("lastword")`.
        """
        return self._reading(isolation, lambda view: ArrowBootstrap(rows=arrow_frames.latest(view), position=view.position))

    @overload
    def materialize(
        self, path: str, *, follow: Literal[True], every_seconds: float = 1.0, **arguments: Unpack[TableArguments]
    ) -> TableFollower: ...

    @overload
    def materialize(self, path: str, *, follow: Literal[False] = False, **arguments: Unpack[TableArguments]) -> TableProgress: ...

    def materialize(
        self,
        path: str,
        *,
        schema: str | None = None,
        record_columns: Sequence[str] = (),
        history: bool = False,
        mode: str = "FAILFAST",
        on_type_change: str = "rebuild",
        partition_by: Sequence[str] = (),
        deletion_vectors: bool = True,
        column_mapping: bool = True,
        properties: Mapping[str, str] | None = None,
        rebuild: bool = False,
        isolation: str = "read_committed",
        max_offsets_per_step: int | None = None,
        follow: bool = False,
        every_seconds: float = 1.0,
    ) -> TableProgress | TableFollower:
        """Keep a Delta table of typed rows in step with the topic, exactly once, without Spark and without MERGE.

        The table is made in one commit if it is not there. Then each step is one commit that changes rows and position together; stopped
        or killed at any point, it goes on from there. After each step the table is what `table()` says at its position.

        Args:
            path: The path or URI of a Delta table.
            schema: The columns of the rows as SQL DDL, `id bigint, price decimal(10,2)`; none: those that the topic's sources say.
            record_columns: Columns of the record that the table has besides: `_offset`, `_timestamp`, `_headers`, and `_value`, the value
                as bytes, with which a topic of any values has a table.
            history: Every row stays, with `_valid_from`, `_valid_to` and `_is_current` (SCD type 2), from the bootstrap on.
            mode: What a value does that does not fit its column: `FAILFAST` ends the call with an error, `PERMISSIVE` makes it null, with
                `DROPMALFORMED` its record is a dead letter of the topic (`table_misfit`), and the table has no row of the key until a
                record comes that fits; a history has no row of the record.
            on_type_change: A column whose type changes: `rebuild` writes the table anew in one commit, `fail` ends the call. Columns that
                are added go on; those that are dropped stay, null.
            partition_by: The partition columns of the Delta table when it is made, or written anew: text, whole numbers, decimals, booleans
                or dates. An empty text does not fit one, as Delta takes it for null. None: it stays as it is.
            deletion_vectors: False for readers that do not know them: a step then rewrites each file that loses rows (reader version 1).
            column_mapping: A name with one of the characters space , ; { } ( ) = tab or line feed gets Delta's column mapping, which Spark,
                delta-rs and DuckDB read and Polars does not; False: these characters are replaced by underscores.
            properties: Of the Delta table when it is made, or written anew.
            rebuild: Write the table anew, in the place of what is there.
            isolation: As `latest`.
            max_offsets_per_step: About so many offsets a step, at the most.
            follow: Return at once a handle that goes on until it is stopped: `stop()`, `wait()`, `progress`.
            every_seconds: With `follow`, the time between two looks at the topic.

        Returns:
            What was done. The columns of the table: those of the key that are not in the value, those of the value, `_partition` int,
            `_key` binary (the key where its columns do not say it all, else null), then `record_columns`.

        Raises:
            UserError: The columns are not known, or have names that a Delta table cannot hold. A value does not fit its column: the text
                names the topic, partition, offset, key, column and value. The table is none of this topic, or was changed by somebody else.
            ReaderBehind: The log does not have any more what the table has not read: `rebuild` makes it again.
        """
        check_follow(follow=follow, every_seconds=every_seconds)
        keeper = keep_table(
            self._log,
            path,
            schema=schema,
            record_columns=record_columns,
            history=history,
            mode=mode,
            on_type_change=on_type_change,
            partition_by=partition_by,
            deletion_vectors=deletion_vectors,
            column_mapping=column_mapping,
            properties=properties,
            isolation=isolation,
            max_offsets_per_step=max_offsets_per_step,
            storage_options=self._log_dir.storage_options,
            clock_ms=self._clock,
        )
        keeper.start(rebuild=rebuild)
        if follow:
            return TableFollower(keeper, every_seconds=every_seconds)
        keeper.catch_up()
        return keeper.progress

    def dead_letters(self) -> pa.Table:
        """Return the refused rows of streams, oldest first: when, from where, why, and the row itself."""
        rows = list(read_dead_letters(self._log.paths.dead_letters, self._log.storage_options))
        return pa.Table.from_pylist(rows, schema=dead_letter_arrow_schema())

    def _of_the_past(self, read: Callable[[], pa.Table]) -> pa.Table:
        try:
            return self._read(read)
        except FileNotFoundError as error:
            message = f"topic {self.name}: VACUUM removed files of an old table version while they were read ({error}); ask again"
            raise HistoryCleaned(message) from error


def _vector(view: View, given: StartingOffsets | None, option: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    named = given.vector() if isinstance(given, Position) else given
    return parse_offsets(named, option=option, partitions=view.partitions, earliest=view.start, latest=view.end)


def decode_rows(rows: pa.Table, decoder: TableDecoder, *, topic: str, batch_rows: int = DECODED_ROWS) -> pa.Table:
    """Return records of a topic (partition, offset, key, value) as rows of their table, `batch_rows` of them decoded at a time.

    Raises `UserError` for a value that does not fit its column; it names the topic and the record.
    """
    batches = list[pa.RecordBatch]()
    for batch in rows.combine_chunks().to_batches(max_chunksize=batch_rows):
        batches += decode_batch(batch, decoder, topic=topic)
    return pa.Table.from_batches(batches, decoder.schema)
