"""Batches of a bounded size: the rows of a table cut into some, and small ones joined to larger ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lastword.storage.append.plan import BatchLimits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LIMITS: Final = BatchLimits()


def in_batches(table: pa.Table, limits: BatchLimits = _LIMITS) -> list[pa.RecordBatch]:
    """Return the rows of a table in batches of a bounded size; many small chunks are copied into one first, if the table is not large."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    if chunks > len(table) // limits.batch_rows + 1 and table.nbytes < limits.max_combined_bytes:
        table = table.combine_chunks()
    rows = max(1, min(limits.batch_rows, limits.batch_bytes * len(table) // max(1, table.nbytes)))
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=rows)
    return batches


def joined(batches: Iterable[pa.RecordBatch], limits: BatchLimits = _LIMITS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in few large ones: each batch with a late row looks into the log by itself."""
    held, held_rows, held_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if held and (held_rows + len(batch) > limits.joined_rows or held_bytes + batch.nbytes > limits.batch_bytes):
            yield pa.concat_batches(held)
            held, held_rows, held_bytes = [], 0, 0
        held.append(batch)
        held_rows, held_bytes = held_rows + len(batch), held_bytes + batch.nbytes
    if held:
        yield pa.concat_batches(held)
