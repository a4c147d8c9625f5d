"""Errors in one line, as an operator reads them."""

from __future__ import annotations

import pytest

from lastword.compaction.errors import (
    CleaningAborted,
    PurgeIncomplete,
    UserError,
    check_text,
    first_line,
    in_one_line,
    read_root_cause,
    said_by_delta,
    said_by_spark,
)

_FROM_THE_JVM = """An error occurred while calling o5831.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/data/part-00000.parquet.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:856)"""


def test_an_error_of_the_jvm_is_told_by_what_went_wrong_and_not_by_what_was_called() -> None:
    """The name of the file is what somebody needs who has to put it back."""
    found = first_line(RuntimeError(_FROM_THE_JVM))

    assert found.startswith("org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT]")
    assert found.endswith("file:/data/part-00000.parquet.")


def test_an_error_that_a_thread_of_the_jvm_waited_for_is_told_by_its_cause() -> None:
    """The first cause is Spark's; those below are Java's."""
    waited = """An error occurred while calling o12.toPython.
: org.apache.spark.SparkException: Exception thrown in awaitResult:\u0020
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/data/part-00000.parquet.
Caused by: java.lang.RuntimeException: not a Parquet file"""
    assert first_line(RuntimeError(waited)).endswith("file:/data/part-00000.parquet.")
    assert "awaitResult" in first_line(RuntimeError("\n".join(waited.splitlines()[:3]))), "without a cause"


def test_any_other_error_is_its_type_and_first_line() -> None:
    """Also one that says nothing."""
    assert first_line(ValueError("no\nyes")) == "ValueError: no"
    assert first_line(ValueError()) == "ValueError: "


def test_a_purge_that_is_not_complete_says_what_remains_and_never_the_key() -> None:
    """For programs as a tuple, for people line by line."""
    error = PurgeIncomplete("fruit", ["partition 0: offset 3 is in the active segment", "dead letters: 2 rows"])
    assert error.remains == ("partition 0: offset 3 is in the active segment", "dead letters: 2 rows")
    assert str(error).splitlines()[0] == "topic fruit: the key is not erased yet:"
    assert len(str(error).splitlines()) == 3


def test_an_aborted_cleaning_names_the_partitions_that_were_paused_or_none() -> None:
    """It names none if the cleaner is told to stop, so that no other partition is planned again."""
    assert CleaningAborted("two were paused", [1, 3]).paused == {1, 3}
    assert CleaningAborted("the service stops").paused == frozenset()


def test_what_a_storage_says_is_one_line_without_colours_and_secrets() -> None:
    """delta-rs writes each cause into a line of its own; an error without a text has the name of its class."""
    told = "Generic S3 error\n  \x1b[31m\u21b3\x1b[0m GET http://me:hunter2@store/x\n  \u21b3 no answer"
    assert in_one_line(OSError(told)) == "Generic S3 error <- GET http://***@store/x <- no answer"
    assert in_one_line(ConnectionResetError()) == "ConnectionResetError"


def test_what_spark_says_of_sql_is_told_without_the_plan() -> None:
    """Its parser begins with an empty line."""
    told = "\n[PARSE_SYNTAX_ERROR] Syntax error at or near '='. SQLSTATE: 42601 (line 1, pos 5)\n\n== SQL ==\nop = = 'D'"
    assert said_by_spark(ValueError(told)) == "[PARSE_SYNTAX_ERROR] Syntax error at or near '='. SQLSTATE: 42601 (line 1, pos 5)"
    assert said_by_spark(ValueError()) == "ValueError"


def test_what_delta_rs_says_comes_without_the_stack_behind_it() -> None:
    """Lines that belong to the message stay."""
    message = "Kernel error: Io error: Permission denied (os error 13)\n↳ while listing"
    told = f"{message}\n   0: <unknown>\n   1: start_thread\n             at ./nptl/x.c:442:8\n"
    assert said_by_delta(OSError(told)) == message
    assert said_by_delta(OSError("as it is")) == "as it is"


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"]])
def test_an_argument_that_is_no_text_is_named(value: object) -> None:
    """With its value; a text is taken, an empty one too."""
    with pytest.raises(UserError, match=r"key = .*: allowed is a text"):
        check_text("key", value)
    check_text("key", "")


class _JvmException:
    """An exception as Py4J shows it."""

    def __init__(self, text: str, cause: _JvmException | None = None) -> None:
        self._text, self._cause = text, cause

    def getCause(self) -> _JvmException | None:  # noqa: N802  Java's name
        return self._cause

    def toString(self) -> str:  # noqa: N802  Java's name
        return self._text


def test_what_the_jvm_says_is_the_first_line_of_the_cause_without_secrets() -> None:
    """Whatever it is wrapped in."""
    cause = _JvmException("java.lang.IllegalArgumentException: password=hunter2 is too short\n\tat org.apache.spark")
    wrapped = _JvmException("java.util.concurrent.ExecutionException: x", _JvmException("org.apache.spark.SparkException: y", cause))

    assert read_root_cause(wrapped) == "java.lang.IllegalArgumentException: password=*** is too short"
    assert read_root_cause(_JvmException("java.io.EOFException")) == "java.io.EOFException"
