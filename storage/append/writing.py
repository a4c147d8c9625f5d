"""What an append writes: the rows of each partition as slices, and the refused rows of streams as dead letters. Commits nothing.

```
 batches ──► validate ──► by partition ──► sequence and producer checks ──► number ──► a file a slice
                │                                │
                └──────── refused rows ──────────┴───► a file of dead letters, or an error; late rows are counted
```

An `AppendPlan` is a picklable value, so the same functions write in this process and in the tasks of a Spark job
(`lastword.streaming.append.dataframes`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.sequences import highest
from lastword.compaction.order.source_epochs import merge_snapshots, new_snapshots, places_of_changes
from lastword.compaction.order.source_positions import SourcePosition, highest_of_scope, last_truncates
from lastword.compaction.order.source_states import sum_counts
from lastword.compaction.producers import SEQUENCES
from lastword.compaction.rows.batches import BatchLimits, by_partition, in_batches, in_threads, join_batches
from lastword.compaction.rows.fates import KEPT_UNTIL_US
from lastword.compaction.rows.input_columns import (
    COLUMNS,
    RECORD_KEY,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    TIMESTAMP,
    TRUNCATED,
    columns_of,
)
from lastword.compaction.rows.numbering import Numbering
from lastword.compaction.rows.producer_checks import ProducerChecks, verdict_of
from lastword.compaction.rows.sequence_checks import UNKNOWN_ORDER, SequenceChecks
from lastword.compaction.rows.unchanged_columns import UNRESOLVED_COLUMN, UnchangedColumns
from lastword.compaction.rows.validation import Reason, refusal, validate
from lastword.storage.append.dead_letters import dead_letters_of, write_dead_letters
from lastword.storage.append.plan import AppendPlan, Written
from lastword.storage.files.data_files import SliceWriter, complete, delete_files
from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lastword.compaction.order.source_epochs import NewSnapshot
    from lastword.compaction.order.source_states import SourceCounts
    from lastword.compaction.rows.input_columns import EventPolicy, InputColumn
    from lastword.compaction.rows.numbering import SlicePart
    from lastword.compaction.rows.sequence_checks import Checked
    from lastword.compaction.rows.validation import Validated
    from lastword.storage.files.data_files import DataFile

T = TypeVar("T")
U = TypeVar("U")
_PRODUCER_COLUMNS: Final = ("producer_id", "producer_epoch", "sequence", "control")
_LIMITS: Final = BatchLimits()


class Refusals:
    """The refused rows of an append or of one of its tasks: counted, with an example of each reason, and kept as dead letters."""

    def __init__(self, plan: AppendPlan) -> None:
        """Begin with none."""
        self._plan = plan
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.duplicates = 0
        #: Of rows with source sequences: late ones, and all of them by source.
        self.late = 0
        self.sources: dict[str, SourceCounts] = {}
        self.skipped: Counter[str] = Counter()
        self.truncated: tuple[str, ...] = ()
        self.snapshots: tuple[NewSnapshot, ...] = ()
        self.complete_snapshots: frozenset[tuple[str, str]] = frozenset()
        #: The highest source sequence of the rows that were seen, and their number.
        self._highest, self._seen = "", 0
        self.source_offsets: dict[int, int] = {}
        #: The columns that the newest schema of the events names, as DDL, after its source sequence.
        self.columns: tuple[str, str] | None = None
        self.rows: list[pa.Table] = []

    def see(self, rows: pa.RecordBatch) -> None:
        """Take note of where validated rows, refused or not, stand in their source, and of the columns that their schemas name."""
        if self._plan.rules.shape.has_events:
            self._learn(rows.column(COLUMNS), rows)
        if self._plan.rules.shape.has_events and self._plan.rules.shape.has_sequences:
            texts = rows.column("source_sequence")
            offsets = rows.column(SOURCE_OFFSET) if self._plan.rules.source_offsets is not None else None
            before = SourcePosition.of(self._highest).commit
            snapshots = new_snapshots(texts, offsets, self._plan.epochs, seen=self._seen, highest=before)
            self.snapshots = merge_snapshots([*self.snapshots, *snapshots])
            if self._plan.open_snapshots:
                self.complete_snapshots |= places_of_changes(texts, self._plan.open_snapshots)
            self._highest, self._seen = max(self._highest, highest(texts)), self._seen + len(rows)
        if self._plan.rules.source_offsets is None or not len(rows):
            return
        partitions, offsets = (rows.column(name).to_numpy(zero_copy_only=False) for name in (SOURCE_PARTITION, SOURCE_OFFSET))
        for partition in np.unique(partitions).tolist():
            last = int(offsets[partitions == partition].max())
            self.source_offsets[partition] = max(last, self.source_offsets.get(partition, -1))

    def _learn(self, columns: pa.Array, rows: pa.RecordBatch) -> None:
        if columns.null_count == len(columns):
            return
        known = pa.table({"columns": columns, "sequence": rows.column("source_sequence")}).filter(pc.is_valid(columns)).to_pylist()
        schemas = [(row["sequence"] or "", row["columns"]) for row in known]
        self.columns = max([*schemas, *([] if self.columns is None else [self.columns])], key=itemgetter(0))

    def add(
        self, rows: pa.RecordBatch, numbers: NDArray[np.intp], reasons: Sequence[str], details: Sequence[str], *, is_late: bool = False
    ) -> None:
        """Add the rows of a validated batch at `numbers`; with `is_late` they were good when they were validated."""
        known = self._plan.duplicate_reasons
        skipped = [at for at, reason in enumerate(reasons) if reason == Reason.SKIPPED.value]
        self.skipped.update(details[at] for at in skipped)
        truncates = [int(numbers[at]) for at in skipped if details[at] == TRUNCATED]
        if truncates:
            positions = rows.column("source_sequence").take(pa.array(truncates)).drop_null().to_pylist()
            self.truncated = last_truncates([*self.truncated, *map(self._plan.epochs.truncate_position, positions)])
        kept = [at for at, reason in enumerate(reasons) if reason not in known and reason != Reason.SKIPPED.value]
        self.duplicates += len(reasons) - len(kept) - len(skipped)
        for at in kept:
            self.counts[reasons[at]] += 1
            self.examples.setdefault(reasons[at], details[at])
        if kept and self._plan.letters is not None:
            which = rows.take(pa.array(numbers[kept]))
            kept_reasons, kept_details = [reasons[at] for at in kept], [details[at] for at in kept]
            record_keys = which.column("key" if is_late else RECORD_KEY)
            self.rows.append(dead_letters_of(which, kept_reasons, kept_details, record_keys, self._plan.letters))

    def check(self) -> None:
        """Raise `InvalidRecords` for refused rows that cannot become dead letters."""
        if self.counts and self._plan.letters is None:
            raise refusal(self._plan.rules.topic, self.counts, self.examples)

    def write_letters(self, files: Sequence[DataFile]) -> Written:
        """Write the dead letters, and return them with the data files that were written."""
        letters = write_dead_letters(self.rows, self._plan.letters) if self._plan.letters is not None else None
        return Written(
            files=tuple(files),
            letters=() if letters is None else (letters,),
            refused=dict(self.counts),
            examples=dict(self.examples),
            duplicates=self.duplicates,
            late=self.late,
            sources=self.sources,
            skipped=dict(self.skipped),
            truncated=self.truncated,
            snapshots=self.snapshots,
            complete_snapshots=self.complete_snapshots,
            source_offsets=dict(self.source_offsets),
            columns=self.columns,
        )


@dataclass(frozen=True, slots=True)
class SliceRows:
    """Rows of one slice, in the columns of a data file."""

    segment: int
    slice: int
    rows: pa.Table


class PartitionAppend:
    """The rows that an append brings to one partition: checked, numbered, and as rows of the log; `take` their batches in order."""

    def __init__(self, plan: AppendPlan, partition: int, refusals: Refusals) -> None:
        """Begin at the end of the partition's log."""
        self._plan, self._refusals = plan, refusals
        self._active = plan.actives[partition]
        self._numbering = Numbering(self._active, plan.limits, plan.compression, plan.rules.topic)
        self._checks = None
        if plan.rules.shape.has_producers:
            self._checks = ProducerChecks(state for state in plan.states if state.partition == partition)
        self._sequences = None
        if plan.rules.shape.has_sequences:
            self._sequences = SequenceChecks(plan.sequences[partition], plan.lookups[partition].newest)
        self._held: list[pa.RecordBatch] = []
        self._unchanged = None
        if plan.rules.shape.has_events and plan.policy is not None:
            self._unchanged = UnchangedColumns(plan.policy, plan.lookups[partition].records)

    def take_or_hold(self, rows: pa.RecordBatch) -> list[SliceRows]:
        """Return what `take` does. A batch that is not in the order of its source is held back for `take_held`, as are all after it."""
        if self._sequences is None:
            return self.take(rows)
        checked = None if self._held else self._sequences.take_if_in_order(rows)
        if checked is None:
            self._held.append(rows)
            return []
        return self._take(self._in_sequence(checked))

    def take_held(self, limits: BatchLimits) -> Iterator[SliceRows]:
        """Yield what `take` returns of the batches that were held back, joined to larger batches: each reads the log for its keys once."""
        for rows in join_batches(self._held, limits):
            yield from self.take(rows)

    def take(self, rows: pa.RecordBatch) -> list[SliceRows]:
        """Return validated rows of the partition that are not refused, as rows of the log, slice by slice."""
        return self._take(rows if self._sequences is None else self._in_sequence(self._sequences.take(rows)))

    def _take(self, rows: pa.RecordBatch) -> list[SliceRows]:
        checks, firsts = self._checks, None
        if self._unchanged is not None:
            rows = self._fill_unchanged_columns(rows, self._unchanged)
        if checks is None:
            offsets, parts = self._number(rows)
        else:
            verdicts, details = checks.check(rows)
            refused = np.flatnonzero(verdicts)
            if len(refused):
                texts = [verdict_of(int(code)).value for code in verdicts[refused]]
                self._refusals.add(rows, refused, texts, [details[row] for row in refused.tolist()], is_late=True)
            accepted = np.flatnonzero(verdicts == 0)
            every = np.full(len(rows), -1)
            rows = rows if len(accepted) == len(rows) else rows.take(pa.array(accepted))
            offsets, parts = self._number(rows)
            every[accepted] = offsets
            firsts = checks.first_offsets(every)[accepted]
        table = self._log_rows(rows, offsets, firsts)
        return [SliceRows(part.segment, part.slice, table.slice(part.start, part.end - part.start)) for part in parts]

    def _in_sequence(self, checked: Checked) -> pa.RecordBatch:
        """Return the rows that put no older state over a newer one; the others are counted, or refused where that cannot be told."""
        rows, late, unknown = checked.rows, checked.late, checked.unknown
        self._refusals.late += int(late.sum())
        self._refusals.sources = sum_counts([self._refusals.sources, checked.counts])
        refused = np.flatnonzero(unknown)
        if len(refused):
            removed = self._plan.sequences[self._active.partition].removed
            texts = rows.column("source_sequence").take(pa.array(refused)).to_pylist()
            details = [
                f"source_sequence {text}: the log does not know the key, and cleaning has removed deletions up to "
                f"{highest_of_scope(removed, text)}, so a later deletion of the key may be among them (delete.retention.ms)"
                for text in texts
            ]
            self._refusals.add(rows, refused, [UNKNOWN_ORDER] * len(refused), details, is_late=True)
        if checked.kept.any():
            horizons = pa.array(np.full(len(rows), KEPT_UNTIL_US), mask=~checked.kept).cast(TIMESTAMP)
            rows = rows.append_column("delete_horizon", horizons)
        return rows.filter(pa.array(~(late | unknown))) if late.any() or len(refused) else rows

    def _fill_unchanged_columns(self, rows: pa.RecordBatch, unchanged: UnchangedColumns) -> pa.RecordBatch:
        """Return the rows with the values that the source left out; what no record of the key has is refused, or null."""
        done = unchanged.resolve(rows)
        rows, refused = done.rows, done.refused
        if not refused:
            return rows
        numbers = np.array(sorted(refused))
        details = [refused[row] for row in numbers.tolist()]
        self._refusals.add(rows, numbers, [UNRESOLVED_COLUMN] * len(numbers), details, is_late=True)
        kept = np.ones(len(rows), dtype=np.bool_)
        kept[numbers] = False
        return rows.filter(pa.array(kept))

    def _number(self, rows: pa.RecordBatch) -> tuple[NDArray[np.int64], list[SlicePart]]:
        return self._numbering.number(rows, has_offsets=self._plan.rules.shape.has_offsets)

    def _log_rows(self, rows: pa.RecordBatch, offsets: NDArray[np.int64], firsts: NDArray[np.int64] | None) -> pa.Table:
        count = len(rows)
        columns = {
            "offset": pa.array(offsets),
            **{name: rows.column(name) for name in ("timestamp", "key", "value", "headers")},
            "appended_at": pa.array(np.full(count, self._plan.rules.now_ms * 1000)).cast(TIMESTAMP),
        }
        if self._sequences is not None:
            columns["source_sequence"] = rows.column("source_sequence")
        if "delete_horizon" in rows.schema.names:
            columns["delete_horizon"] = rows.column("delete_horizon")
        stamped, partition = self._plan.stamped, self._active.partition
        if firsts is not None:
            columns |= {name: rows.column(name) for name in _PRODUCER_COLUMNS}
            columns["txn_first_offset"] = pa.array(firsts, mask=firsts < 0)
        elif stamped is not None:
            sequences = (stamped.next_sequences[partition] + offsets - self._active.log_end_offset) % SEQUENCES
            columns |= {
                "producer_id": pa.array(np.full(count, stamped.stamp.producer_id)),
                "producer_epoch": pa.array(np.full(count, stamped.stamp.epoch, dtype=np.int32)),
                "sequence": pa.array(sequences.astype(np.int32)),
                "txn_first_offset": pa.array(np.full(count, stamped.first_offsets[partition])),
            }
        return complete(pa.table(columns))


class SliceFiles:
    """Writes the slices of one partition, one after the other, a file each."""

    def __init__(self, plan: AppendPlan, partition: int) -> None:
        """Begin with no file."""
        self._plan, self._partition = plan, partition
        self._writer: SliceWriter | None = None
        self._place: tuple[int, int] | None = None
        self._files: list[DataFile] = []

    def write(self, part: SliceRows) -> None:
        """Add rows to their slice; the slice before it is finished when another one begins."""
        if self._place != (part.segment, part.slice):
            self._finish()
            self._place = part.segment, part.slice
        if self._writer is None:
            self._writer = SliceWriter(
                self._plan.location,
                self._plan.storage_options,
                partition=self._partition,
                segment=part.segment,
                slice_=part.slice,
                codec=self._plan.codec,
                known_folders=self._known_folders(part),
                limits=self._plan.row_groups,
            )
        self._writer.write(part.rows)

    def _known_folders(self, part: SliceRows) -> int:
        """Return how many of the folders partition=…/segment=… hold files that a commit names."""
        active = self._plan.actives[self._partition]
        if active.size_bytes and part.segment == active.label:
            return 2
        return 1 if active.log_end_offset else 0

    def close(self) -> list[DataFile]:
        """Finish the last slice and return all files."""
        self._finish()
        return self._files

    def abandon(self) -> None:
        """Delete all files, which no commit names."""
        if self._writer is not None:
            self._writer.abandon()
        delete_files(self._plan.location, self._plan.storage_options, [file.path for file in self._files])

    def _finish(self) -> None:
        if self._writer is not None:
            self._files.append(self._writer.close())
            self._writer = None


def write_parts(plan: AppendPlan, partition: int, parts: Iterable[SliceRows]) -> list[DataFile]:
    """Write the slices of one partition and return their files."""
    files = SliceFiles(plan, partition)
    try:
        for part in parts:
            files.write(part)
        return files.close()
    except BaseException:
        files.abandon()
        raise


class ArrowRows:
    """Rows of an Arrow table as the input of an append: written in this process."""

    def __init__(self, table: pa.Table, policy: EventPolicy | None = None, *, limits: BatchLimits = _LIMITS) -> None:
        """Take a table with the columns of `Topic.append`; `policy` if its rows are change events."""
        self._table, self.policy, self._limits = table, policy, limits

    @property
    def columns(self) -> Mapping[str, InputColumn]:
        """The columns."""
        return columns_of(self._table.schema)

    def write(self, plan: AppendPlan) -> Written:
        """Write the rows, and dead letters for refused ones; raises `InvalidRecords` before anything is written where there are none."""
        with work(f"append {plan.rules.topic}", total=len(self._table), unit="rows") as advance:
            return self._write(plan, advance)

    def _write(self, plan: AppendPlan, advance: Callable[[float], None]) -> Written:
        """Write the rows; half of the progress is that they are checked, half that they are written."""
        refusals = Refusals(plan)
        appends: dict[int, PartitionAppend] = {}
        parts: dict[int, list[SliceRows]] = {}
        batches = self._batches(plan)
        first_rows = np.cumsum([0, *map(len, batches[:-1])]).tolist()
        for validated, divided in in_threads(lambda part: _divide(*part, plan), list(zip(batches, first_rows, strict=False))):
            advance(len(validated.rows) / 2)
            refusals.see(validated.rows)
            refused = np.flatnonzero(validated.code)
            if len(refused):
                listed = refused.tolist()
                reasons = [validated.reason(row).value for row in listed]
                refusals.add(validated.rows, refused, reasons, [validated.details[row] for row in listed])
            for partition, mine in divided:
                if partition not in appends:
                    appends[partition] = PartitionAppend(plan, partition, refusals)
                parts.setdefault(partition, []).extend(appends[partition].take_or_hold(mine))
        for partition, append in appends.items():
            parts[partition].extend(append.take_held(self._limits))
        refusals.check()
        return refusals.write_letters(write_all(plan, parts, lambda rows: advance(rows / 2)))

    def _batches(self, plan: AppendPlan) -> list[pa.RecordBatch]:
        """Return the rows in the order in which they are appended."""
        table, shape = self._table, plan.rules.shape
        order = ("offset",) if shape.has_offsets else shape.order
        if order and len(table):
            at = _ascending(table, order)
            if (np.diff(at.to_numpy().astype(np.int64)) < 0).any():
                table = table.take(at)
        return in_batches(table, self._limits)


def validated_events(batch: pa.RecordBatch, plan: AppendPlan, first_row: int = 0) -> Validated:
    """Return a batch as validated rows, whose source sequences say in which epoch of their source they are."""
    validated = validate(batch, plan.rules)
    if not (plan.rules.shape.has_events and plan.rules.shape.has_sequences):
        return validated
    rows = validated.rows
    offsets = rows.column(SOURCE_OFFSET) if plan.rules.source_offsets is not None else None
    texts = plan.epochs.with_epochs(rows.column("source_sequence"), offsets, first_row)
    return replace(validated, rows=rows.set_column(rows.schema.get_field_index("source_sequence"), "source_sequence", texts))


def _divide(batch: pa.RecordBatch, first_row: int, plan: AppendPlan) -> tuple[Validated, list[tuple[int, pa.RecordBatch]]]:
    """Return a batch as validated rows, and those that are not refused by partition."""
    validated = validated_events(batch, plan, first_row)
    return validated, by_partition(validated.rows, validated.code == 0)


def _ascending(table: pa.Table, order: Sequence[str]) -> pa.Array:
    """Return the row numbers in ascending order of some columns, null before all; rows that are equal keep their order."""
    columns = {}
    for name in order:
        columns[f"is {name}"] = pc.is_valid(table.column(name)).cast(pa.int8())
        column = table.column(name)
        columns[name] = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])


def write_all(
    plan: AppendPlan, parts: Mapping[int, Sequence[SliceRows]], on_written: Callable[[int], None] = lambda _rows: None
) -> list[DataFile]:
    """Write the slices of several partitions, a thread a partition: each flushes its own files. `on_written` gets the numbers of rows."""

    def written_parts(parts: Sequence[SliceRows]) -> Iterator[SliceRows]:
        for part in parts:
            yield part
            on_written(len(part.rows))

    there = sorted((partition, mine) for partition, mine in parts.items() if mine)
    written: list[DataFile] = []
    try:
        for _ in in_threads(lambda part: written.extend(write_parts(plan, part[0], written_parts(part[1]))), there):
            pass
    except BaseException:
        delete_files(plan.location, plan.storage_options, [file.path for file in written])
        raise
    return sorted(written, key=lambda file: (file.partition, file.first_offset))
