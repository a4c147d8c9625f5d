"""The main job on real input: six years of airports, streamed into a compacted topic and checked record for record.

`python -m examples.airports.demo` (or `make demo`). The ten change files arrive one after another in a folder, the real file source and
the real append query take them a file a micro-batch, and the latest table is compared with the newest release itself.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lastword import LogDir, clock, spark_session
from lastword.cli import cleaning_tables, tables
from lastword.cli.values import ValueReader
from lastword.streaming.append.source_settings import FileSource, trigger_of
from lastword.streaming.append.sources import open_source

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from lastword import SparkTopic

_HERE = Path(__file__).parent
_SCHEMA = (
    "op string, icao string, iata string, name string, city string, subd string, country string, elevation double, lat double, "
    "lon double, tz string, lid string"
)
_SHOWN = ("EDDF", "EGLL", "KJFK", "KSFO", "LFPG", "NZWN", "RJTT", "SBGR")
_DIFFERENCES_SHOWN = 5

out = Console()


def main(folder: Annotated[Path, typer.Option("--dir", help="Where the demo works; wiped first.")] = Path(".demo")) -> None:
    """Stream, show, check."""
    begun = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    files = _arrive(folder / "incoming")
    out.print("[dim]starting Spark …[/dim]")
    spark = spark_session("lastword-demo", settings={"spark.log.level": "OFF"})
    logs = LogDir(spark, str(folder / "data"))
    config = {"cleanup.policy": "compact", "segment.bytes": "128KiB"}
    topic = logs.create_topic("airports", partitions=4, config=config)
    source = FileSource.model_validate(
        {
            "name": "airports-files",
            "topic": "airports",
            "format": "json",
            "path": str(folder / "incoming"),
            "key": ["icao"],
            "tombstone": "op = 'd'",
            "drop": ["op"],
            "schema": _SCHEMA,
            "max.files.per.trigger": 1,
            "trigger": "available-now",
        }
    )
    opened = open_source(spark, source, topic.log, now_ms=clock.now_ms())
    _watch(topic.append_stream(opened.rows, name=source.name, trigger=trigger_of(source.trigger)), topic, files)

    description = topic.describe()
    out.print(tables.description_table(description))
    out.print(tables.segments_table(description, partitions=[0]))
    latest = {bytes(row["key"]).decode(): row for row in topic.latest().collect()}
    _show(latest)
    _show_one_history(topic)
    _clean(topic)
    equal = _check({bytes(row["key"]).decode(): row for row in topic.latest().collect()})
    out.print(f"\ndone in {time.monotonic() - begun:.0f} s. Next:")
    for line in ("topics describe airports --segments", "explain airports", "latest airports --decode json --limit 5", "verify airports"):
        out.print(f"  .venv/bin/python -m lastword {line} --log-dir {folder / 'data'}", soft_wrap=True)
    spark.stop()
    sys.exit(0 if equal else 1)


def _arrive(incoming: Path) -> int:
    """Put the change files where a source finds them, as they would have arrived: one after another."""
    incoming.mkdir(parents=True)
    changes = sorted((_HERE / "changes").glob("*.json.gz"))
    first = int(time.time()) - len(changes)
    for number, path in enumerate(changes):
        arrived = shutil.copy(path, incoming)
        os.utime(arrived, (first + number, first + number))
    return len(changes)


def _watch(query: StreamingQuery, topic: SparkTopic, files: int) -> None:
    """Show what each micro-batch brought while it runs; raise what the query died of."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("micro-batches"), TimeElapsedColumn())
    shown = -1
    with Progress(*columns, console=out) as progress:
        task = progress.add_task("streaming airports", total=files)
        while True:
            ended = query.awaitTermination(0.2)  # type: ignore[arg-type]  # part of a second will do
            for micro_batch in query.recentProgress:
                if micro_batch.batchId > shown and micro_batch.numInputRows:
                    shown = micro_batch.batchId
                    seconds = micro_batch.batchDuration / 1000
                    out.print(f"micro-batch {shown}: {micro_batch.numInputRows:>6,} changes in {seconds:.1f} s")
                    progress.update(task, completed=shown + 1)
            if ended:
                break
    out.print(f"{topic.describe().record_count:,} records in the log, {topic.dead_letters().count()} dead letters\n")


def _show(latest: dict[str, Any]) -> None:
    rows = [{"icao": code, **json.loads(bytes(latest[code]["value"]))} for code in _SHOWN if code in latest]
    out.print(tables.records_table(rows, ("icao", "iata", "name", "city", "country", "elevation"), "the last word on some airports"))


def _show_one_history(topic: SparkTopic) -> None:
    """Show every record of one key that was deleted and came back."""
    keyed = topic.records().withColumn("gone", F.col("value").isNull())
    returned = keyed.groupBy("key").agg(F.max(F.when(F.col("gone"), F.col("offset"))).alias("deleted"), F.max("offset").alias("newest"))
    key = returned.where("deleted < newest").orderBy("key").limit(1).collect()[0]["key"]
    rows = topic.records().where(F.col("key") == F.lit(key)).orderBy("offset").collect()
    shown = [tables.plain(row.asDict(recursive=True), ValueReader("utf8")) for row in rows]
    out.print(tables.records_table(shown, ("partition", "offset", "key", "value"), "an airport that was deleted and came back"))


def _clean(topic: SparkTopic) -> None:
    """Let the cleaner drop what was superseded, and show what it did."""
    topic.roll()
    out.print("\ncleaning: what is superseded goes, a delete stays for delete.retention.ms")
    receipts = sorted(topic.clean(), key=lambda receipt: receipt.partition)
    out.print(cleaning_tables.receipts_table([one.to_details() for one in receipts], "what the cleaner did"))


def newest_release() -> dict[str, Any]:
    """Return the newest release itself, by ICAO code."""
    with gzip.open(_HERE / "newest.json.gz", "rt", encoding="utf-8") as lines:
        return {record["icao"]: record for record in map(json.loads, lines)}


def _check(latest: dict[str, Any]) -> bool:
    """Compare the latest table with the newest release, record for record."""
    newest = newest_release()
    found = {code: {"icao": code, **json.loads(bytes(row["value"]))} for code, row in latest.items()}
    differing = sorted(code for code in newest.keys() | found.keys() if newest.get(code) != found.get(code))
    out.print(f"the latest table against release 20260905: {len(newest) - len(differing):,} of {len(newest):,} records equal")
    for code in differing[:_DIFFERENCES_SHOWN]:
        out.print(f"  {code}: expected {newest.get(code)}, found {found.get(code)}")
    if importlib.util.find_spec("airportsdata") is not None:
        import airportsdata  # noqa: PLC0415  only where it is installed (Python 3.11 or newer)

        same = dict(airportsdata.load("ICAO")) == newest
        out.print(f"the installed package airportsdata {airportsdata.__version__} {'agrees' if same else 'is another release'}")
    return not differing


if __name__ == "__main__":
    typer.run(main)
