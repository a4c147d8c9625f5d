"""The first pass of a cleaning: newest offsets and superseded records are the same however many keys are folded at a time."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from lastword.storage.cleaning.key_hashes import KeyHashCache
from lastword.storage.cleaning.offset_map import KEY_COLUMNS, PLAIN_COLUMNS, OffsetMap, Superseded


def _rows(first_offset: int, *keys: bytes | None) -> pa.Table:
    """Return data records with some keys, at offsets that follow one another."""
    offsets = list(range(first_offset, first_offset + len(keys)))
    nulls = [None] * len(keys)
    columns = {"key": pa.array(keys, pa.binary()), "offset": pa.array(offsets, pa.int64()), "control": pa.array(nulls, pa.string())}
    numbers = {name: pa.array(nulls, pa.int64()) for name in ("producer_id", "txn_first_offset")}
    return pa.table({**columns, **numbers}).select(list(KEY_COLUMNS))


@pytest.mark.parametrize("min_batch_keys", [1, 3, 4, 2**20])
def test_the_offset_map_is_the_same_however_many_keys_are_folded_at_a_time(min_batch_keys: int) -> None:
    """Two files of two keys each reach a limit of 3 or 4 keys, and not one of 2**20."""
    offset_map = OffsetMap(10, 20, frozenset(), min_batch_keys)
    offset_map.add("first", _rows(10, b"a", None, b"b"))
    offset_map.add("second", _rows(13, b"a", b"c"))
    offset_map.add("third", _rows(19, b"b", b"a"))
    assert offset_map.newest().tolist() == [13, 14, 19]
    assert sorted(offset_map.keys["key"].to_list()) == [b"a", b"b", b"c"]
    assert offset_map.keyless == {"first": 1}


@pytest.mark.parametrize(("min_batch_keys", "waiting"), [(1, 0), (4, 0), (5, 4), (2**20, 4)])
def test_keys_wait_until_there_are_so_many(min_batch_keys: int, waiting: int) -> None:
    """The fourth key is folded with a limit of 4, and waits with one of 5."""
    offset_map = OffsetMap(0, 10, frozenset(), min_batch_keys)
    offset_map.add("first", _rows(0, b"a", b"b", b"c", b"d"))
    assert offset_map._held_rows == waiting  # noqa: SLF001  the result does not tell


@pytest.mark.parametrize("min_batch_keys", [1, 3, 2**20])
def test_superseded_records_are_the_same_however_many_keys_are_looked_up_at_a_time(min_batch_keys: int) -> None:
    """Only records below the end of the clean section whose key is in the map."""
    offset_map = OffsetMap(10, 20, frozenset(), min_batch_keys)
    offset_map.add("dirty", _rows(10, b"a", b"c"))
    superseded = Superseded(offset_map.keys, 10, frozenset(), min_batch_keys, 2**20, KeyHashCache())
    for first_offset in (0, 3, 6):
        superseded.add(f"file {first_offset}", _rows(first_offset, b"a", b"b", b"c"))
    superseded.add("file 9", _rows(9, b"c", b"a"))
    assert superseded.offsets().tolist() == [0, 2, 3, 5, 6, 8, 9]


@pytest.mark.parametrize("min_batch_keys", [1, 3, 2**20])
@pytest.mark.parametrize("columns", [KEY_COLUMNS, PLAIN_COLUMNS])
def test_a_file_that_holds_none_of_the_keys_is_known_from_then_on(min_batch_keys: int, columns: tuple[str, ...]) -> None:
    """Hashes are kept of the files without a superseded record: they stay as they are.

    ```
     files    0: a b c      3: d e null      6: f      7: c      8: - (no row)      the dirty range begins at 7
     keys     b             nothing          nothing   at 7      nothing
    ```
    """
    cache = KeyHashCache()

    def superseded(*keys: bytes) -> Superseded:
        return Superseded(pl.DataFrame({"key": keys}, schema={"key": pl.Binary}), 7, frozenset(), min_batch_keys, 2**20, cache)

    files = {"0": _rows(0, b"a", b"b", b"c"), "3": _rows(3, b"d", b"e", None), "6": _rows(6, b"f"), "7": _rows(7, b"c"), "8": _rows(8)}
    first = superseded(b"b", b"c2")
    for place, rows in files.items():
        assert not first.lacks(place)
        first.add(place, rows.select(columns))
    assert first.offsets().tolist() == [1]
    known = superseded(b"b", b"e", b"c")
    assert {place: known.lacks(place) for place in files} == {"0": False, "3": False, "6": True, "7": False, "8": True}


def test_rows_of_aborted_transactions_do_not_count_and_are_hashed() -> None:
    """Offset 1 is of a transaction that was aborted: its key is superseded when that is not known any more, so the file is read then."""
    rows = _rows(0, b"a", b"b").set_column(3, "producer_id", pa.array([None, 7], pa.int64()))
    rows = rows.set_column(4, "txn_first_offset", pa.array([None, 1], pa.int64()))
    cache, keys = KeyHashCache(), pl.DataFrame({"key": [b"b"]})
    superseded = Superseded(keys, 2, frozenset({(7, 1)}), 1, 2**20, cache)
    superseded.add("file", rows)
    assert (superseded.offsets().tolist(), superseded.lacks("file")) == ([], False)
    again = Superseded(keys, 2, frozenset(), 1, 2**20, cache)
    again.add("file", rows)
    assert again.offsets().tolist() == [1]
