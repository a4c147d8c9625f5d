"""Starts a Spark session, or says why Spark does not start. Importing this imports pyspark, which takes a second."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lastword.compaction.errors import UserError, read_root_cause, said_by_spark
from lastword.compaction.secrets import HIDDEN, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_JVM_ENDED: Final = "JAVA_GATEWAY_EXITED"


def _active_context() -> SparkContext | None:
    """Return the SparkContext of this process; None if there is none, or if it was stopped."""
    return SparkContext._active_spark_context  # noqa: SLF001  no public name has it


def running_session() -> SparkSession | None:
    """Return the session that this process has, whichever thread started it; None if there is none, or if it was stopped."""
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession  # noqa: SLF001  another thread may have started it
    return session if _active_context() is not None else None


def _describe_missing_jars(session: SparkSession, classes: Sequence[str], jars: Sequence[Path]) -> str:
    """Return an error message if the JVM of a session cannot load some of these classes, which these jars hold; else an empty text."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001  no public name has it
    missing = ", ".join(name for name in classes if not jvm.org.apache.spark.util.Utils.classIsLoadable(name))
    return missing and (
        f"the JVM of this process has no {missing}. If it was started before, start a new process; with spark-submit give it "
        f"--jars {','.join(map(str, jars))}"
    )


def start_session(app_name: str, master: str, settings: Mapping[str, str], classes: Sequence[str], jars: Sequence[Path]) -> SparkSession:
    """Start a session whose JVM has these classes of these jars. Raises `UserError` with the reason if Spark does not.

    Its context is stopped then, if there was none before. A JVM keeps the jars of its launch: if this process has had a JVM before, of
    a stopped session or of spark-submit, they may be missing.
    """
    had_context = _active_context() is not None
    try:
        builder = SparkSession.builder.appName(app_name).master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.conf.get("spark.sql.session.timeZone")  # settings of SQL are looked at by the first who asks
    except Py4JJavaError as error:
        reason = read_root_cause(error.java_exception)
    except PySparkException as error:
        reason = said_by_spark(error)
        if error.getCondition() == _JVM_ENDED:
            reason += " What the JVM wrote to standard error says why; JAVA_HOME and the memory of the driver are the usual reasons."
    except (Py4JError, OSError) as error:
        reason = f"{said_by_spark(error)} (SPARK_HOME and JAVA_HOME say which Spark and which Java)"
    else:
        reason = _describe_missing_jars(session, classes, jars)
        if not reason:
            return session
    context = _active_context()
    if context is not None and not had_context:
        with suppress(Py4JError):
            context.stop()
    message = f"Spark does not start: {_hide_secrets(reason, settings)}"
    raise UserError(message)


def _hide_secrets(text: str, settings: Mapping[str, str]) -> str:
    """Return a text in which the values of secret settings are replaced."""
    for key, value in settings.items():
        if is_secret(key) and value:
            text = text.replace(value, HIDDEN)
    return text
