"""Rows that come batch by batch, of a file that may be larger than memory, as the input of an append: one commit, or nothing.

```
 batches ──► validate ──► by partition ──► sequence and producer checks ──► number ──► an open file a slice
```

Memory holds a batch, what the open files of the partitions buffer, and the rows that become dead letters. The batches are opened again when
another append commits first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lastword.compaction.rows.batches import BatchLimits, by_partition, in_batches
from lastword.compaction.rows.validation import Reason
from lastword.storage.append.writing import PartitionAppend, Refusals, SliceFiles, validated_events
from lastword.storage.progress import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lastword.compaction.rows.input_columns import EventPolicy, InputColumn
    from lastword.storage.append.plan import AppendPlan, Written

_LIMITS = BatchLimits()


class BatchRows:
    """Batches of rows with the columns of `Topic.append`, in their order."""

    def __init__(
        self,
        columns: Mapping[str, InputColumn],
        open_batches: Callable[[], Iterator[pa.RecordBatch]],
        policy: EventPolicy | None = None,
        *,
        limits: BatchLimits = _LIMITS,
    ) -> None:
        """Take the columns of the batches, and what opens them from the first one on; `policy` if the rows are change events."""
        self._columns, self._open, self.policy, self._limits = columns, open_batches, policy, limits

    @property
    def columns(self) -> Mapping[str, InputColumn]:
        """The columns."""
        return self._columns

    def write(self, plan: AppendPlan) -> Written:
        """Write the rows, and dead letters for refused ones; raises `InvalidRecords`, and leaves no file, where there are none."""
        with work(f"append {plan.rules.topic}", total=None, unit="rows") as advance:
            return self._write(plan, advance)

    def _write(self, plan: AppendPlan, advance: Callable[[float], None]) -> Written:
        refusals, slices = Refusals(plan), dict[int, SliceFiles]()
        appends: dict[int, PartitionAppend] = {}
        first_row = 0
        try:
            for given in self._open():
                for batch in in_batches(pa.Table.from_batches([given]), self._limits):
                    for partition, rows in self._divide(batch, plan, refusals, first_row):
                        if partition not in appends:
                            appends[partition] = PartitionAppend(plan, partition, refusals)
                            slices[partition] = SliceFiles(plan, partition)
                        for part in appends[partition].take(rows):
                            slices[partition].write(part)
                    first_row += len(batch)
                    advance(len(batch))
            refusals.check()
            files = [file for _, mine in sorted(slices.items()) for file in mine.close()]
        except BaseException:
            for mine in slices.values():
                mine.abandon()
            raise
        return refusals.write_letters(files)

    def _divide(self, batch: pa.RecordBatch, plan: AppendPlan, refusals: Refusals, first_row: int) -> list[tuple[int, pa.RecordBatch]]:
        """Return the rows of a batch that are not refused by partition; none once the append is to fail, and rows are only counted."""
        validated = validated_events(batch, plan, first_row)
        refusals.see(validated.rows)
        refused = np.flatnonzero(validated.code).tolist()
        if refused:
            reasons, details = [validated.reason(row).value for row in refused], [validated.details[row] for row in refused]
            if Reason.MALFORMED.value not in {*reasons, *refusals.counts}:  # those of CSV come behind the others
                numbered = [f"row {first_row + row + 1}: {detail}" for row, detail in zip(refused, details, strict=True)]
                is_skipped = [reason == Reason.SKIPPED.value for reason in reasons]
                details = [detail if skips else text for detail, text, skips in zip(details, numbered, is_skipped, strict=True)]
            refusals.add(validated.rows, np.array(refused), reasons, details)
        return [] if refusals.counts and plan.letters is None else by_partition(validated.rows, validated.code == 0)
