"""What a topic does whatever engine its log.dir was opened with: append, transactions, cleaning, retention, erasure, and its metadata.

```
 Topic        the methods here
 ArrowTopic   LogDir("data").topic(…): reads return Arrow tables and Polars frames; no JVM         lastword.arrow_topic
 SparkTopic   LogDir(spark, "data").topic(…): reads return DataFrames; streaming queries           lastword.spark_topic
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lastword.compaction.config.topic_config import TopicConfig, describe_topic_config, normalize_overrides
from lastword.compaction.display import ResultList, ResultTuple
from lastword.compaction.errors import HistoryCleaned, InvalidConfiguration, UserError, Violation, check_text
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import ReaderStanding
from lastword.maintained_topic import MaintainedTopic
from lastword.storage.append import transactions
from lastword.storage.append.append import append_rows, check_on_invalid
from lastword.storage.append.requests import AppendResult, AppendStats
from lastword.storage.files.data_reader import named_errors, second_look
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.reading.key_history import KeyHistory, key_histories
from lastword.storage.reading.stale_keys import StaleKey, StaleKeys
from lastword.storage.reading.time_travel import is_vector, views_as_of
from lastword.storage.reading.view import newest_view
from lastword.storage.tables.typed_rows import table_columns
from lastword.topics import decisions, sources, tables
from lastword.topics.appending import InputFile, check_envelope, naming_rows, read_frame, read_words
from lastword.topics.arguments import check_decoder, read_partitions
from lastword.topics.description import TopicDescription, describe
from lastword.topics.keys import KEY_RECORDS, check_limit, only_history, read_wanted_key
from lastword.topics.sources import SourceDescription, describe_sources
from lastword.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from typing_extensions import Unpack

    from lastword.change_data.columns.table_columns import TableColumns
    from lastword.change_data.events.envelopes import Envelope
    from lastword.change_data.events.event_rows import FrameDecoder
    from lastword.change_data.frames.row_words import RowArguments
    from lastword.compaction.producers import OpenTransaction, ProducerStamp
    from lastword.handle import Handle
    from lastword.storage.append.inputs import ArrowInput
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View
    from lastword.topics.appending import FileArguments, GivenRows
    from lastword.topics.keys import KeyValue
    from lastword.topics.tables import TableDescription, TableDetails

#: "earliest", "latest", or an offset for each partition.
StartingOffsets = str | Mapping[int, int] | Sequence[int] | Position
#: "earliest", "latest", a moment (a datetime without a zone is UTC; or ISO 8601 text), or an offset for each partition.
ChangeBound = str | datetime | Mapping[int, int] | Sequence[int] | Position
#: Keys as bytes, or as texts that are UTF-8: one, or several.
Keys = str | bytes | Iterable[str | bytes]
#: A table version, a moment (a datetime without a zone is UTC; or ISO 8601 text), or an offset for each partition.
AsOf = int | str | datetime | Mapping[int, int] | Sequence[int] | Position


T = TypeVar("T")
_ATTEMPTS: Final = 5


class PartitionOffsets(NamedTuple):
    """Where a partition stands: records below `log_start` are gone, those from `last_stable` on are not decided, `log_end` comes next."""

    log_start: int
    last_stable: int
    log_end: int


class Topic(MaintainedTopic):
    """A topic of a log.dir: what its methods do with every engine. Make one with `LogDir.create_topic` or `LogDir.topic`."""

    def __init__(self, log_dir: Handle, log: TopicLog) -> None:
        """Belong to `log_dir`; `log` is the storage below."""
        super().__init__(log_dir, log)
        self._stats = AppendStats()

    def alter_config(self, changes: Mapping[str, object]) -> TopicConfig:
        """Change settings and return what holds now; running appenders and cleaners see it at their next micro-batch.

        A value of None takes the topic's own setting away, so that the default holds again. Raises `InvalidConfiguration` with every
        violation; nothing is changed then.
        """
        subject = f"topic {self.name}"
        if "partitions" in changes:
            allowed = (
                "the number of partitions is fixed at creation: keys would move to other partitions and lose their order and their "
                f"last word; copy the topic instead: lastword topics copy {self.name} NEW --partitions {changes['partitions']}"
            )
            raise InvalidConfiguration(subject, [Violation(key="partitions", value=str(changes["partitions"]), allowed=allowed)])
        removed = [key for key, value in changes.items() if value is None]
        normalize_overrides({key: describe_topic_config(self.config).get(key, "") for key in removed}, subject=subject)

        def alter(today: Decisions) -> tuple[list[Decision], None]:
            self._log.decisions()  # another topic may have taken the name
            kept = {key: value for key, value in today.overrides.items() if key not in changes}
            overrides = {**kept, **{key: value for key, value in changes.items() if value is not None}}
            self._log_dir.check_config(overrides, subject=subject)
            return [Decision(kind=Kind.CONFIG, time_ms=self._clock(), details=normalize_overrides(overrides))], None

        self._log.ledger.decide(alter)
        return self.config

    def append(
        self,
        rows: ArrowInput,
        *,
        key: str | Sequence[str] = (),
        value: str = "",
        columns: str | Sequence[str] = (),
        drop: str | Sequence[str] = (),
        tombstone: str = "",
        sequence: str | Sequence[str] = (),
        sequence_as: str = "",
        truncate: str = "",
        timestamp: str = "",
        on_null: str = "null",
        idempotency_key: str | None = None,
        envelope: Envelope | None = None,
        decoder: FrameDecoder | None = None,
        on_invalid: str = "fail",
    ) -> AppendResult:
        """Append rows in one Delta commit, all of them or none.

        Rows of a partition keep the order of the input. Rule: docs/semantics.md#A.15; Kafka refuses the whole record batch likewise
        (LogValidator). Rows with columns of their own become records by the settings of a `[[source]]`: `key`, `tombstone` and so on.

        Args:
            rows: An Arrow table, a Polars or pandas DataFrame, or a list of dicts; a `SparkTopic` also takes a DataFrame of Spark. Without
                `key` the columns are key and value (binary, or string as UTF-8; a null value is a tombstone), and if wanted headers
                (list<struct<key string, value binary>>), timestamp (timestamp, or int64 ms; one without a time zone is UTC), partition
                (int32) and offset (int64, ascending), and source_sequence (a number, text, time, or a struct of those), by which an event
                that comes late puts no older state over a newer one: it is left out and counted as `late`. Rule: docs/semantics.md#A.52.
            key: The columns of the key: of one its text, of several a JSON object of them.
            value: The column that is the value; without it the value is a JSON object of columns.
            columns: The columns of the value; none: all but the key's.
            drop: Columns that are left out of the value.
            tombstone: A SQL condition, `op = 'd'`; a row for which it is true deletes its key. Without Spark a part of SQL is allowed, with
                the same result (docs/append-what-you-have.md).
            sequence: SQL expressions that order the rows of a key, such as `updated_at`; a row that comes late is left out.
            sequence_as: What a text in `sequence`, or in source_sequence, is compared as: `text`, with `key` also `number` or `time`; else
                such a text is refused, as of texts 10 is below 9.
            truncate: A SQL condition; a row for which it is true deletes every key before it.
            timestamp: The column of the record's time; none: the time of the append.
            on_null: `keep`: a column that is null keeps the value of the key's last record.
            envelope: The rows are change events of Debezium (key and value as JSON); partition and offset, if given, are those of the
                source, and become headers. See `Envelope`.
            decoder: A `RegistryDecoder`, if keys and values of these events are framed for a schema registry.
            idempotency_key: A text that names this append for ever. The same key again appends nothing, and the result is `replayed`.
            on_invalid: What a row does that the log refuses: `fail` raises an error; `dead-letter` puts it among the dead letters, as
                streams do, and `refused` of the result counts it by its reason.

        Raises:
            InvalidRecords: The log refuses a row or a column; the message has each reason with a count and an example. Nothing is written.
            InvalidConfiguration: Another `on_invalid`.
            UserError: An argument is not allowed, or names a column that the rows do not have.
        """
        check_decoder(decoder, envelope, subject=f"topic {self.name}")
        given = self._read_rows(
            rows,
            envelope=envelope,
            decoder=decoder,
            key=key,
            value=value,
            columns=columns,
            drop=drop,
            tombstone=tombstone,
            sequence=sequence,
            sequence_as=sequence_as,
            truncate=truncate,
            timestamp=timestamp,
            on_null=on_null,
        )
        return self._append(given, idempotency_key, on_invalid)

    def append_file(
        self,
        path: str | PathLike[str] | IO[bytes],
        *,
        envelope: Envelope | None = None,
        idempotency_key: str | None = None,
        on_invalid: str = "fail",
        **arguments: Unpack[FileArguments],
    ) -> AppendResult:
        """Append a file in one Delta commit, all of it or nothing, without Spark; it may be larger than memory.

        Args:
            path: The path or URI of a Parquet, Arrow (Feather), JSON or CSV file; JSON and CSV may be compressed: gz, bz2, xz, zst, lz4.
                Or a stream of bytes, such as `sys.stdin.buffer`, which is copied to a temporary file first.
            envelope: Each line is a change event of Debezium.
            idempotency_key: As `append`.
            on_invalid: As `append`.
            **arguments: `key`, `tombstone` and so on, as `append`; without `key` a Parquet or Arrow file has the columns key and value.
                `format`: parquet, arrow, json or csv; none: what the file begins with, or its name says. `schema`: the columns of JSON or
                CSV as SQL DDL; none: keys and values are what stands in the file, and expressions see texts. `options` of JSON and CSV,
                by Spark's names: encoding, multiLine, sep, quote, escape, header. `lines`, with an envelope, says what a line is:
                `records` of Kafka, or `values`; none: each line says it.

        Raises:
            InvalidRecords: As `append`; the message names the file, and of a line of JSON its number.
            UserError: There is no such file, it cannot be read, or an argument is not allowed.
        """
        file = InputFile(arguments=arguments, envelope=envelope)
        with file.open(self._log, path) as given, naming_rows(path):
            given.report_missing(self._log, path)
            return self._append(given, idempotency_key, on_invalid)

    def _append(self, given: GivenRows, idempotency_key: str | None, on_invalid: str) -> AppendResult:
        if idempotency_key is not None:
            check_text(f"topic {self.name}: idempotency_key", idempotency_key)
        check_on_invalid(on_invalid, subject=f"append to topic {self.name}")
        now_ms = self._clock()
        result = append_rows(
            self._log, given.rows, now_ms=now_ms, stats=self._stats, idempotency_key=idempotency_key, on_invalid=on_invalid
        )
        given.keep_columns(self._log, now_ms=now_ms)
        return result

    def _read_rows(
        self, rows: Any, *, envelope: Envelope | None = None, decoder: FrameDecoder | None = None, **words: Unpack[RowArguments]
    ) -> GivenRows:
        """Return what was given to `append` as the input of an append."""
        given_words = read_words(words, topic=self.name)
        check_envelope(envelope, given_words, topic=self.name)
        return read_frame(rows, given_words, envelope, decoder, topic=self.name, sequence_as=words.get("sequence_as", ""))

    def stale_keys(self) -> tuple[StaleKey, ...]:
        """Return the keys whose last record is stale, as a newer row of theirs is a dead letter; the one that is longest stale comes first.

        Each has key, refused_at, source, reason, detail and source_sequence of that row. Of 100,000 keys at most. Rule:
        docs/semantics.md#A.57.
        """
        return ResultTuple(StaleKeys(self._log).collect())

    def sources(self) -> tuple[SourceDescription, ...]:
        """Return the sources of the topic's change events by name: epoch, snapshots, rows that the newest snapshot lacks, what is decided.

        Keys are read where a snapshot came behind other events. Rule: docs/semantics.md#A.61.
        """
        return ResultTuple(describe_sources(self._log))

    def new_epoch(self, source: str) -> int:
        """Begin a new epoch of a source, and return its number: what comes from now on is newer than all that the topic has of it.

        For a source that counts from lower positions, as after a failover. Raises `UserError` for a source that the topic does not have.
        Rule: docs/semantics.md#A.60.
        """
        return sources.begin_epoch(self._log, source, now_ms=self._clock())

    def retire_source(self, source: str, *, undo: bool = False) -> bool:
        """Leave out all that comes from a source from now on, or with `undo` take it again; return whether that changed anything.

        For a source of which another one has taken the place. Raises `UserError` for a source that the topic does not have. Rule:
        docs/semantics.md#A.61.
        """
        return sources.retire(self._log, source, is_retired=not undo, now_ms=self._clock())

    def sweep_source(self, source: str, *, incomplete: bool = False) -> int:
        """Delete the rows that the newest snapshot of a source lacks, and return how many. Rule: docs/semantics.md#A.62.

        Raises `UserError` for a source that the topic does not have, and, unless `incomplete`, for a snapshot behind which no change has
        come yet: it may be under way. A row that it brings later comes back.
        """
        return sources.sweep_source(self._log, source, incomplete=incomplete, now_ms=self._clock())

    def stop_queries(self) -> None:
        """Stop the streaming queries of this process that append to the topic, between two micro-batches."""

    def forget(self) -> None:
        """Drop what this process remembers of a topic that was deleted: another one may take its name."""

    def forget_query(self, name: str) -> None:
        """Forget the streaming query `name`, so that it may start anew from its source's beginning (its rows then come again)."""
        if name not in self._log.decisions().queries:
            known = ", ".join(sorted(self._log.decisions().queries)) or "none"
            message = f"topic {self.name} knows no query {name!r}; known: {known}"
            raise UserError(message)
        self._log.ledger.append([Decision(kind=Kind.QUERY, time_ms=self._clock(), name=name, details={"query_id": None})])

    def roll(self, partition: int | None = None) -> dict[int, int]:
        """Close the active segment of one partition, or of all; return {partition: log end offset at which the next one begins}.

        A partition without a record since its last roll is left as it is.
        """
        return decisions.roll(self._log, partition, now_ms=self._clock())

    def transaction(self, transactional_id: str, *, timeout_ms: int | None = None) -> Transaction:
        """Begin a transaction and return it, to be used in a `with` block: committed at its end, aborted on an exception.

        Another instance with the same `transactional_id` is fenced, and what it left open is aborted. One that stays open longer than
        `timeout_ms` (default: the topic's transaction.timeout.ms) is aborted by the service. Rule: KIP-98. Raises `UserError` for the id
        of a streaming query, whose micro-batches would be lost.
        """
        return Transaction(self._log, self._begun(transactional_id, timeout_ms), self._read_rows, self._clock)

    def _table_columns(self, schema: str | None = None) -> TableColumns:
        """Return the columns of the table whose rows the topic holds: those that its sources say, or `schema` gives as SQL DDL.

        Raises `UserError` when neither does, or `schema` is no DDL.
        """
        return table_columns(self._log, schema)

    def _chosen(self, partitions: int | Iterable[int] | None) -> list[int] | None:
        """Return the partitions that were asked for, None for all; raise `UserError` for one that the topic does not have."""
        numbers = read_partitions(partitions)
        return None if numbers is None else [self._log.check_partition(partition) for partition in numbers]

    def _view(self, isolation: str) -> View:
        """Return what a reader sees at the newest table version."""
        return newest_view(self._log, isolation)

    def _reading(self, isolation: str, read: Callable[[View], T]) -> T:
        """Return what `read` makes of the newest view; of a newer one when VACUUM took a file of it meanwhile."""
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                return self._read(lambda: read(self._view(isolation)))
            except FileNotFoundError as error:
                failure = error
        message = f"topic {self.name}: files of the newest table version are not there; was the log's folder changed by hand? ({failure})"
        raise HistoryCleaned(message) from failure

    def _read(self, read: Callable[[], T]) -> T:
        """Return what reads give, and look twice at damage."""

        def named() -> T:
            with named_errors(self._log.paths.log, may_be_gone=True):
                return read()

        return second_look(named)

    def _one_version(self, as_of: AsOf | None, isolation: str) -> View:
        """Return the view of one table version for `records`, which takes no offset vector."""
        if is_vector(as_of):
            message = f"topic {self.name}: as_of = {as_of}: records() takes a table version or a moment; use changes() for offsets"
            raise UserError(message)
        (view,) = views_as_of(self._log, as_of, isolation)
        return view

    def _begun(self, transactional_id: str, timeout_ms: int | None) -> ProducerStamp:
        return transactions.begin(self._log, transactional_id, now_ms=self._clock(), timeout_ms=timeout_ms)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that are open, oldest first: producer, partitions with first offsets, since when, timeout."""
        return ResultList(self._log.at().open_transactions())

    def abort_transaction(self, producer_id: int) -> AppendResult:
        """End the open transaction of a producer, with a new epoch that fences it; raise `UserError` naming the open ones otherwise."""
        found = {one.producer_id: one for one in self.open_transactions()}
        if producer_id not in found:
            known = ", ".join(str(one) for one in found) or "none"
            message = f"topic {self.name}: producer {producer_id} has no open transaction; open ones are of producers: {known}"
            raise UserError(message)
        return transactions.end_for_others(self._log, found[producer_id], now_ms=self._clock())

    def offsets(self) -> dict[int, PartitionOffsets]:
        """Return for each partition its log start offset, last stable offset and log end offset."""
        state = self._log.at()
        bounds = zip(state.log_start_offsets, state.last_stable_offsets(), state.log_end_offsets, strict=True)
        return {partition: PartitionOffsets(*found) for partition, found in enumerate(bounds)}

    def readers(self) -> list[ReaderStanding]:
        """Return the registered readers by name: position, lag, last sight, and whether they have expired."""
        state, moment = self._log.at(), self._clock()
        readers = sorted(self._log.readers(state.decisions).items())
        return ResultList(ReaderStanding.of(reader, state.log_end_offsets, moment) for _, reader in readers)

    def tables(self) -> list[TableDescription]:
        """Return the typed tables that follow the topic (`ArrowTopic.materialize`, `[[table]]` of the service), by path."""
        return ResultList(tables.describe_tables(self._log))

    def pause_table(self, path: str) -> None:
        """Let a table take no steps, in whatever process, until it is resumed. Raises `UserError` naming the tables of the topic."""
        location = tables.registered_location(self._log, path)
        tables.decide_table(self._log, location, {"paused": True}, now_ms=self._clock())

    def resume_table(self, path: str) -> None:
        """Let a table that is paused take its steps again. Raises `UserError` as `pause_table`."""
        location = tables.registered_location(self._log, path)
        tables.decide_table(self._log, location, {"paused": None}, now_ms=self._clock())

    def describe_table(self, path: str) -> TableDetails:
        """Return a typed table: position, lag, version, rows, files, bytes and columns. Raises `UserError` as `pause_table`."""
        return tables.describe_table(self._log, path, storage_options=self._log_dir.storage_options)

    def rebuild_table(self, path: str) -> None:
        """Let the next step of a table write it anew in one commit, in whatever process; `materialize(rebuild=True)` does it at once.

        Raises `UserError` as `pause_table`.
        """
        location, now_ms = tables.registered_location(self._log, path), self._clock()
        tables.decide_table(self._log, location, {"rebuild_ms": now_ms}, now_ms=now_ms)

    def drop_table(self, path: str) -> None:
        """Forget a table: nothing is kept for it, and a purge does not look into it any more; its files stay.

        `materialize`, and a service that has it in its configuration, make it a table of the topic again. Raises `UserError` as
        `pause_table`.
        """
        tables.drop_table(self._log, path, now_ms=self._clock())

    def drop_reader(self, name: str) -> None:
        """Forget a registered reader: it pins nothing any more. Raises `UserError` naming those that there are."""
        decisions.drop_reader(self._log, name, now_ms=self._clock())

    def get(self, key: KeyValue, *, partition: int | None = None, limit: int = KEY_RECORDS) -> KeyHistory | None:
        """Return the records of one key that the log still has: the latest, older ones, where each is, and what it is to readers.

        Args:
            key: The key as text (UTF-8) or bytes. A key of several columns as a mapping, `{"id": 7, "line": 1}`, or as its JSON text, in
                any order and spacing.
            partition: The partition; needed only for a key that stands in several.
            limit: How many of the newest records are returned; their number is counted in any case.

        Returns:
            The history, oldest record first: partition, offset, segment, timestamp, value, headers and status of each (latest, superseded,
            aborted, open, waiting), whether it is a tombstone and whether it lies below the cleaner checkpoint. None for a key of which
            the log has no record.

        Raises:
            UserError: The key stands in several partitions, or is none.
        """
        check_limit(limit)
        chosen, wanted = self._chosen(partition), read_wanted_key(key)
        histories = self._reading("read_committed", lambda view: key_histories(view, wanted, partitions=chosen, limit=limit))
        return only_history(histories, wanted, topic=self.name)

    def describe(self) -> TopicDescription:
        """Return partitions, segments, sizes, offsets and exact record counts, from metadata alone.

        Only for the last stable offset files are read: those with records of producers that came since anybody asked for it.
        """
        return describe(self._log, now_ms=self._clock())
