"""Keys and values as rows of the table that they are: which columns the key has, and what does not fit."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import RowMisfit, TableColumns, TableDecoder, ddl_text


def _columns(key: str = "", value: str = "", *, is_key_text: bool = False) -> TableColumns:
    return TableColumns(key=columns_of_ddl(key) if key else (), is_key_text=is_key_text, value=columns_of_ddl(value) if value else ())


def _rows(keys: list[bytes], values: list[str], columns: TableColumns, **arguments: Any) -> list[dict[str, Any]]:
    batches = TableDecoder(columns, **arguments).decode(pa.array(keys, pa.binary()), pa.array(values, pa.string()))
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("data_type", "key", "found"),
    [
        ("string", b"plum", "plum"),
        ("string", b"", ""),
        ("string", b'"quoted"', '"quoted"'),
        ("bigint", b"-7", -7),
        ("double", b"1.5", 1.5),
        ("boolean", b"true", True),
        ("decimal(10,2)", b"1.50", Decimal("1.50")),
        ("date", b"2026-03-01", date(2026, 3, 1)),
        ("timestamp", b"2026-03-01T06:30:00.000001Z", datetime(2026, 3, 1, 6, 30, 0, 1, timezone.utc)),
        ("uuid", b"0b7c1f0e-0000-0000-0000-000000000001", "0b7c1f0e-0000-0000-0000-000000000001"),
        ("array<int>", b"[1,2]", [1, 2]),
        ("struct<a: int>", b'{"a":1}', {"a": 1}),
        ("json", b'{"a":[1]}', '{"a":[1]}'),
        ("binary", b"\x00\xff", b"\x00\xff"),
    ],
)
def test_the_key_of_one_column_is_its_text(data_type: str, key: bytes, found: object) -> None:
    """The column comes first, unless the value has it."""
    columns = _columns(f"k {data_type}", "v int", is_key_text=True)
    assert _rows([key], ['{"v":1}'], columns) == [{"k": found, "v": 1}]
    assert _rows([key], ['{"v":1,"k":null}'], _columns(f"k {data_type}", "v int, k string", is_key_text=True)) == [{"v": 1, "k": None}]


def test_the_key_of_several_columns_is_an_object_of_them() -> None:
    """Key columns may be in the value, too. A null and an empty text make two different keys."""
    columns = _columns("tenant string, id bigint", "id bigint, v int")
    keys = [b'{"id":1,"tenant":""}', b'{"id":1,"tenant":null}']
    assert _rows(keys, ['{"id":1,"v":2}', '{"id":1}'], columns) == [
        {"tenant": "", "id": 1, "v": 2},
        {"tenant": None, "id": 1, "v": None},
    ]
    assert _rows(keys, ["{}", "{}"], _columns("tenant string")) == [{"tenant": ""}, {"tenant": None}]


def test_what_does_not_fit_is_named_or_null() -> None:
    """The other columns of the row, and the other rows, are as they are."""
    columns = _columns("k int", "v int, w string", is_key_text=True)
    keys, values = [b"1", b"2", b"x"], ['{"v":1,"w":"a"}', '{"v":"b","w":"c"}', '{"v":3,"w":"d"}']
    with pytest.raises(RowMisfit, match=r'^column v = "b": allowed is int as a whole number') as caught:
        _rows(keys, values, columns)
    assert caught.value.row == 1
    with pytest.raises(RowMisfit, match=r"the key .* is not UTF-8"):
        _rows([b"\xff"], ["{}"], _columns("k string", is_key_text=True))
    assert _rows(keys, values, columns, on_misfit="null") == [
        {"k": 1, "v": 1, "w": "a"},
        {"k": 2, "v": None, "w": "c"},
        {"k": None, "v": 3, "w": "d"},
    ]
    for key in (b'5,"g":7', b"", b"\xff", b"[" * 100_000):
        with pytest.raises(RowMisfit, match=r"^column f = .*: allowed is int as JSON"):
            _rows([key], ["{}"], _columns("f int", is_key_text=True))
    many = [b"1"] * 100 + [b"x"] + [b"2"] * 28
    assert [row["k"] for row in _rows(many, ["{}"] * 129, columns, on_misfit="null")] == [1] * 100 + [None] + [2] * 28
    with pytest.raises(RowMisfit) as caught:
        _rows(many, ["{}"] * 129, columns)
    assert caught.value.row == 100


@pytest.mark.parametrize(
    "ddl",
    [
        "id bigint, `a b``c` string",
        "p decimal(20,10), n decimal(*), t timestamp, u timestamp_ntz(9), d date, c time(9)",
        "l array<struct<`x y`: int, z: map<string,double>>>, j json, e enum, u uuid, b binary, i interval",
    ],
)
def test_columns_are_kept_as_text(ddl: str) -> None:
    """What is read back decodes the same canonical rows."""
    columns = TableColumns(key=columns_of_ddl("id bigint"), is_key_text=True, value=columns_of_ddl(ddl))
    again = TableColumns.of_details(columns.as_details())
    assert ddl_text(again.value) == ddl_text(columns.value) == ddl
    assert (again.key, again.is_key_text) == (columns.key, True)
    assert TableColumns.of_details(TableColumns().as_details()) == TableColumns()
