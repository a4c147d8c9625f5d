"""The start of a Spark session, and what Spark has against its settings. Importing this imports pyspark, which takes a second."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lastword.compaction.errors import UserError, said_by_jvm, said_by_spark
from lastword.compaction.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_JVM_ENDED: Final = "JAVA_GATEWAY_EXITED"


def _context() -> SparkContext | None:
    """Return the context that this process has; one that was stopped is none."""
    return SparkContext._active_spark_context  # noqa: SLF001  no public name has it


def running_session() -> SparkSession | None:
    """Return the session that this process has, whichever thread started it; None if there is none, or if it was stopped."""
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001  another thread may have started it
    return session if _context() is not None else None


def start_session(app_name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Start a session; raise `UserError` with what Spark, or the JVM, has against it. A start that fails leaves no context behind."""
    had_context = _context() is not None
    try:
        builder = SparkSession.builder.appName(app_name).master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.conf.get("spark.sql.session.timeZone")  # settings of SQL are looked at by the first who asks
    except Py4JJavaError as error:
        reason = said_by_jvm(error.java_exception)
    except PySparkException as error:
        reason = said_by_spark(error)
        if error.getCondition() == _JVM_ENDED:
            reason += " What the JVM wrote to standard error says why; JAVA_HOME and the memory of the driver are the usual reasons."
    except (Py4JError, OSError) as error:
        reason = f"{said_by_spark(error)} (SPARK_HOME and JAVA_HOME say which Spark and which Java)"
    else:
        return session
    context = _context()
    if context is not None and not had_context:
        with suppress(Py4JError):
            context.stop()
    for key, value in settings.items():
        if is_secret(key) and value:
            reason = reason.replace(value, HIDDEN)
    message = f"Spark does not start: {reason}"
    raise UserError(message)
