"""The columns of a table as Delta's schema says them: every type that rows have, and the names that a table cannot have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lastword.compaction.errors import UserError
from lastword.storage.tables.table_schema import check_names, differing_columns, has_local_times, read_schema, schema_text
from tests.storage.tables.kept import Kept
from tests.storage.tables.readers import READERS

if TYPE_CHECKING:
    from pathlib import Path

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
    assert differing_columns(_ALL, _ALL) == []


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
    """Wherever they are: readers need the feature timestampNtz."""
    assert has_local_times(pa.schema([("a", data_type)])) is expected


def test_a_name_like_a_type_is_no_type() -> None:
    """Of a column that is called timestamp_ntz."""
    assert not has_local_times(pa.schema([("timestamp_ntz", pa.string())]))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a b"], "'a b'"),
        (["a,b"], "'a,b'"),
        (["a;b"], "'a;b'"),
        (["a{"], "'a{'"),
        (["a("], "may have none of"),
        (["a\tb"], "may have none of"),
        (["a\nb"], "may have none of"),
        (["a=b"], "'a=b'"),
        ([""], "is not empty"),
        (["a", "A"], "does not tell names apart by case"),
    ],
)
def test_a_name_that_delta_does_not_take_is_said(names: list[str], text: str) -> None:
    """Before anything is written."""
    with pytest.raises(UserError, match=text):
        check_names(names, "topic t")


def test_a_name_inside_of_a_struct_is_said_with_its_path() -> None:
    """In lists and maps of structs, too."""
    inner = pa.struct([("x y", pa.int32())])
    for data_type in (inner, pa.list_(inner), pa.map_(pa.string(), inner), pa.list_(pa.list_(inner))):
        with pytest.raises(UserError, match=r"'a\.x y'"):
            check_names(pa.schema([("a", data_type)]), "topic t")
    check_names(pa.schema([("é.ü", pa.struct([("a", pa.int32())])), ("b-c", pa.int32()), ("`", pa.int32())]), "topic t")


def test_columns_that_differ_are_named_with_both_types() -> None:
    """Those that one of both lacks do not count."""
    there, wanted = pa.schema([("a", pa.int32()), ("b", pa.int32())]), pa.schema([("a", pa.int64()), ("c", pa.int32())])
    assert differing_columns(there, wanted) == ["a is integer and would be long"]
    nested = differing_columns(pa.schema([("a", pa.list_(pa.int32()))]), pa.schema([("a", pa.list_(pa.string()))]))
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
