"""A transaction whose appends may be DataFrames of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from lastword.change_data.frames.row_words import RowArguments
    from lastword.storage.append.inputs import ArrowInput
    from lastword.storage.append.requests import AppendResult


class SparkTransaction(Transaction):
    """A transaction that also takes DataFrames of Spark; made by `SparkTopic.transaction`."""

    def append(self, rows: DataFrame | ArrowInput, **words: Unpack[RowArguments]) -> AppendResult:
        """Append rows as part of the transaction, as `Transaction.append`; a DataFrame and Arrow may take turns."""
        return super().append(rows, **words)
