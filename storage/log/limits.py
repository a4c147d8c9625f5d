"""After how much, or how long, a topic's log does again what it has done; the records of the log are the same whatever the limits are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lastword.compaction.config.keys import DAY_MS
from lastword.storage.files.data_files import ROW_GROUP_LIMITS, RowGroupLimits
from lastword.storage.files.schema import CHECKPOINT_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How often an append writes a checkpoint and measures compression, when it tries a partition again, how large its row groups are."""

    #: A commit whose version is a multiple writes a checkpoint of the Delta log.
    checkpoint_commits: int = CHECKPOINT_INTERVAL
    #: How much room a record takes in a file is read again from a recent file after so many commits.
    compression_commits: int = 20
    #: A partition whose producers could not be read is left alone for so many seconds.
    retry_seconds: float = 30.0
    row_groups: RowGroupLimits = ROW_GROUP_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepLimits:
    """How long old files and decisions of a log are kept, how often a Delta checkpoint is written, and which checkpoints are kept."""

    #: Files of the log stay at least so long, whatever file.delete.delay.ms says: a reader may hold a snapshot of yesterday.
    file_retention_ms: int = DAY_MS
    #: Decisions that no longer hold stay so long in the ledger.
    decision_retention_ms: int = 7 * DAY_MS
    #: The service writes a checkpoint of a log's Delta log after so many commits.
    checkpoint_commits: int = 100
    #: Of checkpoints older than the newest `kept_checkpoints`, the first in each stretch of so many commits is kept.
    checkpoint_spacing: int = 1_000
    kept_checkpoints: int = 10


#: What a log works with when it is given no limits.
LOG_LIMITS: Final = LogLimits()
#: What the upkeep of a log works with when it is given no limits.
UPKEEP_LIMITS: Final = UpkeepLimits()
