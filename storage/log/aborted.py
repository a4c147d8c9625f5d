"""Aborted transactions that the dirty section of a log still has data of: what a read_committed reader leaves out.

```
 offset     0 … start … first dirty … last stable … log end
 producer files                       p1 p1 C1 p2 p2 q A2      two columns of each, read once: {ABORT: 2}
```

Inside a partition the first offset of a transaction names it. A marker stands behind the data of its transaction and stays as long as a
data row is left (docs/semantics.md#A.12), and cleaning never passes an open transaction. So only files that reach past the cleaner
checkpoint and hold rows of producers are looked at. A topic without producers pays nothing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.compaction.producers import Control
from lastword.storage.files.data_reader import named_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyarrow import fs

    from lastword.storage.delta.snapshot import Files

    Longs = NDArray[np.int64]

#: How many files are read at once.
THREADS: Final = max(2, pa.cpu_count())
#: No offsets.
NOTHING: Final = np.array([], dtype=np.int64)


class AbortedTransactions:
    """The ABORT markers of files, by path; what was read is kept for as long as the file is asked for."""

    def __init__(self) -> None:
        """Know no file."""
        self._known: dict[str, Longs] = {}

    def read(self, filesystem: fs.FileSystem, files: Files, first_dirty: Sequence[int]) -> tuple[Longs, ...]:
        """Return the first offsets of the aborted transactions of each partition, ascending.

        Raises `FileNotFoundError` naming a file that VACUUM removed, `CorruptLog` naming one that cannot be read.
        """
        dirty = (files.producer_rows > 0) & (files.last_offset >= np.asarray(first_dirty, dtype=np.int64)[files.partition])
        chosen = np.flatnonzero(dirty)
        paths = [str(path) for path in files.path[chosen]]
        known = self._known
        missing = [path for path in paths if path not in known]
        if missing:
            with ThreadPoolExecutor(THREADS) as pool:
                known = {
                    **known,
                    **dict(zip(missing, pool.map(lambda path: _find_aborted_offsets(filesystem, path), missing), strict=True)),
                }
        self._known = mine = {path: known[path] for path in paths}
        offsets_of: list[list[Longs]] = [[] for _ in first_dirty]
        for path, partition in zip(paths, files.partition[chosen].tolist(), strict=True):
            offsets_of[partition].append(mine[path])
        return tuple(np.unique(np.concatenate(offsets)) if offsets else NOTHING for offsets in offsets_of)


def _find_aborted_offsets(filesystem: fs.FileSystem, path: str) -> Longs:
    """Return the first offsets of the transactions that a file has an ABORT marker of."""
    with named_errors(path, may_be_gone=True), pq.ParquetFile(path, filesystem=filesystem) as file:
        table = file.read(columns=["control", "txn_first_offset"], use_threads=False)
    offsets: Longs = table.column("txn_first_offset").filter(pc.equal(table.column("control"), Control.ABORT.value)).drop_null().to_numpy()
    return offsets
