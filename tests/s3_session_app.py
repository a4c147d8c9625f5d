"""What a Spark session does with a log.dir on S3, compared with what `LogDir` reads there without Spark.

`python -m tests.s3_session_app ENDPOINT LOG_DIR` ends with 0, or with the assertion that does not hold.
"""

from __future__ import annotations

import json
import sys

from lastword import LogDir, SparkTopic, spark_session
from lastword.copying import copy_topic
from lastword.spark.object_store import storage_options
from tests.s3_server import spark_settings_of


def main(endpoint: str, log_dir: str) -> None:
    """Append, stream, clean, read, tail, keep a table, purge, delete and copy."""
    settings = {**spark_settings_of(endpoint), "spark.log.level": "OFF", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    spark = spark_session("s3", master="local[2]", settings=settings)
    logs = LogDir(spark, log_dir, storage_options=storage_options(settings))
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    for number in range(3):
        rows = [(f"k{key}", json.dumps({"price": number * 100 + key})) for key in range(50)]
        topic.append(spark.createDataFrame(rows, "key string, value string"))
        topic.roll()
    version = topic.describe().table_version
    before = _prices(topic)

    lines = spark.createDataFrame([(f"k{key}", json.dumps({"price": key})) for key in range(25)], "key string, value string")
    lines.write.json(f"{log_dir}-incoming")
    stream = spark.readStream.schema(lines.schema).json(f"{log_dir}-incoming")
    topic.append_stream(stream, name="incoming", trigger={"availableNow": True}).awaitTermination()
    assert _prices(topic) == {**before, **{f"k{key}": key for key in range(25)}}

    seen: list[tuple[int, int]] = []
    tail = topic.tail("earliest").writeStream.option("checkpointLocation", f"{log_dir}-tail").trigger(availableNow=True)
    tail.foreachBatch(lambda frame, _: seen.extend((row["partition"], row["offset"]) for row in frame.collect())).start().awaitTermination()
    assert len(seen) == len(set(seen)) == 175

    assert topic.clean(force=True)
    assert sum(receipt.removed.get("superseded", 0) for receipt in topic.receipts()) == 100
    topic.roll()
    topic.clean(force=True)
    assert topic.verify().ok
    assert _prices(topic, as_of=version) == before, "the files of the version from before are there until VACUUM"

    query = topic.materialize(f"{log_dir}-table", schema="price int", trigger={"availableNow": True})
    query.awaitTermination()
    stored = spark.read.format("delta").load(f"{log_dir}-table").collect()
    assert sorted(row["price"] for row in stored) == sorted(_prices(topic).values())
    typed = spark.read.format("lastword").options(readTable="true", schema="price int", **_prefixed(storage_options(settings)))
    assert sorted(row["price"] for row in typed.load(f"{log_dir}/fruit").collect()) == sorted(_prices(topic).values())

    receipt = topic.purge("k1")
    assert receipt.files_removed
    assert "k1" not in _prices(topic)
    assert topic.verify().ok

    plain = LogDir(log_dir, storage_options=storage_options(settings)).topic("fruit")
    latest = {row["key"].decode(): json.loads(row["value"])["price"] for row in plain.latest().to_pylist()}
    assert latest == _prices(topic)

    copy_topic(logs, "fruit", "copy", partitions=3)
    assert _prices(logs.topic("copy")) == latest
    logs.delete_topic("fruit")
    assert logs.topics() == ["copy"]
    _delete_by_size(logs)


def _prices(topic: SparkTopic, as_of: int | None = None) -> dict[str, int]:
    rows = topic.latest(as_of=as_of).collect()
    return {bytes(row["key"]).decode(): json.loads(bytes(row["value"]))["price"] for row in rows}


def _prefixed(options: dict[str, str]) -> dict[str, str]:
    return {f"storage.{name}": value for name, value in options.items()}


def _delete_by_size(logs: LogDir[SparkTopic]) -> None:
    """Let retention take all but the newest segments of a topic."""
    config = {"cleanup.policy": "delete", "retention.bytes": "1", "segment.bytes": "1KiB"}
    topic = logs.create_topic("events", config=config)
    for number in range(3):
        topic.append([{"key": f"{number}-{row}", "value": "x" * 50} for row in range(50)])
        topic.roll()
    topic.apply_retention()
    offsets = topic.offsets()[0]
    assert 0 < offsets.log_start <= offsets.log_end == 150


if __name__ == "__main__":
    main(*sys.argv[1:])
