"""The index of keys: a cache of bounded size that finds every row of a key, and no row of another."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pytest

from lastword.storage.tables.key_index import FileKeys, KeyHashes, KeyIndex, hash_keys


def _hashes(*pairs: tuple[int, int]) -> KeyHashes:
    return KeyHashes(first=np.array([one for one, _ in pairs], np.uint64), second=np.array([one for _, one in pairs], np.uint64))


def _found(keys: FileKeys, wanted: KeyHashes) -> list[tuple[int, int]]:
    which, at = keys.find(wanted)
    return sorted(zip(which.tolist(), keys.rows[at].tolist(), strict=True))


def test_all_rows_of_a_key_are_found() -> None:
    """Several in one file, as a history has; each asked for, and asked for twice."""
    keys = FileKeys.of(_hashes((5, 1), (3, 1), (5, 1), (9, 1), (5, 1)))
    assert _found(keys, _hashes((5, 1), (4, 1), (9, 1), (5, 1))) == [(0, 0), (0, 2), (0, 4), (2, 3), (3, 0), (3, 2), (3, 4)]
    assert _found(keys, _hashes()) == []
    assert _found(FileKeys.of(_hashes()), _hashes((5, 1))) == []


def test_two_keys_whose_hashes_are_the_same_in_one_half_are_two() -> None:
    """Keys whose 128-bit hashes agree in the first or second half, also at the ends of the index, stay apart."""
    top = 2**64 - 1
    keys = FileKeys.of(_hashes((5, 1), (5, 2), (6, 1), (0, 0), (top, top), (top, 0)))
    assert _found(keys, _hashes((5, 2))) == [(0, 1)]
    assert _found(keys, _hashes((6, 2))) == []
    assert _found(keys, _hashes((top, 0), (0, 0), (top, top), (0, top))) == [(0, 5), (1, 3), (2, 4)]


def test_offsets_are_those_of_rows_in_the_order_of_the_file() -> None:
    """However their hashes lie."""
    keys = FileKeys.of(_hashes((5, 1), (3, 1), (4, 1)), np.array([10, 11, 12]))
    assert keys.offsets_of(np.array([2, 0, 1])).tolist() == [12, 10, 11]


def test_hashes_tell_keys_apart_and_columns_too() -> None:
    """Equal keys have equal hashes; the same bytes as `_key` have another hash than as a column."""
    rows = pa.table({"a": pa.array([1, 1, None, None, 2]), "b": pa.array(["x", "x", "x", "", None])})
    found = hash_keys(rows, by_key=False)
    assert found.first[0] == found.first[1]
    assert found.second[0] == found.second[1]
    assert len(set(found.first.tolist())) == 4
    other = hash_keys(rows, by_key=True)
    assert not set(found.first.tolist()) & set(other.first.tolist())
    assert (found.first != found.second).all()


_VALUES: Final[dict[pa.DataType, tuple[object, object]]] = {
    pa.decimal128(10, 2): (Decimal("1.50"), Decimal("-0.10")),
    pa.date32(): (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    pa.binary(): (b"", b"\xff"),
    pa.string(): ("", "é"),
    pa.bool_(): (True, False),
    pa.int8(): (0, -1),
    pa.int64(): (0, -1),
}


@pytest.mark.parametrize("data_type", _VALUES)
def test_hashes_are_the_same_for_chunks_and_for_slices(data_type: pa.DataType) -> None:
    """For each type that a key can have."""
    made = pa.array([_VALUES[data_type][0], _VALUES[data_type][1], None, _VALUES[data_type][1]], data_type)
    whole = hash_keys(pa.table({"a": made}), by_key=False).first.tolist()
    parts = hash_keys(pa.table({"a": pa.chunked_array([made[:1], made[1:]])}), by_key=False).first.tolist()
    assert parts == whole
    assert hash_keys(pa.table({"a": made[1:]}), by_key=False).first.tolist() == whole[1:]
    assert whole[1] == whole[3]
    assert len(set(whole)) == 3


def _keys(count: int) -> FileKeys:
    return FileKeys.of(_hashes(*((number, 0) for number in range(count))))


def test_the_index_holds_no_more_than_it_may_and_forgets_what_was_asked_for_longest_ago() -> None:
    """What it does not hold is read again, and so are the keys of a file that is larger than all its room."""
    size, read = _keys(10).size_bytes, list[str]()

    def reading(path: str) -> FileKeys:
        read.append(path)
        return _keys(30 if path == "large" else 10)

    index = KeyIndex(max_bytes=2 * size)
    index.reads_by(reading)
    for path in ("a", "b", "a", "c", "a", "b"):
        assert len(index.of(path).rows) == 10
        assert index.size_bytes <= 2 * size
    assert read == ["a", "b", "c", "b"]
    for _ in range(2):
        assert len(index.of("large").rows) == 30
    assert read[4:] == ["large", "large"]
    index.of("b")
    assert len(read) == 6


def test_files_that_left_the_table_are_let_go_of() -> None:
    """One by one, or all but those that are there; putting one again counts it once."""
    index = KeyIndex(max_bytes=2**20)
    for path in ("a", "b", "c", "a"):
        index.put(path, _keys(10))
    assert index.size_bytes == 3 * _keys(10).size_bytes
    index.drop(["a", "nowhere"])
    index.keep(["b"])
    assert index.size_bytes == _keys(10).size_bytes
    index.drop(["b"])
    assert index.size_bytes == 0


def test_an_index_without_room_holds_nothing() -> None:
    """Every step reads the keys of the table."""
    index = KeyIndex(max_bytes=0)
    index.reads_by(lambda _: _keys(1))
    assert len(index.of("a").rows) == 1
    assert index.size_bytes == 0
