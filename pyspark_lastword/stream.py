"""What Spark runs of a stream of `format("lastword")`. The interface is of Spark 4.2: nothing else imports this module.

```
 driver      latestOffset(start, limit)   the newest table version: has the position been overtaken? how far may it go?
             partitions(start, end)       the offsets of the micro-batch, as splits
```

The source offset is a `Position`: offsets, and the table versions that they come from. A micro-batch that is run again reads the same
offsets at the then newest version: what survives of them. Spark 4.0 and 4.1 ask for the newest offset without saying where the stream is
(`latestOffset()`), so that neither a limit nor what the reader missed could be told; there `tail()` streams.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from lastword.compaction.read_positions import Position, advance
from pyspark_lastword.readers import RangeReader, Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.streaming.datasource import ReadLimit

    from lastword.storage.reading.view import View
    from pyspark_lastword.options import SourceOptions
    from pyspark_lastword.readers import SplitPartition


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

    def _check(self, position: Position, view: View) -> tuple[tuple[int, ...], bool]:
        if self._watch is None:
            self._watch = Watch(self.log, self.options)
        return self._watch.check(position, view)


def _to_dict(position: Position) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(position.to_json())
    return body
