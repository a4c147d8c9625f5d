"""Where a reader stands, as worked examples: offset vectors as they are written, shares of a micro-batch, what was missed, how far back."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from lastword.compaction.errors import OffsetOutOfRange, UnknownFormat, UserError
from lastword.compaction.read_positions import (
    Extent,
    Loss,
    Position,
    RemovedTombstone,
    TakenBack,
    advance,
    missed_by_recreation,
    missed_ranges,
    newest_whole_version,
    offsets_within,
    overtaken,
    parse_offsets,
    resume_offsets,
    starting_at,
)

_EARLIEST, _LATEST = (3, 0), (10, 20)


#: A topic that was created under the name of a deleted one.
_NEW_TOPIC = Extent(topic_id="new", table_version=7, log_start_offsets=(0, 2), log_end_offsets=(50, 50))


def _parsed(given: object, *, allow_latest: bool = True) -> tuple[int, ...]:
    return parse_offsets(given, option="startingOffsets", partitions=2, earliest=_EARLIEST, latest=_LATEST, allow_latest=allow_latest)


@pytest.mark.parametrize(
    ("given", "vector"),
    [
        ("earliest", (3, 0)),
        (" Latest ", (10, 20)),
        ({0: 5, 1: 6}, (5, 6)),
        ({"1": "6", "0": "5"}, (5, 6)),
        ([5, 6], (5, 6)),
        ((5, 6), (5, 6)),
        ('{"0": -2, "1": -1}', (3, 20)),
        ('{"0": 5, "1": 0}', (5, 0)),
    ],
)
def test_offsets_are_written_as_for_sparks_kafka_source(given: object, vector: tuple[int, ...]) -> None:
    """By name, by partition, as a list, as JSON; -2 is the earliest and -1 the latest."""
    assert _parsed(given) == vector


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("newest", "startingOffsets = 'newest': allowed is earliest, latest or an offset"),
        ("5", "startingOffsets = 5: allowed is"),
        (None, "startingOffsets = None: allowed is"),
        ({0: 5}, "no offset for partition 1; allowed"),
        ({0: 5, 1: 6, 2: 7}, "unknown partition 2; allowed"),
        ({0: 5, 1: "x"}, "1: 'x' is no partition with its offset"),
        ({0: 5, 1: None}, "1: None is no partition with its offset"),
        ({0: 5, 1: -3}, r"negative offset \{1: -3\}; allowed"),
    ],
)
def test_other_offsets_are_refused_with_the_value_and_what_is_allowed(given: object, said: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UserError, match=said):
        _parsed(given)


def test_an_end_has_no_latest_where_there_is_none_yet() -> None:
    """-1 and `latest` are refused there; -2 is not."""
    assert _parsed({0: -2, 1: 4}, allow_latest=False) == (3, 4)
    for given in ("latest", {0: -1, 1: 4}):
        with pytest.raises(UserError, match="allowed is earliest or an offset"):
            _parsed(given, allow_latest=False)
    assert _parsed({0: 0, 1: 4}, allow_latest=False) == (0, 4)


def test_what_is_allowed_is_said_with_an_example_that_can_be_copied() -> None:
    """For the topic's own number of partitions, and no longer than two of them."""
    with pytest.raises(UserError) as refused:
        parse_offsets({}, option="--from", partitions=3, earliest=(0, 0, 0), latest=(9, 9, 9))
    assert str(refused.value) == (
        "--from = {}: no offset for partition 0, 1, 2; allowed is earliest, latest or an offset for each of the partitions 0 to 2, such as "
        '{"0": 0, "1": 0}'
    )
    assert parse_offsets("latest", option="--from", partitions=1, earliest=(0,), latest=(9,)) == (9,)


def test_a_reader_that_names_offsets_begins_there_and_nobody_knows_the_version_of_those_in_between() -> None:
    """A log start and an end: nothing is held yet, and nothing was missed.

    ```
     partition 0    3 … 10 seen … 12      partition 1    0 … 20 seen = log end         table version 7
     given          [3, 20]               since 7
                    [4, 20]               somebody remembers 4: from which version? since -1
    ```
    """
    newest = Position(offsets=(10, 20), table_version=7, since_version=7, topic_id="t")
    log = Extent(topic_id="t", table_version=7, log_start_offsets=(3, 0), log_end_offsets=(12, 20))

    def begins(given: object) -> tuple[tuple[int, ...], int]:
        found = starting_at(given, option="startingOffsets", topic="fruit", newest=newest, log=log)
        return found.offsets, found.since_version

    assert begins("latest") == ((10, 20), 7)
    assert begins("earliest") == ((3, 0), 7)
    assert begins([3, 20]) == ((3, 20), 7)
    assert begins([12, 0]) == ((12, 0), 7)
    assert begins([4, 20]) == ((4, 20), -1)
    assert offsets_within({0: 12, 1: -2}, option="endingOffsets", topic="fruit", newest=newest, log=log) == (12, 0)
    with pytest.raises(OffsetOutOfRange) as refused:
        offsets_within([13, 20], option="endingOffsets", topic="fruit", newest=newest, log=log)
    assert str(refused.value) == "topic fruit: endingOffsets {0: 13}: allowed is partition 0 up to 12 (log end offset)"


def test_partitions_share_a_micro_batch_by_what_they_still_have_to_give() -> None:
    """100 and 300 waiting, 40 allowed: 10 and 30; one that has anything gets one at least; none goes back."""
    assert advance((0, 0), (100, 300), None) == (100, 300)
    assert advance((0, 0), (100, 300), 400) == (100, 300)
    assert advance((0, 0), (100, 300), 40) == (10, 30)
    assert advance((0, 0, 0), (1, 1_000_000, 0), 10) == (1, 9, 0)
    assert advance((0, 0), (2, 1_000_000), 10) == (1, 9)
    assert advance((7, 0), (5, 10), None) == (7, 10)
    assert advance((7, 0), (5, 10), 4) == (7, 4)


def _missed(position: Position, **what: object) -> list[tuple[Loss, int, int, int]]:
    known: dict[str, object] = {"log_start_offsets": (0, 0), "log_end_offsets": (100, 100)}
    found = missed_ranges(position, **(known | what))  # type: ignore[arg-type]
    return [(one.loss, one.partition, one.offset, one.resume_at) for one in found]


def test_a_reader_is_told_of_deleted_records_and_of_tombstones_that_went_unread() -> None:
    """At the tombstone, or before it; one that went before the reader began was never its business."""
    position = Position(offsets=(40, 60), table_version=9, since_version=5)
    assert _missed(position) == []
    assert _missed(position, log_start_offsets=(50, 50)) == [(Loss.DELETED, 0, 40, 50)]
    went = [RemovedTombstone(table_version=version, partition=partition, offset=offset) for version, partition, offset in (
        (5, 0, 90), (6, 0, 39), (6, 1, 60), (7, 1, 55))]  # fmt: skip
    assert _missed(position, tombstones=went) == [(Loss.TOMBSTONE, 1, 60, 60)]
    [one] = missed_ranges(position, log_start_offsets=(0, 0), log_end_offsets=(100, 100), tombstones=went)
    assert str(one) == (
        "partition 1, offset 60: tombstones up to offset 60 were removed before they were read (delete.retention.ms): keys that were "
        "deleted may still be held"
    )
    [one] = missed_ranges(position, log_start_offsets=(0, 61), log_end_offsets=(100, 100))
    assert str(one) == "partition 1, offset 60: the records 60 to 60 were deleted; the log starts at 61"


def test_of_many_tombstones_the_highest_offset_is_named() -> None:
    """In whatever order they went."""
    went = [RemovedTombstone(table_version=6, partition=0, offset=offset) for offset in (70, 80, 75)]
    [one] = missed_ranges(Position(offsets=(0,)), log_start_offsets=(0,), log_end_offsets=(100,), tombstones=went)
    assert "up to offset 80" in one.detail


def test_a_reader_is_told_of_a_restore_that_took_back_what_it_read() -> None:
    """Only beyond the end that the RESTORE left, and only if the version that was read is one that it took back."""
    position = Position(offsets=(40, 60), table_version=9, since_version=5)
    assert _missed(position, log_end_offsets=(30, 100)) == [(Loss.TRUNCATED, 0, 40, 30)]
    back = TakenBack(table_version=12, restored_version=7, log_end_offsets=(40, 50))
    assert _missed(position, restores=[back]) == [(Loss.TRUNCATED, 1, 60, 50)]
    assert _missed(position, restores=[TakenBack(table_version=12, restored_version=9, log_end_offsets=(0, 0))]) == []
    assert _missed(position, restores=[TakenBack(table_version=9, restored_version=7, log_end_offsets=(0, 0))]) == []
    undone = TakenBack(table_version=14, restored_version=11, log_end_offsets=(70, 90))
    assert _missed(position, restores=[back, undone]) == [], "the RESTORE was itself taken back"
    forgotten = TakenBack(table_version=12, restored_version=7, log_end_offsets=None)
    assert _missed(position, restores=[back, forgotten]) == [(Loss.TRUNCATED, 0, 40, 100), (Loss.TRUNCATED, 1, 60, 100)]
    told = [
        str(missed_ranges(position, log_start_offsets=(0, 0), log_end_offsets=(100, 100), restores=restores)[-1])
        for restores in ([back], [forgotten])
    ]
    assert told == [
        f"partition 1, offset 60: the log was taken back to {end} by a RESTORE; the records read from there on were undone"
        for end in ("offset 50", "an offset that is not known any more")
    ]


@pytest.mark.parametrize(
    "position",
    [
        Position(offsets=(5, 9), table_version=3, topic_id="old"),
        Position(offsets=(5, 9), table_version=8),
        Position(offsets=(5,), table_version=3),
        Position(offsets=(5, 9, 1), table_version=3, topic_id="new"),
    ],
    ids=["another id", "a version that is not there yet", "fewer partitions", "more partitions"],
)
def test_a_reader_of_a_topic_that_had_the_name_before_has_missed_all_of_the_new_one(position: Position) -> None:
    """It can only begin at the new log's start."""
    found = missed_by_recreation(position, _NEW_TOPIC)
    second = dict(enumerate(position.offsets)).get(1, 0)
    assert [(one.loss, one.partition, one.offset, one.resume_at) for one in found] == [
        (Loss.RECREATED, 0, 5, 0),
        (Loss.RECREATED, 1, second, 2),
    ]
    assert str(found[0]) == "partition 0, offset 5: the topic was deleted, and another was created under its name; its log starts at 0"
    assert resume_offsets(position, found, 2) == (0, 2)


@dataclass(frozen=True)
class _History:
    tombstones: tuple[RemovedTombstone, ...] = ()
    restores: tuple[TakenBack, ...] = ()


def test_the_history_of_a_log_is_asked_for_only_where_it_can_matter() -> None:
    """Not at a version that was read, not of another topic; from the older of the two versions on, else."""
    asked: list[int] = []
    restored = False

    def history(since_version: int) -> _History:
        asked.append(since_version)
        return _History(
            tombstones=(RemovedTombstone(table_version=8, partition=1, offset=12),),
            restores=(TakenBack(table_version=9, restored_version=6, log_end_offsets=(5, 8)),) if restored else (),
        )

    def losses(position: Position, version: int, start: int = 0) -> list[Loss]:
        log = Extent(topic_id="new", table_version=version, log_start_offsets=(start, start), log_end_offsets=(50, 50))
        return [one.loss for one in overtaken(position, log, history)]

    at_seven = Position(offsets=(5, 9), table_version=7, since_version=6, topic_id="new")
    assert losses(at_seven, 7) == []
    assert losses(replace(at_seven, since_version=0), 7) == []
    assert losses(at_seven, 7, start=5) == []
    assert losses(replace(at_seven, topic_id="old"), 7) == [Loss.RECREATED, Loss.RECREATED]
    assert asked == []
    assert losses(at_seven, 8) == [Loss.TOMBSTONE]
    assert losses(at_seven, 7, start=9) == [Loss.DELETED, Loss.TOMBSTONE], "the log start moves without a commit"
    assert losses(replace(at_seven, since_version=-1), 7) == [Loss.TOMBSTONE]
    assert asked == [6, 6, -1]
    restored = True
    assert losses(at_seven, 9) == [Loss.TRUNCATED, Loss.TOMBSTONE]


def test_a_reader_of_the_same_topic_has_not() -> None:
    """Nor has one that does not know whose offsets it holds."""
    for position in (Position(offsets=(5, 9), table_version=7, topic_id="new"), Position(offsets=(5, 9))):
        assert missed_by_recreation(position, _NEW_TOPIC) == []
        assert resume_offsets(position, [], 2) == (5, 9)


def test_the_past_of_a_vector_is_whole_up_to_the_first_cleaning_past_it() -> None:
    """Partition 0 was cleaned past 50 as version 8, partition 1 past 60 as version 6: version 5 still has both."""
    checkpoints = [[(4, 50), (8, 70)], [(6, 61)]]
    assert newest_whole_version((50, 60), checkpoints, 9) == 5
    assert newest_whole_version((50, 61), checkpoints, 9) == 7
    assert newest_whole_version((70, 61), checkpoints, 9) == 9
    assert newest_whole_version((0, 0), [[], []], 9) == 9


def test_a_position_is_written_and_read_as_json() -> None:
    """What a checkpoint and a registered reader keep."""
    position = Position(offsets=(4, 5), table_version=9, since_version=5, topic_id="a1")
    written = '{"offsets":{"0":4,"1":5},"table_version":9,"since_version":5,"topic_id":"a1"}'
    assert position.to_json() == written
    assert Position.from_json(written) == position
    assert position.vector() == {0: 4, 1: 5}
    of_nobody_knows_whom = Position.from_json(written.replace(',"topic_id":"a1"', ""))
    assert of_nobody_knows_whom == replace(position, topic_id="")


def test_a_position_of_a_later_version_says_so() -> None:
    """What it carries is not guessed."""
    position = Position(offsets=(1, 2), table_version=3)
    for form in (2, "1b", None):
        with pytest.raises(UnknownFormat, match=f"a position has format {form}"):
            Position.from_dict({**json.loads(position.to_json()), "format": form})
    assert Position.from_dict({**json.loads(position.to_json()), "format": 1}) == position
