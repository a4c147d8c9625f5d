"""A streaming source without rows: it has a micro-batch whenever the topic has grown.

What the micro-batch does reads the topic by itself. So Spark runs, triggers, shows and stops it like any other query, and no record passes
through Spark.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lastword.storage.reading.view import view_of
from lastword.streaming.planned_source import Planner, PollPace, planned_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from lastword.storage.log.topic_log import TopicLog


def growth_frame(spark: SparkSession, log: TopicLog, isolation: str, on_error: Callable[[Exception], None]) -> DataFrame:
    """Return a streaming DataFrame that has an empty micro-batch at its start, and one whenever a reader of the topic sees more of it.

    `on_error` gets an error of reading the topic before the query ends with it.
    """
    return planned_stream(_Growth(log, isolation, on_error), spark.createDataFrame([], "offset bigint"))


class _Growth(Planner):
    """The source offset is the end of each partition."""

    def __init__(self, log: TopicLog, isolation: str, on_error: Callable[[Exception], None]) -> None:
        self._log, self._isolation, self._on_error = log, isolation, on_error
        self.name = f"lastword[{log.paths.root}]"
        self._until: dict[str, str] = {}
        self._pace = PollPace(log.paths.root)

    def first(self) -> str:
        return "[]"

    def bound(self, query: str) -> None:
        self._until[query] = self._end()

    def latest(self, after: str, query: str) -> str:
        self._pace.begin()
        end = self._until.get(query) or self._end()
        if end == after:
            self._pace.rest()
        return end

    def rows(self, after: str, end: str) -> None:
        """Return none."""

    def stop(self, query: str) -> None:
        self._until.pop(query, None)

    def _end(self) -> str:
        try:
            return json.dumps(view_of(self._log.at(), self._isolation).end)
        except Exception as error:
            self._on_error(error)
            raise
