"""One append: what it promises, and one attempt of it against one snapshot.

```
   plan      log ends, active segments, producers, settings          one snapshot, no data
   write     validate, number, write (lastword.storage.append.writing)   in this process or in Spark's tasks: files in no commit
   letters   dead letters of refused rows                             one Delta commit, before the rows
   commit    compare-and-set (lastword.storage.delta.commit)          one Delta commit
```

A crash before the commit leaves files that no commit names; VACUUM removes them. If another append commits first, this one is planned
and its rows are numbered again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lastword.compaction.errors import InvalidConfiguration, InvalidRecords, UserError, Violation
from lastword.compaction.log.segments import ActiveSegment, next_append
from lastword.compaction.order.source_positions import SourcePosition, scope_name
from lastword.compaction.order.source_states import source_name
from lastword.compaction.rows.input_columns import shape_of
from lastword.compaction.rows.numbering import SegmentLimits
from lastword.compaction.rows.validation import InputRules, Reason, refusal
from lastword.storage.append.dead_letters import LetterOrigin, letter_keys, replace_dead_letters
from lastword.storage.append.fencing import check_not_fenced
from lastword.storage.append.key_lookup import KeyLookup, is_sequenced, sequence_bounds
from lastword.storage.append.plan import AppendPlan, Stamped
from lastword.storage.append.ranges import ranges_of
from lastword.storage.append.requests import AppendResult, AppendStats
from lastword.storage.append.snapshot_gaps import begin_of, open_snapshots, read_gaps, swept_rows
from lastword.storage.append.source_decisions import begin_snapshots, note_sources, sweep_decision, truncate_decision
from lastword.storage.append.writing import ArrowRows
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID
from lastword.storage.ledger.decisions import Truncation
from lastword.storage.ledger.table_columns import keep_value_columns
from lastword.storage.log.producer_states import states_of
from lastword.storage.log.topic_log import Replan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.compaction.producers import ProducerStamp, ProducerState
    from lastword.compaction.rows.input_columns import EventPolicy, Shape
    from lastword.storage.append.plan import Written
    from lastword.storage.append.requests import InputRows, MicroBatch
    from lastword.storage.append.snapshot_gaps import SnapshotGap
    from lastword.storage.files.data_files import DataFile
    from lastword.storage.log.topic_log import TopicLog


#: The application id of an idempotency key begins with this.
_IDEMPOTENCY: Final = "lastword-idempotency-key/"
_ON_INVALID: Final = ("dead-letter", "fail")
#: The source of dead letters that a call of `append` wrote, and what their ids begin with.
CALL_SOURCE: Final = "append"
_CALL: Final = "lastword-append/"


def append_rows(
    log: TopicLog,
    rows: InputRows,
    *,
    now_ms: int,
    stats: AppendStats,
    micro_batch: MicroBatch | None = None,
    idempotency_key: str | None = None,
    on_invalid: str = "fail",
) -> AppendResult:
    """Append rows to a topic's log in one commit; try again from a fresh snapshot while other appenders commit first.

    A batch call (`micro_batch` None) raises `InvalidRecords` if the log rejects one of the rows, and nothing is written; with
    `on_invalid="dead-letter"` it writes rejected rows to the dead letters, as a micro-batch does. A micro-batch that was committed before
    does nothing, nor does a batch call whose `idempotency_key` was committed before.
    """
    letters_id = None
    if micro_batch is None and on_invalid == "dead-letter":
        letters_id = f"{_CALL}{new_token() if idempotency_key is None else idempotency_key}"

    def once() -> AppendResult | Replan:
        append = Append(log, now_ms=now_ms, stats=stats, micro_batch=micro_batch, idempotency_key=idempotency_key, letters_id=letters_id)
        return append.run(rows)

    stats.begun = ()
    result = log.attempts(once)
    if rows.policy is not None and rows.policy.replace_on_snapshot and (result.replayed or result.complete_snapshots):
        sweep(log, lambda gap: gap.is_complete, now_ms=now_ms)
    return result


def check_on_invalid(on_invalid: str, *, subject: str) -> None:
    """Raise `InvalidConfiguration` for what a row cannot do that the log refuses."""
    if on_invalid not in _ON_INVALID:
        raise InvalidConfiguration(subject, [Violation(key="on.invalid", value=on_invalid, allowed=" or ".join(_ON_INVALID))])


class Append:
    """One attempt of one append, against one snapshot."""

    def __init__(
        self,
        log: TopicLog,
        *,
        now_ms: int,
        stats: AppendStats,
        micro_batch: MicroBatch | None = None,
        stamp: ProducerStamp | None = None,
        idempotency_key: str | None = None,
        letters_id: str | None = None,
    ) -> None:
        """Take the snapshot that this attempt plans with; `letters_id` is that of the dead letters of a batch call."""
        self.log, self.now_ms, self.stats, self.micro_batch = log, now_ms, stats, micro_batch
        self.state = log.at()
        self.stamp = stamp
        #: What Delta keeps for ever of this append: the query's micro-batch, or the key of a batch call, as application id and version.
        self.identity: dict[str, int] = {}
        if micro_batch is not None:
            self.identity = {micro_batch.query_id: micro_batch.batch_id}
        elif idempotency_key is not None:
            self.identity = {f"{_IDEMPOTENCY}{idempotency_key}": 0}
        #: The name, the id and the number of what the dead letters belong to; None where a refused row is an error.
        self.origin: tuple[str, str, int] | None = None if letters_id is None else (CALL_SOURCE, letters_id, 0)
        if micro_batch is not None and not micro_batch.fail_on_invalid:
            self.origin = micro_batch.query_name, micro_batch.query_id, micro_batch.batch_id

    def run(self, rows: InputRows) -> AppendResult | Replan:
        """Append, or find that there is nothing to do, or that the append is to be planned again, as the ledger knows more now."""
        shape = shape_of(rows.columns, topic=self.log.name)
        if self._is_committed():
            return AppendResult(table_version=None, replayed=True)
        self._check_mirror()
        self._check_stamp(shape)
        self._check_sequences(shape)
        if self._is_left_open():
            return Replan("an older instance of the transactional.id came first")
        plan = self.plan(shape, rows.policy)
        written = rows.write(plan)
        reason = self._decide(written, plan)
        if reason is None and self._is_committed() and (written.refused or self.origin is not None):
            reason = "another process has committed these rows"  # whose dead letters are theirs
        if reason is not None:
            self.log.discard(written.files)
            return Replan(reason)
        columns = (("", rows.policy.columns) if rows.policy is not None and rows.policy.columns else None) or written.columns
        if columns is not None:
            keep_value_columns(self.log.ledger, columns[1], sequence=columns[0], now_ms=self.now_ms)
        known = self.state.decisions
        has_columns = columns is not None or known.columns is not None
        notes = note_sources(self.log, written.sources, known, has_columns=has_columns, now_ms=self.now_ms)
        if written.refused:
            self._put_aside(written)
        elif self.origin is not None:
            self._take_back(self.origin)
        self.stats.is_first = False
        self._identify_events(written, plan)
        result = self.commit(written.files)
        return replace(
            result,
            refused=written.refused,
            duplicates=written.duplicates,
            late=written.late,
            sources={source_name(scope): counts for scope, counts in written.sources.items()},
            notes=notes,
            complete_snapshots=written.complete_snapshots,
            skipped=written.skipped,
        )

    def _decide(self, written: Written, plan: AppendPlan) -> str | None:
        """Write into the ledger what the rows tell that it does not have: a snapshot, a TRUNCATE; return what it was, None for nothing."""
        if written.snapshots:
            self.stats.begun = (*self.stats.begun, *written.snapshots)
            begin_snapshots(self.log, written.snapshots, plan, now_ms=self.now_ms)
            return f"a snapshot of {scope_name(written.snapshots[0].scope)} has begun"
        positions = self._new_truncates(written)
        if positions:
            truncate(self.log, positions, now_ms=self.now_ms)
        return f"the source's table was truncated at {SourcePosition.of(positions[0]).commit}" if positions else None

    def _identify_events(self, written: Written, plan: AppendPlan) -> None:
        """Add the offsets of the source's events to what Delta keeps of this append, where they go on from those in the log."""
        source = None if self.micro_batch is None else self.micro_batch.source
        if source is not None:
            known = plan.rules.source_offsets or {}
            offsets = {number: offset for number, offset in written.source_offsets.items() if offset > known.get(number, -1)}
            self.identity |= {source.app_id(number): offset for number, offset in offsets.items()}

    def plan(self, shape: Shape, policy: EventPolicy | None = None) -> AppendPlan:
        """Return what the writing of this append needs to know."""
        states = self.state.unexpired_states(now_ms=self.now_ms) if shape.has_producers else {}
        return AppendPlan(
            location=self.log.paths.log,
            storage_options=dict(self.log.storage_options),
            codec=self.state.config.compression_type,
            rules=InputRules(
                topic=self.log.name,
                shape=shape,
                is_compacted=self.state.config.compacted,
                partitioner=self.state.config.partitioner,
                max_message_bytes=self.state.config.max_message_bytes,
                log_end_offsets=self.state.log_end_offsets,
                now_ms=self.now_ms,
                source_offsets=self._source_offsets(),
            ),
            actives=self._active_segments(),
            limits=SegmentLimits(segment_bytes=self.state.config.segment_bytes, max_segment_ms=self.state.config.max_segment_ms),
            compression=self.log.compression(self.state.snapshot),
            row_groups=self.log.limits.row_groups,
            states=tuple(states.values()),
            stamped=self._stamp(),
            is_mirror=self.state.decisions.mirror is not None,
            letters=self._letters(),
            sequences=sequence_bounds(self.state.snapshot, self.state.decisions, are_events=shape.has_events)
            if shape.has_sequences
            else (),
            lookups=[
                KeyLookup.of(self.log.paths.log, self.log.storage_options, self.state.files, partition)
                for partition in range(self.state.partitions)
            ]
            if shape.has_sequences
            else (),
            policy=policy,
            epochs=self.state.decisions.epochs.with_rows(self.stats.begun),
            open_snapshots=self._open_snapshots(policy),
        )

    def _open_snapshots(self, policy: EventPolicy | None) -> Mapping[tuple[str, str], str]:
        """Return where the snapshots begin whose missing rows are deleted, by scope and Kafka partition; none if such rows stay."""
        if policy is None or not policy.replace_on_snapshot:
            return {}
        return {place: begin_of(snapshot) for place, snapshot in open_snapshots(self.state.decisions)}

    def _source_offsets(self) -> dict[int, int] | None:
        """Return the last offset of each partition of the source whose events are in the log; None for a source without offsets."""
        source = None if self.micro_batch is None else self.micro_batch.source
        if source is None:
            return None
        return {number: self.log.committed_micro_batch(source.app_id(number)) for number in range(source.partitions)}

    def _new_truncates(self, written: Written) -> list[str]:
        """Return the positions of TRUNCATEs of a source's tables that the ledger does not have: events from before them are late then."""
        positions = list[str]()
        for position in written.truncated:
            end = SourcePosition.of(position)
            if end.scope in self.state.decisions.sources and self.state.decisions.sources[end.scope].is_retired:
                continue
            known, is_applied = self.state.decisions.truncations.get((end.scope, end.table), Truncation())
            before = SourcePosition.of(known).in_table
            if end.in_table > before or (end.in_table == before and not is_applied):
                positions.append(position)
        return positions

    def commit(self, files: Sequence[DataFile]) -> AppendResult:
        """Commit files that this attempt wrote."""
        crash_points.reached(CrashPoint.APPEND_PLANNED)
        if not files:
            return AppendResult(table_version=None)
        version = self.log.commit(
            self.state.snapshot,
            family=APPEND_APP_ID,
            metadata=CommitMetadata(token=new_token(), kind="append"),
            adds=files,
            transactions=self.identity,
        )
        crash_points.reached(CrashPoint.APPEND_COMMITTED)
        return AppendResult(table_version=version, ranges=ranges_of(files))

    def _check_sequences(self, shape: Shape) -> None:
        """Raise `InvalidRecords` for rows that do not say where they stand in their source, as the records of the log do."""
        if shape.has_sequences:
            if self.stamp is not None:
                message = f"topic {self.log.name}: rows of a transaction come in its order; leave the column source_sequence out"
                raise InvalidRecords(message)
            if not self.state.snapshot.has_sequences:
                message = (
                    f"topic {self.log.name} was created by an older version and has no column source_sequence; create a new topic, and "
                    "copy its records"
                )
                raise InvalidRecords(message)
        elif is_sequenced(self.state.snapshot, self.state.decisions):
            message = f"topic {self.log.name} orders its records by source_sequence; add this column to the rows, or give sequence"
            raise InvalidRecords(message)

    def _active_segments(self) -> tuple[ActiveSegment, ...]:
        """Return the segment that the append goes on in, or begins, by partition."""
        last_segments = self.state.snapshot.last_segments()
        return tuple(
            next_append(
                last_segments.get(partition),
                self.state.config,
                partition=partition,
                log_end_offset=end,
                rolled_offset=self.state.decisions.closed_offset(partition, end),
                now_ms=self.now_ms,
            )
            for partition, end in enumerate(self.state.log_end_offsets)
        )

    def _letters(self) -> LetterOrigin | None:
        if self.origin is None:
            return None
        source, query_id, batch_id = self.origin
        return LetterOrigin(
            location=self.log.paths.dead_letters,
            storage_options=dict(self.log.storage_options),
            source=source,
            query_id=query_id,
            batch_id=batch_id,
            refused_ms=self.now_ms,
        )

    def _check_mirror(self) -> None:
        mirror = self.state.decisions.mirror
        if mirror is None or (self.micro_batch is not None and self.micro_batch.query_name == mirror["query"]):
            return
        message = (
            f"topic {self.log.name} mirrors {mirror['source']} (query {mirror['query']}) and keeps its offsets, so it takes records from "
            "there alone; append to the source, or to another topic"
        )
        raise UserError(message)

    def _check_stamp(self, shape: Shape) -> None:
        if self.stamp is None:
            return
        check_not_fenced(self.stamp, self.log.decisions(), self.log.name)  # as it is after the snapshot was taken
        if shape.has_producers or shape.has_offsets:
            message = f"topic {self.log.name}: rows of a transaction get their producer and offsets from it; leave those columns out"
            raise InvalidRecords(message)

    def _is_left_open(self) -> bool:
        """Tell whether an older instance of the stamp has a transaction open, which must be aborted first."""
        return self.stamp is not None and any(state.is_left_open_before(self.stamp.epoch) for state in self._own_states.values())

    @cached_property
    def _own_states(self) -> dict[int, ProducerState]:
        """Return the states of the stamp's producer by partition."""
        return {} if self.stamp is None else states_of(self.stamp.producer_id, self.state.producer_states())

    def _stamp(self) -> Stamped | None:
        """Say where the stamp's sequences and transaction stand in every partition: a transaction begins with its first record there."""
        if self.stamp is None:
            return None
        sequences, firsts = [0] * len(self.state.log_end_offsets), list(self.state.log_end_offsets)
        for partition, state in self._own_states.items():
            if state.epoch == self.stamp.epoch:
                sequences[partition] = state.next_sequence
            if state.open_first_offset is not None:
                firsts[partition] = state.open_first_offset
        return Stamped(stamp=self.stamp, next_sequences=sequences, first_offsets=firsts)

    def _put_aside(self, written: Written) -> None:
        """Commit the dead letters that were written, in the place of those that an earlier attempt of the same rows wrote."""
        if self.origin is None or Reason.STOPPING_FILE.value in written.refused:
            self.log.discard(written.files)
            raise refusal(self.log.name, written.refused, written.examples)
        _, query_id, batch_id = self.origin
        self.stats.put_aside = query_id, batch_id
        replace_dead_letters(self.log.paths.dead_letters, self.log.storage_options, written.letters, query_id=query_id, batch_id=batch_id)
        crash_points.reached(CrashPoint.DEAD_LETTERS_WRITTEN)

    def _is_committed(self) -> bool:
        """Tell whether these rows are in the log already, by this process or another one."""
        return any(self.log.committed_micro_batch(app_id) >= number for app_id, number in self.identity.items())

    def _take_back(self, origin: tuple[str, str, int]) -> None:
        """Remove the dead letters of an earlier attempt of the same rows, as no row is refused now."""
        _, query_id, batch_id = origin
        if self.stats.is_first or self.stats.put_aside == (query_id, batch_id):
            replace_dead_letters(self.log.paths.dead_letters, self.log.storage_options, [], query_id=query_id, batch_id=batch_id)


def truncate(log: TopicLog, positions: Sequence[str], *, now_ms: int) -> None:
    """Append a tombstone for each key whose last record is from before a TRUNCATE at one of some positions of its source.

    The positions are in the ledger first, so that events from before them are late from then on, and once more when the tombstones are in
    the log: a crash in between lets the next attempt append them.
    """
    log.ledger.append([truncate_decision(position, is_applied=False, now_ms=now_ms) for position in positions])
    state = log.at()
    lookups = [KeyLookup.of(log.paths.log, log.storage_options, state.files, partition) for partition in range(state.partitions)]
    parts = [(partition, *lookup.live_before(positions)) for partition, lookup in enumerate(lookups)]
    tombstones = [_tombstones(*part) for part in parts if part[2]]
    if tombstones:
        append_rows(log, ArrowRows(pa.concat_tables(tombstones)), now_ms=now_ms, stats=AppendStats())
    log.ledger.append([truncate_decision(position, is_applied=True, now_ms=now_ms) for position in positions])


def sweep(log: TopicLog, is_swept: Callable[[SnapshotGap], bool], *, now_ms: int) -> int:
    """Append a tombstone for each row that some snapshots of its source lack, and return how many. Rule: docs/semantics.md#A.62.

    A tombstone is older than the rows of the snapshot: one that comes later brings its key back. A key stays of which a row is among the
    dead letters since the snapshot began: that may be its row of the snapshot.
    """

    def sweep_once() -> tuple[int, int, list[SnapshotGap]] | Replan:
        append = Append(log, now_ms=now_ms, stats=AppendStats())
        gaps = [gap for gap in read_gaps(append.state) if is_swept(gap)]
        moments = {gap.snapshot.begun_ms for gap in gaps if len(gap.rows)}
        kept = {since_ms: letter_keys(log.paths.dead_letters, log.storage_options, since_ms=since_ms) for since_ms in moments}
        parts = [part for gap in gaps if len(gap.rows) for part in swept_rows(gap, kept[gap.snapshot.begun_ms])]
        if not parts:
            return 0, append.state.version, gaps
        result = append.run(ArrowRows(pa.concat_tables(_tombstones(*part) for part in parts)))
        if isinstance(result, Replan):
            return result
        return result.record_count, result.table_version or append.state.version, gaps

    count, version, gaps = log.attempts(sweep_once)
    if gaps:
        log.ledger.append(
            [
                sweep_decision((gap.scope, gap.partition), gap.snapshot, rows=len(gap.rows), table_version=version, now_ms=now_ms)
                for gap in gaps
            ]
        )
    return count


def _tombstones(partition: int, keys: pa.Array, positions: Sequence[str]) -> pa.Table:
    """Return tombstones of some keys of a partition, at positions of their source, as the input of an append."""
    return pa.table(
        {
            "key": keys,
            "value": pa.nulls(len(keys), pa.binary()),
            "partition": pa.array([partition] * len(keys), pa.int32()),
            "source_sequence": pa.array(positions, pa.string()),
        }
    )
