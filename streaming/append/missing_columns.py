"""Columns that a source's expressions name and that its files do not have yet: null until they come.

The files of a table in which nothing was deleted yet have no `op`, and `tombstone = "op = 'd'"` is right all the same. Spark refuses an
expression over a column that is not there, so that such a column is added to the rows, with a type that every value fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

_LOG = logger("files")


def missing_columns(spark: SparkSession, expressions: Sequence[str], types: Mapping[str, str], *, whole: str = "boolean") -> dict[str, str]:
    """Return the columns that expressions name and `types` do not have, each with a SQL type: string, or `whole` for a whole expression.

    An expression that is wrong in another way is left to those who use it: their error says what is wrong with it.
    """
    missing: dict[str, str] = {}
    for expression in expressions:
        while True:
            name = _unresolved_column(spark, expression, {**types, **missing})
            if name is None or name in missing:
                break
            missing[name] = whole if expression.strip(" `()") == name else "string"
    return missing


def report_missing(missing: Iterable[str], known: Collection[str], *, source: str, topic: str) -> None:
    """Say once, when a source is opened, which columns are not in its files yet."""
    names = sorted(set(missing))
    if names:
        _LOG.warning(
            "columns are not in the files yet; they are null until they come",
            source=source,
            topic=topic,
            columns=", ".join(names),
            there_are=", ".join(known),
        )


def _unresolved_column(spark: SparkSession, expression: str, types: Mapping[str, str]) -> str | None:
    """Return the first column of an expression that Spark does not find among some columns; None if it finds them all."""
    schema = T.StructType([T.StructField(name, T.DataType.fromDDL(kind)) for name, kind in types.items()])
    try:
        _ = spark.createDataFrame([], schema).select(F.expr(expression)).schema
    except ParseException:
        return None
    except AnalysisException as error:
        if not (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
            return None
        parts = str((error.getMessageParameters() or {}).get("objectName", "")).strip("`").split("`.`")
        return parts[0].replace("``", "`") if len(parts) == 1 and parts[0] else None
    return None
