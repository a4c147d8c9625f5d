"""A source rests between two looks for something new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lastword.streaming.planned_source import Planner, PollPace, planned_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class _Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


@pytest.mark.parametrize(
    ("location", "took", "waits"),
    [
        ("/data/in", 0.25, 0.25),
        ("/data/in", 0.0, 0.0),
        ("file:///data/in", 3.0, 3.0),
        ("s3://bucket/in", 0.05, 1.0),
        ("gs://bucket/in", 2.0, 2.0),
    ],
)
def test_the_next_look_waits_as_long_as_the_last_one_took(location: str, took: float, waits: float) -> None:
    """In an object store a second at least; a look that was not empty lets nobody wait, and time that went by counts."""
    clock = _Time()
    pace = PollPace(location, monotonic=clock.monotonic, sleep=clock.sleep)
    pace.begin()
    clock.now += took
    pace.begin()
    assert clock.slept == [0.0, 0.0]
    clock.now += took
    pace.rest()
    pace.begin()
    assert clock.slept[2:] == [waits]
    clock.now += took
    pace.rest()
    clock.now += waits + 1
    pace.begin()
    assert clock.slept[3:] == [0.0]


class _Planner(Planner):
    """Plans one source offset behind another."""

    name = "made-up"

    def first(self) -> str:
        return "0"

    def latest(self, after: str, query: str) -> str:
        del query
        return str(int(after) + 1)

    def rows(self, after: str, end: str) -> DataFrame | None: ...

    def bound(self, query: str) -> None: ...

    def stop(self, query: str) -> None: ...


def test_a_source_answers_all_that_sparks_interfaces_ask(spark: SparkSession) -> None:
    """Also what no query of this Spark asks: another release may."""
    nothing = spark.createDataFrame([], "id bigint")
    sources: list[Any] = [planned_stream(_Planner(), nothing)._jdf.queryExecution().logical().source() for _ in range(2)]  # noqa: SLF001
    one, other = sources
    assert (one.initialOffset().json(), one.getOffset().get().json(), one.deserializeOffset("7").json()) == ("0", "1", "7")
    assert (one.equals(one), one.equals(other), one.equals(None)) == (True, False, False)
    assert (one.toString(), one.hashCode() == one.hashCode()) == ("made-up", True)
