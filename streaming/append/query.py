"""The appender: a streaming query whose every micro-batch becomes one Delta commit, exactly once.

```
 micro-batch n ─► was n committed under this query's id? ─yes─► nothing
                            │ no
                            ▼
                  TopicLog.append: dead letters, then one commit that carries {query id: n}
```

Spark repeats a micro-batch that it does not know to be done; the log knows. Spark's checkpoint is only the position in the source.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lastword.checkpoints.queries import (
    check_micro_batch,
    check_query,
    check_query_name,
    lock_query,
    remove_unfinished_batch,
    stored_micro_batch,
    stored_positions,
    stored_query_id,
)
from lastword.compaction.errors import Aborted, InvalidConfiguration, QueryRefused, UserError, Violation
from lastword.compaction.producers import Control
from lastword.compaction.rows.input_columns import EVENT, check_event_columns, shape_of
from lastword.storage.append import transactions
from lastword.storage.append.append import append_rows, check_on_invalid
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.files.locations import local_path, spark_location
from lastword.storage.files.paths import filesystem_of
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming import metrics
from lastword.streaming.append.dataframes import DataFrameRows, dataframe_columns
from lastword.streaming.append.upstream import Mirror, check_loss, check_mirror, check_read_once, check_same_source, follow_log_starts
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from filelock import BaseFileLock
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.change_data.events.envelopes import Envelope
    from lastword.change_data.events.event_rows import FrameDecoder
    from lastword.compaction.producers import ProducerStamp
    from lastword.storage.append.requests import AppendResult, EventSource
    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.upstream import Upstream

_RUNNING: Final[dict[str, tuple[StreamingQuery, Appender]]] = {}
_LOG: Final = logger("appender")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Which micro-batches make one transaction: `micro_batches` at a time, under one `transactional_id`."""

    transactional_id: str
    micro_batches: int = 1

    def __post_init__(self) -> None:
        """Refuse a group of nothing."""
        if self.micro_batches < 1:
            subject = f"transactional.id {self.transactional_id}"
            violation = Violation(key="micro_batches_per_transaction", value=str(self.micro_batches), allowed="1 or more")
            raise InvalidConfiguration(subject, [violation])


def start_append_query(
    log: TopicLog,
    rows: DataFrame,
    *,
    name: str,
    trigger: Mapping[str, Any],
    on_invalid: str,
    mirror: Mirror | None,
    clock_ms: Callable[[], int],
    grouping: Grouping | None = None,
    envelope: Envelope | None = None,
    source: EventSource | None = None,
    decoder: FrameDecoder | None = None,
    upstream: Upstream | None = None,
) -> StreamingQuery:
    """Start the query; see `lastword.spark_topic.SparkTopic.append_stream`.

    `upstream` is the source of a query that is no mirror, if it can be asked for its log starts.
    With an `envelope` the rows are change events. Those of a `source` have its partition and offset as order columns; with a `decoder` keys
    and values are framed for a schema registry.
    """
    has_offsets = _checked_start(log, rows, name=name, on_invalid=on_invalid, mirror=mirror, grouping=grouping, envelope=envelope)
    if has_offsets and mirror is None:
        mirror = Mirror(source=f"query {name}")
    reads = "" if upstream is None else upstream.reads
    check_read_once(log.decisions(), reads, topic=log.name, query=name)
    location = log.paths.query(name)
    folder = local_path(location)
    lock = lock_query(name, topic=log.name, location=folder) if folder is not None else None
    try:
        if upstream is not None and upstream.begins_anew:
            _discard_checkpoint(log, name, now_ms=clock_ms())
        _check_checkpoint(log, name, offsets_are_kept=mirror is not None or source is not None)
        appender = Appender(
            log,
            name=name,
            fail_on_invalid=on_invalid == "fail",
            upstream=mirror or upstream,
            clock_ms=clock_ms,
            grouping=grouping,
            lock=lock,
            envelope=envelope,
            source=source,
            decoder=decoder,
        )
        appender.claim_mirror()
        writer = rows.writeStream.foreachBatch(appender.append_micro_batch).queryName(f"{log.name}/{name}")
        if trigger:
            writer = writer.trigger(**trigger)
        query = writer.option("checkpointLocation", spark_location(location)).start()
        try:
            appender.bind(query.id)
        except BaseException:
            query.stop()
            raise
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    _RUNNING[query.runId] = query, appender
    ends_transaction = grouping is not None and grouping.micro_batches > 1 and bool(trigger.get("availableNow"))
    threading.Thread(target=_await, args=(query, appender, ends_transaction), name=f"{name}-end", daemon=True).start()
    return query


def _discard_checkpoint(log: TopicLog, name: str, *, now_ms: int) -> None:
    """Delete the position of a query whose source was made again, and forget the query; a crash in between does no harm."""
    folder, _, last = log.paths.query(name).rpartition("/")
    with contextlib.suppress(FileNotFoundError):
        filesystem_of(folder, log.storage_options).delete_dir(last)
    log.ledger.append([Decision(kind=Kind.QUERY, time_ms=now_ms, name=name, details={"query_id": None})])
    _LOG.warning("source was created again; the query begins at its start", topic=log.name, query=name)


def _check_checkpoint(log: TopicLog, name: str, *, offsets_are_kept: bool) -> None:
    """Raise `QueryRefused` if a query's checkpoint is not the one that the log knows, or an older state of it."""
    checkpoint = filesystem_of(log.paths.query(name), log.storage_options)
    known_id, stored_id = log.decisions().queries.get(name), stored_query_id(checkpoint)
    check_query(name, topic=log.name, known_id=known_id, stored_id=stored_id, offsets_are_kept=offsets_are_kept)
    if stored_id is not None:
        committed, stored = log.committed_micro_batch(stored_id), stored_micro_batch(checkpoint)
        check_micro_batch(name, topic=log.name, committed=committed, stored=stored, offsets_are_kept=offsets_are_kept)
    remove_unfinished_batch(checkpoint)


def _checked_start(
    log: TopicLog,
    rows: DataFrame,
    *,
    name: str,
    on_invalid: str,
    mirror: Mirror | None,
    grouping: Grouping | None,
    envelope: Envelope | None,
) -> bool:
    """Tell whether a stream that may be started brings offsets that the topic keeps; raise what is wrong with it."""
    check_query_name(name)
    check_on_invalid(on_invalid, subject=f"query {name}")
    if not rows.isStreaming:
        message = f"query {name}: append_stream takes a streaming DataFrame (spark.readStream); use append for a batch one"
        raise UserError(message)
    if envelope is not None:
        if EVENT not in rows.columns:
            check_event_columns(dataframe_columns(rows.schema), topic=log.name)
        if grouping is not None or mirror is not None:
            message = f"query {name}: change events are no mirror and no transactions; leave the envelope or these arguments out"
            raise UserError(message)
        _check_not_running(log, name)
        return False
    shape = shape_of(dataframe_columns(rows.schema), topic=log.name)
    if grouping is not None and (shape.has_offsets or shape.has_producers):
        message = f"query {name}: rows of a transactional stream get their producer and offsets from it; leave those columns out"
        raise UserError(message)
    if mirror is not None and not shape.has_offsets:
        message = f"query {name}: a mirror keeps its source's offsets, so its rows need the columns partition and offset"
        raise UserError(message)
    _check_not_running(log, name)
    return shape.has_offsets


def _check_not_running(log: TopicLog, name: str, queries: Mapping[str, tuple[StreamingQuery, Appender]] = _RUNNING) -> None:
    """Raise `QueryRefused` if a query of the topic runs in this process, as one of some `queries`."""
    for running, other in list(queries.values()):
        if (other.location, other.name) != (log.paths.root, name):
            continue
        if not running.isActive:
            other.let_go()  # its thread has not come to that yet
        else:
            message = f"query {name} of topic {log.name} runs already (run {running.runId}); stop it first, or choose another name"
            raise QueryRefused(message)


def _await(query: StreamingQuery, appender: Appender, ends_transaction: bool) -> None:  # noqa: FBT001  a thread's target
    """Let go of the checkpoint of a query when it has ended.

    With `ends_transaction` commit the last, incomplete transaction of one that came to its end by itself; one that was stopped goes on
    with it.
    """
    try:
        came_to_its_end = False
        with contextlib.suppress(Exception):  # what it died of is told to those who ask the query
            query.awaitTermination()
            came_to_its_end = True
        if ends_transaction and came_to_its_end and not appender.finishing:
            appender.end_transaction()
    finally:
        _RUNNING.pop(query.runId, None)
        appender.let_go()


def stop_append_query(query: StreamingQuery) -> None:
    """Stop an append query between two micro-batches: the one in hand is finished, none is begun.

    `StreamingQuery.stop()` interrupts a micro-batch in hand instead. That loses nothing either, but does its work again at the next start.
    """
    _, appender = _RUNNING.pop(query.runId, (query, None))
    if appender is not None:
        appender.finish()
    query.stop()
    if appender is not None:
        appender.let_go()


def stop_append_queries(log: TopicLog) -> None:
    """Stop every append query of a topic that runs in this process, between two micro-batches."""
    for query, appender in list(_RUNNING.values()):
        if appender.location == log.paths.root:
            stop_append_query(query)


class Appender:
    """The foreachBatch function of one append query, and what it remembers between micro-batches."""

    def __init__(
        self,
        log: TopicLog,
        *,
        name: str,
        fail_on_invalid: bool,
        upstream: Upstream | None,
        clock_ms: Callable[[], int],
        grouping: Grouping | None,
        lock: BaseFileLock | None = None,
        envelope: Envelope | None = None,
        source: EventSource | None = None,
        decoder: FrameDecoder | None = None,
    ) -> None:
        """Belong to the query `name` of a topic, whose checkpoint `lock` holds; `bind` gives it the id that Spark drew."""
        self._log = log
        self._name = name
        self._fail_on_invalid = fail_on_invalid
        self._upstream = upstream
        self._clock_ms = clock_ms
        self._stats = AppendStats()
        self._query_id: str | None = None
        self._bound = threading.Event()
        self._in_hand = threading.Lock()
        self._grouping = grouping
        self._stamp: ProducerStamp | None = None
        self._finishing = False
        self._lock = lock
        self._envelope, self._source, self._decoder = envelope, source, decoder

    @property
    def finishing(self) -> bool:
        """Tell whether it was asked to stop."""
        return self._finishing

    @property
    def name(self) -> str:
        """The query's name."""
        return self._name

    @property
    def location(self) -> str:
        """The topic's folder."""
        return self._log.paths.root

    def bind(self, query_id: str) -> None:
        """Learn the query's id and make it known to the ledger, with its transactional.id; micro-batches wait for this."""
        try:
            self._bind(query_id)
        finally:
            self._bound.set()

    def _bind(self, query_id: str) -> None:
        if self._grouping is not None:
            self._stamp = transactions.begin(
                self._log, self._grouping.transactional_id, now_ms=self._clock_ms(), timeout_ms=None, query=self._name
            )
        reads = "" if self._upstream is None else self._upstream.reads
        today = self._log.decisions()
        if (today.queries.get(self._name), today.query_sources.get(self._name, "")) != (query_id, reads):
            self._log.ledger.decide(lambda newest: (self._made_known(newest, query_id, reads), None))
        self._query_id = query_id

    def _made_known(self, today: Decisions, query_id: str, reads: str) -> list[Decision]:
        """Return what makes the query known to the ledger, unless another one that reads the same was known first."""
        check_read_once(today, reads, topic=self._log.name, query=self._name)
        details = {"query_id": query_id, **({"reads": reads} if reads else {})}
        return [Decision(kind=Kind.QUERY, time_ms=self._clock_ms(), name=self._name, details=details)]

    def append_micro_batch(self, batch: DataFrame, batch_id: int) -> None:
        """Append one micro-batch; Spark calls this, and calls it again with the same number after a crash."""
        self._bound.wait()
        if self._query_id is None:
            message = f"query {self._name}: it could not be started; micro-batch {batch_id} comes again at the next start"
            raise Aborted(message)
        with self._in_hand:
            if self._finishing:  # returning would tell Spark that the rows are in the log
                message = f"query {self._name} is stopping: micro-batch {batch_id} comes again at the next start"
                raise Aborted(message)
            self._check_upstream(batch_id)
            micro_batch = MicroBatch(
                query_id=self._query_id,
                query_name=self._name,
                batch_id=batch_id,
                fail_on_invalid=self._fail_on_invalid,
                source=self._source,
            )
            began = time.monotonic()
            result = self._append(batch, micro_batch)
            metrics.count_append(
                self._log.name,
                seconds=time.monotonic() - began,
                records=0 if result.replayed else result.record_count,
                refused=sum(result.refused.values()),
                duplicates=result.duplicates,
                late=result.late,
            )
            metrics.count_sources(self._log.name, result.sources)
            if self._grouping is not None and (batch_id + 1) % self._grouping.micro_batches == 0:
                self.end_transaction()
            self._report(batch_id, result)

    def _append(self, batch: DataFrame, micro_batch: MicroBatch) -> AppendResult:
        if self._envelope is None or EVENT in batch.columns:
            rows = DataFrameRows(batch, self._stats, None if self._envelope is None else self._envelope.policy)
        else:
            rows = DataFrameRows.of_events(batch, self._stats, self._envelope, self._log.name, self._decoder)
        if self._stamp is None:
            return append_rows(self._log, rows, now_ms=self._clock_ms(), stats=self._stats, micro_batch=micro_batch)
        return transactions.append(self._log, rows, self._stamp, now_ms=self._clock_ms(), stats=self._stats, micro_batch=micro_batch)

    def end_transaction(self) -> None:
        """Commit the transaction in hand, if there is one."""
        if self._stamp is not None:
            transactions.end(self._log, self._stamp, Control.COMMIT, now_ms=self._clock_ms())

    def finish(self) -> None:
        """Wait for the micro-batch in hand and let no other begin."""
        self._finishing = True
        with self._in_hand:
            pass

    def let_go(self) -> None:
        """Let other processes run the query."""
        if self._lock is not None:
            self._lock.release()

    def claim_mirror(self) -> None:
        """Write into the ledger that the topic mirrors this query's source, or check that it is the one that it mirrors."""
        mirror = self._upstream
        if not isinstance(mirror, Mirror):
            return
        decisions, state = self._log.decisions(), mirror.ask()
        if decisions.mirror is None:
            if any(self._log.at().log_end_offsets):
                message = (
                    f"topic {self._log.name} holds records of its own, so it cannot keep the offsets of {mirror.source}; mirror it "
                    "into an empty topic"
                )
                raise QueryRefused(message)
            if state is None:
                message = f"{mirror.source} does not answer now; the topic mirrors it once it does"
                raise UserError(message)
            details = {"query": self._name, "source": mirror.source, "identity": state.identity}
            self._log.ledger.append([Decision(kind=Kind.MIRROR, time_ms=self._clock_ms(), details=details)])
        if state is not None:
            check_mirror(self._log, mirror, state, query=self._name)
            follow_log_starts(self._log, state, now_ms=self._clock_ms())

    def _check_upstream(self, batch_id: int) -> None:
        """Ask the source before a micro-batch; one that does not answer now stops nothing."""
        upstream, state = self._upstream, None if self._upstream is None else self._upstream.ask()
        if upstream is None or state is None:
            return
        positions = stored_positions(filesystem_of(self._log.paths.query(self._name), self._log.storage_options), batch_id)
        if isinstance(upstream, Mirror):
            check_mirror(self._log, upstream, state, query=self._name)
        elif upstream.identity and state.identity and upstream.identity != state.identity:
            check_same_source(upstream, state, positions or {}, topic=self._log.name, query=self._name)
            message = f"{upstream.source} was deleted and created again; query {self._name} begins at its start when it is started again"
            raise QueryRefused(message)
        if positions is None and isinstance(upstream, Mirror) and any(ends := self._log.at().log_end_offsets):
            positions = dict(enumerate(ends))  # its checkpoint was deleted: what is not in the log was not read
        check_loss(self._log, upstream, state, positions or {})
        if isinstance(upstream, Mirror):
            follow_log_starts(self._log, state, now_ms=self._clock_ms())

    def _report(self, batch_id: int, result: AppendResult) -> None:
        _LOG.info(
            "replayed micro-batch skipped" if result.replayed else "micro-batch appended",
            topic=self._log.name,
            query=self._name,
            batch_id=batch_id,
            table_version=result.table_version,
            records=result.record_count,
            refused=sum(result.refused.values()),
            duplicates=result.duplicates,
            late=result.late,
            skipped=dict(result.skipped),
            late_by_source={name: counts.late for name, counts in result.sources.items() if counts.late},
        )
        for note in result.notes:
            _LOG.warning(note, topic=self._log.name, query=self._name)
