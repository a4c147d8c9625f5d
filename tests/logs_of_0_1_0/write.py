"""Writes `log_dir.tar.xz`: topics with source sequences as version 0.1.0 had them before the order became that of commits (ADR 0044).

Run it with that version of the code, as README.md says. Today's tests take its events, too.
"""

from __future__ import annotations

import copy
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lastword import Envelope, LogDir

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword import AppendResult, ArrowTopic

ARCHIVE: Final = Path(__file__).parent / "log_dir.tar.xz"
T0, DAY_MS = 1_772_323_200_000, 86_400_000
_PLACE: Final = {"name": "shop", "db": "d", "schema": "public", "table": "t"}
CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1d"}
ROWS: Final = "rows"
#: The block `source` of each connector at the commit of a number.
SOURCES: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "postgresql": lambda commit: {**_PLACE, "sequence": f'["{1000 + commit * 10}","{1005 + commit * 10}"]', "lsn": 1005 + commit * 10},
    "postgresql-flat": lambda commit: {"lsn": 1005 + commit * 10},
    "mysql": lambda commit: {**_PLACE, "file": "bin.000003", "pos": 100 * commit, "row": 0},
    "sqlserver": lambda commit: {
        **_PLACE,
        "commit_lsn": f"0000002a:{commit:08x}:0005",
        "change_lsn": f"0000002a:{commit:08x}:0002",
        "event_serial_no": 1,
    },
    "oracle": lambda commit: {**_PLACE, "scn": f"{995 + commit * 10}", "commit_scn": f"{1000 + commit * 10}"},
    "mongodb": lambda commit: {"name": "shop", "db": "d", "collection": "t", "ts_ms": T0 + commit * 1000, "ord": 1},
}
#: MongoDB has no TRUNCATE, and rows that bring their own sequence have none here.
TRUNCATES: Final = tuple(name for name in SOURCES if name != "mongodb")

#: A change: its operation, the id of its row, the row's text, and the number of its commit.
Change = tuple[str, int | None, str | None, int]
BEFORE: Final[list[list[Change]]] = [
    [("c", 90, "gone", 1), ("t", None, None, 2), *(("c", row, "first", 3) for row in range(1, 7))],
    [("u", 1, "second", 4), ("u", 2, "second", 4), ("d", 3, None, 4)],
    [("u", 4, "second", 6), ("d", 5, None, 6)],
]
#: The rows that these leave: 90 is truncated (or, without a TRUNCATE, deleted), 3 and 5 are deleted, and the tombstone of 3 is removed.
NEWEST: Final = {1: "second", 2: "second", 4: "second", 6: "first"}


def append(topic: ArrowTopic, changes: Sequence[Change], now_ms: int = T0) -> AppendResult:
    """Append changes as the source of a topic sends them."""
    topic = at(now_ms, topic)
    if topic.name == ROWS:
        rows = [{"key": f'{{"id":{row}}}', "value": _value(op, row, text), "source_sequence": commit} for op, row, text, commit in changes]
        return topic.append(rows)
    kind: Any = "debezium-flat" if topic.name.endswith("flat") else "debezium"
    return topic.append([_event(topic.name, change) for change in changes], envelope=Envelope(kind=kind))


def at(now_ms: int, topic: ArrowTopic) -> ArrowTopic:
    """Return a topic whose clock stands still."""
    found: Any = copy.copy(topic)
    found._clock = lambda: now_ms  # noqa: SLF001
    return found  # type: ignore[no-any-return]


def changes_of(name: str, changes: list[Change]) -> list[Change]:
    """Return changes as a source can send them: one without TRUNCATE deletes the row before it."""
    return [change if change[0] != "t" or name in TRUNCATES else ("d", 90, None, change[3]) for change in changes]


def _value(op: str, row: int | None, text: str | None) -> str | None:
    return None if op in "dt" else json.dumps({"id": row, "v": text})


def _event(name: str, change: Change) -> dict[str, str | None]:
    op, row, text, commit = change
    source, value = SOURCES[name](commit), _value(op, row, text)
    key = None if row is None else json.dumps({"id": row})
    if name.endswith("flat"):
        fields = {"__op": op, "__deleted": str(op == "d").lower(), **{f"__source_{field}": one for field, one in source.items()}}
        return {"key": key, "value": json.dumps({"id": row, **json.loads(value or "{}"), **fields})}
    after: Any = value if name == "mongodb" else json.loads(value or "null")
    return {"key": key, "value": json.dumps({"op": op, "before": None, "after": after, "source": {"connector": name, **source}})}


def write(folder: Path) -> None:
    """Write the topics."""
    logs: Any = LogDir(folder)
    logs.clock = lambda: T0
    for name in (*SOURCES, ROWS):
        topic = at(T0, logs.create_topic(name, partitions=2, config=CONFIG))
        *first, last = (changes_of(name, changes) for changes in BEFORE)
        for changes in first:
            append(topic, changes)
        topic.roll()
        for day in (0, 2):
            at(T0 + day * DAY_MS, topic).clean()
        append(topic, last, T0 + 2 * DAY_MS)
        found = {json.loads(row["key"])["id"]: json.loads(row["value"])["v"] for row in topic.latest().to_pylist()}
        if found != NEWEST or topic.verify().problems:
            message = f"topic {name} has {found}"
            raise RuntimeError(message)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        write(Path(made) / "log_dir")
        with tarfile.open(sys.argv[1] if len(sys.argv) > 1 else ARCHIVE, "w:xz", preset=9) as archive:
            archive.add(Path(made) / "log_dir", "log_dir")
