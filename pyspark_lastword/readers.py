"""What Spark runs of `format("lastword")`: planning in a Python process of the driver, reading in the executors' Python workers.

```
 driver      latestOffset(start, limit)   the newest table version: has the position been overtaken? how far may it go?
             partitions(start, end)       the offsets of the micro-batch, cut into splits with the files that hold them now
 executors   read(split)                  record batches; a file that is gone means: the same offsets at the newest version
```

The source offset is a `Position`: offsets, and the table versions that they come from. A micro-batch that is run again reads the same
offsets at the then newest version: what survives of them. Two classes, as PySpark runs a class that is both readers as neither.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from lastword.compaction.errors import ReaderBehind
from lastword.compaction.read_positions import Loss, Position, advance, offsets_within, overtaken, resumed, starting_at
from lastword.storage.log.reader_history import HistoryWatch
from lastword.storage.reading.arrow_ranges import read_split, split_range
from lastword.storage.reading.arrow_rows import offsets_at
from lastword.storage.reading.arrow_view import ArrowLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit

    from lastword.compaction.read_positions import Missed
    from lastword.storage.reading.arrow_ranges import RangeSplit
    from lastword.storage.reading.arrow_view import ArrowView
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
        self._log: ArrowLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what goes to the executors: no open table."""
        return {"options": self.options, "columns": self.columns, "_log": None}

    def view(self) -> ArrowView:
        """Return the log at its newest version."""
        return self.log.view(self.options.isolation)

    @property
    def log(self) -> ArrowLog:
        """The topic's log."""
        if self._log is None:
            self._log = ArrowLog(self.options.path, self.options.storage_options)
        return self._log

    def splits(self, view: ArrowView, begin: Sequence[int], end: Sequence[int]) -> list[SplitPartition]:
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

    def starting(self, view: ArrowView) -> Position:
        """Return where a new reader begins; raise `UserError` for what is no position, `OffsetOutOfRange` for one past the log end."""
        options = self.options
        if options.starting_timestamp_ms is not None:
            return replace(view.position, offsets=offsets_at(view, options.starting_timestamp_ms))
        given = options.starting_offsets
        return starting_at(given, option="startingOffsets", topic=view.topic, newest=view.position, log=view.extent)


class Watch:
    """Tells a reader what it missed, and keeps what it has seen of the log's history."""

    def __init__(self, log: ArrowLog, options: SourceOptions) -> None:
        """Watch a log for a reader with these options."""
        self._log, self._options = log, options
        self._history = HistoryWatch(options.storage_options)

    def check(self, position: Position, view: ArrowView) -> tuple[tuple[int, ...], bool]:
        """Return where to go on from a position, and whether something that was missed had to be accepted for it.

        Raises `ReaderBehind` when something was missed that the options do not accept; else a warning says what.
        """
        found = overtaken(
            position, view.extent, lambda since_version: self._history.look(self._log.table(), self._log.ledger.read(), since_version)
        )
        refused = [one for one in found if self._refuses(one)]
        if refused:
            raise ReaderBehind(_told(view.topic, refused))
        for one in found:
            _LOG.warning("topic %s: %s", view.topic, one)
        return resumed(position, found, view.partitions), bool(found)

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


class TopicStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches; its progress is a `Position` and nothing else."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Keep what was asked for; nothing is read yet."""
        super().__init__(options, columns)
        self._until: tuple[int, ...] | None = None
        self._watch: Watch | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  PySpark's name
        """Return where a query begins that has no checkpoint yet."""
        return _to_dict(self.starting(self.view()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends: `start` itself when there is nothing new.

        Raises `ReaderBehind` when the position was overtaken and the options ask for an error.
        """
        view, after = self.view(), Position.from_dict(start)
        begin, accepted = self._check(after, view)
        end = view.end if self._until is None else tuple(map(min, view.end, self._until))
        offsets = advance(begin, end, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if offsets == after.offsets and begin == after.offsets and not accepted:
            return start
        since = view.version if accepted else after.since_version
        found = _to_dict(replace(view.position, offsets=offsets, since_version=since))
        return found if begin == after.offsets else {**found, "begin": {str(one): offset for one, offset in enumerate(begin)}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that `maxOffsetsPerTrigger` sets."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the end of the log as it is now for the end of the query."""
        self._until = self.view().end

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the log as the reader sees it."""
        return _to_dict(self.view().position)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SplitPartition]:
        """Return the splits of a micro-batch, at the newest version; raises as `latestOffset`."""
        view, upto = self.view(), Position.from_dict(end)
        given = end.get("begin", start["offsets"])
        begin = tuple(int(given[str(one)]) for one in range(len(given)))
        if view.version != upto.table_version or view.topic_id != upto.topic_id:
            self._check(replace(upto, offsets=begin), view)
        return self.splits(view, tuple(map(max, begin, view.start)), upto.offsets)

    def _check(self, position: Position, view: ArrowView) -> tuple[tuple[int, ...], bool]:
        if self._watch is None:
            self._watch = Watch(self.log, self.options)
        return self._watch.check(position, view)


def _to_dict(position: Position) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(position.to_json())
    return body


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
