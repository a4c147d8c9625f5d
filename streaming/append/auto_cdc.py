"""AUTO CDC: a stream of changes kept as the newest row of each key, with the arguments that Spark's `create_auto_cdc_flow` has.

```
 changes ──► lastword.streaming.append.change_rows ──► the topic ──► with stored_as_scd_type: a Delta table, by materialize
                                                                    1: the newest row of each key     2: every row, and when it held
```

Open-source Spark has AUTO CDC for pipelines, of SCD type 1, and refuses Delta tables as targets
(AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE, seen with Spark 4.2.0 and Delta 4.4.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, get_args

from pyspark.errors import AnalysisException
from pyspark.sql.column import Column

from lastword.compaction.errors import UserError, said_by_spark
from lastword.streaming.append.change_rows import ChangeColumns, SequenceAs
from lastword.streaming.append.query import stop_append_query

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword.streaming.append.change_rows import Expression

#: Names of columns, or columns of Spark.
Names: TypeAlias = "Sequence[str | Column]"
_SCD_TYPES: Final = {1: 1, "1": 1, 2: 2, "2": 2}


@dataclass(slots=True)
class AutoCdcFlow:
    """A running AUTO CDC flow: the query that appends, and, of a flow with a table, the one that keeps the table.

    With the trigger `availableNow` the table is brought up to date by `await_termination`, after the last append.
    """

    append_query: StreamingQuery
    table_query: StreamingQuery | None = None
    #: Starts the query of the table, if it waits for the appends.
    start_table: Callable[[], StreamingQuery] | None = None

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until the flow has ended, each of its queries for up to `timeout` seconds, and tell whether it has.

        Raises what a query died of.
        """
        if not _end(self.append_query, timeout):
            return False
        if self.table_query is None and self.start_table is not None:
            self.table_query = self.start_table()
        return self.table_query is None or _end(self.table_query, timeout)

    def stop(self) -> None:
        """Stop the flow between two micro-batches; it goes on from there when it is started again."""
        stop_append_query(self.append_query)
        if self.table_query is not None:
            self.table_query.stop()


def _end(query: StreamingQuery, timeout: int | None) -> bool:
    if timeout is None:
        query.awaitTermination()
        return True
    return bool(query.awaitTermination(timeout))


def scd_type_of(given: object) -> int | None:
    """Return an SCD type as a number; raise `UserError` for another one than 1 and 2."""
    if given is None:
        return None
    if not isinstance(given, (int, str)) or given not in _SCD_TYPES:
        message = f"stored_as_scd_type = {given!r}: allowed are 1 (the newest row of each key) and 2 (every row, and when it held)"
        raise UserError(message)
    return _SCD_TYPES[given]


def flow_columns(
    source: DataFrame,
    keys: Names,
    sequence_by: Any,
    *,
    apply_as_deletes: Expression | None,
    apply_as_truncates: Expression | None,
    ignore_null_updates: bool,
    column_list: Names | None,
    except_column_list: Names | None,
    sequence_as: str,
    subject: str,
) -> ChangeColumns:
    """Return what the arguments of an AUTO CDC flow say of the columns of its source; raise `UserError` for those that are not allowed."""
    named = {"keys": keys, "column_list": column_list, "except_column_list": except_column_list}
    names = {argument: _names(source, given, argument, subject) for argument, given in named.items() if given is not None}
    if not names["keys"]:
        message = f"{subject}: keys is empty; name at least one column"
        raise UserError(message)
    if column_list is not None and except_column_list is not None:
        message = f"{subject}: column_list and except_column_list exclude each other; give one of them"
        raise UserError(message)
    if not isinstance(sequence_by, (str, Column)):
        message = f"{subject}: sequence_by = {sequence_by!r}: allowed is a SQL expression or a column"
        raise UserError(message)
    if sequence_as not in get_args(SequenceAs):
        message = f"{subject}: sequence_as = {sequence_as!r}: allowed are number, time and text, what a text is compared as"
        raise UserError(message)
    columns = names.get("column_list")
    if columns is None:
        left_out = set(names.get("except_column_list", ()))
        columns = [name for name in source.columns if name not in left_out]
    return ChangeColumns(
        keys=names["keys"],
        columns=columns,
        sequence_by=[sequence_by],
        apply_as_deletes=apply_as_deletes,
        apply_as_truncates=apply_as_truncates,
        keeps_nulls=ignore_null_updates,
        sequence_as=cast("SequenceAs", sequence_as),
        sequence_names=("sequence_by", "sequence_as"),
    )


def _names(source: DataFrame, given: Any, argument: str, subject: str) -> list[str]:
    """Return the names of columns of a source, in their order."""
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    names = list[str]()
    for column in listed:
        if isinstance(column, Column):
            try:
                (name,) = source.select(column).columns
            except AnalysisException as error:
                message = f"{subject}: {argument} = {column}: {said_by_spark(error)}"
                raise UserError(message) from error
        else:
            name = column
        if name not in source.columns:
            message = f"{subject}: {argument} names {name!r}; columns are {', '.join(source.columns)}"
            raise UserError(message)
        if name in names:
            message = f"{subject}: {argument} names {name!r} twice; name each column once"
            raise UserError(message)
        names.append(name)
    return names
