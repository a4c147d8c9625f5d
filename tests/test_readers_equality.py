"""Reads by Arrow and by Spark are each other's oracle, on random schemas, rows and layouts of the log.

```
 seed ──► columns of any name and type ──► rows: canonical, of another writer, or that do not fit ──► appends, roll, clean, appends …
              records, latest, table, changes, as_of      Arrow  =  Spark, rows and errors
```
"""

from __future__ import annotations

import json
import math
import os
import random
from base64 import b64encode
from collections import Counter
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword import LogDir, UserError
from lastword.change_data.columns.column_types import ArrayType, Column, DecimalType, MapType, ScalarType, StructType
from lastword.change_data.columns.table_columns import ddl_text
from tests.pictures import by_arrow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lastword import ArrowTopic, SparkTopic
    from lastword.change_data.columns.column_types import DataType

#: Names of any script, case and punctuation; of two that differ in case alone Spark knows neither by its name, and shows both.
_NAMES: Final = [
    "id",
    "ID",
    "größe",
    "日本",
    "😀",
    "Ж",
    "a.b",
    "a b",
    "a`b",
    'a"b',
    "a\\b",
    "it's",
    "$",
    "offset",
    "select",
    "value",
    "1",
]
_KINDS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "uuid", "enum", "interval", "json")
_TIMES: Final = ("date", "time", "timestamp", "timestamp_ntz", "binary")
_TEXTS: Final = ["", "x", "größe", "日本 😀", "null", '"', "\\", "a\nb", "1.10", "\u2028"]


class _Draw:
    """Draws columns, and values for them as JSON."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def columns(self, depth: int = 2) -> tuple[Column, ...]:
        names = self.chance.sample(_NAMES, self.chance.randint(1, 7 if depth == 2 else 3))
        if depth < 2:  # structs of Spark cannot tell names apart that differ in case alone
            names = [name for name in names if name != "ID"] or ["x"]
        return tuple(Column(name, self.data_type(depth)) for name in names)

    def data_type(self, depth: int) -> DataType:
        nested = self.chance.random() < 0.3 and depth > 0
        if nested:
            kind = self.chance.choice(("array", "map", "struct"))
            if kind == "array":
                return ArrayType(self.data_type(depth - 1))
            return MapType(self.data_type(depth - 1)) if kind == "map" else StructType(self.columns(depth - 1))
        if self.chance.random() < 0.2:
            return self.chance.choice((DecimalType(10, 2), DecimalType(38, 10), DecimalType(5, 0), DecimalType(), DecimalType(60, 3)))
        kind = self.chance.choice((*_KINDS, *_TIMES))
        return ScalarType(kind, {"binary": "base64", "json": "text", "date": "days"}.get(kind, "micros" if kind in _TIMES else ""))

    def row(self, columns: tuple[Column, ...], *, fits: bool) -> dict[str, Any]:
        row = {column.name: self.value(column.data_type) for column in columns if self.chance.random() < 0.85}
        if not fits and row:
            row[self.chance.choice(list(row))] = self.chance.choice([{"x": 1}, [[1]], "no such value", 10**30, True, -1.5, "2026-02-30"])
        return row

    def value(self, data_type: DataType) -> Any:
        if self.chance.random() < 0.15:
            return None
        if isinstance(data_type, ArrayType):
            return [self.value(data_type.element) for _ in range(self.chance.randint(0, 3))]
        if isinstance(data_type, MapType):
            return {self.chance.choice(_TEXTS): self.value(data_type.value) for _ in range(self.chance.randint(0, 3))}
        if isinstance(data_type, StructType):
            return self.row(data_type.fields, fits=True)
        if isinstance(data_type, DecimalType):
            scale = min(data_type.scale or 0, 3)
            number = Decimal(self.chance.randint(-99999, 99999)).scaleb(-scale)
            return str(number) if self.chance.random() < 0.5 else float(number)
        return self.scalar(data_type.kind)

    def scalar(self, kind: str) -> Any:  # noqa: PLR0911  a value a kind
        chance = self.chance
        bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}.get(kind)
        if bits:
            return chance.choice((-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 0, chance.randint(-100, 100)))
        if kind in {"float", "double"}:
            return chance.choice(("NaN", "Infinity", "-Infinity", 0.0, -0.0, 1.5, 1e-300 if kind == "double" else 1e-30, 7))
        if kind == "boolean":
            return chance.random() < 0.5
        if kind == "json":
            return chance.choice(({"a": [1, 2.5, None]}, [], "text", 5, True, {}, {"größe": {"b": "c"}}))
        if kind == "binary":
            return b64encode(chance.randbytes(chance.randint(0, 5))).decode()
        if kind in _TIMES:
            return self.moment(kind)
        if kind == "uuid":
            return f"{chance.getrandbits(32):08x}-0000-4000-8000-{chance.getrandbits(48):012x}"
        return chance.choice(_TEXTS) if kind != "interval" else chance.choice((5, "P1D", -1.5))

    def moment(self, kind: str) -> str:
        chance = self.chance
        moment = datetime(1, 1, 2) + timedelta(seconds=chance.choice((0, chance.randint(0, 315_000_000_000), 62_135_596_800)))  # noqa: DTZ001
        moment = moment.replace(microsecond=chance.choice((0, 1, 999_999)))
        if kind == "date":
            return moment.date().isoformat()
        if kind == "time":
            return chance.choice((moment.time().isoformat(), "24:00:00", "10:00"))
        zones = ("Z", "+02:00", "-11:30", "") if kind == "timestamp" else ("", "Z")
        return moment.isoformat(sep=chance.choice("T ")) + chance.choice(zones)


def _live(topic: SparkTopic, draw: _Draw, columns: tuple[Column, ...], *, fits: bool) -> None:
    """Append rows in several commits, close segments, clean, and append again."""
    arrow, chance = by_arrow(topic), draw.chance
    for _ in range(chance.randint(2, 5)):
        rows = []
        for _ in range(chance.randint(1, 30)):
            row = draw.row(columns, fits=fits or chance.random() < 0.97)
            value = None if chance.random() < 0.15 else json.dumps(row, ensure_ascii=chance.random() < 0.5)
            rows.append({"key": f'{{"k":{chance.randint(0, 12)}}}', "value": value})
        arrow.append(rows)
        action = chance.random()
        if action < 0.4:
            arrow.roll()
            arrow.clean()
        elif action < 0.6:
            arrow.roll()


def _plain(value: Any) -> Any:  # noqa: PLR0911  a form a type
    """Return a value so that equal ones are equal in Python, NaN among them."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, (date, time, Decimal)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def _rows(table: pa.Table) -> Counter[str]:
    columns = [column.to_pylist() for column in table.columns]
    return Counter(repr([_plain(value) for value in row]) for row in zip(*columns, strict=True))


def _texts_of_json(value: Any, data_type: DataType) -> Any:
    """Return an Arrow value with JSON as its compact text, as Spark writes a VARIANT, and times of day as text, as Spark shows them."""
    if value is None:
        return None
    if isinstance(data_type, ArrayType):
        return [_texts_of_json(part, data_type.element) for part in value]
    if isinstance(data_type, MapType):
        return [(name, _texts_of_json(part, data_type.value)) for name, part in value]
    if isinstance(data_type, StructType):
        return {field.name: _texts_of_json(value[field.name], field.data_type) for field in data_type.fields}
    if isinstance(data_type, ScalarType) and data_type.kind == "json":
        return json.dumps(json.loads(value), separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    return value


def _without_variants(frame: DataFrame) -> DataFrame:
    """Return rows with VARIANTs as text, at any depth: Arrow has no type for them."""

    def text(value: Any, data_type: T.DataType) -> Any:
        if isinstance(data_type, T.VariantType):
            return F.to_json(value)
        if isinstance(data_type, T.ArrayType):
            return F.transform(value, lambda part: text(part, data_type.elementType))
        if isinstance(data_type, T.MapType):
            return F.transform_values(value, lambda _, part: text(part, data_type.valueType))
        if isinstance(data_type, T.StructType) and "variant" in data_type.simpleString():
            parts = [text(value.getField(field.name), field.dataType).alias(field.name) for field in data_type.fields]
            return F.when(value.isNotNull(), F.struct(*parts))
        return value

    renamed = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    return renamed.select(*(text(F.col(field.name), field.dataType).alias(field.name) for field in renamed.schema.fields))


def _answer(read: Callable[[], Counter[str]]) -> Counter[str] | str:
    """Return the rows that a read gives, or the message of its error."""
    try:
        return read()
    except UserError as error:
        return str(error)
    except PySparkException as error:
        return str(error).partition("[USER_RAISED_EXCEPTION] ")[2].partition(" SQLSTATE")[0] or str(error)


def _table_by_arrow(topic: ArrowTopic, columns: tuple[Column, ...], **options: Any) -> Counter[str]:
    decoded = topic.table(**options)
    rows = [[_texts_of_json(value, column.data_type) for value in decoded.column(at).to_pylist()] for at, column in enumerate(columns)]
    texts = [[_clock(value, column.data_type) for value in values] for values, column in zip(rows, columns, strict=True)]
    return Counter(repr([_plain(value) for value in row]) for row in zip(*texts, strict=True))


def _clock(value: Any, data_type: DataType) -> Any:
    """Return a value with its times of day as Spark shows them."""
    if value is None:
        return None
    if isinstance(data_type, ArrayType):
        return [_clock(part, data_type.element) for part in value]
    if isinstance(data_type, MapType):
        return [(name, _clock(part, data_type.value)) for name, part in value]
    if isinstance(data_type, StructType):
        return {field.name: _clock(value[field.name], field.data_type) for field in data_type.fields}
    if isinstance(value, time):
        return value.isoformat(timespec="microseconds")
    return value


def _check(topic: SparkTopic, draw: _Draw, columns: tuple[Column, ...]) -> None:
    arrow, schema, chance = by_arrow(topic), ddl_text(columns), draw.chance
    keys = [f'{{"k":{number}}}' for number in range(3)]
    past = chance.choice(range(1, arrow.describe().table_version + 1))
    records: dict[str, Any] = chance.choice(({}, {"include_control": True}, {"isolation": "read_committed"}))
    latest: dict[str, Any] = chance.choice(({}, {"keys": keys}, {"partitions": [0]}))
    for as_of in (None, past):
        compared: dict[str, tuple[Callable[[], Counter[str]], Callable[[], Counter[str]]]] = {
            f"records {records}": (
                lambda as_of=as_of: _rows(arrow.records(as_of=as_of, **records)),  # type: ignore[misc]
                lambda as_of=as_of: _rows(topic.records(as_of=as_of, **records).toArrow()),  # type: ignore[misc]
            ),
            f"latest {latest}": (
                lambda as_of=as_of: _rows(arrow.latest(as_of=as_of, **latest)),  # type: ignore[misc]
                lambda as_of=as_of: _rows(topic.latest(as_of=as_of, **latest).toArrow()),  # type: ignore[misc]
            ),
            **{
                f"table {mode}": (
                    lambda as_of=as_of, mode=mode: _table_by_arrow(arrow, columns, schema=schema, mode=mode, as_of=as_of),  # type: ignore[misc]
                    lambda as_of=as_of, mode=mode: _table_by_spark(topic, schema=schema, mode=mode, as_of=as_of),  # type: ignore[misc]
                )
                for mode in ("FAILFAST", "PERMISSIVE")
            },
        }
        for name, (ours, theirs) in compared.items():
            assert _answer(ours) == _answer(theirs), (name, as_of)
    ends = [partition.log_end_offset for partition in arrow.describe().partitions]
    begin = [chance.randint(0, end) for end in ends]
    net = chance.random() < 0.5
    ours, theirs = (lambda: _rows(arrow.changes(begin, ends, net=net))), (lambda: _rows(topic.changes(begin, ends, net=net).toArrow()))
    assert _answer(ours) == _answer(theirs), ("changes", begin, ends, net)


def _table_by_spark(topic: SparkTopic, **options: Any) -> Counter[str]:
    return _rows(_without_variants(topic.table(**options)).toArrow())


def _seeds() -> list[int]:
    return [int(os.environ["LASTWORD_SEED"])] if "LASTWORD_SEED" in os.environ else list(range(4))


@pytest.mark.parametrize("seed", _seeds())
def test_both_readers_show_the_same_rows_or_the_same_error(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Half of the logs have rows that do not fit their columns."""
    _live_and_check(spark, tmp_path, seed)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_both_readers_show_the_same_for_many_logs(spark: SparkSession, tmp_path: Path) -> None:
    """For as many random logs as LASTWORD_RUNS says."""
    first = random.SystemRandom().randrange(10**9)
    for seed in range(first, first + int(os.environ.get("LASTWORD_RUNS", "200"))):
        _live_and_check(spark, tmp_path / str(seed), seed)


def _live_and_check(spark: SparkSession, folder: Path, seed: int) -> None:
    draw = _Draw(seed)
    columns = draw.columns()
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic = LogDir(spark, str(folder)).create_topic("t", partitions=draw.chance.randint(1, 3), config=config)
    _live(topic, draw, columns, fits=seed % 2 == 0)
    try:
        _check(topic, draw, columns)
    except AssertionError as error:
        message = f"LASTWORD_SEED={seed}, columns {ddl_text(columns)}"
        raise AssertionError(message) from error
