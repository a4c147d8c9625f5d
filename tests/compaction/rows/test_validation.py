"""Which rows a log takes, and what is said of the others: Arrow in, validated rows out."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lastword.compaction.errors import InvalidRecords
from lastword.compaction.rows.input_columns import (
    ALERT,
    EVENT,
    HEADERS,
    MALFORMED,
    REFUSAL,
    SOURCE_OFFSET,
    SOURCE_PARTITION,
    UNCHANGED,
    ColumnKind,
    InputColumn,
    check_sequence_column,
    columns_of,
    shape_of,
)
from lastword.compaction.rows.validation import LAST_OFFSET, LAST_TIMESTAMP_MS, InputRules, record_bytes, refusal, validate

_NOW_MS = 5_000


def _validated(columns: dict[str, Any], *, ends: tuple[int, ...] = (0, 0), compacted: bool = True, **changes: Any) -> list[tuple[Any, ...]]:
    """Return (reason or None, detail or None) of each row."""
    batch = pa.record_batch(columns)
    found = validate(batch, _rules(batch, ends=ends, compacted=compacted, **changes))
    return [(None, None) if code == 0 else (found.reason(row).value, found.details[row]) for row, code in enumerate(found.code.tolist())]


def _rules(batch: pa.RecordBatch, *, ends: tuple[int, ...] = (0, 0), compacted: bool = True, max_bytes: int = 1_000) -> InputRules:
    return InputRules(
        topic="fruit",
        shape=shape_of(columns_of(batch.schema), topic="fruit"),
        is_compacted=compacted,
        partitioner="lastword",
        max_message_bytes=max_bytes,
        log_end_offsets=ends,
        now_ms=_NOW_MS,
    )


def _rows(columns: dict[str, Any], **given: Any) -> pa.RecordBatch:
    batch = pa.record_batch(columns)
    return validate(batch, _rules(batch, **given)).rows


_KV = {"key": ["a", "b"], "value": ["1", None]}


def test_rows_of_the_least_shape_become_whole_ones() -> None:
    """Text becomes bytes; no time is that of the append; offsets are given later."""
    rows = _rows(_KV, ends=(4,))
    assert rows.schema.names == ["partition", "offset", "timestamp", "key", "value", "headers", "raw", "__record_key"]
    assert rows.to_pylist() == [
        {
            "partition": 0,
            "offset": None,
            "timestamp": datetime(1970, 1, 1, 0, 0, 5, tzinfo=timezone.utc),
            "key": key,
            "value": value,
            "headers": None,
            "__record_key": None,
            "raw": None,
        }
        for key, value in ((b"a", b"1"), (b"b", None))
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None], pa.string()),
        pa.array(["a", None], pa.large_string()),
        pa.array(["a", None], pa.string_view()),
        pa.array(["a", None], pa.binary()),
        pa.array(["a", None], pa.large_binary()),
        pa.array(["a", None], pa.binary_view()),
        pa.array([b"a", None], pa.binary(1)),
        pa.array(["a", None]).dictionary_encode(),
        pa.array(["z", "a", None])[1:],
    ],
)
def test_every_arrow_type_of_bytes_is_taken(column: pa.Array) -> None:
    """As pandas, Polars and Parquet readers hand them out."""
    rows = _rows({"key": pa.array(["k", "k"]), "value": column})
    assert rows.column("value").to_pylist() == [b"a", None]
    assert rows.column("value").type == pa.binary()


def test_columns_of_nulls_are_taken() -> None:
    """A tombstone for each; no headers, no times."""
    rows = _rows({"key": ["a"], "value": pa.nulls(1), "headers": pa.nulls(1), "timestamp": pa.nulls(1), "partition": pa.nulls(1)})
    assert rows.column("value").to_pylist() == [None]
    assert rows.column("headers").type == HEADERS


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (pa.array([[{"key": "h", "value": b"1"}], []]), [[{"key": "h", "value": b"1"}], []]),
        (pa.array([[{"key": "h", "value": "1"}], None]), [[{"key": "h", "value": b"1"}], None]),
        (pa.array([[{"key": "h", "value": None}], None]), [[{"key": "h", "value": None}], None]),
        (pa.array([[], None]), [[], None]),
        (pa.array([[], None], pa.large_list(HEADERS.value_type)), [[], None]),
    ],
)
def test_headers_are_lists_of_keys_and_values(headers: pa.Array, expected: list[Any]) -> None:
    """Text is taken for bytes, and a list without an element has no type."""
    assert _rows({**_KV, "headers": headers}).column("headers").to_pylist() == expected


_BAD_SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "no value": ({"key": ["a"]}, "column value is missing: binary or string"),
    "unknown": ({**_KV, "valeu": ["x", "y"]}, "column valeu is unknown: allowed are key, value, headers"),
    "wrong type": ({**_KV, "key": [1, 2]}, "column key is int64: allowed is binary or string"),
    "no partition": ({**_KV, "offset": [1, 2]}, "column offset needs a column partition beside it"),
    "no producer": ({**_KV, "sequence": [1, 2]}, "column sequence needs a column producer_id"),
    "no epoch": ({**_KV, "producer_id": [1, 2]}, "column producer_id needs a column producer_epoch"),
    "float time": ({**_KV, "timestamp": [1.5, 2.5]}, "column timestamp is double: allowed is timestamp"),
    "header names": ({**_KV, "headers": [[{"name": "h", "value": b"1"}], None]}, "column headers is list"),
    "header values": ({**_KV, "headers": [[{"key": "h", "value": 1}], None]}, "column headers is list"),
    "header text": ({**_KV, "headers": [["h"], None]}, "column headers is list"),
}


@pytest.mark.parametrize("name", _BAD_SHAPES)
def test_a_wrong_shape_is_named_before_a_row_is_read(name: str) -> None:
    """Each column, with its type and what is allowed."""
    columns, message = _BAD_SHAPES[name]
    with pytest.raises(InvalidRecords) as caught:
        shape_of(columns_of(pa.table(columns).schema), topic="fruit")
    assert message in str(caught.value)


def test_what_spark_s_kafka_source_adds_is_ignored_and_a_source_s_own_columns_are_not_of_the_record() -> None:
    """Order columns are kept, in the order of their names."""
    text = InputColumn(ColumnKind.TEXT, "string")
    names = ("key", "value", "topic", "timestampType", "__order_2", "__order_1", MALFORMED)
    shape = shape_of(dict.fromkeys(names, text), topic="fruit")
    assert (sorted(shape.columns), list(shape.order)) == (["key", "value"], ["__order_1", "__order_2"])


def test_the_first_reason_that_applies_is_named() -> None:
    """One row with four faults."""
    columns = {"key": pa.nulls(1), "value": ["x" * 2_000], "partition": [9], "timestamp": [-1], MALFORMED: pa.array(["{"])}
    assert _validated(columns) == [("malformed", "the row could not be parsed with the schema of its source")]
    del columns[MALFORMED]
    assert _validated(columns) == [("keyless", "key is null, and fruit is compacted: each record needs a key")]
    assert _validated(columns, compacted=False) == [("unknown_partition", "partition 9: allowed is 0 to 1")]
    del columns["partition"]
    assert _validated(columns, compacted=False) == [
        ("oversized", "2000 bytes of key, value and headers: allowed are 1000 (max.message.bytes)")
    ]
    assert _validated({**columns, "value": ["x"]}, compacted=False) == [
        ("negative_timestamp", "timestamp -1 ms: allowed is 0 (1970-01-01) or later")
    ]


def test_partitions_that_are_not_there_and_rows_that_name_none() -> None:
    """Without a partition a row goes by its key. A number that is no partition is refused, and the dead letter shows it as it was given."""
    columns = {"key": ["a"] * 5, "value": ["1"] * 5, "partition": pa.array([1, None, 2, 2**40, -1], pa.int64())}
    assert [reason for reason, _ in _validated(columns)] == [None, None, "unknown_partition", "unknown_partition", "unknown_partition"]
    assert _validated(columns)[3][1] == f"partition {2**40}: allowed is 0 to 1"
    rows = _rows(columns)
    (by_key,) = _rows({"key": ["a"], "value": ["1"]}).column("partition").to_pylist()
    assert rows.column("partition").to_pylist() == [1, by_key, 2, None, -1]
    huge = {"key": ["a"], "value": ["1"], "partition": pa.array([2**64 - 1], pa.uint64())}
    assert _validated(huge) == [("unknown_partition", f"partition {2**64 - 1}: allowed is 0 to 1")]


def test_given_offsets_ascend_from_the_log_end_in_known_partitions() -> None:
    """All rows carry one."""
    offsets = [7, 4, None, -1, LAST_OFFSET + 1, 3, 9]
    columns = {"key": ["a"] * 7, "value": ["1"] * 7, "partition": [0, 1, 0, 0, 0, 1, None], "offset": pa.array(offsets, pa.int64())}
    found = _validated(columns, ends=(5, 4))
    assert [reason for reason, _ in found] == [None, None, "no_offset", "no_offset", "no_offset", "below_log_end", "unknown_partition"]
    assert found[2][1] == f"offset null: all rows or none carry an offset of 0 to {LAST_OFFSET}"
    assert found[5][1] == "offset 3: the log of the partition ends at 4, and offsets ascend"
    assert _rows(columns, ends=(5, 4)).column("offset").to_pylist() == offsets


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_every_unit_are_milliseconds_rounded_down(unit: str) -> None:
    """With a zone and without one, which is UTC; null is the time of the append."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone.utc).replace(microsecond=0 if unit == "s" else 678_999)
    expected = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    for zone in (None, "UTC", "Asia/Tokyo"):
        given = pa.array([moment if zone else moment.replace(tzinfo=None), None], pa.timestamp("us", zone))
        rows = _rows({**_KV, "timestamp": given.cast(pa.timestamp(unit, zone), safe=False)})
        assert rows.column("timestamp").to_pylist() == [expected, datetime(1970, 1, 1, 0, 0, 5, tzinfo=timezone.utc)]


def test_times_that_the_log_cannot_hold_are_refused() -> None:
    """Before 1970, and past 2262; whole numbers are milliseconds."""
    times = [0, LAST_TIMESTAMP_MS, LAST_TIMESTAMP_MS + 1, -1, 2**62]
    found = _validated({"key": ["a"] * 5, "value": ["1"] * 5, "timestamp": times})
    assert [reason for reason, _ in found] == [None, None, "timestamp_out_of_range", "negative_timestamp", "timestamp_out_of_range"]
    assert found[4][1] == f"timestamp {2**62} ms: allowed is up to {LAST_TIMESTAMP_MS} (the year 2262)"
    far = pa.array([2**62, -(2**62)], pa.timestamp("s"))
    assert [reason for reason, _ in _validated({**_KV, "timestamp": far})] == ["timestamp_out_of_range", "negative_timestamp"]


def test_sizes_count_key_value_and_headers() -> None:
    """Nulls have none; parts of columns are their own."""
    headers = pa.array([[("hh", b"vvv"), ("h", None)], None, []], HEADERS)
    key, value = pa.array([b"kk", None, b"k"]), pa.array([None, b"vvvv", b""])
    assert record_bytes(key, value, headers).tolist() == [8, 4, 1]
    assert record_bytes(key[1:], value[1:], headers[1:]).tolist() == [4, 1]
    found = _validated({"key": ["kk"], "value": pa.nulls(1), "headers": headers[:1]}, max_bytes=7)
    assert found == [("oversized", "8 bytes of key, value and headers: allowed are 7 (max.message.bytes)")]


_WHOLE = {"producer_id": 7, "producer_epoch": 0, "sequence": 3, "transactional": None, "control": None, "partition": 0}
_MARKER = {**_WHOLE, "sequence": None, "control": "COMMIT", "key": None, "value": None}


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, True),
        (dict.fromkeys(_WHOLE), True),
        ({"producer_epoch": 32_767}, True),
        ({"producer_epoch": 32_768}, False),
        ({"producer_epoch": None}, False),
        ({"producer_id": -1}, False),
        ({"producer_id": None}, False),
        ({"sequence": None}, False),
        ({"sequence": -1}, False),
        ({"sequence": 2**40}, False),
        (_MARKER, True),
        ({**_MARKER, "control": "ABORT"}, True),
        ({**_MARKER, "control": "EMPTY"}, False),
        ({**_MARKER, "sequence": 1}, False),
        ({**_MARKER, "key": "k"}, False),
        ({**_MARKER, "value": "v"}, False),
        ({**_MARKER, "partition": None}, False),
    ],
)
def test_the_columns_of_a_producer_are_whole_or_the_row_is_refused(changes: dict[str, Any], *, taken: bool) -> None:
    """A marker is nothing but a marker, and names its partition."""
    row = {"key": "k", "value": "v", **_WHOLE, **changes}
    types = {"producer_id": pa.int64(), "producer_epoch": pa.int64(), "sequence": pa.int64(), "transactional": pa.bool_()}
    text = dict.fromkeys(("key", "value", "control"), pa.string())
    columns = {name: pa.array([value], (types | text).get(name, pa.int32())) for name, value in row.items()}
    ((reason, detail),) = _validated(columns)
    assert reason == (None if taken else "invalid_producer")
    assert taken or "allowed are all null, or an id of 0 or more with an epoch of 0 to 32767" in detail


def test_a_producer_may_leave_out_what_it_does_not_use() -> None:
    """Idempotent data: id, epoch and sequence. A marker without a partition column is none."""
    columns = {**_KV, "producer_id": [1, 1], "producer_epoch": [0, 0], "sequence": [0, 1]}
    rows = _rows(columns)
    assert rows.column("transactional").to_pylist() == [False, False]
    assert rows.column("control").to_pylist() == [None, None]
    marker = {"key": pa.nulls(1, pa.string()), "value": pa.nulls(1, pa.string()), "producer_id": [1], "producer_epoch": [0]}
    ((reason, _),) = _validated({**marker, "control": ["COMMIT"]})
    assert reason == "invalid_producer"


def test_a_column_that_comes_twice_is_named() -> None:
    """Nobody knows which of the two is meant."""
    with pytest.raises(InvalidRecords, match="column value comes more than once"):
        columns_of(pa.schema([("key", pa.string()), ("value", pa.string()), ("value", pa.string())]))


def test_dictionaries_of_times_and_numbers_are_what_they_hold() -> None:
    """Not their places in the dictionary, and not ticks taken for milliseconds."""
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)
    times = pa.array([moment, moment], pa.timestamp("s", "UTC")).dictionary_encode()
    rows = _rows({**_KV, "timestamp": times, "partition": pa.array([1, 1], pa.uint64()).dictionary_encode()})
    assert rows.column("timestamp").to_pylist() == [moment, moment]
    assert rows.column("partition").to_pylist() == [1, 1]


def test_headers_that_a_mask_has_hidden_count_for_nothing() -> None:
    """Their items are in the column still."""
    items = pa.array([{"key": "h", "value": b"123"}, {"key": "i", "value": b"4"}], HEADERS.value_type)
    masked = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), items, mask=pa.array([True, False]))
    assert record_bytes(pa.array([b"k", b"k"]), pa.array([b"v", b"v"]), masked).tolist() == [2, 4]


def test_the_error_of_a_batch_call_has_each_reason_with_an_example_the_most_frequent_first() -> None:
    """Nothing was appended."""
    error = refusal("fruit", {"keyless": 1, "oversized": 12}, {"keyless": "key is null", "oversized": "2000 bytes"})
    assert str(error).splitlines() == [
        "topic fruit cannot take these rows; nothing was appended:",
        "  12 × oversized: 2000 bytes",
        "  1 × keyless: key is null",
    ]


def test_a_day_before_1970_is_no_time() -> None:
    """Through a time column as well."""
    before = datetime(1970, 1, 1, tzinfo=timezone.utc) - timedelta(days=1)
    assert _validated({"key": ["a"], "value": ["1"], "timestamp": [before]})[0][0] == "negative_timestamp"


def test_a_source_sequence_is_a_text_and_needs_an_order() -> None:
    """Null has none; rows of a producer have no source sequence."""
    assert _rows({**_KV, "source_sequence": [7, 8]}).column("source_sequence").to_pylist() == [f"{number:020}" for number in (7, 8)]
    said = "source_sequence null: allowed is a value that has an order, in each part of it"
    assert _validated({**_KV, "source_sequence": pa.array([7, None])}) == [(None, None), ("no_sequence", said)]
    assert _validated({**_KV, "source_sequence": pa.nulls(2)}) == [("no_sequence", said)] * 2
    with pytest.raises(InvalidRecords, match="source_sequence and producer_id exclude each other"):
        _rows({**_KV, "source_sequence": [7, 8], "producer_id": [1, 1], "producer_epoch": [0, 0], "sequence": [0, 1]})


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (pa.array(["10", "9"]), "string"),
        (pa.array(["10", "9"]).dictionary_encode(), "dictionary<values=string, indices=int32, ordered=0>"),
        (pa.array(["10", None], pa.large_string()), "large_string"),
        (pa.array([{"at": 1, "part": "10"}]), "struct<at: int64, part: string>"),
    ],
)
def test_a_source_sequence_that_is_a_text_is_taken_if_somebody_says_so(values: pa.Array, name: str) -> None:
    """By its type, whatever its values are; one of the log itself is a text."""
    columns = columns_of(pa.schema([("source_sequence", values.type)]))
    with pytest.raises(InvalidRecords, match=re.escape(f"column source_sequence is {name}, and of texts 10 is below 9: give numbers")):
        check_sequence_column(columns, "", topic="t")
    check_sequence_column(columns, "text", topic="t")
    shape_of(columns_of(pa.schema([("key", pa.string()), ("value", pa.string()), ("source_sequence", values.type)])), topic="t")


@pytest.mark.parametrize(
    "values",
    [
        pa.array([10, 9]),
        pa.array([Decimal("1.5")]),
        pa.array([datetime(2026, 3, 1, tzinfo=timezone.utc)]),
        pa.array([datetime(2026, 3, 1, tzinfo=timezone.utc).date()]),
        pa.array([{"at": 1, "part": 2}]),
        pa.array([b"10"]),
        pa.nulls(1),
        pa.array([[1]]),
    ],
)
def test_a_source_sequence_with_a_type_goes_by_it(values: pa.Array) -> None:
    """Numbers, times and their like; what has no order is refused as before."""
    for sequence_as in ("", "text"):
        check_sequence_column(columns_of(pa.schema([("source_sequence", values.type)])), sequence_as, topic="t")
    check_sequence_column({}, "", topic="t")
    with pytest.raises(InvalidRecords, match="sequence_as = 'number': allowed is text"):
        check_sequence_column({}, "number", topic="t")


def test_events_that_are_no_rows_are_told_apart_from_those_that_are_refused() -> None:
    """What the log has already, heartbeats and their like, TRUNCATE with an alert, and what could not be read."""
    events = {
        "key": pa.array(["a"] * 5),
        "value": pa.array(["1"] * 5),
        "source_sequence": pa.array([""] * 5),
        EVENT: pa.array([None, "heartbeat", f"{ALERT}TRUNCATE", None, None], pa.string()),
        REFUSAL: pa.array([None, None, None, "no JSON", None], pa.string()),
        SOURCE_PARTITION: pa.array([0, 0, 1, 1, 2]),
        SOURCE_OFFSET: pa.array([5, 6, 7, 8, 9]),
    }
    batch = pa.record_batch(events)
    rules = replace(_rules(batch), source_offsets={0: 5, 1: -1})
    found = validate(batch, rules)
    reasons = [None if code == 0 else (found.reason(row).value, found.details[row]) for row, code in enumerate(found.code.tolist())]
    assert reasons == [
        ("known_event", "offset 5 of partition 0 is in the log"),
        ("skipped", "heartbeat"),
        ("truncate", "TRUNCATE"),
        ("no_event", "no JSON"),
        None,
    ]
    assert found.rows.column(UNCHANGED).null_count == len(batch)
    assert validate(batch, _rules(batch)).code[0] == 0  # a source without offsets
