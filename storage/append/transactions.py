"""Transactions: begun by an identity that is durable first, ended by markers in every partition that they touched, in one Delta commit.

```
 begin    ledger: transactional.id → producer id, epoch + 1        fences the instance before
          log:    ABORT markers, if that one left a transaction open
 append   log:    rows carry producer id, epoch, sequence, first offset of the transaction; read_committed ends below
 end      log:    a COMMIT or ABORT marker in every touched partition, all in ONE commit: all partitions change at one table version
```

Each step is a compare-and-set on the log, and looks at the ledger within it: an instance that was taken over finds out before its commit.
To begin is no commit to the log, where nothing was open: what an older instance still commits then is aborted before the first append.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lastword.compaction.errors import CommitConflict, CorruptLog, InvalidTransactionState, UserError, check_text
from lastword.compaction.log.restores import is_contained
from lastword.compaction.producers import Control, ProducerStamp, next_identity
from lastword.compaction.rows.input_columns import Shape
from lastword.storage.append.append import Append
from lastword.storage.append.fencing import check_not_fenced
from lastword.storage.append.markers import write_markers
from lastword.storage.append.requests import AppendResult, AppendStats
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.producer_states import states_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.compaction.producers import OpenTransaction
    from lastword.storage.append.requests import InputRows, MicroBatch
    from lastword.storage.ledger.decisions import Decisions, Producer
    from lastword.storage.log.producer_states import States
    from lastword.storage.log.topic_log import LogState, Replan, TopicLog


def begin(log: TopicLog, transactional_id: str, *, now_ms: int, timeout_ms: int | None, query: str | None = None) -> ProducerStamp:
    """Become the newest instance of a transactional.id and return its identity; abort what the instance before left open.

    A streaming query (`query`) that comes back goes on under its old identity instead: its micro-batches are done for Spark and would not
    come again, so its open transaction must not be aborted. For the same reason no other producer is given its id: that raises `UserError`.
    """
    check_text("transactional_id", transactional_id)
    if not transactional_id:
        message = f"topic {log.name}: a transactional.id must not be empty"
        raise UserError(message)
    before: dict[int, Producer] = {}  # the newest producer when one of the attempts began, by producer id

    def once() -> ProducerStamp:
        log.decisions()
        in_log = log.snapshot().highest_producer_id()

        def register(today: Decisions) -> tuple[list[Decision], tuple[ProducerStamp, Producer | None]]:
            known = today.producers.get(transactional_id)
            if known is not None and known.query is not None and known.query != query:
                message = (
                    f"topic {log.name}: transactional.id {transactional_id} belongs to the streaming query {known.query}, whose "
                    "micro-batches would be lost if another instance took it over; give this one an id of its own"
                )
                raise UserError(message)
            if known is not None and query is not None and known.query == query:
                return [], (ProducerStamp(transactional_id=transactional_id, producer_id=known.producer_id, epoch=known.epoch), None)
            highest = max([in_log, *(producer.producer_id for producer in today.producers.values())])
            producer_id, epoch = next_identity((known.producer_id, known.epoch) if known else None, highest_id=highest)
            stamp = ProducerStamp(transactional_id=transactional_id, producer_id=producer_id, epoch=epoch)
            return [_registration(stamp, now_ms=now_ms, timeout_ms=timeout_ms, query=query)], (stamp, known)

        stamp, known = log.ledger.decide(register)
        if known is not None:
            before[known.producer_id] = known
        crash_points.reached(CrashPoint.PRODUCER_REGISTERED)
        _abort_older(log, stamp, now_ms=now_ms)
        for state in before.values():
            if state.producer_id != stamp.producer_id:  # its epochs were used up
                _write_markers(log.at(), Control.ABORT, producer_id=state.producer_id, epoch=state.epoch, now_ms=now_ms)
        return stamp

    return log.attempts(once)


def append(
    log: TopicLog,
    rows: InputRows,
    stamp: ProducerStamp,
    *,
    now_ms: int,
    stats: AppendStats,
    micro_batch: MicroBatch | None = None,
    versions: Sequence[int] = (),
) -> AppendResult:
    """Append rows to the transaction of `stamp` as `lastword.storage.append.append.append_rows` does.

    `versions` are the table versions of its appends so far. Raises `ProducerFenced` when another instance has taken over,
    `InvalidTransactionState` when a RESTORE took back one of its appends.
    """

    def once() -> AppendResult | Replan:
        _abort_older(log, stamp, now_ms=now_ms)
        _check_whole(log, stamp, versions)
        return Append(log, now_ms=now_ms, stats=stats, micro_batch=micro_batch, stamp=stamp).run(rows)

    return log.attempts(once)


def end(log: TopicLog, stamp: ProducerStamp, control: Control, *, now_ms: int, versions: Sequence[int] = ()) -> AppendResult:
    """Write the markers of the open transaction of `stamp`; `versions` are the table versions of its appends.

    Raises `ProducerFenced` when another instance has taken over; `InvalidTransactionState` when a RESTORE took back one of its appends: it
    is aborted, and not committed, then. The result's version is None when nothing was appended in the transaction, or when its markers are
    there already.
    """

    def once() -> AppendResult:
        _abort_older(log, stamp, now_ms=now_ms)
        state = log.at()
        check_not_fenced(stamp, state.decisions, log.name)
        if control is Control.COMMIT and not _is_whole(state.decisions, versions):
            _write_markers(state, Control.ABORT, producer_id=stamp.producer_id, epoch=stamp.epoch, now_ms=now_ms)
            _check_whole(log, stamp, versions)
        return _write_markers(state, control, producer_id=stamp.producer_id, epoch=stamp.epoch, now_ms=now_ms)

    return log.attempts(once)


def _is_whole(decisions: Decisions, versions: Sequence[int]) -> bool:
    return all(is_contained(decisions.restores, version) for version in versions)


def _check_whole(log: TopicLog, stamp: ProducerStamp, versions: Sequence[int]) -> None:
    if versions and not _is_whole(log.at().decisions, versions):
        message = (
            f"topic {log.name}: a RESTORE took back records of the transaction of {stamp.transactional_id}, appended as table versions "
            f"{list(versions)}: it cannot go on nor be committed; begin another one"
        )
        raise InvalidTransactionState(message)


def end_for_others(log: TopicLog, transaction: OpenTransaction, *, now_ms: int) -> AppendResult:
    """End a transaction whose producer does not do it: abort it, with a new epoch that fences the producer.

    That of a streaming query is committed instead: its micro-batches are whole, and Spark would never bring them again. What an older
    instance left open is aborted and the newest one goes on. Nothing happens, and the result's version is None, where the transaction is
    over. Raises `UserError` for a topic that mirrors another: there the source's markers end it.

    In a partition whose producer state is unreadable the abort is made later. A commit needs every partition and raises `CorruptLog`.
    """
    if log.decisions().mirror is not None:
        message = f"topic {log.name} is a mirror: its transactions are ended by the markers of its source"
        raise UserError(message)

    def once() -> AppendResult:
        state = log.at()
        if not any(_is_same(readable_transaction, transaction) for readable_transaction in state.readable_transactions()):
            with suppress(CorruptLog):  # a storage that does not answer raises, and is no answer
                state.producer_states()
            return AppendResult(table_version=None)

        def fence(today: Decisions) -> tuple[list[Decision], tuple[Control, int]]:
            known = today.producers.get(transaction.transactional_id or "")
            if known is None or known.producer_id != transaction.producer_id:
                return [], (Control.ABORT, transaction.epoch + 1)
            if known.epoch > transaction.epoch:
                return [], (Control.ABORT, known.epoch)
            if known.query is not None:
                return [], (Control.COMMIT, transaction.epoch)
            stamp = ProducerStamp(
                transactional_id=str(transaction.transactional_id), producer_id=known.producer_id, epoch=transaction.epoch + 1
            )
            return [_registration(stamp, now_ms=now_ms, timeout_ms=known.timeout_ms, query=None)], (Control.ABORT, stamp.epoch)

        control, epoch = log.ledger.decide(fence)
        states = state.readable_states()[0] if control is Control.ABORT else None
        return _write_markers(state, control, producer_id=transaction.producer_id, epoch=epoch, now_ms=now_ms, seen=states)

    return log.attempts(once)


def end_hanging(log: TopicLog, *, now_ms: int) -> list[OpenTransaction]:
    """End the transactions of a topic that exceed their timeout, and return them; none of a mirror, whose source ends them."""
    if log.decisions().mirror is not None:
        return []
    hanging = [transaction for transaction in log.at().readable_transactions() if transaction.hangs(now_ms)]
    for transaction in hanging:
        end_for_others(log, transaction, now_ms=now_ms)
    return hanging


def _is_same(transaction: OpenTransaction, other: OpenTransaction) -> bool:
    return (transaction.producer_id, transaction.epoch, transaction.since_ms) == (other.producer_id, other.epoch, other.since_ms)


def _registration(stamp: ProducerStamp, *, now_ms: int, timeout_ms: int | None, query: str | None) -> Decision:
    details = {"producer_id": stamp.producer_id, "epoch": stamp.epoch, "timeout_ms": timeout_ms, "query": query}
    return Decision(kind=Kind.PRODUCER, time_ms=now_ms, name=stamp.transactional_id, details=details)


def _abort_older(log: TopicLog, stamp: ProducerStamp, *, now_ms: int) -> None:
    """Abort what an older instance of `stamp` has open: it may have looked into the ledger before the newest began, and committed after."""
    state = log.at()
    states = states_of(stamp.producer_id, state.producer_states())
    if any(state.is_left_open_before(stamp.epoch) for state in states.values()):
        check_not_fenced(stamp, log.decisions(), log.name)
        _write_markers(state, Control.ABORT, producer_id=stamp.producer_id, epoch=stamp.epoch, now_ms=now_ms)


def _write_markers(
    at: LogState,
    control: Control,
    *,
    producer_id: int,
    epoch: int,
    now_ms: int,
    seen: States | None = None,
) -> AppendResult:
    """Write one marker into every partition in which the producer has a transaction open, in one commit; none when it has none.

    By the states `seen` there, or by those of all partitions. Raises `CommitConflict` when something was committed after it.
    """
    log, states = at.log, states_of(producer_id, at.producer_states() if seen is None else seen)
    firsts = {partition: state.open_first_offset for partition, state in states.items() if state.open_first_offset is not None}
    if not firsts:
        return AppendResult(table_version=None)
    crash_points.reached(CrashPoint.MARKERS_PLANNED)
    attempt = Append(log, now_ms=now_ms, stats=AppendStats())
    if attempt.state.version != at.version:
        message = f"{log.paths.log}: something was committed after table version {at.version}; no marker was written"
        raise CommitConflict(message)
    plan = attempt.plan(Shape(columns=frozenset(), order=()))
    result = attempt.commit(write_markers(plan, firsts, control, producer_id=producer_id, epoch=epoch))
    crash_points.reached(CrashPoint.MARKERS_COMMITTED)
    return result
