"""The columns of a table as Delta's schema says them: every type that rows have, and the names that a table cannot have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from lastword.compaction.errors import UserError
from lastword.storage.tables.table_schema import check_names, differing_columns, has_local_times, read_schema, schema_text
from tests.storage.tables.kept import Kept
from tests.storage.tables.readers import READERS, read_delta_rs, read_duckdb

_ALL = pa.schema(
    [
        ("a", pa.int8()),
        ("b", pa.int16()),
        ("c", pa.int32()),
        ("d", pa.int64()),
        ("e", pa.float32()),
        ("f", pa.float64()),
        ("g", pa.bool_()),
        ("h", pa.string()),
        ("i", pa.binary()),
        ("j", pa.date32()),
        ("k", pa.decimal128(38, 10)),
        ("l", pa.timestamp("us", "UTC")),
        ("m", pa.timestamp("us")),
        ("n", pa.list_(pa.struct([("é", pa.int64())]))),
        ("o", pa.map_(pa.string(), pa.list_(pa.decimal128(5, 2)))),
        ("p", pa.struct([("q", pa.struct([("r", pa.timestamp("us"))]))])),
    ]
)


def test_a_schema_reads_as_it_was_written() -> None:
    """All types, nested ones too."""
    assert read_schema(schema_text(_ALL)) == _ALL
    assert differing_columns(_ALL, _ALL, _ALL.names) == []


@pytest.mark.parametrize("name", ["variant", "timestamp_nanos", "void", {"type": "interval"}])
def test_a_type_that_is_none_of_ours_is_null(name: object) -> None:
    """A column of a stranger, of which rows of ours have nothing."""
    text = json.dumps({"type": "struct", "fields": [{"name": "x", "type": name, "nullable": True, "metadata": {}}]})
    assert read_schema(text) == pa.schema([("x", pa.null())])


@pytest.mark.parametrize(
    ("data_type", "expected"),
    [
        (pa.timestamp("us"), True),
        (pa.list_(pa.timestamp("us")), True),
        (pa.struct([("a", pa.map_(pa.string(), pa.timestamp("us")))]), True),
        (pa.timestamp("us", "UTC"), False),
        (pa.string(), False),
    ],
)
def test_timestamps_without_a_zone_are_seen(data_type: pa.DataType, *, expected: bool) -> None:
    """At any depth, as readers then need the table feature timestampNtz."""
    assert has_local_times(pa.schema([("a", data_type)])) is expected


def test_a_name_like_a_type_is_no_type() -> None:
    """A column that is called timestamp_ntz does not need the table feature."""
    assert not has_local_times(pa.schema([("timestamp_ntz", pa.string())]))


@pytest.mark.parametrize(
    ("names", "text"), [([""], "column '': a column of a Delta table has a name"), (["a", "A"], "does not tell names apart by case")]
)
def test_a_name_that_no_table_has_is_said_with_its_path(names: list[str], text: str) -> None:
    """Before anything is written; in structs of lists and maps, too."""
    inner = pa.struct([(name, pa.int32()) for name in names])
    with pytest.raises(UserError, match=text):
        check_names(pa.schema(list(inner)), "topic t")
    for data_type in (inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.list_(pa.list_(inner))):
        with pytest.raises(UserError, match=r"column 'x\."):
            check_names(pa.schema([("x", data_type)]), "topic t")


#: Names with characters that Delta takes under column mapping alone, in every place that a name may have.
_MAPPED = (
    "id bigint, `Unit Price` decimal(9,2), `a,b` struct<`c;d`:int, e: string>, l array<struct<`x=y`:int>>, m map<string, struct<`(z)`:int>>"
)


def _mapped_row(number: int) -> dict[str, Any]:
    named = {"a,b": {"c;d": number, "e": "q"}, "l": [{"x=y": number}, None, {}], "m": {"k": {"(z)": number}, "n": None}}
    return {"id": number, "Unit Price": f"{number}.50", **named}


@pytest.mark.parametrize("history", [False, True])
def test_any_name_is_a_column_by_column_mapping(tmp_path: Path, *, history: bool) -> None:
    """From the bootstrap on or from the step in which the column comes, and after a rebuild; Polars says that it does not read it."""
    kept = Kept(tmp_path, value_ddl="id bigint", history=history)
    kept.append((1, {"id": 1}))
    kept.table.step()
    kept.value_ddl = _MAPPED
    kept.append((1, _mapped_row(1)), (2, _mapped_row(2)), (3, {"id": 3}))
    kept.table.step()
    kept.value_ddl = f"{_MAPPED}, `new\tone` int"
    kept.append((2, {**_mapped_row(4), "id": 2, "new\tone": 7}), (3, None))
    kept.table.step()
    for engine in (kept.table, kept.engine()):
        for read in (read_delta_rs, read_duckdb):
            rows = [row for row in read(kept.location).to_pylist() if not history or row["_is_current"]]
            first, second = sorted(rows, key=lambda row: row["id"])
            assert (str(first["Unit Price"]), first["a,b"], first["l"]) == ("1.50", {"c;d": 1, "e": "q"}, [{"x=y": 1}, None, {"x=y": None}])
            assert [value if value is None else value["(z)"] for _, value in _pairs(first["m"])] == [1, None]
            assert (second["a,b"]["c;d"], second["new\tone"], first["new\tone"]) == (4, 7, None)
        with pytest.raises(DeltaProtocolError, match="columnMapping"):
            pl.read_delta(kept.location)
        assert _has_field_ids(kept.location)
        engine.rebuild()
    assert kept.engine().erase(kept.key(2), kept={}).rows == 1
    assert {row["id"] for row in read_delta_rs(kept.location).to_pylist()} == {1}


def _has_field_ids(location: str) -> bool:
    """Tell whether the newest file has the numbers of the columns as field ids, as Delta's protocol asks of mapped columns."""
    table, ids = DeltaTable(location), dict[str, int]()

    def number(fields: list[dict[str, Any]]) -> None:
        for field in fields:
            ids[field["metadata"]["delta.columnMapping.physicalName"]] = field["metadata"]["delta.columnMapping.id"]
            inner = field["type"]
            while isinstance(inner, dict) and inner["type"] in {"array", "map"}:
                inner = inner.get("elementType") or inner["valueType"]
            number(inner["fields"] if isinstance(inner, dict) else [])

    def has_ids(fields: list[pa.Field]) -> bool:
        for field in fields:
            if field.name in ids and (field.metadata or {}).get(b"PARQUET:field_id") != str(ids[field.name]).encode():
                return False
            inner = field.type
            while pa.types.is_list(inner) or pa.types.is_map(inner):
                inner = inner.value_type if pa.types.is_list(inner) else inner.item_type
            if pa.types.is_struct(inner) and not has_ids([inner.field(at) for at in range(inner.num_fields)]):
                return False
        return True

    number(json.loads(table.schema().to_json())["fields"])
    newest = max((Path(uri.removeprefix("file://")) for uri in table.file_uris()), key=lambda path: path.stat().st_mtime_ns)
    return bool(ids) and has_ids(list(pq.ParquetFile(newest).schema_arrow))


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """Return a map as its pairs, whichever way a reader shows it."""
    return list(value.items()) if isinstance(value, dict) else [tuple(pair) for pair in value]


def test_without_column_mapping_underscores_stand_for_the_characters(tmp_path: Path) -> None:
    """So Polars can read the table; two columns that would get one name are refused."""
    kept = Kept(tmp_path, value_ddl=_MAPPED, key_ddl="`k b` bigint", column_mapping=False)
    kept.append((json.dumps({"k b": 1}, separators=(",", ":")), _mapped_row(1)), (json.dumps({"k b": 2}, separators=(",", ":")), {"id": 2}))
    kept.table.step()
    kept.append((json.dumps({"k b": 2}, separators=(",", ":")), {"id": 3}))
    kept.table.step()
    for name, read in READERS.items():
        first, second = sorted(read(kept.location).to_pylist(), key=lambda row: row["id"])
        assert (first["k_b"], str(first["Unit_Price"]), first["l"][0]) == (1, "1.50", {"x_y": 1}), name
        assert (second["k_b"], second["id"]) == (2, 3), name
    kept.value_ddl = "id bigint, `x y` int, x_y int"
    with pytest.raises(UserError, match="'x_y': a Delta table does not tell names apart by case, and there is another column of this name"):
        kept.engine().rebuild()


def test_columns_that_differ_are_named_with_both_types() -> None:
    """Those that one of both lacks do not count."""
    there, wanted = pa.schema([("a", pa.int32()), ("b", pa.int32())]), pa.schema([("a", pa.int64()), ("c", pa.int32())])
    assert differing_columns(there, wanted, wanted.names) == ["a is integer and would be long"]
    nested = differing_columns(pa.schema([("a", pa.list_(pa.int32()))]), pa.schema([("a", pa.list_(pa.string()))]), ["a"])
    assert "array" in nested[0]


def test_names_of_any_script_are_read_by_all(tmp_path: Path) -> None:
    """And names that SQL would quote."""
    kept = Kept(tmp_path, value_ddl="id bigint, `größe` int, `日付` date, `a.b` int, `select` int, `a-b` int, n int")
    row = {"id": 1, "größe": 1, "日付": "2024-02-29", "a.b": 2, "select": 3, "a-b": 4, "n": 5}
    kept.append((1, row))
    kept.table.step()
    for name, read in READERS.items():
        found = read(kept.location).to_pylist()[0]
        assert [found[one] for one in ("größe", "a.b", "select", "a-b", "n")] == [1, 2, 3, 4, 5], name


def test_a_table_says_the_features_that_its_columns_need(tmp_path: Path) -> None:
    """Without timestamps of no zone and without vectors any reader of Delta 1.0 reads it."""
    for number, (ddl, vectors, readers) in enumerate(
        [
            ("id bigint", False, None),
            ("id bigint, t timestamp_ntz", False, ["timestampNtz"]),
            ("id bigint", True, ["deletionVectors"]),
            ("id bigint, t timestamp_ntz", True, ["deletionVectors", "timestampNtz"]),
        ]
    ):
        kept = Kept(tmp_path / str(number), value_ddl=ddl)
        kept.options = type(kept.options)(deletion_vectors=vectors)
        kept.engine().step()
        assert DeltaTable(kept.location).protocol().reader_features == readers
