"""Where change events stand in their source: the position that each connector gives them, as a source sequence.

```
 connector             position, compared from left to right
 postgresql            lsn
 mysql, mariadb        number of the binlog's file, pos, row
 sqlserver, db2        commit_lsn, change_lsn, event_serial_no
 oracle                commit_scn, scn
 mongodb               ts_ms, ord
 any other             none: the order of arrival counts
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from lastword.compaction.rows.json_rows import NoEvent
from lastword.compaction.rows.sequences import sequence_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword.compaction.rows.envelopes import Events

_ANY: Final = msgspec.json.Decoder()
_TRAILING_NUMBER: Final = re.compile(r"(\d+)$")


class Source(msgspec.Struct):
    """What the block `source` says of the position of an event."""

    connector: Any = None
    lsn: Any = None
    file: Any = None
    pos: Any = None
    row: Any = None
    commit_lsn: Any = None
    change_lsn: Any = None
    event_serial_no: Any = None
    scn: Any = None
    commit_scn: Any = None
    ts_ms: Any = None
    ord: Any = None


def named_sequence(text: bytes, paths: Sequence[str]) -> str:
    """Return the sequence of an event by the fields that a source names by path; raise `NoEvent` for one that lacks a field."""
    event, parts = _ANY.decode(text), []
    for path in paths:
        found = event
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            message = f"sequence {path}: the event has none"
            raise NoEvent(message)
        parts.append(found)
    try:
        return sequence_text([repr(part) if isinstance(part, (dict, list)) else part for part in parts])
    except ValueError:
        message = f"sequence {', '.join(paths)} = {parts}: allowed are numbers of up to 20 digits, and texts"
        raise NoEvent(message) from None


def source_sequence(source: Source, op: Any) -> str:
    """Return the sequence of an event at the position of its source; a snapshot's row is before a change there."""
    position = _position(source)
    try:
        return "" if position is None else sequence_text((*position, 0 if op == "r" else 1))
    except (TypeError, ValueError):  # a number without end, or no number
        return ""


def _position(source: Source) -> tuple[Any, ...] | None:
    """Return where an event stands in its source, by what its connector says; None where that is not known."""
    try:
        find = _POSITIONS.get(source.connector) or _guessed(source)
        return None if find is None else find(source)
    except (TypeError, ValueError):
        return None


def _guessed(source: Source) -> Callable[[Source], tuple[Any, ...]] | None:
    """Return how to read the position of a source that does not name its connector, as a flat event may."""
    for name, find in (
        ("lsn", _postgresql),
        ("pos", _mysql),
        ("commit_lsn", _sqlserver),
        ("event_serial_no", _sqlserver),
        ("scn", _oracle),
        ("ord", _mongodb),
    ):
        if getattr(source, name) is not None:
            return find
    return None


def _postgresql(source: Source) -> tuple[Any, ...]:
    return (int(source.lsn),)


def _mysql(source: Source) -> tuple[Any, ...]:
    number = _TRAILING_NUMBER.search(source.file)
    if number is None:
        raise ValueError(source.file)
    return int(number[1]), int(source.pos), int(source.row or 0)


def _sqlserver(source: Source) -> tuple[Any, ...]:
    return source.commit_lsn or "", source.change_lsn or "", int(source.event_serial_no or 0)


def _oracle(source: Source) -> tuple[Any, ...]:
    scn = int(source.scn)
    return int(source.commit_scn or scn), scn


def _mongodb(source: Source) -> tuple[Any, ...]:
    return int(source.ts_ms), int(source.ord or 0)


_POSITIONS: Final[Mapping[Any, Callable[[Source], tuple[Any, ...]]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlserver": _sqlserver,
    "oracle": _oracle,
    "mongodb": _mongodb,
    "db2": _sqlserver,
}


def complete_sequences(events: Events, partitions: Sequence[int | None] | None) -> None:
    """Give rows without a sequence, tombstones, that of the row before them in their partition, or else of the one behind them.

    The events of a key are in one partition, in their order. So neither is below a record of the key that came before the deletion, and
    neither is above one that came after it.
    """
    row = np.array(events.row, dtype=np.int64)
    place = (
        np.zeros(len(row), dtype=np.int64)
        if partitions is None
        else np.array([-1 if number is None else number for number in partitions])[row]
    )
    is_known = np.array([bool(sequence) for sequence in events.sequence], dtype=np.bool_)
    events.guessed = set(np.flatnonzero(~is_known).tolist())
    for partition in np.unique(place[~is_known]).tolist():
        known, at = (np.flatnonzero((place == partition) & which) for which in (is_known, ~is_known))
        if len(known):
            nearest = known[np.maximum(0, np.searchsorted(known, at) - 1)]
            for to, given in zip(at.tolist(), nearest.tolist(), strict=True):
                events.sequence[to] = events.sequence[given]
