"""A topic that an older version made: neither its log table nor its files have the column source_sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lastword import InvalidRecords, LogDir
from lastword.storage.files.schema import ADDED_COLUMNS
from tests.clocks import at
from tests.pictures import T0, latest, rows, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import ArrowTopic

_COLUMN = "source_sequence"


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic with lime, kiwi, a deleted kiwi and lime once more, as an older version left it."""
    logs = LogDir(tmp_path)
    made = at(T0, logs).create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    at(T0, made).append(rows("lime=1 kiwi=1 kiwi=∅ lime=2", timestamp_ms=T0))
    log = Path(made.log.paths.log)
    for commit in sorted((log / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
        for action in actions:
            _be_older(log, action)
        commit.write_text("".join(f"{json.dumps(action)}\n" for action in actions), encoding="utf-8")
    return LogDir(tmp_path).topic("fruit")


def _be_older(log: Path, action: dict[str, Any]) -> None:
    """Take the column out of an action of a commit, and out of the file that it names."""
    if metadata := action.get("metaData"):
        schema = json.loads(metadata["schemaString"])
        schema["fields"] = [field for field in schema["fields"] if field["name"] != _COLUMN]
        metadata["schemaString"] = json.dumps(schema)
        metadata["configuration"] = {name: value.replace(f",{_COLUMN}", "") for name, value in metadata["configuration"].items()}
    if add := action.get("add"):
        path, statistics = log / add["path"], json.loads(add["stats"])
        del statistics["nullCount"][_COLUMN]
        pq.write_table(pq.ParquetFile(path).read().drop_columns([_COLUMN]), path)
        add |= {"size": path.stat().st_size, "stats": json.dumps(statistics)}


def test_a_topic_of_an_older_version_is_read_appended_to_cleaned_and_verified(topic: ArrowTopic) -> None:
    """The column is null where it is asked for; only an order by it needs a new topic, and the message says so."""
    assert ADDED_COLUMNS == (_COLUMN,)
    assert not topic.log.snapshot().has_sequences
    assert topic.records(columns=["offset", _COLUMN]).column(_COLUMN).to_pylist() == [None] * 4
    assert latest(topic) == {"lime": "2"}
    at(T0, topic).append(rows("fig=1", timestamp_ms=T0))
    with pytest.raises(InvalidRecords, match="was created by an older version and has no column source_sequence; create a new topic"):
        topic.append([{"key": "fig", "value": "2", _COLUMN: 1}])
    topic.roll()
    [receipt] = at(T0, topic).clean(force=True)
    assert receipt.removed_count == 2
    assert latest(topic) == {"lime": "2", "fig": "1"}
    assert topic.verify().ok


def test_spark_reads_a_topic_of_an_older_version(spark: SparkSession, topic: ArrowTopic) -> None:
    """With the columns that every topic has."""
    by_spark = LogDir(spark, Path(topic.log.paths.root).parent).topic("fruit")
    found = by_spark.records().select("offset", "key", _COLUMN).orderBy("offset").collect()
    assert [(row["offset"], text(row["key"]), row[_COLUMN]) for row in found] == [
        (0, "lime", None),
        (1, "kiwi", None),
        (2, "kiwi", None),
        (3, "lime", None),
    ]
    assert latest(by_spark) == {"lime": "2"}
