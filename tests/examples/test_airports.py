"""The airports changelog: folding the changes gives the newest release, which is what the package itself gives."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

AIRPORTS = Path(__file__).parents[2] / "examples" / "airports"
CHANGES = sorted((AIRPORTS / "changes").glob("*.json.gz"))
NEWEST = AIRPORTS / "newest.json.gz"
NEWEST_RELEASE = "20260905"
MAX_BYTES = 5_000_000

Row = dict[str, Any]


def rows(path: Path) -> list[Row]:
    """Return the lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def fold(state: dict[str, Row], changes: list[Row]) -> dict[str, Row]:
    """Return the state after the changes: the last word on every key."""
    after = dict(state)
    for change in changes:
        icao = change["icao"]
        if change["op"] == "d":
            del after[icao]
        else:
            after[icao] = {name: value for name, value in change.items() if name != "op"}
    return after


@pytest.mark.long
def test_folding_the_changes_gives_the_newest_release_record_for_record() -> None:
    """In plain Python; a delete of a key that is not there would raise."""
    state: dict[str, Row] = {}
    for path in CHANGES:
        state = fold(state, rows(path))

    newest = rows(NEWEST)
    assert len(newest) == 28_298
    assert newest == [state[icao] for icao in sorted(state)]


@pytest.mark.skipif(importlib.util.find_spec("airportsdata") is None, reason="the package airportsdata is not installed")
def test_the_newest_release_is_what_the_installed_package_gives() -> None:
    """Values and types: floats are floats."""
    airportsdata = pytest.importorskip("airportsdata")
    if importlib.metadata.version("airportsdata") != NEWEST_RELEASE:
        pytest.skip(f"another release of airportsdata is installed than {NEWEST_RELEASE}")

    newest = rows(NEWEST)
    assert airportsdata.load("ICAO") == {row["icao"]: row for row in newest}
    assert {type(row[name]) for row in newest for name in ("elevation", "lat", "lon")} == {float}


@pytest.mark.long
def test_every_release_after_the_first_inserts_updates_and_deletes_as_the_readme_counts() -> None:
    """Each step is a row of the README's table."""
    readme = (AIRPORTS / "README.md").read_text(encoding="utf-8")
    state: dict[str, Row] = {}
    for number, path in enumerate(CHANGES):
        changes = rows(path)
        deletes = sum(change["op"] == "d" for change in changes)
        inserts = sum(change["icao"] not in state for change in changes)
        updates = len(changes) - inserts - deletes
        state = fold(state, changes)

        release = path.name.removeprefix(f"{number:02}-").removesuffix(".json.gz")
        assert f"| {number:02} | {release} | {inserts:,} | {updates:,} | {deletes:,} | {len(state):,} |" in readme
        assert (deletes > 0, updates > 0) == (number > 0, number > 0)

    assert len(CHANGES) == 10
    assert CHANGES[-1].name == f"09-{NEWEST_RELEASE}.json.gz"


@pytest.mark.long
@pytest.mark.parametrize("path", [*CHANGES, NEWEST], ids=lambda path: path.name)
def test_the_lines_of_a_file_are_sorted_and_each_key_is_there_once(path: Path) -> None:
    """The order is that of the ICAO codes."""
    icaos = [row["icao"] for row in rows(path)]

    assert icaos == sorted(set(icaos))


@pytest.mark.long
def test_no_update_repeats_what_is_there_already() -> None:
    """Every line is a change."""
    state: dict[str, Row] = {}
    for path in CHANGES:
        changes = rows(path)
        after = fold(state, changes)
        assert all(state.get(change["icao"]) != after.get(change["icao"]) for change in changes)
        state = after


def test_all_files_together_are_at_most_5_mb() -> None:
    """Small enough to live in the repository; no file carries a name or a time, so that a rebuild gives the same bytes."""
    assert sum(path.stat().st_size for path in [*CHANGES, NEWEST]) <= MAX_BYTES
    assert {path.read_bytes()[3:8] for path in [*CHANGES, NEWEST]} == {b"\0\0\0\0\0"}
