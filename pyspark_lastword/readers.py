"""What Spark runs of `format("lastword")` for batches and streams alike: planning in Python on the driver, reading in Python workers.

```
 driver      partitions(...)              the offsets, cut into splits with the files that hold them now
 executors   read(split)                  record batches; a file that is gone means: the same offsets at the newest version
```

Two classes are readers, this module's for batches and that of `stream`, as PySpark runs a class that is both as neither.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lastword.compaction.errors import ReaderBehind
from lastword.compaction.read_positions import Loss, offsets_within, overtaken, resume_offsets, starting_at
from lastword.storage.log.reader_history import HistoryWatch
from lastword.storage.log.topic_log import open_log
from lastword.storage.reading.arrow_ranges import read_split, split_range
from lastword.storage.reading.arrow_rows import offsets_at
from lastword.storage.reading.view import newest_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lastword.compaction.read_positions import Missed, Position
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.arrow_ranges import RangeSplit
    from lastword.storage.reading.view import View
    from pyspark_lastword.options import SourceOptions

_LOG: Final = logging.getLogger("lastword")
_CREATE_TIME: Final = 0


@dataclass
class SplitPartition(InputPartition):
    """A split of an offset range: what one Spark task reads."""

    split: RangeSplit

    def __post_init__(self) -> None:
        """Be what PySpark expects of a partition."""
        super().__init__(self.split)


class RangeReader:
    """What both readers do: find the topic, and read splits."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Keep what was asked for; nothing is read yet."""
        self.options = options
        self.columns = tuple(columns)
        self._log: TopicLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to the executors: no open table."""
        return {"options": self.options, "columns": self.columns, "_log": None}

    def view(self) -> View:
        """Return the log at its newest version."""
        return newest_view(self.log, self.options.isolation)

    @property
    def log(self) -> TopicLog:
        """The topic's log."""
        if self._log is None:
            self._log = open_log(self.options.path, self.options.storage_options)
        return self._log

    def splits(self, view: View, begin: Sequence[int], end: Sequence[int]) -> list[SplitPartition]:
        """Return the offsets from `begin` to `end` (exclusive) as Spark's partitions."""
        return [SplitPartition(split) for split in split_range(view, self.log.paths.root, begin, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the records of a split with the columns of the source."""
        assert isinstance(partition, SplitPartition)  # noqa: S101  what `splits` made
        topic = partition.split.root.rsplit("/", 1)[-1]
        stored = [name for name in self.columns if name not in {"topic", "timestampType"}]
        for batch in read_split(partition.split, stored):
            constants = {"topic": pa.repeat(topic, batch.num_rows), "timestampType": pa.repeat(_create_time(), batch.num_rows)}
            arrays = [constants[name] if name in constants else batch.column(name) for name in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    def starting(self, view: View) -> Position:
        """Return where a new reader begins; raise `UserError` for what is no position, `OffsetOutOfRange` for one past the log end."""
        options = self.options
        if options.starting_timestamp_ms is not None:
            return replace(view.position, offsets=offsets_at(view, options.starting_timestamp_ms))
        given = options.starting_offsets
        return starting_at(given, option="startingOffsets", topic=view.topic, newest=view.position, log=view.extent)


class Watch:
    """Tells a reader what it missed, and keeps what it has seen of the log's history."""

    def __init__(self, log: TopicLog, options: SourceOptions) -> None:
        """Watch a log for a reader with these options."""
        self._log, self._options = log, options
        self._history = HistoryWatch(options.storage_options)

    def check(self, position: Position, view: View) -> tuple[tuple[int, ...], bool]:
        """Return where to go on from a position, and whether something that was missed had to be accepted for it.

        Raises `ReaderBehind` when something was missed that the options do not accept; else a warning says what.
        """
        found = overtaken(position, view.extent, partial(self._log.history, self._history))
        refused = [one for one in found if self._refuses(one)]
        if refused:
            raise ReaderBehind(_told(view.topic, refused))
        for one in found:
            _LOG.warning("topic %s: %s", view.topic, one)
        return resume_offsets(position, found, view.partitions), bool(found)

    def _refuses(self, one: Missed) -> bool:
        return self._options.fail_on_missed_tombstones if one.loss is Loss.TOMBSTONE else self._options.fail_on_data_loss


class TopicBatchReader(RangeReader, DataSourceReader):
    """Reads a range of offsets, all of it at one table version as long as its files are there."""

    def partitions(self) -> list[SplitPartition]:
        """Return the splits from the starting to the ending offsets."""
        view = self.view()
        start = replace(self.starting(view), since_version=view.version)  # whoever asks for a range once keeps nothing up to date
        begin, _ = Watch(self.log, self.options).check(start, view)
        asked = self.options.ending_offsets
        end = offsets_within(asked, option="endingOffsets", topic=view.topic, newest=view.position, log=view.extent)
        return self.splits(view, tuple(map(max, begin, view.start)), tuple(map(min, end, view.end)))


def _create_time() -> pa.Scalar:
    return pa.scalar(_CREATE_TIME, pa.int32())


def _told(topic: str, found: Sequence[Missed]) -> str:
    lines = "\n".join(f"  {one}" for one in found)
    return (
        f"topic {topic}: this reader was overtaken:\n{lines}\n"
        "Start anew from the last words, which is right for sure (bootstrap() of the topic, then a new query with their "
        "offsets as startingOffsets); or go on without what was missed: failOnDataLoss=false for deleted records, onMissedTombstones=warn "
        "for tombstones"
    )
