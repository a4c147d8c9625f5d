"""Values as connectors encode them, through a log, as values of the table: `table()` has what the source's table had, or says why not.

```
 "AUzypFwA"             decimal(20,10)      143.0000000000
 -1                     timestamp_ntz       1969-12-31 23:59:59.999999
 253402300800000000     timestamp_ntz       a dead letter: column, value, and what is allowed
```
"""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from lastword import Envelope, InvalidRecords, UserError
from tests.change_events import FLAT, append, change, key_of, rows_of, topic_in

if TYPE_CHECKING:
    from pathlib import Path

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  a local time
_DAY: Final = 86_400_000_000
_STRING: Final = {"decimal_handling_mode": "string"}
_DOUBLE: Final = {"decimal_handling_mode": "double"}
_ISO: Final = {"time_precision_mode": "isostring"}
_CONNECT: Final = {"time_precision_mode": "connect"}
_HEX: Final = {"binary_handling_mode": "hex"}
_URL: Final = {"binary_handling_mode": "base64-url-safe"}


def _unscaled(number: int) -> str:
    """Return a whole number as Connect sends the digits of a decimal."""
    return base64.b64encode(number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)).decode()


def _instant(*parts: int) -> datetime:
    year, month, day, hour, minute, second, micros = (*parts, 0, 0, 0, 0)[:7]
    return datetime(year, month, day, hour, minute, second, micros, tzinfo=timezone.utc)


_FITTING: Final[list[tuple[str, str, Any, Any, dict[str, Any]]]] = [
    ("a decimal without places", "decimal(10,0)", _unscaled(-42), Decimal(-42), {}),
    ("a decimal with zeros before the point", "decimal(3,-2)", _unscaled(42), Decimal(4200), {}),
    ("a decimal of 38 digits", "decimal(38,0)", _unscaled(10**38 - 1), Decimal(10**38 - 1), {}),
    ("a decimal of 38 places", "decimal(38,38)", _unscaled(-(10**38) + 1), Decimal(f"-0.{'9' * 38}"), {}),
    ("a decimal of 60 digits is text", "decimal(60,0)", _unscaled(10**59), f"1{'0' * 59}", {}),
    ("nothing as a decimal", "decimal(5,2)", _unscaled(0), Decimal("0.00"), {}),
    ("a decimal of any scale is text", "decimal(*)", {"scale": 3, "value": _unscaled(-1500)}, "-1.500", {}),
    ("a decimal of a scale below zero is text", "decimal(*)", {"scale": -2, "value": _unscaled(15)}, "1500", {}),
    ("no number, of any scale", "decimal(*)", "NaN", "NaN", _STRING),
    ("a decimal as text with an exponent", "decimal(10,2)", "1.5E+3", Decimal("1500.00"), _STRING),
    ("a decimal as a number", "decimal(10,2)", 0.1, Decimal("0.10"), _DOUBLE),
    ("a microsecond before 1970", "timestamp_ntz", -1, _EPOCH - timedelta(microseconds=1), {}),
    ("the first microsecond of all", "timestamp_ntz", -62_135_596_800_000_000, datetime(1, 1, 1), {}),  # noqa: DTZ001
    ("the last microsecond of all", "timestamp_ntz", 253_402_300_799_999_999, datetime(9999, 12, 31, 23, 59, 59, 999_999), {}),  # noqa: DTZ001
    ("a millisecond before 1970", "timestamp_ntz(3)", -1, _EPOCH - timedelta(milliseconds=1), {}),
    ("a millisecond of Connect", "timestamp_ntz", 1_709_164_800_001, datetime(2024, 2, 29, 0, 0, 0, 1000), _CONNECT),  # noqa: DTZ001
    ("an instant ahead of UTC", "timestamp", "2024-05-01T00:00:00.5+14:00", _instant(2024, 4, 30, 10, 0, 0, 500_000), {}),
    ("an instant half an hour behind UTC", "timestamp", "2024-05-01T00:00:00-00:30", _instant(2024, 5, 1, 0, 30), {}),
    ("an instant without seconds", "timestamp", "2024-02-29 23:59Z", _instant(2024, 2, 29, 23, 59), {}),
    ("a local time as text", "timestamp_ntz", "1969-12-31T23:59:59.000001", datetime(1969, 12, 31, 23, 59, 59, 1), _ISO),  # noqa: DTZ001
    ("a day before 1970", "date", -1, date(1969, 12, 31), {}),
    ("the first day of all", "date", -719_162, date.min, {}),
    ("the last day of all", "date", 2_932_896, date.max, {}),
    ("a day as text", "date", "1969-12-31Z", date(1969, 12, 31), _ISO),
    ("a time in microseconds", "time", 49_020_000_001, time(13, 37, 0, 1), {}),
    ("a time in milliseconds", "time(3)", 86_399_999, time(23, 59, 59, 999_000), {}),
    ("bytes", "binary", "AP8=", b"\x00\xff", {}),
    ("bytes as base64 for URLs", "binary", "_-8=", b"\xff\xef", _URL),
    ("bytes as hexadecimal digits", "binary", "00Ff", b"\x00\xff", _HEX),
    ("no bytes", "binary", "", b"", _HEX),
    ("infinity", "double", "Infinity", math.inf, {}),
    ("infinity below zero", "float", "-Infinity", -math.inf, {}),
    ("a whole number as a float", "double", 1, 1.0, {}),
    ("the least bigint", "bigint", -(2**63), -(2**63), {}),
    ("a UUID", "uuid", "6f0f6c5e-3f8b-4c1c-9b6b-0d6a3d1f0a11", "6f0f6c5e-3f8b-4c1c-9b6b-0d6a3d1f0a11", {}),
    ("JSON", "json", '{"a": 1.0, "b": [null]}', '{"a":1.0,"b":[null]}', {}),
    ("an array with a hole", "array<decimal(5,2)>", [_unscaled(150), None], [Decimal("1.50"), None], {}),
    ("an array of days", "array<date>", [-1, 0], [date(1969, 12, 31), date(1970, 1, 1)], {}),
    ("a map", "map<string,bigint>", {"a": 1, "b": None}, [("a", 1), ("b", None)], {}),
    ("a struct", "struct<x double, y double>", {"x": 0.5, "y": None}, {"x": 0.5, "y": None}, {}),
]


@pytest.mark.parametrize(("ddl", "sent", "value", "modes"), [pytest.param(*case[1:], id=case[0]) for case in _FITTING])
def test_a_value_is_what_it_was(tmp_path: Path, ddl: str, sent: Any, value: Any, modes: dict[str, Any]) -> None:
    """It has its value and type, by the given columns and the connector's settings; a null beside it is null."""
    topic = topic_in(tmp_path)
    envelope = Envelope(schema=f"id bigint, v {ddl}", **modes)
    append(topic, change("c", 1, 1, {"id": 1, "v": sent}), change("c", 2, 1, {"id": 2, "v": None}), envelope=envelope)
    found = topic.table().to_pylist()
    assert found == [{"id": 1, "v": value}, {"id": 2, "v": None}]
    assert type(found[0]["v"]) is type(value)


def test_values_that_python_has_no_type_for(tmp_path: Path) -> None:
    """Nanoseconds keep their nine digits; midnight at the end of a day stays apart from that at its beginning; NaN is NaN."""
    topic = topic_in(tmp_path)
    envelope = Envelope(schema="id int, n timestamp_ntz(9), t time, f double")
    append(topic, change("c", 1, 1, {"id": 1, "n": -1, "t": _DAY, "f": "NaN"}), envelope=envelope)
    assert rows_of(topic) == {'{"id":1}': {"id": 1, "n": "1969-12-31T23:59:59.999999999", "t": "24:00:00.000000", "f": "NaN"}}
    table = topic.table()
    assert table.column("n").cast(pa.int64()).to_pylist() == [-1]
    assert table.column("t").cast(pa.int64()).to_pylist() == [_DAY]
    assert math.isnan(table.column("f").to_pylist()[0])


@pytest.mark.parametrize(
    ("ddl", "sent", "shown", "modes"),
    [
        pytest.param("int", 2**31, "2147483648", {}, id="a number that is too large for an int"),
        pytest.param("tinyint", -129, "-129", {}, id="a number that is too small for a tinyint"),
        pytest.param("bigint", 2**63, "9223372036854775808", {}, id="a number that is too large for a bigint"),
        pytest.param("int", 1.5, "1.5", {}, id="a number that is not whole"),
        pytest.param("int", "1", '"1"', {}, id="a text where a number belongs"),
        pytest.param("float", 1e39, "1e+39", {}, id="a number that is too large for a float"),
        pytest.param("double", "nan", '"nan"', {}, id="another spelling of NaN"),
        pytest.param("boolean", 1, "1", {}, id="a number where a truth value belongs"),
        pytest.param("decimal(38,0)", _unscaled(10**38), f'"{_unscaled(10**38)}"', {}, id="a decimal of 39 digits"),
        pytest.param("decimal(3,-2)", "4250", '"4250"', _STRING, id="a digit where the scale has zeros"),
        pytest.param("decimal(5,2)", "1.505", '"1.505"', _STRING, id="a decimal with more places"),
        pytest.param("decimal(5,2)", "NaN", '"NaN"', _STRING, id="no number in a decimal"),
        pytest.param("timestamp_ntz", 253_402_300_800_000_000, "253402300800000000", {}, id="the year 10000"),
        pytest.param("timestamp_ntz", -62_135_596_800_000_001, "-62135596800000001", {}, id="a microsecond before the year 1"),
        pytest.param("timestamp", "0001-01-01T00:00:00+01:00", '"0001-01-01T00:00:00+01:00"', {}, id="an offset into the year 0"),
        pytest.param("timestamp", "infinity", '"infinity"', {}, id="the end of time"),
        pytest.param("timestamp", "2024-05-01T00:00:00", '"2024-05-01T00:00:00"', {}, id="an instant without an offset"),
        pytest.param("timestamp_ntz", "2024-05-01T00:00:00+01:00", '"2024-05-01T00:00:00+01:00"', {}, id="a local time with an offset"),
        pytest.param("timestamp", "2023-02-29T00:00:00Z", '"2023-02-29T00:00:00Z"', {}, id="a day that never was"),
        pytest.param("date", 2_932_897, "2932897", {}, id="a day too late"),
        pytest.param("date", -719_163, "-719163", {}, id="a day too early"),
        pytest.param("time", _DAY + 1, "86400000001", {}, id="a time past midnight"),
        pytest.param("time", -1, "-1", {}, id="a time below zero"),
        pytest.param("binary", "AAA", '"AAA"', {}, id="base64 that is cut"),
        pytest.param("binary", "_-8=", '"_-8="', {}, id="base64 for URLs where the other belongs"),
        pytest.param("binary", "00f", '"00f"', _HEX, id="half a byte"),
        pytest.param("uuid", "6f0f6c5e", '"6f0f6c5e"', {}, id="a UUID that is cut"),
        pytest.param("json", "{cut", '"{cut"', {}, id="JSON that is cut"),
    ],
)
def test_a_value_that_does_not_fit_is_named_or_null(tmp_path: Path, ddl: str, sent: Any, shown: str, modes: dict[str, Any]) -> None:
    """With its column and what is allowed; the table stays as it was, or has null if that is wished."""
    topic, event = topic_in(tmp_path), change("c", 1, 2, {"id": 1, "v": sent, "w": 7})
    schema = f"id int, v {ddl}, w int"
    append(topic, change("c", 1, 1, {"id": 1, "v": None, "w": 5}), envelope=Envelope(schema=schema, **modes))
    with pytest.raises(InvalidRecords) as error:
        append(topic, event, envelope=Envelope(schema=schema, **modes))
    assert f"column v = {shown}: allowed is {ddl.split('(', maxsplit=1)[0]}" in str(error.value)
    assert topic.table().to_pylist() == [{"id": 1, "v": None, "w": 5}]
    append(topic, event, envelope=Envelope(schema=schema, misfit="null", **modes))
    assert topic.table().to_pylist() == [{"id": 1, "v": None, "w": 7}]


def test_a_misfit_within_a_value_names_its_place(tmp_path: Path) -> None:
    """The element of an array, the field of a struct, the key of a map."""
    envelope = Envelope(schema="id int, a array<int>, s struct<x int>, m map<string,date>")
    for column, value, place in (("a", [1, "x"], "a[1]"), ("s", {"x": "y"}, "s.x"), ("m", {"k": "y"}, 'm["k"]')):
        with pytest.raises(InvalidRecords) as error:
            append(topic_in(tmp_path / column), change("c", 1, 1, {"id": 1, column: value}), envelope=envelope)
        assert f"column {place} = " in str(error.value)


def test_the_schema_of_an_event_types_it_and_the_newest_one_the_table(tmp_path: Path) -> None:
    """A column that is wider later, and one that is new; an older event that comes late changes nothing."""

    def schema(*fields: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        row = {"type": "struct", "field": "after", "fields": [{"field": name, **one} for name, one in fields]}
        return {"type": "struct", "fields": [row]}

    money = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "9"},
    }
    day = {"type": "int32", "name": "io.debezium.time.Date"}
    old = schema(("id", {"type": "int32"}), ("price", money))
    new = schema(("id", {"type": "int64"}), ("price", money), ("day", day))
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, 1, {"id": 1, "price": _unscaled(150)}, schema=old))
    append(topic, change("c", 2, 5, {"id": 2**40, "price": _unscaled(-1), "day": -1}, schema=new))
    append(topic, change("c", 3, 3, {"id": 3, "price": None}, schema=old))
    assert topic.table().schema.field("id").type == pa.int64()
    assert sorted(topic.table().to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "price": Decimal("1.50"), "day": None},
        {"id": 3, "price": None, "day": None},
        {"id": 2**40, "price": Decimal("-0.01"), "day": date(1969, 12, 31)},
    ]


def test_a_flat_row_is_typed_without_its_metadata(tmp_path: Path) -> None:
    """By its own schema, in which the metadata are fields as well."""
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "__op", "type": "string"},
        {"field": "__source_lsn", "type": "int64"},
    ]
    row = {"id": 1, "at": -1, "__op": "c", "__source_lsn": 5}
    topic = topic_in(tmp_path)
    append(topic, (key_of(1), json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": row})), envelope=FLAT)
    assert topic.table().to_pylist() == [{"id": 1, "at": _EPOCH - timedelta(microseconds=1)}]


def test_a_row_from_before_its_column_had_another_type_is_named(tmp_path: Path) -> None:
    """The read fails with its place, or the value is null by choice; the other rows are there."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, 1, {"id": 1, "v": "x"}), envelope=Envelope(schema="id int, v string"))
    append(topic, change("c", 2, 2, {"id": 2, "v": 5}), envelope=Envelope(schema="id int, v int"))
    with pytest.raises(UserError, match=r'offset 0, key \{"id":1\}'):
        topic.table()
    assert topic.table(mode="PERMISSIVE").to_pylist() == [{"id": 1, "v": None}, {"id": 2, "v": 5}]
