"""`make demo-cdc`, in the session of the tests: typed tables of recorded change events equal the rows of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples.change_events import demo

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_recorded_change_events_become_the_tables_of_the_database(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the service and one file; the demo ends with 0 if every value is equal."""
    assert spark is not None
    with pytest.raises(SystemExit) as ended:
        demo.main(tmp_path / "demo")
    assert ended.value.code == 0
    assert capsys.readouterr().out.count("value by value") == 2
