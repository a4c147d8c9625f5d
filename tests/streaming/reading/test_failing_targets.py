"""A table kept in step with a log while a file fails: the step is taken, or ends by an error and is taken the next time."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from lastword.streaming.reading import target_state
from tests.streaming.reading.test_materialize import append, catch_up, is_right, topic, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lastword import SparkTopic

__all__ = ["topic"]


def _nth_fails(nth: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose nth call fails as a disk does."""
    calls = 0

    def called(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(errno.EIO, "Input/output error")
        return real(*given, **options)

    return called


def _catches_up_after(topic: SparkTopic, spark: SparkSession, location: Path, *, name: str, nth: int, number: int) -> None:
    """Take a step whose nth call of a function fails, and take it again."""
    append(topic, spark, f"grape={number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_state, name, _nth_fails(nth, getattr(target_state, name)))
        try:
            catch_up(topic, location)
        except (StreamingQueryException, OSError) as error:
            assert "Input/output error" in str(error)  # noqa: PT017  it may have no error at all
    catch_up(topic, location)
    assert words(spark, location) == f"grape={number} lime=1"
    is_right(topic, spark, location)


def test_a_step_whose_files_fail_is_taken_once(topic: SparkTopic, spark: SparkSession, tmp_path: Path) -> None:
    """The table cannot be opened, its position not be written; a segment is cut short while it is read."""
    location = tmp_path / "target"
    append(topic, spark, "grape=0 lime=1")
    catch_up(topic, location)
    _catches_up_after(topic, spark, location, name="open_table", nth=2, number=1)
    _catches_up_after(topic, spark, location, name="write_json_file", nth=1, number=2)
    append(topic, spark, "grape=last")
    newest = max(Path(topic.log.paths.log).rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    whole = newest.read_bytes()
    newest.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StreamingQueryException):
        catch_up(topic, location)
    newest.write_bytes(whole)
    catch_up(topic, location)
    assert words(spark, location) == "grape=last lime=1"
    is_right(topic, spark, location)


@pytest.mark.torture
@pytest.mark.parametrize("name", ["open_table", "read_json_file", "write_json_file"])
def test_a_step_is_taken_once_whichever_call_fails(topic: SparkTopic, spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Of opening the table, and of reading and writing the position beside it."""
    append(topic, spark, "grape=0 lime=1")
    catch_up(topic, tmp_path / "target")
    for nth in (1, 2, 3, 4):
        _catches_up_after(topic, spark, tmp_path / "target", name=name, nth=nth, number=nth)
