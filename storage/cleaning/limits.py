"""How much of a log a cleaning or a merge of small files takes or remembers; the records of the log are the same whatever the limits are.

```
 pass 1    the keys of `min_batch_keys` records, at least, are folded or looked up at a time
 pass 2    row group by row group (`row_groups`), into slices that end at `max_slice_bytes`
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lastword.storage.files.data_files import ROW_GROUP_LIMITS, RowGroupLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningLimits:
    """The sizes at which a cleaning or a merge divides its work."""

    #: A slice ends with the row group that brings it to so many bytes of Parquet.
    max_slice_bytes: int = 128 * 2**20
    #: A join or a group-by costs something by itself, so keys wait until there are so many.
    min_batch_keys: int = 2**20
    #: The cache of hashes of clean keys (8 bytes a key) takes at most so many bytes for all topics that the process cleans.
    max_hash_bytes: int = 128 * 2**20
    row_groups: RowGroupLimits = ROW_GROUP_LIMITS
    #: From so many bytes on, the tasks of a round are spread over the executors of a cluster.
    spread_bytes: int = 256 * 2**20


#: What a cleaning or a merge works with when it is given no limits.
CLEANING_LIMITS: Final = CleaningLimits()
