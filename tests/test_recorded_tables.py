"""Recorded change events as typed tables: after each delivery the table is `table()`, and at the end the rows of the database.

The recordings, and how they are delivered: `tests/test_recorded_events.py`. The database's rows: `row_to_json`.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import time
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pytest

from examples.change_events.demo import of_database, plain
from lastword import Envelope, LogDir
from tests.clocks import at
from tests.pictures import HOUR_MS, T0
from tests.test_model_equality import seed_of_this_run
from tests.test_recorded_events import lines_of, rows_of_lines, sent_again

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.topics.tables import TableArguments

_ORDER_LINES: Final = "order_id bigint, line_no int, sku string, qty int, price decimal(38,10), status string"
_COLUMNS: Final = {
    "order_lines": _ORDER_LINES,
    "sessions": ("id uuid, customer_id int, started timestamp, local_ts timestamp_ntz, t time, dur bigint, ip string, payload json"),
    "wiped": "id bigint, v string",
    "evolving": "id int, a string, aa string, b int, c string, d decimal(10,2), e string",
}
_FILES: Final = ("a.shop.order_lines", "c.shop.order_lines", "a.shop.sessions", "a.shop.wiped", "d.shop.wiped", "d.shop.evolving")
_COMPLETE: Final = ("a.shop.order_lines", "c.shop.order_lines", "a.shop.sessions", "a.shop.wiped")
_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "65536"}


@pytest.mark.long
@pytest.mark.parametrize("deletion_vectors", [False, True], ids=["files rewritten", "deletion vectors"])
@pytest.mark.parametrize("name", _FILES)
def test_a_table_of_recorded_events_is_the_database_s(tmp_path: Path, name: str, *, deletion_vectors: bool) -> None:
    """Value by value, types included, however the events come; a history ends with the same rows."""
    chance, columns = random.Random(f"{name} {seed_of_this_run()}"), _COLUMNS[name.split(".")[2]]
    topic = LogDir(tmp_path / "data").create_topic("t", partitions=2, config=_CONFIG)
    given = None if name.startswith("d.") else columns
    kinds: dict[str, TableArguments] = {
        "latest": {"schema": given, "deletion_vectors": deletion_vectors},
        "history": {"schema": given, "deletion_vectors": deletion_vectors, "history": True},
    }
    queues, now_ms = [sent_again(chance, [event for event in lines_of(name) if event["partition"] == number]) for number in (0, 1)], T0
    envelope = Envelope(schema="" if name.startswith("d.") else columns)
    while any(queues):
        for queue in chance.sample(queues, 2):
            size = chance.randint(1, 500)
            if queue:
                at(now_ms, topic).append(rows_of_lines(queue[:size]), envelope=envelope)
            del queue[:size]
        if chance.random() < 0.3:
            now_ms += HOUR_MS
            topic.roll()
            at(now_ms, topic).clean()
        for kind, options in kinds.items():
            topic.materialize(str(tmp_path / kind), **options)
        _check(topic, tmp_path, given)
    if name in _COMPLETE:
        expected = [of_database(row) for row in lines_of(f"truth/{name.split('.')[2]}", parse_decimals=True)]
        names = list(expected[0])
        assert _counted(plain(row) for row in _rows(tmp_path / "latest", names)) == _counted(expected)


def _check(topic: ArrowTopic, folder: Path, columns: str | None) -> None:
    expected = pl.DataFrame(topic.table(schema=columns))
    names = [name for name in expected.columns if name in pl.read_delta(str(folder / "latest")).columns]
    rows = _counted(expected.select(names).to_dicts())
    assert _counted(_rows(folder / "latest", names)) == rows
    current = pl.read_delta(str(folder / "history")).filter("_is_current").select(names)
    assert _counted(current.to_dicts()) == rows


def _rows(path: Path, names: list[str]) -> list[dict[str, Any]]:
    return pl.read_delta(str(path)).select(names).to_dicts()


def _counted(rows: Any) -> Counter[str]:
    """Count rows; times of day are compared as such, as a table has them as text."""
    times = (row | {"t": time.fromisoformat(row["t"])} if isinstance(row.get("t"), str) else row for row in rows)
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in times)
