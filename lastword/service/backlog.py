"""The backlog of a source: what a query has not read yet, from the progress that Spark reports of it.

| source | progress                                            | backlog          |
|--------|-----------------------------------------------------|------------------|
| Kafka  | `endOffset` and `latestOffset`, by topic, partition | offsets between  |
| Kafka  | `metrics.maxOffsetsBehindLatest`, one partition's   | at least so many |
| files  | `latestOffset.waiting`                              | files            |
| others |                                                     | not known        |
"""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lastword.status.standing import Backlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def read_backlog(sources: Iterable[Any]) -> Backlog | None:
    """Return what the sources of a query have that it has not read; None where none of them reports it.

    Each is what PySpark reports of one source (`SourceProgress`): source offsets as texts of JSON, and metrics as texts.
    """
    backlogs = [backlog for source in sources if (backlog := _read_source(source)) is not None]
    if not backlogs:
        return None
    return Backlog(count=sum(backlog.count for backlog in backlogs), unit=backlogs[0].unit)


def _read_source(source: Any) -> Backlog | None:
    end, latest = _read_offset(source.endOffset), _read_offset(source.latestOffset)
    waiting = latest.get("waiting")
    if isinstance(waiting, int):
        return Backlog(count=waiting, unit="files")
    if latest and all(isinstance(partitions, dict) for partitions in (*end.values(), *latest.values())):
        return Backlog(count=_count_offsets(end, latest), unit="offsets")
    with suppress(KeyError, ValueError):
        return Backlog(count=int(source.metrics["maxOffsetsBehindLatest"]), unit="offsets")
    return None


def _count_offsets(end: Mapping[str, Mapping[str, int]], latest: Mapping[str, Mapping[str, int]]) -> int:
    """Return the offsets between two Kafka positions; a partition that has not been read at all counts from its offset 0."""
    ahead = ((offset, end.get(topic, {}).get(partition, 0)) for topic, offsets in latest.items() for partition, offset in offsets.items())
    return sum(max(0, offset - read) for offset, read in ahead)


def _read_offset(offset: object) -> dict[str, Any]:
    """Return a source offset as a mapping; an empty one for none, and for what is no JSON object.

    PySpark 4.2 gives the JSON of the source, 4.0 and 4.1 what Python writes for the parsed JSON.
    """
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError):
            parsed = parse(offset) if isinstance(offset, str) else offset
            return parsed if isinstance(parsed, dict) else {}
    return {}
