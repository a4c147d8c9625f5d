"""Transactions: begun by an identity that is durable first, ended by markers in every partition that they touched, in one Delta commit.

```
 begin    ledger: transactional.id → producer id, epoch + 1        fences the instance before
          log:    ABORT markers, if that one left a transaction open
 append   log:    rows carry producer id, epoch, sequence, first offset of the transaction; nobody reads past them yet
 end      log:    a COMMIT or ABORT marker in every touched partition, all in ONE commit: all partitions change at one table version
```

Each step is a compare-and-set on the log, and looks at the ledger within it: an instance that was taken over finds out before its commit.
To begin is no commit to the log, where nothing was open: what an older instance still commits then is aborted before the first append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql import types as T

from compaction.errors import CommitConflict, UserError
from compaction.producers import Control, ProducerStamp, next_identity
from storage import crash_points
from storage.append import Append, AppendResult, Habits, check_not_fenced
from storage.crash_points import CrashPoint
from storage.decisions import Decision, Kind
from storage.envelope import DETAIL, ORDER_PREFIX, RAW, REASON
from storage.producer_log import states_of
from storage.producer_rows import OPEN_FIRST
from storage.schema import HEADERS_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from compaction.producers import OpenTransaction
    from storage.append import MicroBatch
    from storage.decisions import Decisions, Producer
    from storage.snapshot import LogSnapshot
    from storage.topic_log import TopicLog


def begin(
    log: TopicLog, spark: SparkSession, transactional_id: str, *, now_ms: int, timeout_ms: int | None, query: str | None = None
) -> ProducerStamp:
    """Become the newest instance of a transactional.id and return its identity; abort what the instance before left open.

    A streaming query (`query`) that comes back goes on under its old identity instead: its micro-batches are done for Spark and would not
    come again, so its open transaction must not be aborted.
    """
    if not transactional_id:
        message = f"topic {log.name}: a transactional.id must not be empty"
        raise UserError(message)

    def once() -> ProducerStamp:
        log.decisions()
        in_log = log.snapshot().highest_producer_id()
        chosen: list[tuple[ProducerStamp, Producer | None]] = []

        def registered(today: Decisions) -> list[Decision]:
            before = today.producers.get(transactional_id)
            if before is not None and query is not None and before.query == query:
                producer_id, epoch = before.producer_id, before.epoch
            else:
                highest = max([in_log, *(one.producer_id for one in today.producers.values())])
                producer_id, epoch = next_identity((before.producer_id, before.epoch) if before else None, highest_id=highest)
            stamp = ProducerStamp(transactional_id=transactional_id, producer_id=producer_id, epoch=epoch)
            chosen.append((stamp, before))
            goes_on = before is not None and (before.producer_id, before.epoch) == (producer_id, epoch)
            return [] if goes_on else [_registration(stamp, now_ms=now_ms, timeout_ms=timeout_ms, query=query)]

        log.ledger.decide(registered)
        stamp, before = chosen[-1]
        if before is not None and (before.producer_id, before.epoch) == (stamp.producer_id, stamp.epoch):
            return stamp
        crash_points.reached(CrashPoint.PRODUCER_REGISTERED)
        if before is not None:
            epoch = max(stamp.epoch, before.epoch)
            _write_markers(log, spark, log.snapshot(), Control.ABORT, producer_id=before.producer_id, epoch=epoch, now_ms=now_ms)
        return stamp

    return log.attempts(once)


def append(
    log: TopicLog,
    rows: DataFrame,
    stamp: ProducerStamp,
    *,
    now_ms: int,
    habits: Habits,
    micro_batch: MicroBatch | None = None,
) -> AppendResult:
    """Append rows to the transaction of `stamp` as `TopicLog.append` does; raise `ProducerFenced` when another instance has taken over."""

    def once() -> AppendResult:
        _abort_older(log, rows.sparkSession, stamp, now_ms=now_ms)
        return Append(log, rows, now_ms=now_ms, habits=habits, micro_batch=micro_batch, stamp=stamp).run()

    return log.attempts(once)


def end(log: TopicLog, spark: SparkSession, stamp: ProducerStamp, control: Control, *, now_ms: int) -> AppendResult:
    """Write the markers of the open transaction of `stamp`; raise `ProducerFenced` when another instance has taken over.

    The result's version is None when nothing was appended in the transaction, or when its markers are there already.
    """

    def once() -> AppendResult:
        _abort_older(log, spark, stamp, now_ms=now_ms)
        snapshot = log.snapshot()
        check_not_fenced(stamp, log.decisions(), log.name)
        return _write_markers(log, spark, snapshot, control, producer_id=stamp.producer_id, epoch=stamp.epoch, now_ms=now_ms)

    return log.attempts(once)


def end_for_others(log: TopicLog, spark: SparkSession, transaction: OpenTransaction, *, now_ms: int) -> AppendResult:
    """End a transaction whose producer does not do it: abort it, with a new epoch that fences the producer.

    That of a streaming query is committed instead: its micro-batches are whole, and Spark would never bring them again.
    """

    def once() -> AppendResult:
        chosen: list[tuple[Control, int]] = []

        def fenced(today: Decisions) -> list[Decision]:
            known = today.producers.get(transaction.transactional_id or "")
            if known is not None and known.query is not None:
                chosen.append((Control.COMMIT, transaction.epoch))
                return []
            epoch = transaction.epoch + 1 if known is None else max(transaction.epoch, known.epoch) + 1
            chosen.append((Control.ABORT, epoch))
            if known is None or transaction.transactional_id is None:
                return []
            stamp = ProducerStamp(transactional_id=transaction.transactional_id, producer_id=known.producer_id, epoch=epoch)
            return [_registration(stamp, now_ms=now_ms, timeout_ms=known.timeout_ms, query=None)]

        log.decisions()
        log.ledger.decide(fenced)
        control, epoch = chosen[-1]
        return _write_markers(log, spark, log.snapshot(), control, producer_id=transaction.producer_id, epoch=epoch, now_ms=now_ms)

    return log.attempts(once)


def _registration(stamp: ProducerStamp, *, now_ms: int, timeout_ms: int | None, query: str | None) -> Decision:
    details = {"producer_id": stamp.producer_id, "epoch": stamp.epoch, "timeout_ms": timeout_ms, "query": query}
    return Decision(kind=Kind.PRODUCER, time_ms=now_ms, name=stamp.transactional_id, details=details)


def _abort_older(log: TopicLog, spark: SparkSession, stamp: ProducerStamp, *, now_ms: int) -> None:
    """Abort what an older instance of `stamp` has open: it may have looked into the ledger before the newest began, and committed after."""
    snapshot = log.snapshot()
    states = states_of(stamp.producer_id, log.producer_states(spark, snapshot))
    if any(state.is_left_open_before(stamp.epoch) for state in states.values()):
        check_not_fenced(stamp, log.decisions(), log.name)
        _write_markers(log, spark, snapshot, Control.ABORT, producer_id=stamp.producer_id, epoch=stamp.epoch, now_ms=now_ms)


def _write_markers(
    log: TopicLog, spark: SparkSession, snapshot: LogSnapshot, control: Control, *, producer_id: int, epoch: int, now_ms: int
) -> AppendResult:
    """Write one marker into every partition in which the producer has a transaction open, in one commit; none when it has none.

    Raises `CommitConflict` when something was committed after `snapshot`.
    """
    states = states_of(producer_id, log.producer_states(spark, snapshot))
    firsts = {partition: state.open_first_offset for partition, state in states.items() if state.open_first_offset is not None}
    if not firsts:
        return AppendResult(table_version=None)
    crash_points.reached(CrashPoint.MARKERS_PLANNED)
    attempt = Append(log, _markers(spark, firsts, producer_id, epoch, control, now_ms=now_ms), now_ms=now_ms, habits=Habits())
    if attempt.snapshot.version != snapshot.version:
        message = f"{log.paths.log}: something was committed after table version {snapshot.version}; no marker was written"
        raise CommitConflict(message)
    result = attempt.append_markers()
    crash_points.reached(CrashPoint.MARKERS_COMMITTED)
    return result


_MARKER_TYPE = T.StructType([T.StructField("partition", T.IntegerType()), T.StructField(OPEN_FIRST, T.LongType())])


def _markers(spark: SparkSession, firsts: Mapping[int, int], producer_id: int, epoch: int, control: Control, *, now_ms: int) -> DataFrame:
    """Return markers in the shape of judged rows."""
    rows = spark.createDataFrame(sorted(firsts.items()), _MARKER_TYPE)
    nothing = {"offset": "bigint", "key": "binary", "value": "binary", "headers": HEADERS_TYPE, "sequence": "int"}
    nothing |= {REASON: "string", DETAIL: "string", RAW: "string"}
    return rows.select(
        "*",
        F.timestamp_millis(F.lit(now_ms)).alias("timestamp"),
        F.lit(producer_id).cast("bigint").alias("producer_id"),
        F.lit(epoch).cast("int").alias("producer_epoch"),
        F.lit(True).alias("transactional"),
        F.lit(control.value).alias("control"),
        F.lit(0).alias(f"{ORDER_PREFIX}1"),
        *(F.lit(None).cast(kind).alias(name) for name, kind in nothing.items()),
    )
