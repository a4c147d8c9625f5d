"""The tail: a stream of the log from an offset vector on, read by Spark's own Delta reader.

```
 span 0   [begin 3 … end 5)      planned at table version 12
 span 1   [begin 5 … end 9)      planned at version 14; read at 15, cleaned meanwhile: what survives of offsets 5 to 8
```

A micro-batch is a `TailRange` of offsets in every partition, and nothing else: no file, no table version. So a tail survives cleaning,
VACUUM and restarts; what was compacted away is skipped, and nothing that survived is missed. A read_committed tail ends each span at the
last stable offset. What a reader cannot notice by itself (`lastword.compaction.read_positions.missed_ranges`) is looked for before each
span is planned, and again before it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import InvalidConfiguration, ReaderBehind, Violation
from lastword.compaction.read_positions import Loss, Position, advance, overtaken, resume_offsets
from lastword.compaction.readers import EXPIRATION_MS, Reader, check_reader
from lastword.storage.log.reader_history import HistoryWatch
from lastword.storage.reading.view import ISOLATIONS, view_of
from lastword.streaming.events import logger
from lastword.streaming.reading.dataframes import data_records, log_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from lastword.compaction.read_positions import Missed
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View

#: The columns of a tail: those of a last word, in the order of the log.
TAIL_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
#: How often a registered reader is seen while it moves, and while it does not; and how often in its expiration at the least.
_MOVED_MS: Final = 5_000
_UNMOVED_MS: Final = 60_000
_SIGHTS: Final = 10
_ON_MISSED: Final = ("error", "warn")
_LOG: Final = logger("tail")


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """How a tail reads, under the names of Spark's Kafka source.

    `fail_on_data_loss`: records that were deleted or taken back before they were read end the query; otherwise a warning says so and the
    tail goes on where the log can. `on_missed_tombstones` ("error", "warn"): the same for tombstones that went before they were read.
    A tail that is named as a `reader` is registered: what it has not read is kept for it, until it has not been seen for
    `reader_expiration_ms` (`lastword.compaction.readers`).
    """

    isolation: str = "read_committed"
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    on_missed_tombstones: str = "error"
    reader: str | None = None
    reader_expiration_ms: int = EXPIRATION_MS

    def __post_init__(self) -> None:
        """Refuse what is not allowed, all of it at once."""
        wrong = []
        if self.isolation not in ISOLATIONS:
            wrong.append(Violation(key="isolation", value=str(self.isolation), allowed=" or ".join(ISOLATIONS)))
        if self.max_offsets_per_trigger is not None and self.max_offsets_per_trigger < 1:
            wrong.append(Violation(key="max_offsets_per_trigger", value=str(self.max_offsets_per_trigger), allowed="1 or more, or None"))
        if self.on_missed_tombstones not in _ON_MISSED:
            wrong.append(Violation(key="on_missed_tombstones", value=str(self.on_missed_tombstones), allowed=" or ".join(_ON_MISSED)))
        if self.reader is None and self.reader_expiration_ms != EXPIRATION_MS:
            allowed = "only with the name of a reader"
            wrong.append(Violation(key="reader_expiration_ms", value=str(self.reader_expiration_ms), allowed=allowed))
        if self.reader is not None:
            check_reader(self.reader, self.reader_expiration_ms)
        if wrong:
            subject = "tail"
            raise InvalidConfiguration(subject, wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRange:
    """What one micro-batch reads: offsets `begin[p]` to `end.offsets[p]` (exclusive) of every partition p."""

    begin: tuple[int, ...]
    end: Position

    @property
    def is_empty(self) -> bool:
        """Tell whether it holds no offset."""
        return self.begin == self.end.offsets

    def to_json(self) -> str:
        """Return it as one line of JSON: the source offset in a query checkpoint."""
        begin = {str(partition): offset for partition, offset in enumerate(self.begin)}
        return json.dumps({**json.loads(self.end.to_json()), "begin": begin}, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> TailRange:
        """Return the span that `to_json` wrote."""
        body = json.loads(text)
        return TailRange(begin=tuple(body["begin"][str(one)] for one in range(len(body["begin"]))), end=Position.from_dict(body))


class Tail:
    """Plans spans and reads them; holds no progress of its own, but tells the topic of it when the reader has a name."""

    def __init__(self, log: TopicLog, spark: SparkSession, options: TailOptions, clock_ms: Callable[[], int]) -> None:
        """Tail `log`; nothing is read yet. `clock_ms` says when a registered reader is seen."""
        self.log, self.spark, self.options = log, spark, options
        self._history = HistoryWatch()
        self._clock_ms = clock_ms
        self._seen: tuple[int, Position | None] = 0, None

    def tell(self, position: Position, *, stopping: bool = False) -> None:
        """Tell the topic that the reader has read up to a position: at once at first, then now and then."""
        name, expiration_ms = self.options.reader, self.options.reader_expiration_ms
        if name is None:
            return
        now_ms, (told_ms, told) = self._clock_ms(), self._seen
        pause_ms = _MOVED_MS if position != told else max(_UNMOVED_MS, expiration_ms // _SIGHTS)
        early = told is not None and 0 <= now_ms - told_ms < min(pause_ms, expiration_ms // 2)
        if early and not (stopping and position != told):
            return
        today = self.log.decisions()
        if position.topic_id not in {"", today.topic_id} or len(position.offsets) != today.partitions:
            return  # of a topic that had this name before
        self._seen = now_ms, position
        reader = Reader(name=name, position=position, seen_ms=now_ms, expiration_ms=expiration_ms)
        self.log.reader_positions.write(reader, self.log.ledger)

    def plan(self, after: Position, *, until: tuple[int, ...] | None = None) -> TailRange:
        """Return the next span after a position, empty when there is nothing new; `until` bounds it.

        Raises `ReaderBehind` when the position was overtaken and the options ask for an error.
        """
        view = self._view()
        begin, accepted = self._checked(after, view)
        bounds = view.end if until is None else tuple(map(min, view.end, until))
        offsets = advance(begin, bounds, self.options.max_offsets_per_trigger)
        if offsets == after.offsets and not accepted:
            return TailRange(begin=after.offsets, end=after)
        version = view.version
        return TailRange(
            begin=begin,
            end=Position(
                offsets=offsets,
                table_version=version,
                since_version=version if accepted else after.since_version,
                topic_id=view.topic_id,
            ),
        )

    def bounds(self) -> tuple[int, ...]:
        """Return the end of the log as the tail sees it now."""
        return self._view().end

    def columns(self) -> DataFrame:
        """Return what `read` returns, for its schema: nothing is looked at."""
        return data_records(log_records(self.spark, self.log, self._view())).select(*TAIL_COLUMNS)

    def read(self, span: TailRange) -> DataFrame:
        """Return the records of a span that are there now: `TAIL_COLUMNS`; tombstones are rows with a null value.

        Rows of a partition are in no order inside of a span; every row of a span comes before those of the next. Raises as `plan`.
        """
        view = self._view()
        if view.version != span.end.table_version:
            self._checked(replace(span.end, offsets=span.begin), view)
        rows = log_records(self.spark, self.log, replace(view, end=span.end.offsets), begin=span.begin)
        return data_records(rows).select(*TAIL_COLUMNS)

    def _view(self) -> View:
        """Return the view of the newest table version."""
        return view_of(self.log.at(), self.options.isolation)

    def _checked(self, position: Position, view: View) -> tuple[tuple[int, ...], bool]:
        """Return where to go on from a position, and whether something that was missed had to be accepted for it."""
        found = overtaken(position, view.extent, partial(self.log.history, self._history))
        refused = [one for one in found if self._refuses(one)]
        if refused:
            raise ReaderBehind(self._told(refused))
        for one in found:
            _LOG.warning("reader missed records", topic=self.log.name, partition=one.partition, offset=one.offset, loss=one.loss.value)
        return resume_offsets(position, found, view.partitions), bool(found)

    def _refuses(self, one: Missed) -> bool:
        if one.loss is Loss.TOMBSTONE:
            return self.options.on_missed_tombstones == "error"
        return self.options.fail_on_data_loss

    def _told(self, found: list[Missed]) -> str:
        lines = "\n".join(f"  {one}" for one in found)
        return (
            f"topic {self.log.name}: this reader was overtaken:\n{lines}\n"
            "Bootstrap again (topic.bootstrap(), then tail from its position), which is right for sure; or go on without what was missed: "
            "fail_on_data_loss=False for deleted records, on_missed_tombstones='warn' for tombstones"
        )
