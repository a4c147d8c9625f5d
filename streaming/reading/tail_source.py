"""The tail as a streaming source of Spark: the DataFrame of a span is a plan over the Delta table, so no record passes through Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lastword.compaction.errors import ReaderBehind
from lastword.streaming.planned_source import Planner, PollPace, planned_stream
from lastword.streaming.reading.tail import TAIL_COLUMNS, TailRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from lastword.compaction.read_positions import Position
    from lastword.streaming.reading.tail import Tail


def streaming_frame(tail: Tail, begin: Position, *, on_span: Callable[[TailRange], None] | None = None) -> DataFrame:
    """Return a streaming DataFrame that tails from `begin` on; any number of queries may be started from it.

    `on_span` is told of each micro-batch before it is processed, on the thread of the query.
    """
    return planned_stream(_Spans(tail, TailRange(begin=begin.offsets, end=begin), on_span), tail.columns())


class _Spans(Planner):
    """The source offset of a micro-batch is its `TailRange`."""

    def __init__(self, tail: Tail, first: TailRange, on_span: Callable[[TailRange], None] | None) -> None:
        self._tail, self._first, self._on_span = tail, first, on_span
        self.name = f"lastword[{tail.log.paths.root}]"
        self._until: dict[str, tuple[int, ...]] = {}
        self._processed = first.end
        self._pace = PollPace(tail.log.paths.root)

    def first(self) -> str:
        return self._first.to_json()

    def bound(self, query: str) -> None:
        self._until[query] = self._tail.bounds()

    def latest(self, after: str, query: str) -> str:
        position = TailRange.from_json(after).end
        self._processed = position
        self._pace.begin()
        span = self._tail.plan(position, until=self._until.get(query))
        self._tail.tell(position)
        if span.is_empty and span.end == position:
            self._pace.rest()
            return after
        return span.to_json()

    def rows(self, after: str, end: str) -> DataFrame | None:
        """Return the rows of a span, which says itself where it begins.

        A reader that was overtaken fails when the rows are read, not when they are asked for.
        """
        del after
        span = TailRange.from_json(end)
        if self._on_span is not None:
            self._on_span(span)
        if span.is_empty:
            return None
        try:
            return self._tail.read(span)
        except ReaderBehind as error:
            return self._failing(error)

    def stop(self, query: str) -> None:
        self._tail.tell(self._processed, stopping=True)
        self._until.pop(query, None)

    def _failing(self, error: ReaderBehind) -> DataFrame:
        """Return rows whose reading fails with the message of `error`."""
        fails = F.raise_error(F.lit(str(error))).cast("boolean")
        return self._tail.spark.range(1).where(fails).select(*[F.lit(None).alias(name) for name in TAIL_COLUMNS])
