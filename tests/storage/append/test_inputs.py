"""Appends without a JVM: what an append takes in memory, and the same append twice."""

from __future__ import annotations

import mmap
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.compaction.errors import InvalidRecords, ProducerFenced, UserError
from lastword.compaction.producers import LAST_EPOCH
from lastword.storage.ledger.decisions import Decision, Kind
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
        ([1, 2], "cannot take list: rows of it are of the type int; allowed are an Arrow table"),
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
    """Begun, appended to twice, committed; and aborted. No rows are appended by no commit."""
    with topic.transaction("loader") as transaction:
        assert transaction.append([]).table_version is None
        transaction.append(_TABLE)
        transaction.append(_TABLE[:1])
        assert len(by_arrow(topic).records(isolation="read_committed")) == 0
    topic.transaction("loader").append(_TABLE)
    topic.transaction("loader").abort()
    assert len(by_arrow(topic).records(isolation="read_committed")) == 4
    assert topic.open_transactions() == []


def test_a_reader_whose_batches_do_not_fit_is_refused_and_nothing_is_written(topic: Topic) -> None:
    """What its schema says is not what comes."""
    wrong = pa.record_batch({"key": ["a"], "value": [1]})
    with pytest.raises(InvalidRecords, match=r"topic fruit cannot take these rows: (?s:.*); each column needs one type"):
        topic.append(pa.RecordBatchReader.from_batches(_TABLE.schema, iter([wrong])))
    assert _log(topic) == []


def test_an_id_whose_epochs_are_used_up_has_a_new_producer_and_the_old_one_is_aborted(topic: Topic) -> None:
    """What the last instance left open is over: the new one is known by another number."""
    first = topic.transaction("loader")
    first.append(_TABLE)
    log = topic.log
    [known] = log.decisions().producers.values()
    last = {"producer_id": known.producer_id, "epoch": LAST_EPOCH, "timeout_ms": None, "query": None}
    log.ledger.append([Decision(kind=Kind.PRODUCER, time_ms=log.decisions().created_ms, name="loader", details=last)])
    with topic.transaction("loader") as second:
        second.append(_TABLE[:1])
    assert [(one.producer_id, one.epoch) for one in log.decisions().producers.values()] == [(known.producer_id + 1, 0)]
    assert topic.open_transactions() == []
    assert [row["key"] for row in by_arrow(topic).records(isolation="read_committed").to_pylist()] == [b"a"]
    with pytest.raises(ProducerFenced):
        first.append(_TABLE)


_UUID = uuid.UUID(int=5)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(lambda: pl.DataFrame({"key": pl.Series(["a", "b"], dtype=pl.Categorical), "value": ["1", "2"]}), id="categories"),
        pytest.param(lambda: pl.DataFrame({"key": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"])), "value": ["1", "2"]}), id="enum"),
        pytest.param(
            lambda: pl.DataFrame({"key": ["a", "b"], "value": pl.Series(["1", "2"], dtype=pl.Categorical)}), id="categories as values"
        ),
        pytest.param(lambda: _dictionaries(pa.string_view(), pa.int8()), id="dictionary of string views"),
        pytest.param(lambda: _dictionaries(pa.binary_view(), pa.uint32()), id="dictionary of binary views"),
        pytest.param(lambda: _dictionaries(pa.large_string(), pa.int64()), id="dictionary of large strings"),
    ],
)
def test_dictionaries_of_any_type_are_texts(topic: Topic, rows: Callable[[], Any]) -> None:
    """As Polars and other engines hand categories over."""
    topic.append(rows())
    assert _log(topic) == [(0, b"a", b"1"), (1, b"b", b"2")]


def _dictionaries(values: pa.DataType, indices: pa.DataType) -> pa.Table:
    """Return the rows a = 1 and b = 2 with dictionary-encoded keys."""
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], indices), pa.array(["a", "b"]).cast(values))
    return pa.table({"key": keys, "value": ["1", "2"]})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param(
            lambda: pl.DataFrame({"key": pl.Series([_UUID], dtype=pl.Object), "value": ["x"]}),
            "column key is Object of Polars, which holds objects of Python: cast it to String or Binary",
            id="objects of Polars as keys",
        ),
        pytest.param(
            lambda: pl.DataFrame({"key": ["k"], "value": pl.Series([{"a": 1}], dtype=pl.Object)}), "column value is Object", id="as values"
        ),
        pytest.param(lambda: [{"key": _UUID, "value": "x"}], "column key is extension<arrow.uuid>: allowed is", id="UUIDs in a list"),
        pytest.param(
            lambda: pd.DataFrame({"key": [_UUID], "value": ["x"]}), "column key is extension<arrow.uuid>: allowed is", id="in pandas"
        ),
        pytest.param(
            lambda: pd.DataFrame([["a", "b", "c"]], columns=["key", "value", "key"]), "column key comes more than once", id="a column twice"
        ),
        pytest.param(lambda: pd.Series(["a"]), "cannot take Series: allowed are", id="a Series"),
        pytest.param(lambda: [{"key": "a", "value": "\ud800"}], r"column value = '\\ud800': a lone surrogate", id="a lone surrogate"),
        pytest.param(lambda: [{"key": "\udc80", "value": "x"}], r"column key = '\\udc80': a lone surrogate", id="in a key"),
        pytest.param(lambda: pd.DataFrame({"key": ["a"], "value": ["\ud800"]}), "column value = .*a lone surrogate", id="in pandas text"),
        pytest.param(
            lambda: [{"key": "a", "value": "x", "headers": [{"key": "\ud800", "value": b""}]}],
            "column headers = .*surrogate",
            id="in a header",
        ),
        pytest.param(
            lambda: [{"key": "a", "value": "x", "source_sequence": 2**70}],
            f"column source_sequence = {2**70}: allowed are whole",
            id="2**70",
        ),
        pytest.param(lambda: [{"key": "a", "value": "x", "timestamp": -(2**70)}], "column timestamp = -", id="-2**70"),
        pytest.param(lambda: [{"key": "a", "value": "x", "": 1}], "column '' is unknown", id="a column without a name"),
        pytest.param(lambda: [{"key": "a", "value": "x", 1: 1}], "column 1: allowed are names that are texts", id="a number as a name"),
        pytest.param(lambda: [{"key": "a", "value": "x", "\ud800": 1}], "allowed are names that are texts", id="a surrogate as a name"),
        pytest.param(lambda: pl.Series(["a"]), "cannot take Series: allowed are", id="a Series of Polars"),
        pytest.param(
            lambda: [_sequenced(-1), _sequenced(2**63)], "column source_sequence = 9223372036854775808: allowed are", id="two ranges"
        ),
        pytest.param(lambda: [{"key": "a", "value": "x"}, {"key": 5, "value": "x"}], "column key: Expected bytes", id="two types"),
    ],
)
def test_what_no_column_can_hold_is_one_error_that_names_it(topic: Topic, rows: Callable[[], Any], message: str) -> None:
    """Nothing is appended."""
    with pytest.raises(InvalidRecords, match=message):
        topic.append(rows())
    assert _log(topic) == []


def _sequenced(number: int) -> dict[str, Any]:
    return {"key": "a", "value": "x", "source_sequence": number}


def test_a_sequence_of_64_bits_is_taken(topic: Topic) -> None:
    """Beyond those that have a sign."""
    topic.append([{"key": "a", "value": "new", "source_sequence": 2**64 - 1}])
    assert topic.append([{"key": "a", "value": "old", "source_sequence": 2**63}]).late == 1


def test_an_envelope_that_is_none_is_refused_by_name(topic: Topic) -> None:
    """Its kind alone is no envelope."""
    with pytest.raises(UserError, match="envelope = 'debezium': allowed is an Envelope"):
        topic.append([{"key": "a", "value": "b"}], envelope="debezium")  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [0, 3 * 2**30], ids=["at the begin of its buffer", "3 GiB behind it"])
@pytest.mark.parametrize("data_type", [pa.large_string(), pa.large_binary()], ids=str)
def test_a_slice_of_an_array_of_any_size_is_appended(topic: Topic, data_type: pa.DataType, first: int) -> None:
    """Arrow casts it only if the offsets in its buffer fit into 31 bits."""
    memory = mmap.mmap(-1, first + 16)  # pages that nothing is written to take no memory
    memory[first : first + 6] = b"abcdef"
    offsets = pa.array([first, first + 3, first + 6], pa.int64())
    values = pa.Array.from_buffers(data_type, 2, [None, offsets.buffers()[1], pa.py_buffer(memory)])
    topic.append(pa.table({"key": values, "value": values}))
    assert _log(topic) == [(0, b"abc", b"abc"), (1, b"def", b"def")]
