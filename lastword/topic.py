"""One topic: append to it, read it, look at it.

```python
topic = LogDir(spark, "data").create_topic("fruit-prices", partitions=4, config={"cleanup.policy": "compact"})
topic.append(df)                       # rows with key and value → one Delta commit
topic.latest().show()                  # the last word on every key
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword import clock
from lastword.compaction.config.topic_config import TopicConfig, describe_topic_config, normalize_overrides
from lastword.compaction.errors import CommitConflict, InvalidConfiguration, UserError, Violation
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import EXPIRATION_MS, ReaderStanding
from lastword.inputs import append_input
from lastword.storage.append import transactions
from lastword.storage.append.append import AppendResult, AppendStats, append_rows
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.reading.time_travel import is_vector, views_as_of
from lastword.storage.reading.view import view_of
from lastword.storage.verify import VerifyReport, verify
from lastword.topics import decisions
from lastword.topics.description import TopicDescription, describe
from lastword.topics.explanation import PartitionReport, partition_reports
from lastword.topics.purging import Purge, PurgeReceipt, before_as_ms
from lastword.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.compaction.producers import OpenTransaction
    from lastword.handle import Handle
    from lastword.storage.append.inputs import ArrowInput
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.query import Mirror
    from lastword.streaming.reading.materialize import Sink

#: A table version, a moment (a datetime without a zone is UTC; or ISO 8601 text), or an offset for each partition.
Offsets = Mapping[int, int] | Sequence[int] | Position
StartingOffsets = str | Mapping[int, int] | Sequence[int] | Position
AsOf = int | str | datetime | Mapping[int, int] | Sequence[int] | Position


class Bootstrap(NamedTuple):
    """The last words at one table version, and the position at which a tail goes on: the next offset of every partition."""

    rows: DataFrame
    position: Position


class Topic:
    """A topic of a log.dir. Make one with `LogDir.create_topic` or `LogDir.topic`."""

    def __init__(self, log_dir: Handle, log: TopicLog) -> None:
        """Belong to `log_dir`; `log` is the storage below."""
        self._log_dir = log_dir
        self._log = log
        self._stats = AppendStats()

    def __repr__(self) -> str:
        """Return the name and place, for people."""
        return f"Topic({self.name!r}, {self._log.paths.root!r})"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._log.name

    @property
    def partitions(self) -> int:
        """The number of partitions, fixed at creation."""
        return self._log.decisions().partitions

    @property
    def config(self) -> TopicConfig:
        """The configuration that holds now: the topic's own settings over the service's over Kafka's defaults."""
        return self._log.config()

    @cached_property
    def spark_verbs(self) -> Any:
        """What the methods do that need Spark; it imports pyspark."""
        return import_module("lastword.topics.spark_verbs")

    @property
    def log(self) -> TopicLog:
        """The storage below, for tools and tests."""
        return self._log

    def alter_config(self, changes: Mapping[str, object], *, now_ms: int | None = None) -> TopicConfig:
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

        def altered(today: Decisions) -> list[Decision]:
            self._log.decisions()  # another topic may have taken the name
            kept = {key: value for key, value in today.overrides.items() if key not in changes}
            overrides = {**kept, **{key: value for key, value in changes.items() if value is not None}}
            self._log_dir.check_config(overrides, subject=subject)
            return [Decision(kind=Kind.CONFIG, time_ms=clock.or_now(now_ms), details=normalize_overrides(overrides))]

        self._log.ledger.decide(altered)
        return self.config

    def append(self, rows: DataFrame | ArrowInput, *, idempotency_key: str | None = None, now_ms: int | None = None) -> AppendResult:
        """Append rows in one Delta commit, all of them or none.

        Rows of a partition keep the order of the input. Rule: docs/semantics.md#A.15; Kafka refuses the whole record batch likewise
        (LogValidator).

        Args:
            rows: A Spark DataFrame; or an Arrow table, a Polars or pandas DataFrame, or a list of dicts, which need no Spark. Columns: key
                and value (binary, or string as UTF-8; a null value is a tombstone), and if wanted headers (array<struct<key string, value
                binary>>), timestamp (timestamp, or bigint ms; one without a time zone is UTC), partition (int) and offset (bigint,
                ascending).
            idempotency_key: A text that names this append for ever. The same key again appends nothing, and the result is `replayed`.
            now_ms: The time of the append in milliseconds (default: the clock).

        Raises:
            InvalidRecords: The log refuses a row; the message has each reason with its count and an example. Nothing is written.
        """
        given = append_input(rows, self._stats, topic=self.name)
        return append_rows(self._log, given, now_ms=clock.or_now(now_ms), stats=self._stats, idempotency_key=idempotency_key)

    def append_stream(
        self,
        rows: DataFrame,
        *,
        name: str,
        trigger: Mapping[str, Any] | None = None,
        on_invalid: str = "dead-letter",
        mirror: Mirror | None = None,
        transactional_id: str | None = None,
        micro_batches_per_transaction: int = 1,
        clock_ms: Callable[[], int] = clock.now_ms,
    ) -> StreamingQuery:
        """Start a streaming query that appends every micro-batch in one Delta commit, exactly once, and return it.

        `rows` is a streaming DataFrame with the columns of `append`. `name` is the query's identity in this topic: its checkpoint lives
        in the topic's folder, and the same name goes on where it stopped. `trigger` is Spark's, e.g. `{"availableNow": True}` or
        `{"processingTime": "5 seconds"}`. Refused rows become dead letters (`on_invalid="dead-letter"`) or stop the query (`"fail"`).
        A stream with an `offset` column is a mirror: the topic keeps those offsets and takes records from this query alone.
        With a `transactional_id` every micro-batch, or every `micro_batches_per_transaction`, is one transaction; one that is left open
        by a stopped query goes on with it, and is committed, not aborted, when it times out: its micro-batches would not come again.

        Raises `QueryRefused` when the checkpoint that belongs to `name` is gone, with the ways out.
        """
        grouping = None
        if transactional_id is not None:
            grouping = self.spark_verbs.Grouping(transactional_id=transactional_id, micro_batches=micro_batches_per_transaction)
        query: StreamingQuery = self.spark_verbs.start_append_query(
            self._log,
            rows,
            name=name,
            trigger=trigger or {},
            on_invalid=on_invalid,
            mirror=mirror,
            clock_ms=clock_ms,
            grouping=grouping,
        )
        return query

    def forget_query(self, name: str, *, now_ms: int | None = None) -> None:
        """Forget the streaming query `name`, so that it may start anew from its source's beginning (its rows then come again)."""
        if name not in self._log.decisions().queries:
            known = ", ".join(sorted(self._log.decisions().queries)) or "none"
            message = f"topic {self.name} knows no query {name!r}; known: {known}"
            raise UserError(message)
        self._log.ledger.append([Decision(kind=Kind.QUERY, time_ms=clock.or_now(now_ms), name=name, details={"query_id": None})])

    def roll(self, partition: int | None = None, *, now_ms: int | None = None) -> dict[int, int]:
        """Close the active segment of one partition, or of all; return {partition: log end offset at which the next one begins}.

        A partition without a record since its last roll is left as it is.
        """
        return decisions.roll(self._log, partition, now_ms=clock.or_now(now_ms))

    def transaction(self, transactional_id: str, *, timeout_ms: int | None = None, now_ms: int | None = None) -> Transaction:
        """Begin a transaction and return it, to be used in a `with` block: committed at its end, aborted on an exception.

        Another instance with the same `transactional_id` is fenced, and what it left open is aborted. One that stays open longer than
        `timeout_ms` (default: the topic's transaction.timeout.ms) is aborted by the service. Rule: KIP-98. Raises `UserError` for the id
        of a streaming query, whose micro-batches would be lost.
        """
        stamp = transactions.begin(self._log, transactional_id, now_ms=clock.or_now(now_ms), timeout_ms=timeout_ms)
        return Transaction(self._log, stamp)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that are open, oldest first: producer, partitions with first offsets, since when, timeout."""
        return self._log.open_transactions()

    def abort_transaction(self, producer_id: int, *, now_ms: int | None = None) -> AppendResult:
        """End the open transaction of a producer, with a new epoch that fences it; raise `UserError` naming the open ones otherwise."""
        found = {one.producer_id: one for one in self.open_transactions()}
        if producer_id not in found:
            known = ", ".join(str(one) for one in found) or "none"
            message = f"topic {self.name}: producer {producer_id} has no open transaction; open ones are of producers: {known}"
            raise UserError(message)
        return transactions.end_for_others(self._log, found[producer_id], now_ms=clock.or_now(now_ms))

    def end_hanging_transactions(self, *, now_ms: int | None = None) -> list[OpenTransaction]:
        """End the transactions that have been open for longer than their timeout, as the service does; return them. None of a mirror."""
        moment = clock.or_now(now_ms)
        if self._log.decisions().mirror is not None:
            return []
        hanging = [one for one in self.open_transactions() if one.hangs(moment)]
        for one in hanging:
            transactions.end_for_others(self._log, one, now_ms=moment)
        return hanging

    def records(self, *, isolation: str = "read_uncommitted", include_control: bool = False, as_of: AsOf | None = None) -> DataFrame:
        """Return the rows of the log: partition, offset, timestamp, key, value, headers and the columns of their producer.

        `isolation` is Kafka's isolation.level. Control rows (markers, and EMPTY rows that only hold a place) are shown on request. The rows
        are those of one table version: the newest, or `as_of` a version, or a moment (datetime, ISO 8601 text). No order is promised: sort
        by partition and offset. Raises `HistoryCleaned` when that version is gone.
        """
        if is_vector(as_of):
            message = (
                f"topic {self.name}: as_of = {as_of}: records() takes a table version or a moment; use tail() or changes() for offsets"
            )
            raise UserError(message)
        (view,) = views_as_of(self._log, as_of, isolation)
        rows: DataFrame = self.spark_verbs.records(self._log_dir.spark, self._log, view, include_control=include_control)
        return rows

    def latest(
        self,
        *,
        isolation: str = "read_committed",
        as_of: AsOf | None = None,
        partitions: Iterable[int] | None = None,
        keys: Iterable[str | bytes] | None = None,
        value_format: str | None = None,
        schema: StructType | str | None = None,
        mode: str = "FAILFAST",
    ) -> DataFrame:
        """Return the last record of every (partition, key) that is not a tombstone: partition, key, value, headers, timestamp, offset.

        Only of some `partitions` or `keys` (strings are UTF-8) when they are given; `value` decoded as `value_format` says (json, avro,
        utf8; see `lastword.streaming.reading.decoding.decoded`). `as_of` asks the past: a table version, a moment (datetime or ISO 8601
        text, by the time of the Delta commits), or an offset vector {partition: offset}, which shows what the records below those
        offsets said. Raises
        `HistoryCleaned` when cleaning has passed that point and the files that held it are gone, `OffsetOutOfRange` for offsets not
        reached yet.
        """
        chosen = None if partitions is None else [self._log.check_partition(one) for one in partitions]
        wanted = None if keys is None else [one.encode() if isinstance(one, str) else bytes(one) for one in keys]
        rows: DataFrame = self.spark_verbs.latest(
            self._log_dir.spark,
            self._log,
            as_of,
            isolation,
            partitions=chosen,
            keys=wanted,
            value_format=value_format,
            schema=schema,
            mode=mode,
        )
        return rows

    def bootstrap(self, *, isolation: str = "read_committed") -> Bootstrap:
        """Return the last words at one table version, and the offset vector from which `tail` continues exactly there.

        The vector is the last stable offset of every partition (`read_committed`) or its log end. Reading the rows later, or again, gives
        the same: they are of that version.
        """
        view = view_of(self._log, self._log.snapshot(), isolation)
        rows = self.spark_verbs.latest_of(self._log_dir.spark, self._log, view)
        return Bootstrap(rows=rows, position=view.position)

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
        clock_ms: Callable[[], int] = clock.now_ms,
    ) -> DataFrame:
        """Return a streaming DataFrame of the records from a position on: partition, offset, timestamp, key, value, headers.

        `starting_offsets` is "earliest", "latest" (as of this call), an offset for each partition, or the position of a bootstrap;
        `starting_timestamp` (ms, or a datetime) begins at the first record that is not older. They count for a new query; one that has a
        checkpoint goes on from it. A value of null is a tombstone. Offsets are all the progress there is: a query survives cleaning,
        VACUUM and restarts. What was compacted away is skipped; records that were deleted, or taken back by a RESTORE, before they were
        read end the query with `ReaderBehind`, unless `fail_on_data_loss` is False, and so do tombstones that went before they were read,
        unless `on_missed_tombstones` is "warn". A micro-batch has at most about `max_offsets_per_trigger` offsets; every row of it comes
        before those of the next, in no order inside of it: apply by offset. A tail that is named as a `reader` is registered: tombstones
        that it has not read stay, and files that it read last, until it has not been seen for `reader_expiration_ms`.
        """
        options = self.spark_verbs.TailOptions(
            isolation=isolation,
            max_offsets_per_trigger=max_offsets_per_trigger,
            fail_on_data_loss=fail_on_data_loss,
            on_missed_tombstones=on_missed_tombstones,
            reader=reader,
            reader_expiration_ms=reader_expiration_ms,
        )
        rows: DataFrame = self.spark_verbs.tail(
            self._log_dir.spark,
            self._log,
            options,
            starting_offsets=starting_offsets,
            starting_timestamp=starting_timestamp,
            clock_ms=clock_ms,
        )
        return rows

    def changes(self, begin: Offsets, end: Offsets, *, net: bool = False, isolation: str = "read_committed") -> DataFrame:
        """Return what changed from one offset vector to another (exclusive).

        Columns: partition, key, value, headers, timestamp, offset, change_type, which is insert, update_before, update_after or delete; a
        delete carries the value from before. Every record makes a change of its own, at its offset; with `net` a key changes once at most.
        Raises `HistoryCleaned` when cleaning has removed what the answer needs, `OffsetOutOfRange` for a vector that goes back or is not
        reached yet.
        """
        rows: DataFrame = self.spark_verbs.changes(self._log_dir.spark, self._log, begin, end, net=net, isolation=isolation)
        return rows

    def materialize(
        self,
        target: str | Sink,
        *,
        trigger: Mapping[str, Any] | None = None,
        key_format: str | None = None,
        value_format: str | None = None,
        schema: StructType | str | None = None,
        mode: str = "FAILFAST",
        history: bool = False,
        rebuild: bool = False,
        checkpoint_location: str | None = None,
        clock_ms: Callable[[], int] = clock.now_ms,
        **options: Any,
    ) -> StreamingQuery:
        """Keep a table of last words in step with the log, exactly once, and return the query that does.

        `target` is the path or URI of a Delta table: bootstrapped in one commit if it is not there, then one commit a micro-batch, which
        moves rows and position together; stopped or killed at any point, it goes on from there. Its columns are those of `latest()`; with
        a `value_format` and `schema` the fields of the value beside `_partition`, `_key`, `_offset`, `_timestamp`, `_headers`; keys as text
        with `key_format="utf8"`. With `history` every word stays, with `_valid_from`, `_valid_to` and `_is_current` (SCD type 2), from the
        bootstrap on. `rebuild` bootstraps anew, in the place of what is there.

        Or `target` is a function `(rows, position)` that gets the newest record of each key of a micro-batch (`latest()`'s columns and
        `live`, false for a tombstone), from the log start on, and the position after them; it needs a `checkpoint_location`. A micro-batch
        may come again after a crash: a sink that keeps the position beside its rows knows it.

        `trigger` is Spark's; `options` are those of `tail` (isolation, max_offsets_per_trigger, reader …). Raises `UserError` for a table
        that is no target of this topic.
        """
        query: StreamingQuery = self.spark_verbs.start_materialization(
            self._log_dir,
            self._log,
            target,
            options=self.spark_verbs.TailOptions(**options),
            shape=self.spark_verbs.Shape(key_format=key_format, value_format=value_format, schema=schema, mode=mode),
            trigger=trigger or {},
            history=history,
            rebuild=rebuild,
            checkpoint_location=checkpoint_location,
            clock_ms=clock_ms,
        )
        return query

    def readers(self, *, now_ms: int | None = None) -> list[ReaderStanding]:
        """Return the registered readers by name: position, lag, last sight, and whether they have expired."""
        ends, moment = self._log.log_end_offsets(), clock.or_now(now_ms)
        return [ReaderStanding.of(one, ends, moment) for _, one in sorted(self._log.readers().items())]

    def drop_reader(self, name: str, *, now_ms: int | None = None) -> None:
        """Forget a registered reader: it pins nothing any more. Raises `UserError` naming those that there are."""
        decisions.drop_reader(self._log, name, now_ms=clock.or_now(now_ms))

    def dead_letters(self) -> DataFrame:
        """Return the refused rows of streams: when, from where, why, and the row itself."""
        return self._log_dir.spark.read.format("delta").load(self._log.paths.dead_letters)

    def describe(self) -> TopicDescription:
        """Return partitions, segments, sizes, offsets and exact record counts, from metadata alone.

        Only for the last stable offset files are read: those with records of producers that came since anybody asked for it.
        """
        return describe(self._log, now_ms=clock.now_ms())

    def clean(self, now_ms: int | None = None, *, force: bool = False) -> list[CleaningReceipt]:
        """Clean every eligible partition once and return their receipts; an empty list when nothing is eligible.

        Eligible: the dirty ratio is above `min.cleanable.dirty.ratio`, or `max.compaction.lag.ms` is exceeded, or the horizon of a
        tombstone or marker has passed. With `force` neither the ratio nor failures before matter; what the last stable offset,
        `min.compaction.lag.ms` or the active segment protect stays as it is. Rules: docs/semantics.md#A.19, docs/semantics.md#3 to
        docs/semantics.md#11, KIP-58, KIP-354, KIP-534.
        """
        return self._log_dir.idle_cleaner(self._log).clean(self._log, self._log_dir.session, clock_ms=clock.at(now_ms), force=force)

    def explain(self, now_ms: int | None = None, *, force: bool = False) -> list[PartitionReport]:
        """Return for each partition what would be cleaned now, or which bound or threshold holds it back, and until when.

        With `force` as `clean` with it would see them.
        """
        cleaner = self._log_dir.cleaner
        plan, _ = cleaner.plan(self._log, now_ms=clock.or_now(now_ms), force=force)
        return partition_reports(plan, self._log.decisions().cleaning_failures())

    def preview_clean(self, now_ms: int | None = None, *, force: bool = False) -> list[CleaningReceipt]:
        """Return the receipts that `clean` would write in its first round, without writing anything: rows and bytes to go, by reason."""
        return self._log_dir.cleaner.preview(self._log, self._log_dir.session, now_ms=clock.or_now(now_ms), force=force)

    def receipts(self, partition: int | None = None) -> list[CleaningReceipt]:
        """Return the receipts of the cleanings that the log still contains, oldest first."""
        self._log.sync_ledger_with_history()
        return self._log.receipts(partition)

    def apply_retention(self, now_ms: int | None = None) -> dict[int, Deletion]:
        """Delete the segments that log start, retention.bytes and retention.ms allow to go; return what went, by partition.

        Paused partitions are left alone. Rule: docs/semantics.md#14 (UnifiedLog.deleteOldSegments).
        """
        return self._log_dir.idle_cleaner(self._log).apply_retention(self._log, now_ms=clock.or_now(now_ms))

    def delete_records(self, before: Mapping[int, int], *, now_ms: int | None = None) -> dict[int, int]:
        """Delete the records below an offset, by partition; return the log start offsets that hold then (Kafka's DeleteRecords).

        An offset of -1 means the log end. Readers see none of them from now on, whatever table version they ask for; segments that lie
        wholly below are removed at once, or by the service after the cleaning in hand, and files when VACUUM removes them. Raises
        `OffsetOutOfRange` naming what is allowed.
        """
        moment = clock.or_now(now_ms)
        rose = decisions.raise_log_starts(self._log, before, now_ms=moment)
        if rose and not self._log_dir.cleaner.locks.works_on(self._log):  # it is not waited for: the decision holds as it is
            with suppress(CommitConflict):  # asked for again, -1 would mean another log end
                self._log_dir.idle_cleaner(self._log).apply_retention(self._log, now_ms=moment, heeds_claims=True)
        today = self._log.decisions()
        return {partition: today.log_start_offset(partition) for partition in before}

    def purge(self, key: str | bytes, *, before: datetime | str | int | None = None, now_ms: int | None = None) -> PurgeReceipt:
        """Erase a key (a string is UTF-8): from the log, registered targets and dead letters, and from every file; return the receipt.

        With `before` (a datetime, ISO 8601 text or ms; without a zone UTC) a key whose newest record is not older keeps that one. Raises
        `PurgeIncomplete` naming what holds it back or remains: the bound, the files; purging again goes on from there. Raises `UserError`
        for a topic that mirrors another or is not compacted. Rule: ADR 0013.
        """
        wanted = key.encode() if isinstance(key, str) else bytes(key)
        return Purge(self._log_dir, self._log, wanted, before_ms=before_as_ms(before), now_ms=clock.or_now(now_ms)).run()

    def pause(self, partition: int | None = None, *, now_ms: int | None = None) -> dict[int, int]:
        """Pause cleaning and retention of one partition, or of all; return the number of pauses by partition. Each needs a `resume`."""
        return decisions.count_pauses(self._log, partition, 1, now_ms=clock.or_now(now_ms))

    def resume(self, partition: int | None = None, *, now_ms: int | None = None) -> dict[int, int]:
        """Take one pause away from a partition, or from all that have one; return the pauses that are left."""
        return decisions.count_pauses(self._log, partition, -1, now_ms=clock.or_now(now_ms))

    def verify(self) -> VerifyReport:
        """Check the invariants of the log: offsets unique and ascending, slices disjoint, only commits of ours; reads every offset."""
        return verify(self._log)
