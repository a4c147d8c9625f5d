"""The verbs of readers on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lastword.compaction.errors import UserError
from tests.lastword.cli.test_cli import Shell
from tests.pictures import rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic


@pytest.fixture
def lastword(spark: SparkSession, logs: LogDir[SparkTopic]) -> Shell:
    """Return the command line of an empty log.dir."""
    assert spark is logs.session
    return Shell(logs)


def test_a_table_is_kept_in_step_and_the_past_can_be_asked(
    spark: SparkSession, logs: LogDir[SparkTopic], lastword: Shell, tmp_path: Path
) -> None:
    """Materialise, look at the reader's lag, catch up, ask as of offsets, and what changed."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append(rows("grape=1 lime=1"))
    target = str(tmp_path / "target")
    options = ("--once", "--key-format", "utf8", "--value-format", "utf8", "--reader", "orders-cache")
    assert "is up to date with fruit" in lastword("materialize", "fruit", target, *options)
    topic.append(rows("grape=2 lime=∅ kiwi=1"))
    [reader] = lastword.json("readers", "list", "fruit")
    assert (reader["name"], reader["offsets"], reader["lag"], reader["expired"]) == ("orders-cache", [2], 3, False)
    assert "orders-cache" in lastword("readers", "list", "fruit")

    lastword("materialize", "fruit", target, *options)
    found = spark.read.format("delta").load(target).select("key", "value").collect()
    assert sorted(found) == [("grape", "2"), ("kiwi", "1")]
    assert [one["lag"] for one in lastword.json("readers", "list", "fruit")] == [0]
    lastword("readers", "drop", "fruit", "orders-cache")
    assert "no registered readers" in lastword("readers", "list", "fruit")

    past = lastword.json("latest", "fruit", "--as-of", '{"0": 2}', "--key", "lime")
    assert [(one["key"], one["value"], one["offset"]) for one in past] == [("lime", "1", 1)]
    told = lastword.json("changes", "fruit", "--from", '{"0": 2}', "--to", '{"0": 5}')
    assert [(one["offset"], one["key"], one["value"], one["change_type"]) for one in told if one["key"] != "grape"] == [
        (3, "lime", "1", "delete"),
        (4, "kiwi", "1", "insert"),
    ]
    told_wrong = lastword.error(UserError, "changes", "fruit", "--from", "yesterday", "--to", '{"0": 5}')
    assert told_wrong.startswith("--from yesterday: allowed are offsets by partition as JSON")


def test_materialize_says_what_is_wrong_and_how_to_go_on(lastword: Shell, logs: LogDir[SparkTopic], tmp_path: Path) -> None:
    """A value that does not fit, rows that somebody deleted, options that do not go together: one error each; then the way on."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append([{"key": "fig", "value": '{"price": "oops"}'}])
    target = str(tmp_path / "target")
    command = ("materialize", "fruit", target, "--once", "--key-format", "utf8", "--value-format", "json", "--schema", "price bigint")
    assert "partition 0, offset 0, key fig, field price bigint" in lastword.error(UserError, *command)
    lastword(*command, "--mode", "PERMISSIVE")
    topic.append([{"key": "fig", "value": '{"price": 1}'}])
    DeltaTable(target).delete()
    assert "(DELETE) changed its rows. rebuild=True (--rebuild)" in lastword.error(UserError, *command)
    assert "is up to date with fruit" in lastword(*command, "--rebuild")
    assert "give one of them" in lastword.error(UserError, *command, "--every", "5 seconds")
