"""The first pass of a cleaning: newest offsets and superseded records are the same however many keys are folded at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lastword.storage.cleaning.offset_map import KEY_COLUMNS, OffsetMap, Superseded


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
    superseded = Superseded(offset_map.keys, 10, frozenset(), min_batch_keys)
    for first_offset in (0, 3, 6):
        superseded.add(_rows(first_offset, b"a", b"b", b"c"))
    superseded.add(_rows(9, b"c", b"a"))
    assert superseded.offsets().tolist() == [0, 2, 3, 5, 6, 8, 9]
