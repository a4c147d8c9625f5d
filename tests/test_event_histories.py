"""Random histories of a source's table as Debezium sends them, through a log, against the table itself.

Two Kafka partitions by key, each in order, interleaved in any way; a connector that begins again; columns that are left out because they
did not change, changed keys, TRUNCATE; any batching, cleanings in between, a second process. `latest()` is the table, but for stale keys:
of a changed key an event is refused that leaves out columns, if the old key is in another partition or comes later (docs/limits.md).
"""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from lastword import Envelope, LogDir
from tests.clocks import at
from tests.pictures import HOUR_MS, T0, by_arrow
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "16384", "delete.retention.ms": "1d"}
_LEFT_OUT: Final = "__debezium_unavailable_value"
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass
class _Source:
    """A table of a source and the events of its changes, by Kafka partition."""

    chance: random.Random
    table: dict[int, dict[str, Any]] = field(default_factory=dict)
    partitions: tuple[list[dict[str, Any]], list[dict[str, Any]]] = field(default_factory=lambda: ([], []))
    lsn: int = 1000
    moved: set[int] = field(default_factory=set)
    #: Whether the events are flattened: rows with their position under a prefix, and no TRUNCATE. Deletions are rows with a position, or
    #: null or the text `null` without one; then nothing is sent again, and no key changes (docs/limits.md).
    is_flat: bool = False
    has_positions: bool = True

    def change(self) -> None:
        """Change a row, or now and then the whole table."""
        self.lsn += self.chance.choice((1, 8, 56))
        row_id, drawn = self.chance.randrange(14), self.chance.random()
        if drawn < 0.03 and not self.is_flat:
            self.table.clear()
            self._send(None, {"op": "t", "before": None, "after": None})
        elif row_id not in self.table:
            self.table[row_id] = {"id": row_id, "body": self._body(), "n": self.lsn}
            self._send(row_id, {"op": self.chance.choice("cr"), "after": self.table[row_id]})
        elif drawn < 0.2:
            self._delete(row_id)
        elif (
            drawn < 0.35
            and self.has_positions
            and row_id not in self.moved
            and (free := [one for one in range(14) if one not in self.table])
        ):
            self._move(row_id, self.chance.choice(free))
        else:
            row = self.table[row_id]
            row["n"] = self.lsn
            sent = dict(row)
            if self.chance.random() < 0.4:
                row["body"] = sent["body"] = self._body()
            elif row["body"] is not None:
                sent["body"] = _LEFT_OUT
            self._send(row_id, {"op": "u", "after": sent})

    def _body(self) -> str | None:
        return None if self.chance.random() < 0.1 else f"long text {self.chance.randrange(10**9)} " * 3

    def _delete(self, row_id: int, **headers: bytes) -> None:
        del self.table[row_id]
        self._send(row_id, {"op": "d", "before": {"id": row_id}, "after": None}, **headers)
        if not self.is_flat:
            self._partition(row_id).append({"key": json.dumps({"id": row_id}), "value": None, "headers": _headers(headers)})

    def _move(self, old: int, new: int) -> None:
        row = {**self.table[old], "id": new}
        self.moved.add(new)
        self._delete(old, newkey=json.dumps({"id": new}).encode())
        self.table[new] = row
        sent = {**row, "body": _LEFT_OUT} if row["body"] is not None and self.chance.random() < 0.8 else row
        self._send(new, {"op": "c", "before": None, "after": sent}, oldkey=json.dumps({"id": old}).encode())

    def _send(self, row_id: int | None, event: dict[str, Any], **headers: bytes) -> None:
        source = {"connector": "postgresql", "lsn": self.lsn, "snapshot": "incremental" if event["op"] == "r" else "false"}
        key = None if row_id is None else json.dumps({"id": row_id})
        value: str | None = json.dumps({**event, "source": source})
        if self.is_flat:
            flat = {**(event["after"] or {}), "__op": event["op"], "__source_lsn": self.lsn, "__source_snapshot": source["snapshot"]}
            if event["op"] == "d":
                flat = {**event["before"], **flat, "__deleted": self.chance.choice(("true", True))}
            value = self.chance.choice(("null", None)) if event["op"] == "d" and not self.has_positions else json.dumps(flat)
        self._partition(row_id).append({"key": key, "value": value, "headers": _headers(headers)})

    def _partition(self, row_id: int | None) -> list[dict[str, Any]]:
        return self.partitions[0 if row_id is None else zlib.crc32(str(row_id).encode()) % 2]

    def arrivals(self) -> list[dict[str, Any]]:
        """Return the events as they arrive: each partition in order, and from a moment on once more."""
        queues = []
        for number, events in enumerate(self.partitions):
            begin, events = self.chance.randrange(len(events) + 1), [{**event, "partition": number} for event in events]  # noqa: PLW2901
            queues.append([*events, *(events[begin:] if self.has_positions and self.chance.random() < 0.5 else [])])
        stretch, found = self.chance.choice((1, 10, 10_000)), list[dict[str, Any]]()
        while any(queues):
            queue = self.chance.choice([one for one in queues if one])
            size = self.chance.randrange(1, stretch + 1)
            found += queue[:size]
            del queue[:size]
        return found


def _headers(named: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"key": f"__debezium.{name}", "value": value} for name, value in named.items()]


def source_of(chance: random.Random, *, changes: int, is_flat: bool = False) -> _Source:
    """Return a table of a source after some changes."""
    source = _Source(chance, is_flat=is_flat, has_positions=not is_flat or chance.random() < 0.5)
    for _ in range(changes):
        source.change()
    return source


@pytest.mark.long
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("is_flat", [False, True], ids=["raw", "flat"])
def test_a_log_of_change_events_is_the_table_of_the_source(number: int, tmp_path: Path, *, is_flat: bool) -> None:
    """With any interleaving of the partitions and any cuts into batches."""
    live(seed_of_this_run() + number, tmp_path, is_flat=is_flat)


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_thousands_of_tables(tmp_path: Path) -> None:
    """As the test above, with thousands of random histories."""
    first = seed_of_this_run()
    for number in range(3000):
        live(first + 100 + number, tmp_path / str(number), is_flat=number % 2 == 1)


def live(seed: int, folder: Path, *, is_flat: bool) -> None:
    """Live one history; the seed is in the message of a failure."""
    chance = random.Random(seed)
    source = source_of(chance, changes=chance.choice((20, 80, 200)), is_flat=is_flat)
    logs = LogDir(folder)
    topic = logs.create_topic("t", partitions=chance.randrange(1, 4), config=_CONFIG)
    doors, arrivals, now_ms = [topic, by_arrow(topic)], source.arrivals(), T0
    largest = chance.choice((1, 7, 60)) if len(arrivals) < 60 else chance.choice((7, 60))
    while arrivals:
        size = chance.randrange(1, largest + 1)
        batch, arrivals = arrivals[:size], arrivals[size:]
        columns = {name: [event[name] for event in batch] for name in ("key", "value", "headers")}
        rows = pa.table(
            {
                "key": pa.array(columns["key"], pa.string()),
                "value": pa.array(columns["value"], pa.string()),
                "headers": pa.array(columns["headers"], _HEADERS),
                "partition": pa.array([event["partition"] for event in batch], pa.int32()),
            }
        )
        envelope = Envelope(kind="debezium-flat" if is_flat else "debezium")
        done = at(now_ms, chance.choice(doors)).append(rows, envelope=envelope, on_invalid="dead-letter")
        assert set(done.refused) <= ({"unresolved_column"} if source.moved else set()), f"seed {seed}"
        now_ms += chance.choice((0, 1000, HOUR_MS // 60))
        if chance.random() < 0.3:
            topic.roll()
            at(now_ms, topic).clean()
    found = {json.loads(row["key"])["id"]: json.loads(row["value"]) for row in topic.latest().to_pylist()}
    stale = {json.loads(one.key)["id"] for one in topic.stale_keys()}
    assert {key: row for key, row in found.items() if key not in stale} == {
        key: row for key, row in source.table.items() if key not in stale
    }, f"seed {seed}"
