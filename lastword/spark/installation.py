"""Whether Spark is installed: `pip install lastword` leaves it out, as `LogDir("data")` needs none and clusters have their own pyspark."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from lastword.compaction.errors import UserError

#: The module whose absence means that there is no Spark.
PYSPARK: Final = "pyspark"


def require_spark(what: str) -> None:
    """Raise `UserError` if there is no pyspark; `what` needs it, as in `spark_session()`."""
    if find_spec(PYSPARK) is None:
        raise UserError(missing_spark(what))


def missing_spark(what: str) -> str:
    """Return what is wrong where `what` needs pyspark and there is none, and what mends it."""
    return f"{what} needs Spark, which is not installed: pip install 'lastword[spark]'; where a cluster has a pyspark of its own, use that"
