"""The ways in which a cleaning may be divided, for tests that must not see a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lastword.compaction.planning.offset_map import map_slots
from lastword.storage.cleaning.limits import CleaningLimits
from lastword.storage.files.data_files import RowGroupLimits

if TYPE_CHECKING:
    from lastword.compaction.config.topic_config import ServiceConfig

DIVISIONS: Final = {
    "as it is": CleaningLimits(),
    "row by row": CleaningLimits(min_batch_keys=1, row_groups=RowGroupLimits(max_rows=1)),
    "a slice for each row group": CleaningLimits(max_slice_bytes=1, row_groups=RowGroupLimits(max_rows=2)),
    "small batches of keys, small slices": CleaningLimits(max_slice_bytes=2**11, min_batch_keys=3, row_groups=RowGroupLimits(max_rows=3)),
}


def with_map_of(entries: int, config: ServiceConfig) -> ServiceConfig:
    """Return settings under which a round maps so many keys at the most, fewer than a user may ask for."""
    return replace(config, log_cleaner_io_buffer_load_factor=(entries + 0.5) / map_slots(config))
