"""Batches of a bounded size: the rows of a table cut into some, small ones joined to larger ones, and one divided by partition."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How much of a table is taken at a time; the log is the same whatever they are."""

    #: So many rows are validated at a time.
    batch_rows: int = 2**16
    #: Or about so many bytes: a column of a batch has to stay below 2 GiB.
    batch_bytes: int = 2**28
    #: So many rows with source sequences are compared with the log at a time, or `batch_bytes`.
    joined_rows: int = 2**20
    #: From so many bytes on, a table of many small chunks is not copied into one.
    max_combined_bytes: int = 2**30


_LIMITS: Final = BatchLimits()


def in_batches(table: pa.Table, limits: BatchLimits = _LIMITS) -> list[pa.RecordBatch]:
    """Return the rows of a table in batches of a bounded size; many small chunks are copied into one first, if the table is not large."""
    chunks = max((column.num_chunks for column in table.columns), default=0)
    if chunks > len(table) // limits.batch_rows + 1 and table.nbytes < limits.max_combined_bytes:
        table = table.combine_chunks()
    rows = max(1, min(limits.batch_rows, limits.batch_bytes * len(table) // max(1, table.nbytes)))
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=rows)
    return batches


def join_batches(batches: Iterable[pa.RecordBatch], limits: BatchLimits = _LIMITS) -> Iterator[pa.RecordBatch]:
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


def by_partition(rows: pa.RecordBatch, which: NDArray[np.bool_]) -> list[tuple[int, pa.RecordBatch]]:
    """Return some rows of a validated batch by partition, in their order."""
    at = np.flatnonzero(which)
    if not len(at):
        return []
    partition = rows.column("partition").fill_null(-1).to_numpy(zero_copy_only=False)[at]
    order = np.argsort(partition, kind="stable")
    ascending = partition[order]
    cuts = np.flatnonzero(np.diff(ascending)) + 1
    sorted_rows = rows if len(at) == len(rows) and not len(cuts) else rows.take(pa.array(at[order]))
    bounds = [0, *cuts.tolist(), len(at)]
    return [(int(ascending[start]), sorted_rows.slice(start, end - start)) for start, end in pairwise(bounds)]


def in_threads(do: Callable[[T], U], each: Sequence[T]) -> Iterator[U]:
    """Yield what a function makes of each of some things, in their order; several are worked on at once."""
    if len(each) <= 1:
        yield from map(do, each)
        return
    with ThreadPoolExecutor(min(len(each), 2 * (os.cpu_count() or 1)), "append") as threads:
        yield from threads.map(do, each)
