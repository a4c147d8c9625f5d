"""Rows of a table: which keys their columns say, and which stand in `_key`; no two keys of the log are one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.compaction.errors import UserError
from lastword.storage.tables.table_options import TableOptions
from lastword.storage.tables.table_rows import TableLayout
from tests.storage.tables.kept import Kept, rows_of
from tests.storage.tables.readers import READERS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("ddl", "key", "value", "is_plain"),
    [
        ("id bigint", '{"id":1}', {"id": 1}, True),
        ("id bigint", '{"id":-9223372036854775808}', {"id": -(2**63)}, True),
        ("id bigint", '{"id": 1}', {"id": 1}, False),
        ("id bigint", ' {"id":1}', {"id": 1}, False),
        ("id bigint", '{"id":1.0}', {"id": 1}, False),
        ("id bigint", '{"id":"1"}', {"id": 1}, False),
        ("id bigint", '{"id":01}', {"id": 1}, False),
        ("id bigint", '{"id":1,"more":2}', {"id": 1}, False),
        ("id bigint", '{"id":1,"id":1}', {"id": 1}, False),
        ("id bigint", '{"id":null}', {"id": None}, False),
        ("id bigint", "{}", {}, False),
        ("id bigint", "rubbish", {"id": 1}, False),
        ("id bigint", "", {"id": 1}, False),
        ("id bigint", b"\xff\xfe", {"id": 1}, False),
        ("id bigint", '{"id":1}', {"id": 2}, False),
        ("id bigint", '{"id":1}', {}, False),
        ("id tinyint", '{"id":300}', {"id": 1}, False),
        ("id string", '{"id":"a"}', {"id": "a"}, True),
        ("id string", '{"id":""}', {"id": ""}, True),
        ("id string", '{"id":"é\U0001f600"}', {"id": "é\U0001f600"}, True),
        ("id string", '{"id":"\\u00e9"}', {"id": "é"}, False),
        ("id string", '{"id":"e\u0301"}', {"id": "é"}, False),
        ("id string", '{"id":"a\\"b"}', {"id": 'a"b'}, False),
        ("id string", '{"id":"a\\\\b"}', {"id": "a\\b"}, False),
        ("id string", '{"id":"a\\nb"}', {"id": "a\nb"}, False),
        ("id string", '{"id":"\x7f"}', {"id": "\x7f"}, False),
        ("id string", '{"id":"\u2028"}', {"id": "\u2028"}, True),
        ("id string, b boolean", '{"b":true,"id":"x"}', {"id": "x", "b": True}, True),
        ("id string, b boolean", '{"id":"x","b":true}', {"id": "x", "b": True}, False),
        ("b boolean, a int", '{"a":1,"b":false}', {"a": 1, "b": False}, True),
        ("b boolean, a int", '{"a":1}', {"a": 1}, False),
        ("id decimal(10,2)", '{"id":"1.5"}', {"id": "1.5"}, True),
        ("id decimal(10,2)", '{"id":"1.50"}', {"id": "1.5"}, False),
        ("id decimal(10,2)", '{"id":1.5}', {"id": "1.5"}, False),
        ("id decimal(10,2)", '{"id":"100"}', {"id": "100"}, True),
        ("id decimal(10,0)", '{"id":"100"}', {"id": "100"}, True),
        ("id decimal(10,2)", '{"id":"0"}', {"id": "0"}, True),
        ("id decimal(10,2)", '{"id":"-0.1"}', {"id": "-0.10"}, True),
        ("id decimal(10,2)", '{"id":"1e2"}', {"id": "100"}, False),
        ("id decimal(20,10)", '{"id":"0.0000000001"}', {"id": "0.0000000001"}, False),
        ("id decimal(20,10)", '{"id":"1E-10"}', {"id": "0.0000000001"}, False),
        ("id decimal(20,10)", '{"id":"0"}', {"id": "0"}, False),
        ("id decimal(20,10)", '{"id":"0.000001"}', {"id": "0.000001"}, True),
        ("id date", '{"id":"2024-02-29"}', {"id": "2024-02-29"}, True),
        ("id date", '{"id":"0001-01-01"}', {"id": "0001-01-01"}, True),
        ("id double", '{"id":1.5}', {"id": 1.5}, False),
        ("id timestamp", '{"id":"2024-02-29T10:00:00.000000Z"}', {"id": "2024-02-29T10:00:00Z"}, False),
        ("id uuid", '{"id":"6f0d0c3e-8a2b-4a39-9d1a-0d7b8f3f6a11"}', {"id": "6f0d0c3e-8a2b-4a39-9d1a-0d7b8f3f6a11"}, True),
        ("id binary", '{"id":"AQ=="}', {"id": "AQ=="}, False),
    ],
)
def test_a_key_stands_in_its_columns_if_they_say_all_of_it(
    tmp_path: Path,
    ddl: str,
    key: str | bytes,
    value: dict[str, Any],
    *,
    is_plain: bool,
) -> None:
    """Else in `_key`; a later record of it replaces the row, and a tombstone deletes it, by an engine that reads the files anew."""
    kept = Kept(tmp_path, key_ddl=ddl, value_ddl=f"{ddl}, n int")
    raw = key.encode() if isinstance(key, str) else key
    kept.append((raw, {**value, "n": 1}))
    kept.table.step()
    assert kept.rows("_key n") == [(None if is_plain else raw, 1)]
    kept.append((raw, {**value, "n": 2}))
    kept.engine().step()
    assert kept.rows("_key n") == [(None if is_plain else raw, 2)]
    kept.append((raw, None))
    kept.engine().step()
    assert kept.rows("_key n") == []


@pytest.mark.parametrize(
    ("ddl", "key", "shown", "is_plain"),
    [
        ("id string", b"plum", "plum", True),
        ("id string", b"", "", True),
        ("id string", b'a"b\n', 'a"b\n', True),
        ("id bigint", b"7", 7, True),
        ("id bigint", b" 7", 7, False),
        ("id boolean", b"true", True, True),
        ("id binary", b"\x00\xff", b"\x00\xff", True),
        ("id binary", b"", b"", True),
        ("id decimal(10,2)", b"1.5", "1.50", True),
        ("id decimal(10,2)", b"1.50", "1.50", False),
        ("id date", b"2024-02-29", "2024-02-29", True),
    ],
)
def test_a_key_that_is_one_value(tmp_path: Path, ddl: str, key: bytes, shown: object, *, is_plain: bool) -> None:
    """The text, the JSON or the bytes of the one column of the key, which the value does not have."""
    kept = Kept(tmp_path, key_ddl=ddl, value_ddl="n int", is_key_text=True)
    for n in (1, 2):
        kept.append((key, {"n": n}))
        kept.engine().step()
        ((found, own, number),) = kept.rows("id _key n")
        assert (found if isinstance(shown, (bytes, int)) else str(found), own, number) == (shown, None if is_plain else key, n)
    kept.append((key, None))
    kept.engine().step()
    assert kept.rows() == []


@pytest.mark.parametrize("index_bytes", [0, 2**20])
@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_keys_that_look_alike_are_rows_of_their_own(tmp_path: Path, index_bytes: int, chunk_rows: int) -> None:
    """By spaces, by what the row says, by partition: TABLES A7."""
    kept = Kept(tmp_path, partitions=2)
    kept.options = TableOptions(limits=type(kept.options.limits)(index_bytes=index_bytes, chunk_rows=chunk_rows))
    kept.table = kept.engine()
    keys = ['{"id":1}', '{"id": 1}', '{"id":1.0}', "rubbish", '{"id":2}']
    for partition in (0, 1):
        kept.append(*((key, {"id": 1, "n": number}) for number, key in enumerate(keys)), partition=partition)
    kept.table.step()
    assert len(kept.rows()) == 10
    kept.append(('{"id": 1}', None), ('{"id":2}', {"id": 1, "n": 9}), partition=1)
    kept.append(("rubbish", None))
    kept.engine().step()
    assert kept.rows("_partition n") == [(0, 0), (0, 1), (0, 2), (0, 4), (1, 0), (1, 2), (1, 3), (1, 9)]


def test_a_key_whose_row_says_it_only_now_leaves_its_old_row(tmp_path: Path) -> None:
    """A key moves from `_key` to its columns, and back."""
    kept = Kept(tmp_path)
    for n, row_id in enumerate((2, 1, 3, 1)):
        kept.append(('{"id":1}', {"id": row_id, "n": n}))
        kept.engine().step()
        assert kept.rows("id n _key") == [(row_id, n, None if row_id == 1 else b'{"id":1}')]


@pytest.mark.parametrize("history", [False, True])
def test_the_columns_of_a_record_are_there_if_they_are_asked_for(tmp_path: Path, *, history: bool) -> None:
    """With their types, in every reader."""
    kept = Kept(tmp_path, record_columns=("_headers", "_offset", "_timestamp"), history=history)
    kept.fill(2)
    for read in READERS.values():
        table = read(kept.location)
        assert rows_of(table, "id _offset") == [(0, 0), (1, 1)]
        assert table.column("_headers").to_pylist() in ([[], []], [None, None])


def test_a_value_that_does_not_fit_is_an_error_that_names_it_or_null(tmp_path: Path) -> None:
    """The text names the topic, partition, offset, key, column and value; nothing is written."""
    kept = Kept(tmp_path)
    kept.fill(1)
    kept.append((1, {"id": 1, "n": "x"}))
    with pytest.raises(UserError, match=r"topic t, partition 0, offset 1, key \{\"id\":1\}: .*n.*x.*PERMISSIVE"):
        kept.table.step()
    kept.engine(TableOptions(mode="PERMISSIVE")).step()
    assert kept.rows() == [(0, 0), (1, None)]


@pytest.mark.parametrize(
    ("value", "records", "text"),
    [("id int", ("_wish",), "columns of the record '_wish'"), ("id int, _Key int", (), "_Key"), ("id int, _valid_to int", (), "_valid_to")],
)
def test_names_of_our_columns_are_refused(value: str, records: tuple[str, ...], text: str) -> None:
    """In any case of their letters."""
    with pytest.raises(UserError, match=text):
        TableLayout(columns=TableColumns(key=columns_of_ddl("id int"), value=columns_of_ddl(value)), record_columns=records)
