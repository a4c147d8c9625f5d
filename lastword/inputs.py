"""What a topic's `append` takes, as the input of an append: Spark's DataFrames, and what needs no Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lastword.storage.append.inputs import arrow_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lastword.storage.append.append import AppendStats, Rows
    from lastword.storage.append.inputs import ArrowInput


def append_input(rows: DataFrame | ArrowInput, stats: AppendStats, *, topic: str) -> Rows:
    """Return rows as the input of an append; raises `InvalidRecords` for what is neither a DataFrame of Spark nor Arrow."""
    if type(rows).__module__.partition(".")[0] == "pyspark" and hasattr(rows, "sparkSession"):
        dataframes: Any = import_module("lastword.streaming.append.dataframes")
        found: Rows = dataframes.DataFrameRows(rows, stats)
        return found
    return arrow_rows(rows, topic=topic)
