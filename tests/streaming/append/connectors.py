"""A connector that is made up, and the tables that it follows: their changes, and the tables as they are at the end.

```
 shop.stock     key shop, item     changed and deleted rows
 shop.prices    key id             a column of each type; columns that are left out because they did not change
 shop.notes     key id             a TRUNCATE; a row that changes its key
```

Each change is sent as JSON with Connect's schemas, as Avro in the frames of a schema registry, or flattened by ExtractNewRecordState.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tests.kafka_broker import Record
from tests.storage.schema_registry.registries import avro_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.storage.schema_registry.registries import Registry

PREFIX: Final = "__"
_PLACEHOLDER: Final = "__debezium_unavailable_value"
_PARTITIONS: Final = 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DECIMAL: Final = {"scale": "4", "connect.decimal.precision": "12"}


def _unscaled(value: Decimal) -> bytes:
    digits = int(value.scaleb(4))
    return digits.to_bytes((digits.bit_length() + 8) // 8, "big", signed=True)


def _micros(value: datetime) -> int:
    since = value.replace(tzinfo=timezone.utc) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _days(value: date) -> int:
    return value.toordinal() - date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class Kind:
    """A type of a column: its schemas, how its values are sent, and what stands for one that is left out."""

    connect: Mapping[str, Any]
    avro: Any
    encoded: Callable[[Any], Any] = lambda value: value
    left_out: Any = _PLACEHOLDER


def _named(base: str, avro: str, name: str) -> dict[str, Any]:
    return {"connect": {"type": base, "name": name, "version": 1}, "avro": {"type": avro, "connect.version": 1, "connect.name": name}}


NUMBER: Final = Kind({"type": "int64"}, "long")
TEXT: Final = Kind({"type": "string"}, "string")
BYTES: Final = Kind({"type": "bytes"}, "bytes", left_out=_PLACEHOLDER.encode())
TEXTS: Final = Kind(
    {"type": "array", "items": {"type": "string", "optional": True}},
    {"type": "array", "items": ["null", "string"]},
    left_out=[_PLACEHOLDER],
)
PRICE: Final = Kind(
    {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1, "parameters": _DECIMAL},
    {
        "type": "bytes",
        "scale": 4,
        "precision": 12,
        "connect.version": 1,
        "connect.parameters": _DECIMAL,
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "logicalType": "decimal",
    },
    _unscaled,
)
LOCAL_TIME: Final = Kind(**_named("int64", "long", "io.debezium.time.MicroTimestamp"), encoded=_micros)
INSTANT: Final = Kind(**_named("string", "string", "io.debezium.time.ZonedTimestamp"), encoded=lambda value: value.isoformat())
DAY: Final = Kind(**_named("int32", "int", "io.debezium.time.Date"), encoded=_days)
UUID: Final = Kind(**_named("string", "string", "io.debezium.data.Uuid"))
JSON: Final = Kind(**_named("string", "string", "io.debezium.data.Json"))


@dataclass(frozen=True)
class Change:
    """A change of a row at a position: what the row is now, which of its columns are left out of the event, and the headers."""

    op: str
    lsn: int
    key: Mapping[str, Any] | None
    row: Mapping[str, Any] | None = None
    left_out: frozenset[str] = frozenset()
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Table:
    """A table of the source, and its changes in their order."""

    name: str
    key: tuple[str, ...]
    columns: Mapping[str, Kind]
    rows: dict[tuple[Any, ...], Mapping[str, Any]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)

    def put(self, op: str, *values: Any, left_out: str = "") -> None:
        """Make or change a row, whose values are given in the order of the columns; `left_out` names columns, separated by spaces."""
        row = dict(zip(self.columns, values, strict=True))
        key = {name: row[name] for name in self.key}
        self.rows[tuple(key.values())] = row
        self.changes.append(Change(op, self._next(), key, row, frozenset(left_out.split())))

    def delete(self, *values: Any) -> None:
        """Delete the row of a key."""
        del self.rows[values]
        self.changes.append(Change("d", self._next(), dict(zip(self.key, values, strict=True))))

    def move(self, old: Any, new: Any, *, left_out: str = "") -> None:
        """Change the key of a row: a deletion and an insert at one position, each with the other's key in a header."""
        (name,), lsn = self.key, self._next()
        row = {**self.rows.pop((old,)), name: new}
        self.rows[new,] = row
        headers = [((f"__debezium.{side}key", json.dumps({name: key}).encode()),) for side, key in (("new", new), ("old", old))]
        self.changes.append(Change("d", lsn, {name: old}, headers=headers[0]))
        self.changes.append(Change("c", lsn, {name: new}, row, frozenset(left_out.split()), headers[1]))

    def truncate(self) -> None:
        """Delete all rows."""
        self.rows.clear()
        self.changes.append(Change("t", self._next(), None))

    def _next(self) -> int:
        return 1_000 + 8 * len(self.changes)

    def encoded(self, change: Change) -> dict[str, Any] | None:
        """Return the row of an event, whose bytes are bytes."""
        if change.row is None:
            return None
        return {
            name: kind.left_out if name in change.left_out else None if change.row[name] is None else kind.encoded(change.row[name])
            for name, kind in self.columns.items()
        }

    def connect_schema(self, name: str, *, of_key: bool = False) -> dict[str, Any]:
        """Return Connect's schema of a row or of the key."""
        columns = {column: self.columns[column] for column in self.key} if of_key else self.columns
        fields = [{**kind.connect, "optional": column not in self.key, "field": column} for column, kind in columns.items()]
        return {"type": "struct", "fields": fields, "optional": not of_key, "name": f"{self.name}.{name}"}

    def avro_schema(self, name: str, *, of_key: bool = False) -> dict[str, Any]:
        """Return the schema of a row or of the key as Avro."""
        columns = {column: self.columns[column] for column in self.key} if of_key else self.columns
        fields = [
            {"name": column, "type": kind.avro} if column in self.key else {"name": column, "type": ["null", kind.avro], "default": None}
            for column, kind in columns.items()
        ]
        return {"type": "record", "name": name, "namespace": self.name, "fields": fields, "connect.name": f"{self.name}.{name}"}


def connector(prefix: str) -> list[Table]:
    """Return the tables of a connector whose topics begin with a prefix, after their changes."""
    return [_stock(prefix), _prices(prefix), _notes(prefix)]


def _stock(prefix: str) -> Table:
    table = Table(f"{prefix}.stock", ("shop", "item"), {"shop": TEXT, "item": NUMBER, "pieces": NUMBER, "remark": TEXT})
    for shop in ("north", "süd", ""):
        for item in range(3):
            table.put("r", shop, item, item * 10, None)
    table.put("u", "north", 1, 2**40, "a – b")
    table.delete("süd", 2)
    table.delete("", 0)
    table.put("c", "süd", 2, -1, '"quoted"\n')
    return table


def _prices(prefix: str) -> Table:
    columns = {"id": NUMBER, "price": PRICE, "at": LOCAL_TIME, "seen": INSTANT, "day": DAY, "photo": BYTES, "code": UUID}
    table = Table(f"{prefix}.prices", ("id",), {**columns, "tags": TEXTS, "meta": JSON})
    at, code = datetime(2026, 2, 1, 10, 6, 0, 500_001), "6f0f6c5e-3f8b-4c1c-9b6b-0d6a3d1f0a11"  # noqa: DTZ001  a local time
    seen = datetime(2026, 3, 1, 6, 30, 0, 1, tzinfo=timezone.utc)
    rest = (date(1969, 12, 31), b"\x00\xff" * 40, code, ["a", None, "ü"], '{"a":[1,null],"b":"x"}')
    table.put("c", 1, Decimal("143.0000"), at, seen, *rest)
    table.put("c", 2, None, None, None, None, None, None, None, None)
    table.put("c", 3, Decimal("-0.0001"), datetime(1, 1, 1), seen, date.max, b"", code, [], "{}")  # noqa: DTZ001
    table.put("u", 1, Decimal("99999999.9999"), at, seen, *rest, left_out="photo tags meta")
    table.put("c", 4, Decimal(0), at, seen, *rest)
    table.delete(4)
    table.put("u", 1, Decimal("1.5000"), at, None, *rest, left_out="photo meta")
    return table


def _notes(prefix: str) -> Table:
    table = Table(f"{prefix}.notes", ("id",), {"id": NUMBER, "body": TEXT})
    for number in range(6):
        table.put("c", number, f"before {number}")
    table.truncate()
    for number in range(2, 5):
        table.put("c", number, f"after {number} " * 30)
    table.move(3, 30, left_out="body")
    return table


def _records(table: Table, encode: Callable[[Change], tuple[bytes | None, bytes | None]], *, tombstones: bool = True) -> list[Record]:
    """Return the records of a table: those of a key in one partition, a deletion with a tombstone behind it."""
    found = []
    for change in table.changes:
        partition = 0 if change.key is None else zlib.crc32(json.dumps(change.key).encode()) % _PARTITIONS
        key, value = encode(change)
        found.append(Record(partition, key, value, change.headers))
        if change.op == "d" and tombstones:
            found.append(Record(partition, key, None, change.headers))
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, default=lambda one: base64.b64encode(one).decode()).encode()


def as_json(table: Table) -> list[Record]:
    """Return the changes as JSON with Connect's schemas in key and value."""
    source = {
        "type": "struct",
        "fields": [{"type": "string", "field": "connector"}, {"type": "int64", "field": "lsn"}],
        "field": "source",
        "name": "io.debezium.connector.postgresql.Source",
    }
    rows = [{**table.connect_schema("Value"), "field": part} for part in ("before", "after")]
    others = [{"type": "string", "field": "op"}, {"type": "int64", "optional": True, "field": "ts_ms"}]
    schema = {"type": "struct", "name": f"{table.name}.Envelope", "fields": [*rows, source, *others]}

    def encode(change: Change) -> tuple[bytes | None, bytes]:
        event = {"before": None, "after": table.encoded(change), "op": change.op, "ts_ms": 1_700_000_000_000}
        value = {"schema": schema, "payload": {**event, "source": {"connector": "postgresql", "lsn": change.lsn}}}
        key = {"schema": table.connect_schema("Key", of_key=True), "payload": change.key}
        return None if change.key is None else _json(key), _json(value)

    return _records(table, encode)


def as_avro(table: Table, registry: Registry) -> list[Record]:
    """Return the changes as Avro in the frames of a registry, which learns their schemas."""
    source = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": [{"name": "connector", "type": "string"}, {"name": "lsn", "type": ["null", "long"], "default": None}],
    }
    rows = [
        {"name": "before", "type": ["null", table.avro_schema("Value")], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
    ]
    others = [{"name": "source", "type": source}, {"name": "op", "type": "string"}]
    envelope = {"type": "record", "name": "Envelope", "namespace": table.name, "fields": [*rows, *others]}
    key_schema = table.avro_schema("Key", of_key=True)
    key_id, value_id = registry.add(key_schema), registry.add({**envelope, "connect.name": f"{table.name}.Envelope"})

    def encode(change: Change) -> tuple[bytes | None, bytes]:
        event = {"before": None, "after": table.encoded(change), "op": change.op, "source": {"connector": "postgresql", "lsn": change.lsn}}
        return None if change.key is None else avro_frame(key_id, key_schema, change.key), avro_frame(value_id, envelope, event)

    return _records(table, encode)


def flattened(table: Table, *, nulls: bool) -> list[Record]:
    """Return the changes flattened, with Connect's schema, the position and the operation; a deletion is null, or a row that says so."""
    metadata = [("op", "string"), ("source_lsn", "int64"), ("deleted", "string")]
    schema = table.connect_schema("Value")
    schema["fields"] += [{"type": kind, "optional": True, "field": f"{PREFIX}{name}"} for name, kind in metadata]

    def encode(change: Change) -> tuple[bytes | None, bytes | None]:
        key = None if change.key is None else _json(change.key)
        if nulls and change.op == "d":
            return key, None
        row = table.encoded(change) or {**dict.fromkeys(table.columns), **(change.key or {})}
        said = {"op": change.op, "source_lsn": change.lsn, "deleted": str(change.op == "d").lower()}
        return key, _json({"schema": schema, "payload": {**row, **{f"{PREFIX}{name}": one for name, one in said.items()}}})

    return _records(table, encode, tombstones=False)
