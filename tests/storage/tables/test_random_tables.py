"""Random lives of tables: after each step, whatever failed, was killed or came in between, a table is what a model of it says."""

from __future__ import annotations

import os
import random
import traceback
from typing import TYPE_CHECKING

import pytest

from tests.randomness import examples
from tests.storage.tables.table_lives import TableLife
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.long
def test_a_table_is_what_the_model_says_after_each_step(tmp_path: Path) -> None:
    """The newest row of each key, and every row with when it held."""
    first = seed_of_this_run()
    for number in range(examples(60)):
        live(first + number, tmp_path / str(number))


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_many_tables_are_what_the_model_says_after_each_step(tmp_path: Path) -> None:
    """The same, many times. LASTWORD_HISTORIES says how many."""
    first = seed_of_this_run()
    for number in range(int(os.environ.get("LASTWORD_HISTORIES", "10000"))):
        live(first + 1000 + number, tmp_path / str(number))


def live(seed: int, folder: Path) -> None:
    """Live one life; a failure says the seed and shows what happened."""
    chance = random.Random(seed)
    life = TableLife(chance, folder, history=chance.random() < 0.5)
    try:
        life.live(chance.randint(3, 30))
    except Exception:  # noqa: BLE001  every failure is shown with its picture
        pytest.fail(f"seed {seed}\n{life.picture()}\n{traceback.format_exc()}")
