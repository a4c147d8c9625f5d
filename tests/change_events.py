"""Change events as connectors send them, for tests: envelopes, rows that are flattened, and a log of them without a JVM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lastword import ArrowTopic, Envelope, LogDir
from lastword.change_data.events.event_rows import line_events

if TYPE_CHECKING:
    from pathlib import Path

    from lastword.storage.append.requests import AppendResult

FLAT = Envelope(kind="debezium-flat")


def topic_in(folder: Path, partitions: int = 1, **config: Any) -> ArrowTopic:
    """Return a new compacted topic, whose cleaner takes whatever is closed."""
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        **{name.replace("_", "."): one for name, one in config.items()},
    }
    return LogDir(folder).create_topic("t", partitions=partitions, config=settings)


def key_of(value: Any) -> str:
    """Return a key: a number is that of the column id; a text is the key as it stands."""
    return value if isinstance(value, str) else json.dumps({"id": value} if isinstance(value, int) else value)


def change(op: str, key: Any, at: Any, after: Any = None, *, before: Any = None, schema: Any = None) -> tuple[str | None, str]:
    """Return key and value of an event as it is sent; `at` is an LSN of PostgreSQL or the block `source` itself."""
    source = {"connector": "postgresql", "lsn": at} if isinstance(at, int) else at
    payload = {"before": before, "after": after, "op": op, "source": source, "ts_ms": 1_700_000_000_000}
    event = payload if schema is None else {"schema": schema, "payload": payload}
    return None if key is None else key_of(key), json.dumps(event)


def append(topic: ArrowTopic, *events: tuple[str | None, str | None], envelope: Envelope | None = None) -> AppendResult:
    """Append events by one call."""
    return topic.append([{"key": key, "value": value} for key, value in events], envelope=envelope or Envelope())


def append_lines(topic: ArrowTopic, *lines: str, envelope: Envelope | None = None) -> AppendResult:
    """Append the lines of a file by one call, as a source of files reads them."""
    rows = line_events(pa.record_batch({"value": pa.array([line.encode() for line in lines], pa.binary())}))
    return topic.append(pa.Table.from_batches([rows]), envelope=envelope or Envelope())


def rows_of(topic: ArrowTopic) -> dict[str, Any]:
    """Return the newest rows by their keys' text."""
    return {bytes(row["key"]).decode(): json.loads(row["value"]) for row in topic.latest().to_pylist()}
