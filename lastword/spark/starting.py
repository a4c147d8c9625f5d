"""The start of a Spark session, and what Spark has against its settings. Importing this imports pyspark, which takes a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lastword.compaction.errors import UserError, said_by_jvm, said_by_spark

if TYPE_CHECKING:
    from collections.abc import Mapping


def running_session() -> SparkSession | None:
    """Return the session that this process has, whichever thread started it; None if there is none, or if it was stopped."""
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001  another thread may have started it
    return session if session is not None and session._sc._jsc is not None else None  # noqa: SLF001  one that was stopped has none


def start_session(app_name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start a session; raise `UserError` with what Spark, or the JVM, has against its settings."""
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        reason = said_by_jvm(error.java_exception)
    except PySparkException as error:  # the JVM ended before it answered
        reason = f"{said_by_spark(error)} What it wrote to standard error says why."
    message = f"Spark does not start with these settings: {reason}"
    raise UserError(message)
