"""The helper of the golden files: what differs from run to run has a name, everything else must be the same."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import lastword
from tests.golden import Golden, frozen_clock

if TYPE_CHECKING:
    from pathlib import Path


def test_a_difference_is_a_unified_diff_that_says_how_it_is_accepted(tmp_path: Path) -> None:
    """A file that is not there is one that says nothing."""
    golden = Golden(tmp_path, rewrite=False, goldens=tmp_path)
    with pytest.raises(AssertionError, match=r"\+roll"):
        golden.check("kinds.txt", "roll")
    Golden(tmp_path, rewrite=True, goldens=tmp_path).check("kinds.txt", "clean\nroll")
    golden.check("kinds.txt", "clean\nroll")
    with pytest.raises(AssertionError, match=r"(?s)-clean\n \+?.*roll.*pytest --rewrite-goldens"):
        golden.check("kinds.txt", "roll")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"size_bytes": 7, "count": 7}, {"size_bytes": "<size>", "count": 7}),
        ({"size_bytes": 0, "bytes_after": None}, {"size_bytes": 0, "bytes_after": None}),
        ({"removed_bytes": {"superseded": 9}}, {"removed_bytes": {"superseded": "<size>"}}),
        ({"index_ms": 0, "now_ms": 1_700_000_000_000}, {"index_ms": "<duration>", "now_ms": 1_700_000_000_000}),
        ({"id": "0123456789abcdef" * 2, "short": "0123456789abcdef"}, {"id": "<uuid>", "short": "0123456789abcdef"}),
        ({"flag": True, "bytes": False}, {"flag": True, "bytes": False}),
        ([f"lastword-{lastword.__version__}", f"1{lastword.__version__}"], ["lastword-<version>", f"1{lastword.__version__}"]),
    ],
)
def test_what_has_a_name(tmp_path: Path, given: Any, kept: Any) -> None:
    """Sizes, durations, ids, the version; a value that says something stays."""
    Golden(tmp_path, rewrite=True, goldens=tmp_path).check("made.json", given)
    assert json.loads((tmp_path / "made.json").read_text()) == kept


def test_times_by_the_wall_clock_have_a_name_and_a_frozen_clock_has_none(tmp_path: Path) -> None:
    """Delta writes its own times into commits."""
    now_ms = time.time_ns() // 1_000_000
    Golden(tmp_path, rewrite=True, goldens=tmp_path).check("made.json", {"at": now_ms, "in": str(tmp_path), "text": f"until {now_ms}"})
    assert json.loads((tmp_path / "made.json").read_text()) == {"at": "<time>", "in": "<folder>", "text": "until <time>"}
    with frozen_clock(5) as clock:
        assert lastword.LogDir(tmp_path).clock() == 5
        clock.now_ms = 6
        assert lastword.LogDir(tmp_path).clock() == 6
