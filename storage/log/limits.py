"""After how much, or how long, a topic's log does again what it has done; the records of the log are the same whatever the limits are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lastword.storage.files.data_files import ROW_GROUP_LIMITS, RowGroupLimits
from lastword.storage.files.schema import CHECKPOINT_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Numbers of commits, seconds, and sizes of what an append writes."""

    #: A commit whose version is a multiple writes a checkpoint of the Delta log.
    checkpoint_commits: int = CHECKPOINT_INTERVAL
    #: How much room a record takes in a file is read again from a recent file after so many commits.
    compression_commits: int = 20
    #: A partition whose producers could not be read is left alone for so many seconds.
    retry_seconds: float = 30.0
    row_groups: RowGroupLimits = ROW_GROUP_LIMITS


#: What a log works with when it is given no limits.
LOG_LIMITS: Final = LogLimits()
