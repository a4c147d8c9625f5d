"""A disk of which a call fails under Spark: appends, streams, the table and the tail go on as if nothing had been (docs/limits.md)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.failing_files import needed, runs_well
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.jvm, needed]


def test_what_spark_does_on_a_disk_that_fails_is_done_once(tmp_path: Path) -> None:
    """Calls fail in the driver, in its workers and in the JVM; after an error the same is done again, where nothing fails."""
    runs_well("failing_spark_app", tmp_path, seed_of_this_run(), 14)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_much_that_spark_does_on_a_disk_that_fails_is_done_once(tmp_path: Path) -> None:
    """LASTWORD_TRIALS says how often."""
    runs_well("failing_spark_app", tmp_path, seed_of_this_run(), int(os.environ.get("LASTWORD_TRIALS", "600")))
