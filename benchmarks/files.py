"""The file source against Spark's own: the same JSON lines, appended by one query that ends when it has read all.

Spark's source infers nothing here: it is given a schema. The file source is measured with the texts as they stand, and with the same
schema. Its rows come through Python; Spark's come through the JVM. Each turn has a topic of its own.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from benchmarks.measure import WHOLE, Scale, headline, in_turns, report
from lastword import LogDir, clock, spark_session
from lastword.streaming.append.source_settings import FileSource
from lastword.streaming.append.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from lastword import SparkTopic

_FILES, _ROWS_PER_FILE = 8, 50_000
_SCHEMA: Final = "id int, name string, price double, tags array<string>, at string, n int"
_WARM_UP, _TURNS = 1, 5


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        incoming = Path(folder, "incoming")
        incoming.mkdir()
        rows = scale.rows(_ROWS_PER_FILE)
        for number in range(_FILES):
            (incoming / f"{number}.json").write_text("".join(_line(number * rows + row) for row in range(rows)))
        session = spark_session()
        _measure(session, LogDir(session, f"{folder}/logs"), incoming, scale)


def _line(number: int) -> str:
    row = {"id": number % 100_000, "name": f"name of {number}", "price": number * 1.25, "tags": ["a", "b"]}
    return json.dumps({**row, "at": "2026-01-01T00:00:00.123456Z", "n": number}) + "\n"


def _measure(spark: SparkSession, logs: LogDir[SparkTopic], incoming: Path, scale: Scale) -> None:
    warm_up, rounds = scale.warm_up(_WARM_UP), scale.turns(_TURNS)
    rows_per_file, turns = scale.rows(_ROWS_PER_FILE), warm_up + rounds

    def topics(name: str) -> Callable[[], SparkTopic]:
        made = iter([logs.create_topic(f"{name}-{turn}", partitions=4, config={"cleanup.policy": "compact"}) for turn in range(turns)])
        return lambda: next(made)

    def by_spark(next_topic: Callable[[], SparkTopic]) -> None:
        fields = F.struct("name", "price", "tags", "at", "n")
        rows = spark.readStream.schema(_SCHEMA).json(str(incoming))
        rows = rows.select(F.col("id").cast("string").cast("binary").alias("key"), F.to_json(fields).cast("binary").alias("value"))
        next_topic().append_stream(rows, name="files", trigger={"availableNow": True}).awaitTermination()

    def by_lastword(next_topic: Callable[[], SparkTopic], **settings: Any) -> None:
        topic = next_topic()
        source = FileSource.model_validate(
            {"name": "files", "topic": topic.name, "format": "json", "path": str(incoming), "key": ["id"], **settings}
        )
        opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())
        topic.append_stream(opened.rows, name="files", trigger={"availableNow": True}).awaitTermination()

    ways: dict[str, dict[str, Any]] = {"as they stand": {}, "with a schema": {"schema": _SCHEMA}}
    things: dict[str, Callable[[], object]] = {"Spark's source": partial(by_spark, topics("spark"))}
    things |= {name: partial(by_lastword, topics(name.replace(" ", "-")), **settings) for name, settings in ways.items()}
    timings = in_turns(things, warm_up=warm_up, rounds=rounds)
    counts = {logs.topic(name).describe().record_count for name in logs.topics()}
    assert counts == {_FILES * rows_per_file}, counts  # noqa: S101
    spark_s = timings["Spark's source"]
    lines = []
    for name in ways:
        ours = timings[name]
        headline(f"{_FILES * rows_per_file:,} rows of JSON files {name}", "Spark's file source", spark_s.seconds, ours.seconds, goal=0.5)
        lines.append([name, f"{spark_s.median:.2f}", f"{ours.median:.2f}", f"{ours.median / spark_s.median:.2f}×"])
    report(f"{_FILES} files of {rows_per_file:,} rows of JSON, one query each", lines, ["", "Spark's source s", "lastword's s", "ratio"])
