"""The ways in which a cleaning may be divided, for tests that must not see a difference."""

from __future__ import annotations

from typing import Final

from lastword.storage.cleaning.limits import CleaningLimits
from lastword.storage.files.data_files import RowGroupLimits

DIVISIONS: Final = {
    "as it is": CleaningLimits(),
    "row by row": CleaningLimits(min_batch_keys=1, row_groups=RowGroupLimits(max_rows=1)),
    "a slice for each row group": CleaningLimits(max_slice_bytes=1, row_groups=RowGroupLimits(max_rows=2)),
    "small batches of keys, small slices": CleaningLimits(max_slice_bytes=2**11, min_batch_keys=3, row_groups=RowGroupLimits(max_rows=3)),
}
