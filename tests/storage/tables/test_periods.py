"""When the rows of a history hold, drawn: `a10` is a record of a at 10, `a-10` a tombstone of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lastword.compaction.rows.input_columns import TIMESTAMP
from lastword.storage.tables.periods import periods_of


def _periods(picture: str, floors: dict[str, int], open_keys: str) -> str:
    words = picture.split()
    names, times = [word[0] for word in words], [int(word[1:].lstrip("-")) for word in words]
    tombstones = np.array(["-" in word for word in words], np.bool_)
    begin, end = periods_of(
        np.array([ord(name) for name in names], np.int64),
        pa.array(times, pa.int64()).cast(TIMESTAMP),
        tombstones=tombstones,
        floors=pa.array([floors.get(name) for name in names], pa.int64()).cast(TIMESTAMP),
        open_rows=pa.array([name in open_keys for name in names], pa.bool_()),
    )
    pairs = zip(begin.cast(pa.int64()).to_pylist(), end.cast(pa.int64()).to_pylist(), strict=True)
    shown = [f"{low}–{'' if high is None else high}" for low, high in pairs]
    return " ".join(one if not tombstone else "·" for one, tombstone in zip(shown, tombstones, strict=True))


@pytest.mark.parametrize(
    ("picture", "floors", "open_keys", "expected"),
    [
        ("a10 a20 a30", {}, "", "10–20 20–30 30–"),
        ("a10 a9 a11", {}, "", "10–10 10–11 11–"),
        ("a10 b5 a20 b7", {}, "", "10–20 5–7 20– 7–"),
        ("a10 a-20 a30", {}, "", "10–20 · 30–"),
        ("a10 a-20 a15", {}, "", "10–20 · 20–"),
        ("a10 a-5 a7", {}, "", "10–10 · 10–"),
        ("a-50 a10", {}, "", "· 10–"),
        ("a-50 a10", {"a": 40}, "", "· 40–"),
        ("a-50 a10", {"a": 40}, "a", "· 50–"),
        ("a10 a-20 a-50 a30", {}, "", "10–20 · · 30–"),
        ("a10 a-20 b7 a-50 a30", {}, "", "10–20 · 7– · 30–"),
        ("a30 a10", {"a": 20}, "a", "30–30 30–"),
        ("a10 a30", {"a": 20}, "a", "20–30 30–"),
        ("a-5", {"a": 20}, "a", "·"),
        ("", {}, "", ""),
    ],
)
def test_when_rows_hold(picture: str, floors: dict[str, int], open_keys: str, expected: str) -> None:
    """From the timestamp, but not from before the row before; a tombstone counts that ends a row."""
    assert _periods(picture, floors, open_keys) == expected
