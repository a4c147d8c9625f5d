"""Rows with columns as records: settings and rows above, the records that they make below.

A line a row: `key = value`, then what else is known of it: `by` its sequence, `at` its time, a TRUNCATE, columns that are left out, and for
a row that is refused why, and the text that its dead letter keeps. That these are the records of Spark: tests/streaming/append.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from lastword.change_data.files.file_rows import RowText, fields_of_row
from lastword.change_data.frames.json_columns import WrongColumn
from lastword.change_data.frames.record_rows import TextRows, TypedRows, empty_batch, find_missing_columns
from lastword.change_data.frames.row_words import row_words
from lastword.change_data.frames.sql_expressions import WrongExpression
from lastword.change_data.frames.typed_texts import TypedTexts, schema_of_ddl
from lastword.compaction.errors import InvalidRecords
from lastword.compaction.order.sequences import sequence_texts
from lastword.compaction.rows.input_columns import EVENT, MALFORMED, RECORD_KEY, REFUSAL, UNCHANGED, columns_of

if TYPE_CHECKING:
    from lastword.change_data.frames.row_words import RowWords

_MORNING: Final = datetime(2026, 3, 1, 6, 30, tzinfo=timezone.utc)


def _words(given: dict[str, Any]) -> RowWords:
    words = row_words({"key": "id", **given})
    assert words is not None
    return words


def _text(value: bytes | str | None) -> str:
    return "∅" if value is None else value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _picture(batch: pa.RecordBatch) -> list[str]:
    assert columns_of(batch.schema)  # what an append takes
    orders = sequence_texts(batch.column("source_sequence")).to_pylist() if "source_sequence" in batch.schema.names else []
    lines = []
    for at, row in enumerate(batch.to_pylist()):
        line = f"{_text(row['key'])} = {_text(row['value'])}"
        if orders:
            line += f" by {_text(orders[at])}"
        if row.get("timestamp") is not None:
            line += f" at {row['timestamp']}"
        line += "".join(f" {row[name]}" for name in (EVENT, UNCHANGED) if row.get(name) is not None)
        line += f" refused: {row[REFUSAL]}" if row.get(REFUSAL) is not None else ""
        lines.append(line + (f" | {row[MALFORMED]}" if row.get(MALFORMED) is not None else ""))
    return lines


def _typed(rows: list[dict[str, Any]] | pa.RecordBatch, **given: Any) -> list[str]:
    batch = pa.RecordBatch.from_pylist(rows) if isinstance(rows, list) else rows
    return _picture(TypedRows(_words(given), batch.schema).records(batch))


def _json(*lines: str, **given: Any) -> list[str]:
    return _picture(TextRows(_words(given)).records([RowText(text=line.encode(), fields=fields_of_row(line.encode())) for line in lines]))


# Rows with types

_ORDERS: Final[list[dict[str, Any]]] = [
    {"id": 7, "status": "paid", "op": "u", "n": 10},
    {"id": 8, "status": None, "op": None, "n": 9},
    {"id": 7, "status": None, "op": "d", "n": 11},
]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ['7 = {"status":"paid","op":"u","n":10}', '8 = {"status":null,"op":null,"n":9}', '7 = {"status":null,"op":"d","n":11}']),
        ({"drop": ["op", "n"]}, ['7 = {"status":"paid"}', '8 = {"status":null}', '7 = {"status":null}']),
        ({"columns": ["n", "id"]}, ['7 = {"n":10,"id":7}', '8 = {"n":9,"id":8}', '7 = {"n":11,"id":7}']),
        ({"value": "status"}, ["7 = paid", "8 = ∅", "7 = ∅"]),
        ({"value": "n", "tombstone": "op = 'd'"}, ["7 = 10", "8 = 9", "7 = ∅"]),
        ({"drop": ["op", "n"], "tombstone": "op = 'd'"}, ['7 = {"status":"paid"}', '8 = {"status":null}', "7 = ∅"]),
        ({"columns": "n", "tombstone": "op = 'd' OR op IS NULL"}, ['7 = {"n":10}', "8 = ∅", "7 = ∅"]),
        (
            {"key": ["op", "id"], "columns": "n"},
            ['{"id":7,"op":"u"} = {"n":10}', '{"id":8,"op":null} = {"n":9}', '{"id":7,"op":"d"} = {"n":11}'],
        ),
        ({"key": "op", "drop": ["id", "status", "n"]}, ["u = {}", "∅ = {}", "d = {}"]),
        (
            {"columns": "n", "sequence": "n"},
            [f'7 = {{"n":10}} by {10:020}', f'8 = {{"n":9}} by {9:020}', f'7 = {{"n":11}} by {11:020}'],
        ),
        (
            {"value": "n", "sequence": ["n", "id"], "tombstone": "op = 'd'"},
            [f"7 = 10 by {10:020} {7:020}", f"8 = 9 by {9:020} {8:020}", f"7 = ∅ by {11:020} {7:020}"],
        ),
        ({"value": "n", "sequence": "op", "sequence_as": "text"}, ["7 = 10 by u", "8 = 9 by ∅", "7 = 11 by d"]),
    ],
    ids=str,
)
def test_rows_become_records(given: dict[str, Any], expected: list[str]) -> None:
    """A condition that is null is false; a key of several columns is an object in the order of their names."""
    assert _typed(_ORDERS, **given) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pa.array(["a\"'"]), "a\"'"),
        (pa.array([b"\xff"]), "\\xff"),
        (pa.array([True]), "true"),
        (pa.array([date(2026, 3, 1)]), "2026-03-01"),
        (pa.array([Decimal("1E-10")], pa.decimal128(38, 18)), "0.000000000100000000"),
        (pa.array([None], pa.decimal128(3, 1)), "∅"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_value_of_a_column_is_its_text(value: pa.Array, text: str) -> None:
    """Without quotes, binary as it is, and a decimal without an exponent."""
    assert _typed(pa.record_batch({"id": pa.array([1]), "v": value}), value="v") == [f"1 = {text}"]


def test_a_record_has_the_time_of_a_column() -> None:
    """The column is a timestamp of any unit, or a number of milliseconds; it need not be part of the value."""
    nanoseconds = pa.array([10**18 + 1, None], pa.timestamp("ns", "UTC"))
    rows = pa.record_batch({"id": pa.array([1, 2]), "at": nanoseconds, "ms": pa.array([1_772_346_600_000, None])})
    assert _typed(rows, columns="id", timestamp="ms") == ['1 = {"id":1} at 1772346600000', '2 = {"id":2}']
    made = TypedRows(_words({"columns": ["id"], "timestamp": "at"}), rows.schema).records(rows)
    assert made.column("timestamp").equals(nanoseconds)
    at = pa.record_batch({"id": pa.array([1]), "at": pa.array([_MORNING])})
    assert _typed(at, timestamp="at", tombstone="at < TIMESTAMP '2026-01-01T00:00:00Z'") == [
        '1 = {"at":"2026-03-01T06:30:00.000000Z"} at 2026-03-01 06:30:00+00:00'
    ]


@pytest.mark.parametrize(
    ("kind", "texts", "orders"),
    [
        ("number", ["10", "9.50", None], [f"{10:020}", f"{9:020}.5", "∅"]),
        ("time", ["2026-03-01", "2026-03-01 07:30+01:00", None], ["2026-03-01T00:00:00.000000Z", "2026-03-01T06:30:00.000000Z", "∅"]),
        ("text", ["10", "9", None], ["10", "9", "∅"]),
    ],
)
def test_a_text_is_ordered_as_the_settings_say(kind: str, texts: list[str | None], orders: list[str]) -> None:
    """10 is above 9 as a number, and below it as a text."""
    rows = [{"id": 1, "v": None, "n": text} for text in texts]
    assert _typed(rows, columns="v", sequence="n", sequence_as=kind) == [f'1 = {{"v":null}} by {order}' for order in orders]


def test_a_row_whose_expression_fails_is_refused() -> None:
    """It has no sequence and is no deletion; the other rows are records."""
    rows = [{"id": 1, "n": "7", "op": "d"}, {"id": 2, "n": "x", "op": "d"}, {"id": 3, "n": None, "op": "u"}]
    why = "refused: failed_expression: "
    assert _typed(rows, value="n", sequence="CAST(n AS BIGINT)", tombstone="op = 'd'") == [
        f"1 = ∅ by {7:020}",
        f"2 = x by ∅ {why}sequence CAST(n AS BIGINT) cannot be computed for this row",
        "3 = ∅ by ∅",
    ]
    assert _typed(rows, value="n", sequence=["id", "n"], sequence_as="number")[1] == (
        f"2 = x by ∅ {why}sequence n cannot be computed for this row"
    )
    assert _typed(rows, value="n", tombstone="CAST(n AS INT) = 7") == [
        "1 = ∅",
        f"2 = x {why}tombstone CAST(n AS INT) = 7 cannot be computed for this row",
        "3 = ∅",
    ]


_NO_SEQUENCE: Final = "is a value that has an order; which rows came before it is unknown, so none was deleted"


@pytest.mark.parametrize(
    ("sequence", "values", "event"),
    [
        (["n"], {"n": 5}, f"by {5:020} truncate"),
        (["n"], {"n": None}, f"by ∅ alert:TRUNCATE without a sequence: allowed in n {_NO_SEQUENCE}"),
        (["f"], {"f": float("nan")}, f"by ∅ alert:TRUNCATE without a sequence: allowed in f {_NO_SEQUENCE}"),
        (["n", "f"], {"n": 5, "f": 0.5}, f"by {5:020} {0:020}.5 truncate"),
        (["n", "f"], {"n": None, "f": None}, f"by ∅ alert:TRUNCATE without a sequence: allowed in each of n, f {_NO_SEQUENCE}"),
        (["n", "f"], {"n": 5, "f": None}, f"by ∅ alert:TRUNCATE without a sequence: allowed in each of n, f {_NO_SEQUENCE}"),
    ],
)
def test_a_truncate_needs_a_sequence(sequence: list[str], values: dict[str, Any], event: str) -> None:
    """In each part of it; without it is known of no row whether it came before, so the TRUNCATE is refused."""
    schema = pa.schema([("id", pa.int64()), ("op", pa.string()), ("n", pa.int64()), ("f", pa.float64())])
    batch = pa.RecordBatch.from_pylist([{"id": 1, "op": "u", "n": 4, "f": 1.0}, {"id": None, "op": "t", **values}], schema)
    words = _words({"columns": "op", "sequence": sequence, "truncate": "op = 't'"})
    records = TypedRows(words, schema)
    assert words.policy is not None
    made = records.records(batch)
    assert _picture(made)[1] == f'∅ = {{"op":"t"}} {event}'
    assert made.column(EVENT)[0].as_py() is None
    assert made.column(RECORD_KEY).to_pylist() == [b"1", None]


def test_rows_of_which_none_is_a_truncate_have_no_event() -> None:
    """Batches without a TRUNCATE row have no `event` column."""
    rows = [{"id": 1, "op": "u", "n": 1}, {"id": 2, "op": None, "n": None}]
    assert _typed(rows, value="op", sequence="n", truncate="op = 't'") == [f"1 = u by {1:020}", "2 = ∅ by ∅"]


def test_columns_that_are_null_keep_their_values() -> None:
    """They are named for the append, which looks them up; a deletion and a TRUNCATE have none."""
    rows = [
        {"id": 1, "n": 1, "a": "x", 'b"': None, "op": "u"},
        {"id": 1, "n": 2, "a": None, 'b"': None, "op": "u"},
        {"id": 1, "n": 3, "a": "x", 'b"': "y", "op": "u"},
        {"id": 1, "n": 4, "a": None, 'b"': None, "op": "d"},
        {"id": 1, "n": 5, "a": None, 'b"': None, "op": "t"},
    ]
    given = {"drop": ["n", "op"], "sequence": "n", "tombstone": "op = 'd'", "truncate": "op = 't'", "on_null": "keep"}
    assert _typed(rows, **given) == [
        f'1 = {{"a":"x","b\\"":null}} by {1:020} {{"columns":["b\\""]}}',
        f'1 = {{"a":null,"b\\"":null}} by {2:020} {{"columns":["a","b\\""]}}',
        f'1 = {{"a":"x","b\\"":"y"}} by {3:020}',
        f"1 = ∅ by {4:020}",
        f'1 = {{"a":null,"b\\"":null}} by {5:020} truncate',
    ]
    assert _typed([{"id": 1, "n": 1}], drop="n", sequence="n", on_null="keep") == [f"1 = {{}} by {1:020}"]


def test_a_batch_may_be_empty() -> None:
    """Its columns say what an append is given."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("op", pa.string())])
    for given in ({}, {"sequence": ["n", "id"], "truncate": "op = 't'", "on_null": "keep"}):
        assert _typed(pa.RecordBatch.from_pylist([], schema), **given) == []


def test_an_empty_batch_has_columns_of_any_type() -> None:
    """Those of a frame of Polars, for one."""
    schema = pa.schema(
        [("id", pa.int8()), ("c", pa.dictionary(pa.uint32(), pa.string_view())), ("l", pa.list_(pa.map_(pa.string(), pa.int8())))]
    )
    assert empty_batch(schema).schema == schema
    assert _typed(empty_batch(schema)) == []


def test_the_columns_of_the_table_are_known() -> None:
    """Those of the key, whose text is the key if it is alone, and those of the value; a value of one column has none."""
    schema = pa.schema(
        [("id", pa.uint8()), ("at", pa.timestamp("ms", "UTC")), ("map", pa.map_(pa.int8(), pa.string())), ("op", pa.string())]
    )
    columns = TypedRows(_words({"drop": "op"}), schema).table_columns
    assert [(column.name, str(column.data_type)) for column in columns.key] == [("id", "smallint")]
    assert [(column.name, str(column.data_type)) for column in columns.value] == [("at", "timestamp"), ("map", "json")]
    assert columns.is_key_text
    columns = TypedRows(_words({"key": ["op", "id"], "value": "op"}), schema).table_columns
    assert ([column.name for column in columns.key], columns.is_key_text, columns.value) == (["op", "id"], False, ())
    assert _words({}).policy is None


_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("op", pa.string()),
        ("f", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("list", pa.list_(pa.int8())),
        ("clock", pa.time64("us")),
    ]
)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"key": ["no", "id", "gone"]}, WrongColumn, "no column no, gone; there are id, op, f, at, list, clock"),
        ({"key": "ID"}, WrongColumn, "no column ID; there are id, op, f, at, list, clock: upper and lower case differ"),
        ({"drop": "no"}, WrongColumn, "no column no; there are id, op, f, at, list, clock"),
        ({"columns": ["op", "no"]}, WrongColumn, "no column no; there are id, op, f, at, list, clock"),
        ({"value": "no", "timestamp": "no"}, WrongColumn, "no column no; there are id, op, f, at, list, clock"),
        ({"columns": "op", "tombstone": "no = 1"}, WrongColumn, "no = 1: no column no; there are id, op, f, at, list, clock"),
        ({}, WrongColumn, "column clock is time64[us]: allowed are "),
        ({"key": "f", "columns": "op"}, WrongColumn, "column f is double: a floating-point number is no key"),
        ({"value": "f"}, WrongColumn, "value = 'f' is double: allowed are text, binary, whole numbers, decimals and dates"),
        ({"value": "at"}, WrongColumn, "value = 'at' is timestamp: allowed are text, binary, whole numbers, decimals and dates"),
        ({"value": "list"}, WrongColumn, "value = 'list' is array<tinyint>: allowed are text, binary, whole numbers, decimals and dates"),
        ({"columns": "op", "timestamp": "op"}, WrongColumn, "timestamp = 'op' is string: allowed are a timestamp, and whole milliseconds "),
        ({"columns": "op", "sequence": "list"}, WrongExpression, "sequence list is array<tinyint>: allowed are numbers, dates, times, "),
        (
            {"columns": "op", "sequence": "op"},
            WrongExpression,
            "sequence op is string, and of texts 10 is below 9: say by sequence.as what a text is compared as, number, time or text; or ",
        ),
        ({"columns": "op", "tombstone": "id"}, WrongExpression, "id is not a SQL condition: it is bigint, and allowed is boolean"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit_the_columns_are_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    """Before a row is read."""
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        TypedRows(_words(given), _SCHEMA)


def test_a_column_comes_once() -> None:
    """And there has to be one."""
    with pytest.raises(InvalidRecords, match="column id comes more than once"):
        TypedRows(_words({}), pa.schema([("id", pa.int8()), ("id", pa.int8())]))
    with pytest.raises(WrongColumn, match=r"^no column id; there are none$"):
        TypedRows(_words({}), pa.schema([]))


def test_a_year_of_five_digits_is_named() -> None:
    """When the batch with it is read."""
    with pytest.raises(WrongColumn, match="column day has a date outside the years 1 to 9999"):
        _typed(pa.record_batch({"id": pa.array([1]), "day": pa.array([3_000_000], pa.date32())}))


def test_rows_of_text_with_a_schema() -> None:
    """One that is no row has nothing but its text; of one with a value that does not fit the other columns are known."""
    lines = ['{"id":1,"n":7,"op":"u"}', '{"id":2,"n":"x","op":"d"}', '{"id":3,"n":1,"op":"d"}', '{"id":"x","n":1.5,"op":null}']
    given = [RowText(text=line.encode(), fields=fields_of_row(line.encode())) for line in lines]
    texts = TypedTexts(schema_of_ddl("id int, n int, op string"), are_texts=False)
    read = texts.read([*given, RowText(malformed="{", detail="line 5: the row is no JSON object")])
    words = _words({"columns": "n", "sequence": "n", "tombstone": "op = 'd' OR op IS NULL"})
    assert _picture(TypedRows(words, texts.schema).records(read.rows, read)) == [
        f'1 = {{"n":7}} by {7:020}',
        f'2 = ∅ by ∅ refused: malformed: column n = "x": allowed is int | {lines[1]}',
        f"3 = ∅ by {1:020}",
        f'∅ = ∅ by ∅ refused: malformed: column id = "x": allowed is int | {lines[3]}',
        '∅ = {"n":null} by ∅ refused: malformed: line 5: the row is no JSON object | {',
    ]


# Rows of text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ['007 = {"price":1.50,"op":"u"}', '8 = {"op":"d","x":null}']),
        ({"drop": ["op", "x"]}, ['007 = {"price":1.50}', "8 = {}"]),
        ({"columns": ["price"]}, ['007 = {"price":1.50}', '8 = {"price":null}']),
        ({"value": "price"}, ["007 = 1.50", "8 = ∅"]),
        ({"value": "op", "tombstone": "op = 'd'"}, ["007 = u", "8 = ∅"]),
        ({"value": "op", "tombstone": "price = '1.5'"}, ["007 = ∅", "8 = d"]),
        ({"key": ["op", "id"], "columns": "x"}, ['{"id":"007","op":"u"} = {"x":null}', '{"id":8,"op":"d"} = {"x":null}']),
        ({"value": "op", "sequence": "id", "sequence_as": "number"}, [f"007 = u by {7:020}", f"8 = d by {8:020}"]),
        ({"value": "op", "sequence": ["op", "CAST(id AS INT)"], "sequence_as": "text"}, [f"007 = u by u {7:020}", f"8 = d by d {8:020}"]),
    ],
    ids=str,
)
def test_rows_of_text_become_records(given: dict[str, Any], expected: list[str]) -> None:
    """Keys and values have the text of the file; an expression sees a number as Java writes it."""
    assert _json('{"id":"007","price":1.50,"op":"u"}', '{"id":8,"op":"d","x":null}', **given) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"a\\n"', "a\n"),
        ("7", "7"),
        ("-0", "0"),
        ("-0.0", "-0.0"),
        ("12345678901234567890", "12345678901234567890"),
        ("1.50", "1.5"),
        ("1e7", "1.0E7"),
        ("true", "true"),
        ("null", None),
    ],
)
def test_an_expression_sees_a_text(value: str, text: str | None) -> None:
    """Without a schema an expression sees a JSON string without its quotes, and other JSON as Spark writes it."""
    condition = "v IS NULL" if text is None else f"v = '{text}'" if "\n" not in text else "v > 'a' AND v < 'b'"
    assert _json(f'{{"id":1,"v":{value}}}', value="id", tombstone=condition) == ["1 = ∅"]


def test_a_row_of_text_has_the_time_of_a_column() -> None:
    """As ISO 8601 or milliseconds; one that is neither is refused, and its other columns are known."""
    lines = ['{"id":1,"at":"2026-03-01T06:30:00Z"}', '{"id":2,"at":1772346600000}', '{"id":3}', '{"id":4,"at":"soon","op":"d"}']
    assert _json(*lines, value="id", timestamp="at", tombstone="op = 'd'") == [
        "1 = 1 at 2026-03-01 06:30:00+00:00",
        "2 = 2 at 2026-03-01 06:30:00+00:00",
        "3 = 3",
        f"4 = ∅ refused: malformed: timestamp at = soon: allowed are ISO 8601, and milliseconds since 1970 | {lines[3]}",
    ]


@pytest.mark.parametrize("timestamp", ["", "at"])
def test_a_refused_row_keeps_its_text(timestamp: str) -> None:
    """Each reason for a refusal keeps the text of the row, with and without a timestamp column."""
    lines = ['{"id":1,"n":"x","at":null}', '{"id":1e99999999999999999999,"n":1}', '{"id":3,"n":{"a": 1}}', '{"id":4,"n":4}']
    rows = [
        *(RowText(text=line.encode(), fields=fields_of_row(line.encode())) for line in lines),
        RowText(malformed="{", detail="line 5: the row is no JSON object"),
    ]
    made = _picture(TextRows(_words({"value": "n", "sequence": "CAST(n AS INT)", "timestamp": timestamp})).records(rows))
    assert made[0] == f"1 = x by ∅ refused: failed_expression: sequence CAST(n AS INT) cannot be computed for this row | {lines[0]}"
    assert made[1].startswith("∅ = ∅ by ∅ refused: malformed: the key's column id = 1e99999999999999999999: it cannot be a key")
    assert made[1].endswith(f" | {lines[1]}")
    assert made[2] == (
        '3 = {"a": 1} by ∅ refused: failed_expression: column n is an object or an array, which an expression sees as text by Spark alone '
        f"| {lines[2]}"
    )
    assert made[3:] == [f"4 = 4 by {4:020}", "∅ = ∅ by ∅ refused: malformed: line 5: the row is no JSON object | {"]


def test_a_text_of_two_brackets_is_no_object() -> None:
    """It is a string like any other."""
    assert _json('{"id":1,"v":"{}"}', value="id", tombstone="v = '{}'") == ["1 = ∅"]


def test_a_truncate_of_text_needs_a_sequence() -> None:
    """As one of rows with types."""
    lines = ['{"id":1,"op":"u","n":1}', '{"op":"t","n":2}', '{"op":"t"}']
    given = {"value": "op", "sequence": ["CAST(n AS INT)", "CAST(id AS INT)"], "truncate": "op = 't'"}
    alert = f"alert:TRUNCATE without a sequence: allowed in each of CAST(n AS INT), CAST(id AS INT) {_NO_SEQUENCE}"
    assert _json(*lines, **given) == [f"1 = u by {1:020} {1:020}", f"∅ = t by ∅ {alert}", f"∅ = t by ∅ {alert}"]
    assert _words(given).policy is not None
    assert _words({}).policy is None


def test_of_rows_of_text_on_null_needs_a_schema() -> None:
    """A column that is not in a row may be one that it does not have."""
    with pytest.raises(WrongExpression, match=r"on\.null = keep needs a schema, which says which columns a row may leave out"):
        TextRows(_words({"sequence": "n", "sequence_as": "number", "on_null": "keep"}))


def test_the_first_rows_have_the_columns_of_the_settings() -> None:
    """Those of the key, the value and the time; all others may be missing, but not differ in case alone."""
    rows = [RowText(text=line, fields=fields_of_row(line)) for line in (b'{"id":1,"op":"u"}', b'{"id":2,"v":1,"at":0}')]
    for good in ({}, {"columns": ["v", "op"], "timestamp": "at"}, {"drop": "gone", "tombstone": "missing = 'd'"}):
        TextRows(_words(good)).check_first(rows)
    for given, message in (
        ({"key": ["id", "no"]}, "no column no; there are id, op, v, at"),
        ({"columns": ["no", "v"]}, "no column no; there are id, op, v, at"),
        ({"value": "no", "timestamp": "no"}, "no column no; there are id, op, v, at"),
        ({"timestamp": "AT"}, "no column AT; there are id, op, v, at: upper and lower case differ"),
        ({"drop": ["Op", "gone"]}, "no column Op; there are id, op, v, at: upper and lower case differ"),
        ({"tombstone": "OP = 'd' OR gone = 'x'"}, "no column OP; there are id, op, v, at: upper and lower case differ"),
    ):
        with pytest.raises(WrongColumn, match=f"^{re.escape(message)}$"):
            TextRows(_words(given)).check_first(rows)
    records = TextRows(_words({"drop": ["gone", "v"], "tombstone": "missing = 'd' OR op = x OR `gone` IS NULL"}))
    assert records.missing_columns(rows) == ["missing", "x", "gone"]
    assert records.missing_columns([]) == []
    TextRows(_words({"key": "no"})).check_first([RowText(malformed="{", detail="no JSON")])  # no row says its columns


def test_columns_of_a_schema_may_be_missing_in_the_first_rows_but_not_differ_in_case_alone() -> None:
    """Unless the rows' column of the other case is in the schema, too. Where no row can be read, nothing is known."""
    rows = [RowText(text=line, fields=fields_of_row(line)) for line in (b'{"id":1}', b'{"id":2,"v":1}')]
    assert find_missing_columns(["id", "nmae", "v"], rows) == ["nmae"]
    assert find_missing_columns(["id", "v", "V"], rows) == ["V"]
    assert find_missing_columns(["id"], [RowText(malformed="{", detail="no JSON")]) == []
    with pytest.raises(WrongColumn, match=r"^no column V; there are id, v: upper and lower case differ$"):
        find_missing_columns(["id", "V", "nmae"], rows)


def test_no_rows_of_text_are_no_records() -> None:
    """Their columns are those of any others."""
    for given in ({}, {"sequence": "n", "sequence_as": "time", "truncate": "op = 't'", "timestamp": "at"}):
        assert _json(**given) == []
