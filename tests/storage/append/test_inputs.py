"""Appends without a JVM: what an append takes in memory, and the same append twice."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.compaction.errors import InvalidRecords
from tests.clocks import at
from tests.pictures import by_arrow

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastword import Topic

_TABLE = pa.table({"key": ["a", "b", "a"], "value": ["1", None, "2"]})


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """Return an empty compacted topic."""
    return LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})


def _log(topic: Topic) -> list[tuple[Any, ...]]:
    rows = by_arrow(topic).records().select(["offset", "key", "value"]).to_pylist()
    return [tuple(row.values()) for row in rows]


_INPUTS: dict[str, Callable[[], Any]] = {
    "table": lambda: _TABLE,
    "batch": lambda: _TABLE.combine_chunks().to_batches()[0],
    "reader": _TABLE.to_reader,
    "chunks": lambda: pa.concat_tables([_TABLE[:1], _TABLE[1:]]),
    "polars": lambda: pl.from_arrow(_TABLE),
    "pandas": lambda: _TABLE.to_pandas().set_index(pd.Index([7, 8, 9])),
    "pandas categories": lambda: pd.DataFrame({"key": pd.Categorical(["a", "b", "a"]), "value": ["1", None, "2"]}),
    "duckdb": lambda: duckdb.sql("SELECT * FROM (VALUES ('a', '1'), ('b', NULL), ('a', '2')) AS t(key, value)"),
    "dicts": lambda: [{"key": "a", "value": "1"}, {"key": "b"}, {"value": "2", "key": "a"}],
}


@pytest.mark.parametrize("name", _INPUTS)
def test_an_append_takes_what_people_have_in_memory(topic: Topic, name: str) -> None:
    """In the order of the rows; an index is no column."""
    assert topic.append(_INPUTS[name]()).record_count == 3
    assert _log(topic) == [(0, b"a", b"1"), (1, b"b", None), (2, b"a", b"2")]


def test_no_rows_append_nothing(topic: Topic) -> None:
    """An empty table of any shape, and an empty list."""
    empty: list[Any] = [_TABLE[:0], [], pl.DataFrame({"key": [], "value": []})]
    for nothing in empty:
        assert topic.append(nothing).table_version is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([{"key": "a", "value": "1"}, {"key": b"b", "value": 2}], "each column needs one type"),
        ("a=1", "cannot take str: allowed are an Arrow table"),
        ([1, 2], "cannot take list: allowed are an Arrow table"),
        ({"key": ["a"]}, "cannot take dict: allowed are"),
        (None, "cannot take NoneType"),
        (pd.DataFrame({"key": ["a", 1], "value": ["1", "2"]}), "each column needs one type"),
        (_TABLE.append_column("valeu", _TABLE.column("value")), "column valeu is unknown"),
        ([{"key": "a"}, {"key": None}], "1 × keyless"),
    ],
)
def test_what_an_append_cannot_take_is_named_and_nothing_is_written(topic: Topic, wrong: Any, message: str) -> None:
    """One clear error, whatever was given."""
    topic.append(_TABLE)
    with pytest.raises(InvalidRecords, match=message):
        topic.append(wrong)
    assert len(_log(topic)) == 3
    assert len(list(Path(topic.log.paths.log).rglob("*.parquet"))) == 1


def test_the_same_idempotency_key_twice_is_the_same_append(topic: Topic) -> None:
    """Also by another process, with other rows, and after other appends; another key is another append."""
    first = topic.append(_TABLE, idempotency_key="2026-11-26")
    assert (first.record_count, first.replayed) == (3, False)
    topic.append(_TABLE)
    again = LogDir(topic.log.paths.root.rsplit("/", 1)[0]).topic("fruit").append(_TABLE[:1], idempotency_key="2026-11-26")
    assert (again.record_count, again.replayed, again.table_version) == (0, True, None)
    assert topic.append(_TABLE[:1], idempotency_key="2026-11-27").record_count == 1
    assert len(_log(topic)) == 7


def test_all_columns_of_a_record_come_back(topic: Topic) -> None:
    """Headers, time, partition; the time of the append is the clock's."""
    moment = datetime(2026, 1, 2, tzinfo=timezone.utc)
    headers = [{"key": "h", "value": b"1"}]
    at(9_000, topic).append([{"key": b"k", "value": b"v", "headers": headers, "timestamp": moment, "partition": 0}])
    (row,) = by_arrow(topic).records().to_pylist()
    assert (row["key"], row["value"], row["headers"], row["timestamp"]) == (b"k", b"v", headers, moment)
    assert row["appended_at"] == datetime(1970, 1, 1, 0, 0, 9, tzinfo=timezone.utc)


def test_a_source_s_own_order_counts_before_that_of_the_rows(topic: Topic) -> None:
    """From left to right; null comes first, and equal rows keep their order."""
    columns = {"key": list("abcde"), "value": list("12345"), "__order_1": [2, 1, None, 1, 2], "__order_2": [1, 2, 9, 1, 1]}
    topic.append(pa.table(columns))
    assert [key for _, key, _ in _log(topic)] == [b"c", b"d", b"b", b"a", b"e"]


def test_a_transaction_needs_no_jvm(topic: Topic) -> None:
    """Begun, appended to twice, committed; and aborted."""
    with topic.transaction("loader") as transaction:
        transaction.append(_TABLE)
        transaction.append(_TABLE[:1])
        assert len(by_arrow(topic).records(isolation="read_committed")) == 0
    topic.transaction("loader").append(_TABLE)
    topic.transaction("loader").abort()
    assert len(by_arrow(topic).records(isolation="read_committed")) == 4
    assert topic.open_transactions() == []
