"""A disk of which a call fails: every verb ends as if nothing had been, or says so, and is done again (docs/limits.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.failing_files import needed, runs_well
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needed


@pytest.mark.long
def test_a_verb_whose_call_fails_is_as_uninterrupted_or_says_so(tmp_path: Path) -> None:
    """A call of each verb, and of some commands: opened, read, written, flushed, listed, looked at, named, deleted; once, or on and on."""
    runs_well("failing_files_app", tmp_path, seed_of_this_run(), "draw", 29)


@pytest.mark.long
def test_random_histories_on_a_disk_that_fails_hold_what_the_model_says(tmp_path: Path) -> None:
    """Appends, transactions, cleaning, retention and readers; what fails is done again, by the same process or the next."""
    runs_well("failing_files_app", tmp_path, seed_of_this_run(), "lives", 20)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_every_call_of_every_verb_fails_once(tmp_path: Path) -> None:
    """LASTWORD_SECONDS says how long; all of them take hours."""
    runs_well("failing_files_app", tmp_path, seed_of_this_run(), "sweep", int(os.environ.get("LASTWORD_SECONDS", "900")))


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_many_random_histories_on_a_disk_that_fails_hold_what_the_model_says(tmp_path: Path) -> None:
    """LASTWORD_HISTORIES says how many."""
    runs_well("failing_files_app", tmp_path, seed_of_this_run(), "lives", int(os.environ.get("LASTWORD_HISTORIES", "1000")))
