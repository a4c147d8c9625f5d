"""A client of Spark Connect, with its server in this process: `python -m tests.connect_app LOG_DIR` prints what works, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from lastword import LogDir, UserError
from lastword.spark.jars import resolve


def main(location: str) -> None:
    """Append and read a topic of one log.dir by each way that a client of Spark Connect has."""
    topic = LogDir(location).create_topic("fruit", config={"cleanup.policy": "compact"})
    jars = ",".join(map(str, resolve()))
    builder: Any = SparkSession.builder.remote("local[2]")
    spark = builder.config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
    said: dict[str, Any] = {"session": type(spark).__module__}
    try:
        LogDir(spark, location)
    except UserError as error:
        said["LogDir(spark, …)"] = str(error)
    topic.append(spark.createDataFrame([("lime", "1"), ("grape", "2"), ("lime", "3")], "key string, value string"))
    read = spark.read.format("lastword").load(f"{location}/fruit")
    said["format"] = sorted(map(list, read.selectExpr("offset", "cast(key as string)", "cast(value as string)").collect()))
    said["latest"] = [[row["key"].decode(), row["value"].decode()] for row in topic.latest().to_pylist()]
    spark.stop()
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
