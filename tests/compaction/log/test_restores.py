"""Which table versions the newest one stands on, drawn."""

from __future__ import annotations

import pytest

from lastword.compaction.log.restores import Restore, is_contained, is_contained_after


def _restores(drawn: str) -> list[Restore]:
    """Return those drawn as `version→restored version`."""
    return [Restore(version=int(at), restored_version=int(to)) for at, to in (one.split("→") for one in drawn.split())]


@pytest.mark.parametrize(
    ("drawn", "committed", "decided_after"),
    [
        ("", "0 1 2 3 4 5 6 7 8 9", "0 1 2 3 4 5 6 7 8 9"),
        ("6→2", "0 1 2 6 7 8 9", "0 1 6 7 8 9"),
        ("4→2 8→6", "0 1 2 4 5 6 8 9", "0 1 4 5 8 9"),
        ("5→1 6→4", "0 1 2 3 4 6 7 8 9", "0 1 2 3 6 7 8 9"),
        ("6→4 5→1", "0 1 2 3 4 6 7 8 9", "0 1 2 3 6 7 8 9"),
        ("5→1 6→4 8→5", "0 1 5 8 9", "0 8 9"),
        ("5→1 9→7", "0 1 5 6 7 9", "0 5 6 9"),
        ("3→1 5→4 7→2", "0 1 2 7 8 9", "0 1 7 8 9"),
        ("6→2 6→2", "0 1 2 6 7 8 9", "0 1 6 7 8 9"),
    ],
    ids=["none", "one", "two", "undone", "in whichever order", "done again", "one of a longer log", "an older one too", "known twice"],
)
def test_the_newest_version_stands_on_what_no_restore_took_back(drawn: str, committed: str, decided_after: str) -> None:
    """What was decided after the version that a RESTORE went back to is void, too."""
    restores = _restores(drawn)
    assert [at for at in range(10) if is_contained(restores, at)] == [int(at) for at in committed.split()]
    assert [at for at in range(10) if is_contained_after(restores, at)] == [int(at) for at in decided_after.split()]


def test_an_old_version_stands_on_what_it_stood_on_then() -> None:
    """At version 5 nobody had taken anything back; and nothing stands on what came later."""
    restores = _restores("6→2 8→7")
    assert [at for at in range(10) if is_contained(restores, at, as_of_version=5)] == [0, 1, 2, 3, 4, 5]
    assert [at for at in range(10) if is_contained(restores, at, as_of_version=6)] == [0, 1, 2, 6]
