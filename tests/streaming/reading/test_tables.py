"""`table()` on Spark: columns of any name and type, and the record that does not fit, in one line."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import SparkRuntimeException

if TYPE_CHECKING:
    from lastword import LogDir, SparkTopic

_SCHEMA = (
    'id int, ID int, `größe` int, `a"b` int, at timestamp, l timestamp_ntz, t time, j json, s struct<j: json, d: date>, '
    "a array<json>, m map<string,json>, p decimal(10,2), b binary"
)
_ROW = {
    "id": 1,
    "ID": 2,
    "größe": 7,
    'a"b': 3,
    "at": "2026-03-01T10:00:00.123456+02:00",
    "l": "2026-03-01 10:00",
    "t": "24:00:00",
    "j": {"x": [1, None]},
    "s": {"j": "text", "d": "2026-03-01"},
    "a": [1, {"y": 2}, None],
    "m": {"k": [True], "n": None},
    "p": 100000,
    "b": "AP8=",
}


def _topic(logs: LogDir[SparkTopic], *values: str) -> SparkTopic:
    topic = logs.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append([{"key": f"k{number}", "value": value} for number, value in enumerate(values)])
    return topic


def test_columns_of_any_name_and_type(logs: LogDir[SparkTopic]) -> None:
    """Names that differ in case alone are two columns; JSON is VARIANT at any depth; null in JSON is null."""
    table = _topic(logs, json.dumps(_ROW), "{}").table(schema=_SCHEMA)
    assert table.columns == ["id", "ID", "größe", 'a"b', "at", "l", "t", "j", "s", "a", "m", "p", "b"]
    assert [data_type for _, data_type in table.dtypes][4:] == [
        "timestamp",
        "timestamp_ntz",
        "string",
        "variant",
        "struct<j:variant,d:date>",
        "array<variant>",
        "map<string,variant>",
        "decimal(10,2)",
        "binary",
    ]
    plain = table.toDF(*(f"c{number}" for number in range(13)))
    shown = plain.selectExpr(
        "c0", "c1", "c2", "c3", "unix_micros(c4) c4", "cast(c5 as string) c5", "c6", "to_json(c7) c7", "to_json(c8.j) c8", "c8.d c9",
        "transform(c9, v -> to_json(v)) c10", "transform_values(c10, (k, v) -> to_json(v)) c11", "cast(c11 as string) c12", "hex(c12) c13",
    )  # fmt: skip
    (full, empty) = shown.orderBy("c0", ascending=False).collect()
    moment = datetime(2026, 3, 1, 8, 0, 0, 123456, timezone.utc)
    assert full[:8] == (1, 2, 7, 3, round(moment.timestamp() * 10**6), "2026-03-01 10:00:00", "24:00:00.000000", '{"x":[1,null]}')
    assert (full[8], str(full[9]), full[10], full[11]) == ('"text"', "2026-03-01", ["1", '{"y":2}', None], {"k": "[true]", "n": None})
    assert full[12:] == ("100000.00", "00FF")
    assert set(empty) == {None}


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ('{"id":"x"}', 'column id = "x": allowed is int as a whole number'),
        ('{"t":"25:00:00"}', 'column t = "25:00:00": allowed is time as ISO text, 00:00:00 to 24:00:00'),
        ('{"s":{"d":"2026-02-30"}}', 'column s.d = "2026-02-30": allowed is date as ISO text'),
        ('{"größe":3000000000}', "column größe = 3000000000: allowed is int"),
        ("[1]", "row = [1]: allowed is struct<"),
    ],
)
def test_a_record_that_does_not_fit_is_one_line(logs: LogDir[SparkTopic], value: str, column: str) -> None:
    """With topic, partition, offset, key, column and value; or null by choice."""
    topic = _topic(logs, '{"id":5}', value)
    with pytest.raises(SparkRuntimeException) as error:
        topic.table(schema=_SCHEMA).collect()
    message = str(error.value)
    assert message.startswith(f"[USER_RAISED_EXCEPTION] topic t, partition 0, offset 1, key k1: {column}")
    assert "\n" not in message
    rows = topic.table(schema=_SCHEMA, mode="PERMISSIVE").toDF(*(f"c{number}" for number in range(13)))
    assert sorted(str(row["c0"]) for row in rows.select("c0").collect()) == ["5", "None"]
