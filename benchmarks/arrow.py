"""What reading costs without Spark, and through `format("lastword")`.

(a) `ArrowTopic.latest` against DuckDB doing the same over the same files, 4 M records of 208 B over 400,000 keys: never cleaned, and
    cleaned, with 5 % of new records on top: at most 1.5×. DuckDB takes the quickest of three queries: a window, arg_max, and a semi-join on
    the newest offsets.
(b) `spark.readStream.format("lastword")` against Spark's Delta stream of the same 4 M records: at least 25 % of its throughput.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import duckdb
from deltalake import DeltaTable

from benchmarks.cleaning import changes
from benchmarks.measure import WHOLE, Scale, headline, in_turns, report
from lastword import LogDir, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import Topic

_PARTITIONS = 4
_KEYS = 400_000
_RECORDS = 4_000_000
_APPENDS = 20
_ROUNDS = 5
_QUERIES = {
    "window": """SELECT partition, key, value, headers, "timestamp", "offset" FROM {source} WHERE control IS NULL AND key IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY partition, key ORDER BY "offset" DESC) = 1 AND value IS NOT NULL""",
    "arg_max": """SELECT partition, key, last.* FROM (SELECT partition, key, arg_max(struct_pack(value, headers, "timestamp", "offset"),
        "offset") AS last FROM {source} WHERE control IS NULL AND key IS NOT NULL GROUP BY ALL) WHERE last.value IS NOT NULL""",
    "semi-join": """SELECT partition, key, value, headers, "timestamp", "offset" FROM {source} SEMI JOIN (
        SELECT partition, max("offset") AS "offset" FROM {source} WHERE control IS NULL AND key IS NOT NULL GROUP BY partition, key)
        USING (partition, "offset") WHERE value IS NOT NULL""",
}


def run(scale: Scale = WHOLE) -> None:
    """Measure and print everything; minutes."""
    spark = spark_session("lastword-bench", settings={"spark.log.level": "ERROR", "spark.driver.memory": "4g"})
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic(
            "a", partitions=_PARTITIONS, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        )
        for number in range(_APPENDS):
            topic.append(changes(spark, scale.rows(_RECORDS) // _APPENDS, 0, scale.rows(_KEYS), number))
            topic.roll()
        streams(spark, topic, folder, scale)
        found = [latest(topic, "never cleaned", scale)]
        topic.clean()
        topic.append(changes(spark, scale.rows(_KEYS) // 20, 0, scale.rows(_KEYS), _APPENDS))
        found.append(latest(topic, "cleaned, 5 % dirty", scale))
    report("(a) the last word on 400,000 keys", found, ["log", "records", "DuckDB s", "query", "ours s", "ratio", "bound"])


def latest(topic: Topic, name: str, scale: Scale) -> list[str]:
    """Measure (a) on a topic as it is."""
    log_dir, _, name_of_topic = topic.log.paths.root.rpartition("/")
    mine_of = LogDir(log_dir).topic(name_of_topic)
    files = DeltaTable(topic.log.paths.log).file_uris()
    source = f"read_parquet({files}, hive_partitioning = true)"

    def ask(query: str) -> Any:
        return duckdb.sql(query.format(source=source)).to_arrow_table()

    counted = {ask(query).num_rows for query in _QUERIES.values()} | {mine_of.latest().num_rows}
    assert counted == {scale.rows(_KEYS)}, counted  # noqa: S101  all of them answer the same question
    things = {query: lambda text=text: ask(text) for query, text in _QUERIES.items()}
    timings = in_turns({**things, "ours": mine_of.latest}, warm_up=scale.warm_up(1), rounds=scale.turns(_ROUNDS))
    mine = timings.pop("ours")
    ours = mine.median
    best = min(timings.values(), key=lambda one: one.median)
    headline(f"ArrowTopic.latest, {name}", "the best DuckDB query", best.seconds, mine.seconds, goal=0.67)
    records = topic.log.snapshot().files.record_count.sum()
    return [name, f"{records:,}", f"{best.median:.2f}", best.name, f"{ours:.2f}", f"{ours / best.median:.2f}", "≤ 1.5"]


def streams(spark: SparkSession, topic: Topic, folder: str, scale: Scale) -> None:
    """Measure (b): everything that is there, into a sink that throws it away."""

    def drain(source: Any) -> None:
        checkpoint = tempfile.mkdtemp(dir=folder)
        source.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        shutil.rmtree(checkpoint)

    path = topic.log.paths.root
    earliest = {"startingOffsets": "earliest"}
    timings = in_turns(
        {
            "delta": lambda: drain(spark.readStream.format("delta").option("maxFilesPerTrigger", 1_000).load(f"{path}/log")),
            "lastword": lambda: drain(spark.readStream.format("lastword").options(**earliest).load(path)),
        },
        warm_up=scale.warm_up(1),
        rounds=scale.turns(_ROUNDS),
    )
    delta, ours = timings["delta"].median, timings["lastword"].median
    headline('format("lastword")', "Delta's own stream", timings["delta"].seconds, timings["lastword"].seconds, goal=0.25)
    row = [
        f"{scale.rows(_RECORDS):,}",
        f"{delta:.2f}",
        f"{ours:.2f}",
        f"{scale.rows(_RECORDS) / ours:,.0f}",
        f"{delta / ours:.0%}",
        "≥ 25 %",
    ]
    report("(b) a stream of the whole log", [row], ["records", "Delta stream s", "lastword s", "records/s", "throughput", "bound"])
