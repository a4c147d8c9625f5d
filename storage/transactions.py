"""Transactions: begun by an identity that is durable first, ended by markers in every partition that they touched, in one Delta commit.

```
 begin    ledger: transactional.id → producer id, epoch + 1        fences the instance before
          log:    ABORT markers, if that one left a transaction open
 append   log:    rows carry producer id, epoch, sequence, first offset of the transaction; nobody reads past them yet
 end      log:    a COMMIT or ABORT marker in every touched partition, all in ONE commit: all partitions change at one table version
```

Each step is a compare-and-set on the log, and looks at the ledger within it: an instance that was taken over finds out before its commit.
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
        decisions = log.decisions()
        known = decisions.producers.get(transactional_id)
        if known is not None and query is not None and known.query == query:
            return ProducerStamp(transactional_id=transactional_id, producer_id=known.producer_id, epoch=known.epoch)
        snapshot = log.snapshot()
        highest = max([snapshot.highest_producer_id(), *(one.producer_id for one in decisions.producers.values())])
        producer_id, epoch = next_identity((known.producer_id, known.epoch) if known else None, highest_id=highest)
        _register(log, transactional_id, producer_id, epoch, now_ms=now_ms, timeout_ms=timeout_ms, query=query)
        crash_points.reached(CrashPoint.PRODUCER_REGISTERED)
        stamp = ProducerStamp(transactional_id=transactional_id, producer_id=producer_id, epoch=epoch)
        if known is not None:
            _write_markers(log, spark, known.producer_id, max(epoch, known.epoch), Control.ABORT, now_ms=now_ms)
        return stamp

    return log.attempts(once)


def end(log: TopicLog, spark: SparkSession, stamp: ProducerStamp, control: Control, *, now_ms: int) -> AppendResult:
    """Write the markers of the open transaction of `stamp`; raise `ProducerFenced` when another instance has taken over.

    The result's version is None when nothing was appended in the transaction, or when its markers are there already.
    """

    def once() -> AppendResult:
        check_not_fenced(stamp, log.decisions(), log.name)
        return _write_markers(log, spark, stamp.producer_id, stamp.epoch, control, now_ms=now_ms)

    return log.attempts(once)


def end_for_others(log: TopicLog, spark: SparkSession, transaction: OpenTransaction, *, now_ms: int) -> AppendResult:
    """End a transaction whose producer does not do it: abort it, with a new epoch that fences the producer.

    That of a streaming query is committed instead: its micro-batches are whole, and Spark would never bring them again.
    """

    def once() -> AppendResult:
        known = log.decisions().producers.get(transaction.transactional_id or "")
        control = Control.COMMIT if known is not None and known.query is not None else Control.ABORT
        epoch = transaction.epoch if control is Control.COMMIT else transaction.epoch + 1
        if known is not None and control is Control.ABORT and transaction.transactional_id is not None:
            epoch = max(epoch, known.epoch + 1)
            _register(log, transaction.transactional_id, known.producer_id, epoch, now_ms=now_ms, timeout_ms=known.timeout_ms, query=None)
        return _write_markers(log, spark, transaction.producer_id, epoch, control, now_ms=now_ms)

    return log.attempts(once)


def _register(
    log: TopicLog, transactional_id: str, producer_id: int, epoch: int, *, now_ms: int, timeout_ms: int | None, query: str | None
) -> None:
    details = {"producer_id": producer_id, "epoch": epoch, "timeout_ms": timeout_ms, "query": query}
    log.ledger.append([Decision(kind=Kind.PRODUCER, time_ms=now_ms, name=transactional_id, details=details)])


def _write_markers(log: TopicLog, spark: SparkSession, producer_id: int, epoch: int, control: Control, *, now_ms: int) -> AppendResult:
    """Write one marker into every partition in which the producer has a transaction open, in one commit; none when it has none."""
    snapshot = log.snapshot()
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
