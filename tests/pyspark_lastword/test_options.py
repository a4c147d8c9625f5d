"""The options of `format("lastword")`: what is not allowed is named with what is, all of it at once."""

from __future__ import annotations

import pytest

from lastword.compaction.errors import InvalidConfiguration
from pyspark_lastword.options import SourceOptions


@pytest.mark.parametrize(
    ("options", "streaming", "told"),
    [
        ({"startingOffset": "latest"}, None, "startingoffset = latest: unknown option; did you mean startingOffsets?"),
        ({"colour": "red"}, None, "colour = red: unknown option; known are path, startingOffsets, "),
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


def test_without_a_path_it_is_asked_for_and_all_that_is_wrong_is_said_at_once() -> None:
    """Nothing is read until every option is right."""
    with pytest.raises(InvalidConfiguration) as caught:
        SourceOptions.parse({"isolation": "committed", "includeHeaders": "yes"})
    assert [one.key for one in caught.value.violations] == ["path", "isolation", "includeHeaders"]
    assert "path = (not given)" in str(caught.value)


@pytest.mark.parametrize(("streaming", "begin"), [(True, "latest"), (False, "earliest"), (None, "earliest")])
def test_names_are_taken_in_any_case_and_defaults_are_those_of_the_kafka_source(streaming: bool | None, begin: str) -> None:  # noqa: FBT001  as above
    """Where nothing is said, a stream begins at its end and a batch at its beginning; storage options are handed on without `storage.`."""
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
