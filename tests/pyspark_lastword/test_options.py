"""The options of `format("lastword")`: what is not allowed is named with what is, all of it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lastword import LogDir
from lastword.compaction.errors import InvalidConfiguration
from pyspark_lastword import DefaultSource
from pyspark_lastword.options import SourceOptions
from pyspark_lastword.readers import TopicBatchReader
from tests.pictures import T0

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("options", "streaming", "told"),
    [
        ({"startingOffset": "latest"}, None, "startingoffset = latest: unknown option; did you mean startingOffsets?"),
        ({"colour": "red"}, None, "colour = red: unknown option; known are path, topic, startingOffsets, "),
        ({"path": ""}, None, "path = : the folder of a topic, <log.dir>/<topic>: load(path)"),
        ({"isolation": "committed"}, None, "isolation = committed: allowed is read_committed or read_uncommitted"),
        ({"failOnDataLoss": "no"}, None, "failOnDataLoss = no: allowed is true or false"),
        ({"startingTimestamp": "-1"}, None, "startingTimestamp = -1: allowed is a whole number from 0 on"),
        ({"maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger = 0: allowed is a whole number from 1 on"),
        ({"maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger = 5: a batch has no triggers; use endingOffsets"),
        ({"startingOffsets": "Latest"}, False, "startingOffsets = Latest: a batch that starts at the latest offsets is empty"),
        ({"endingOffsets": "earliest"}, False, "endingOffsets = earliest: a batch that ends at the earliest offsets is empty"),
        ({"endingOffsets": "latest"}, True, "endingOffsets = latest: a stream has no end"),
    ],
)
def test_an_option_that_is_not_allowed_is_named_with_what_is(options: dict[str, str], streaming: bool | None, told: str) -> None:  # noqa: FBT001  a table of cases
    """By the name that it has in the documentation, where it has one."""
    with pytest.raises(InvalidConfiguration) as caught:
        SourceOptions.parse({"path": "data/fruit", **options}, streaming=streaming)
    assert len(caught.value.violations) == 1
    assert told in str(caught.value)


def test_the_topic_may_be_named_beside_its_log_dir() -> None:
    """As SQL has it: `USING lastword OPTIONS (path 'data', topic 'fruit')`."""
    given = [{"path": "data/fruit"}, {"path": "data", "topic": "fruit"}, {"PATH": "data/", "Topic": "fruit"}]

    assert {SourceOptions.parse(options).path for options in given} == {"data/fruit"}


def test_without_a_path_it_is_asked_for_and_all_that_is_wrong_is_said_at_once() -> None:
    """Nothing is read until every option is right."""
    with pytest.raises(InvalidConfiguration) as caught:
        SourceOptions.parse({"isolation": "committed", "includeHeaders": "yes"})
    assert [one.key for one in caught.value.violations] == ["path", "isolation", "includeHeaders"]
    assert "path = (not given)" in str(caught.value)


@pytest.mark.parametrize(("streaming", "begin"), [(True, "latest"), (False, "earliest"), (None, "earliest")])
def test_names_are_taken_in_any_case_and_defaults_are_those_of_the_kafka_source(streaming: bool | None, begin: str) -> None:  # noqa: FBT001  as above
    """A stream begins at the end, a batch at the beginning; storage options are passed on without `storage.`."""
    assert SourceOptions.parse({"PATH": "data/fruit"}, streaming=streaming).starting_offsets == begin
    given = {
        "path": "data/fruit",
        "ISOLATION": "READ_UNCOMMITTED",
        "FailOnDataLoss": "FALSE",
        "storage.aws_region": "eu",
        "startingTimestamp": "7",
    }
    found = SourceOptions.parse(given, streaming=streaming)
    assert (found.isolation, found.fail_on_data_loss, found.fail_on_missed_tombstones) == ("read_uncommitted", False, True)
    assert (found.storage_options, found.starting_timestamp_ms) == ({"aws_region": "eu"}, 7)


def test_a_batch_begins_at_a_moment_or_at_offsets(tmp_path: Path) -> None:
    """As the planner of Spark asks for it: partitions, and the records of each."""
    moment = [T0]
    topic = LogDir(tmp_path, clock=lambda: moment[0]).create_topic("fruit")
    for number in range(3):
        topic.append([{"key": "a", "value": str(number)}])
        moment[0] += 10
    schema = StructType([StructField("offset", LongType()), StructField("topic", StringType())])

    def read(**options: str) -> list[tuple[int, str]]:
        reader = DefaultSource({"path": topic.log.paths.root, **options}).reader(schema)
        assert isinstance(reader, TopicBatchReader)
        batches = [batch for one in reader.partitions() for batch in reader.read(one)]
        return [(row["offset"], row["topic"]) for batch in batches for row in batch.to_pylist()]

    assert read() == [(offset, "fruit") for offset in range(3)]
    assert read(startingTimestamp=str(T0 + 1)) == [(1, "fruit"), (2, "fruit")]
    assert read(startingTimestamp=str(T0 + 10), startingOffsets="earliest") == [(1, "fruit"), (2, "fruit")]
    assert read(startingTimestamp=str(T0 + 99)) == []
    assert read(startingOffsets='{"0": 2}') == [(2, "fruit")]
