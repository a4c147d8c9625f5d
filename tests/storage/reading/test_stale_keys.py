"""Keys whose last record is stale, as a newer row of theirs is a dead letter."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from lastword import ArrowTopic, CorruptLog, Envelope, InvalidConfiguration, LogDir
from lastword.storage.append.dead_letters import expire_dead_letters
from lastword.storage.reading.stale_keys import StaleKeys
from tests.change_events import FLAT, change, topic_in
from tests.clocks import at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DAYS = Envelope(schema="id int, day date")
#: A day before the year 1, which no date holds.
_MISFIT = -800_000
_UNORDERED = {"connector": "vitess"}


def _append(topic: ArrowTopic, *events: tuple[str | None, str | None], envelope: Envelope = _DAYS) -> int:
    """Append events, and return how many became dead letters."""
    rows = [{"key": key, "value": value} for key, value in events]
    return sum(topic.append(rows, envelope=envelope, on_invalid="dead-letter").refused.values())


def _upsert(key: int, position: Any, day: int = 0) -> tuple[str | None, str]:
    return change("u", key, position, {"id": key, "day": day})


def _stale(topic: ArrowTopic) -> list[str]:
    return [stale.key.decode() for stale in topic.stale_keys()]


def test_a_newer_row_that_is_a_dead_letter_makes_its_key_stale_until_the_next_one(tmp_path: Path) -> None:
    """The table shows the older row meanwhile; the count is in `describe`."""
    topic = topic_in(tmp_path)
    assert _append(topic, _upsert(1, 10), _upsert(2, 11), _upsert(1, 12, _MISFIT), _upsert(2, 13, _MISFIT)) == 2
    assert topic.latest().num_rows == 2
    (first, second) = topic.stale_keys()
    assert (first.key, first.source, first.reason) == (b'{"id":1}', "append", "no_event")
    assert "column day = -800000" in first.detail
    assert second.key == b'{"id":2}'
    assert topic.describe().stale_keys == 2

    _append(topic, _upsert(1, 14))
    assert _stale(topic) == ['{"id":2}']
    _append(topic, change("d", 2, 15))
    assert _stale(topic) == []
    assert topic.describe().stale_keys == 0


def test_the_same_event_sent_again_in_a_form_that_fits_is_no_longer_stale(tmp_path: Path) -> None:
    """With null in the place of the misfit, as `misfit` asks for."""
    topic = topic_in(tmp_path)
    _append(topic, _upsert(1, 10), _upsert(1, 12, _MISFIT))
    _append(topic, _upsert(1, 12, _MISFIT), envelope=Envelope(schema="id int, day date", misfit="null"))
    assert _stale(topic) == []
    assert topic.table().to_pylist() == [{"id": 1, "day": None}]


def test_a_dead_letter_that_is_older_than_the_last_record_makes_nothing_stale(tmp_path: Path) -> None:
    """By the position in the source, in the same append and in a later one."""
    topic = topic_in(tmp_path)
    _append(topic, _upsert(1, 20), _upsert(1, 12, _MISFIT), _upsert(2, 5, _MISFIT), _upsert(2, 6))
    assert _stale(topic) == []
    _append(topic, _upsert(1, 19, _MISFIT))
    assert _stale(topic) == []
    _append(topic, _upsert(1, 21, _MISFIT))
    assert _stale(topic) == ['{"id":1}']


def test_a_key_whose_only_row_is_a_dead_letter_is_stale(tmp_path: Path) -> None:
    """The table lacks a row that the source has."""
    topic = topic_in(tmp_path)
    _append(topic, _upsert(1, 10, _MISFIT))
    assert (_stale(topic), topic.latest().num_rows) == (['{"id":1}'], 0)


def test_without_positions_the_order_of_arrival_counts(tmp_path: Path) -> None:
    """Between appends, by their time; a row of the same append ends nothing, as an older one would hide a stale key."""
    topic = topic_in(tmp_path)
    _append(at(1_000, topic), _upsert(1, _UNORDERED, _MISFIT), _upsert(1, _UNORDERED), _upsert(2, _UNORDERED))
    _append(at(2_000, topic), _upsert(2, _UNORDERED, _MISFIT))
    assert _stale(topic) == ['{"id":1}', '{"id":2}']
    _append(at(3_000, topic), _upsert(1, _UNORDERED), _upsert(2, _UNORDERED))
    assert _stale(topic) == []


@pytest.mark.parametrize(
    ("envelope", "rows"),
    [
        pytest.param(
            Envelope(kind="debezium-flat", schema="id int, day date"),
            [('{"id":1}', '{"id":1,"day":0,"__source_lsn":1}'), ('{"id":1}', '{"id":1,"day":-800000,"__source_lsn":2}')],
            id="flat",
        ),
        pytest.param(
            Envelope(key=("id",), schema="id int, day date"),
            [change("c", 9, 1, {"id": 1, "day": 0}), change("u", 9, 2, {"id": 1, "day": _MISFIT})],
            id="key of columns",
        ),
        pytest.param(
            Envelope(kind="debezium-flat", key=("id",), schema="id int, day date"),
            [(None, '{"id":1,"day":0,"__source_lsn":1}'), (None, '{"id":1,"day":-800000,"__source_lsn":2}')],
            id="flat, key of columns",
        ),
        pytest.param(Envelope(), [change("c", 1, 1, {"id": 1}), ('{"id":1}', '{"op":"u","after":')], id="cut"),
        pytest.param(Envelope(), [change("c", 1, 1, {"id": 1}), change("x", 1, 2, {"id": 1})], id="unknown op"),
        pytest.param(
            Envelope(),
            [change("c", 1, 1, {"id": 1, "t": "a"}), change("u", 1, 2, {"id": 1, "n": "__debezium_unavailable_value"})],
            id="unchanged TOAST",
        ),
        pytest.param(FLAT, [('{"id":1}', '{"id":1,"__source_lsn":1}'), ('{"id":1}', "[]")], id="no object"),
    ],
)
def test_every_reason_for_which_a_row_with_a_key_is_refused_counts(
    tmp_path: Path, envelope: Envelope, rows: Sequence[tuple[str | None, str]]
) -> None:
    """Raw and flattened, by the event's own key and by columns of the row."""
    topic = topic_in(tmp_path)
    assert _append(topic, *rows, envelope=envelope) == 1
    assert _stale(topic) == ['{"id":1}']


def test_rows_without_an_envelope_count_too(tmp_path: Path) -> None:
    """A record that is too large, and a time that the log does not take; rows without a key do not."""
    topic = topic_in(tmp_path, max_message_bytes="100")
    rows: list[dict[str, Any]] = [
        {"key": "a", "value": "x" * 200},
        {"key": "b", "value": "1", "timestamp": -5},
        {"key": None, "value": "1"},
        {"key": "c", "value": "1"},
    ]
    assert topic.append(rows, on_invalid="dead-letter").refused == {"oversized": 1, "negative_timestamp": 1, "keyless": 1}
    assert _stale(topic) == ["a", "b"]


def test_what_is_followed_is_the_same_as_what_is_read_anew(tmp_path: Path) -> None:
    """Over appends, cleanings and dead letters that expire."""
    topic = topic_in(tmp_path, partitions=2)
    followed = StaleKeys(topic.log)
    position = 0
    for step in range(6):
        for key in range(4):
            position += 1
            _append(at(1_000 * (step + 1), topic), _upsert(key, position, _MISFIT if (key + step) % 3 == 0 else 0))
        if step == 3:
            topic.roll()
            topic.clean()
        if step == 4:
            expire_dead_letters(topic.log.paths.dead_letters, {}, before_ms=4_500)
        assert [stale.key for stale in followed.collect()] == [stale.key for stale in StaleKeys(topic.log).collect()]
    assert len(followed.collect()) > 0


@pytest.mark.parametrize(("max_keys", "count"), [(2, 2), (3, 3), (4, 3)])
def test_no_more_keys_are_followed_than_the_limit(tmp_path: Path, max_keys: int, count: int) -> None:
    """A source of which every row is refused must not fill the memory."""
    topic = topic_in(tmp_path)
    _append(topic, *(_upsert(key, key, _MISFIT) for key in (1, 2, 3)))
    assert len(StaleKeys(topic.log, max_keys=max_keys).collect()) == count


def test_keys_that_are_no_longer_stale_make_room_for_others(tmp_path: Path) -> None:
    """Whether they are followed all the time or read anew."""
    topic = topic_in(tmp_path)
    for key in range(1, 6):
        _append(topic, _upsert(key, key, _MISFIT))
    _append(topic, _upsert(1, 10), _upsert(2, 11))
    stale = StaleKeys(topic.log, max_keys=3)
    assert [len(stale.collect()), len(StaleKeys(topic.log, max_keys=3).collect())] == [3, 3]


@pytest.mark.parametrize("calls", [1, 2])
def test_an_older_row_behind_a_refused_one_hides_nothing(tmp_path: Path, calls: int) -> None:
    """In one append as in two; neither does a dead letter without a position."""
    topic, rows = topic_in(tmp_path), [_upsert(1, 9, _MISFIT), _upsert(1, 4)]
    for part in [rows] if calls == 1 else [[row] for row in rows]:
        _append(topic, *part)
    assert _stale(topic) == ['{"id":1}']
    _append(topic, _upsert(2, 10), _upsert(2, _UNORDERED, _MISFIT), _upsert(3, 9, _MISFIT))
    _append(topic, _upsert(3, 10))
    assert _stale(topic) == ['{"id":1}', '{"id":2}']


def test_the_same_sequence_that_arrives_later_is_newer(tmp_path: Path) -> None:
    """A refused row after a good one makes its key stale, a good one after it ends that."""
    topic = topic_in(tmp_path)
    _append(at(1_000, topic), _upsert(1, 5))
    _append(at(2_000, topic), _upsert(1, 5, _MISFIT))
    assert _stale(topic) == ['{"id":1}']
    _append(at(3_000, topic), _upsert(1, 5))
    assert _stale(topic) == []


def test_a_record_without_a_sequence_that_came_later_is_newer(tmp_path: Path) -> None:
    """A row without a position; one takes the sequence of the key's last record if there is one, and then that is compared."""
    topic = topic_in(tmp_path)
    _append(at(1_000, topic), _upsert(1, 5))
    _append(at(2_000, topic), _upsert(1, 7, _MISFIT), _upsert(2, 7, _MISFIT))
    unknown = {"connector": "postgresql"}
    _append(at(3_000, topic), _upsert(1, unknown), _upsert(2, unknown))
    assert _stale(topic) == ['{"id":1}']


def test_a_transaction_that_is_open_or_aborted_ends_nothing(tmp_path: Path) -> None:
    """Its end in a commit does."""
    topic = topic_in(tmp_path, max_message_bytes="100")
    topic.append([{"key": "a", "value": "1"}])
    topic.append([{"key": "a", "value": "2" * 200}], on_invalid="dead-letter")
    followed = StaleKeys(topic.log)
    transaction = topic.transaction("loader")
    transaction.append([{"key": "a", "value": "3"}])
    assert [len(followed.collect()), len(_stale(topic))] == [1, 1]
    transaction.abort()
    assert [len(followed.collect()), len(_stale(topic))] == [1, 1]
    with topic.transaction("loader") as other:
        other.append([{"key": "a", "value": "4"}])
    assert [len(followed.collect()), len(_stale(topic))] == [0, 0]


def test_a_truncate_ends_what_came_before_it(tmp_path: Path) -> None:
    """Also for a key that has no record."""
    topic = topic_in(tmp_path)
    _append(topic, _upsert(1, 5, _MISFIT), _upsert(2, 20, _MISFIT))
    followed = StaleKeys(topic.log)
    assert len(followed.collect()) == 2
    _append(topic, change("t", None, 10))
    assert _stale(topic) == ['{"id":2}']
    assert [stale.key.decode() for stale in followed.collect()] == ['{"id":2}']


def test_columns_that_are_not_there_leave_a_key_stale_by_the_same_rule(tmp_path: Path) -> None:
    """An unchanged TOAST column that no record has, and then the whole row."""
    topic, left_out = topic_in(tmp_path), {"id": 1, "t": "__debezium_unavailable_value"}
    assert _append(at(1_000, topic), change("u", 1, _UNORDERED, left_out), envelope=Envelope()) == 1
    assert _stale(topic) == ['{"id":1}']
    _append(at(2_000, topic), change("u", 1, _UNORDERED, {"id": 1, "t": "x"}), envelope=Envelope())
    assert _stale(topic) == []


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("positions", [(10, 12, 14, 16, 18), (_UNORDERED,) * 5], ids=["ordered", "unordered"])
def test_a_row_that_was_filled_in_from_before_a_dead_letter_leaves_its_key_stale(tmp_path: Path, positions: Any, cut: int) -> None:
    """The refused event may have changed what the row left out. A whole row ends it, and rows that are filled in from that one.

    ```
    10 whole     12 refused     14 filled in from 10: stale     16 whole     18 filled in from 16: not stale, also once 16 is cleaned
    ```
    """
    topic, envelope = topic_in(tmp_path), Envelope(schema="id int, day date, body string")
    days, bodies = (0, _MISFIT, 1, 2, 3), ("old", "changed", "__debezium_unavailable_value", "whole", "__debezium_unavailable_value")
    rows = [{"id": 1, "day": day, "body": body} for day, body in zip(days, bodies, strict=True)]
    events = [change("u", 1, position, row) for position, row in zip(positions, rows, strict=True)]
    for number, batch in enumerate((events[:cut], events[cut:3])):
        _append(at(1_000 + number, topic), *batch, envelope=envelope)
    assert topic.table(schema="body string").to_pylist() == [{"body": "old"}]
    assert _stale(topic) == ['{"id":1}']
    _append(at(2_000, topic), events[3], envelope=envelope)
    assert _stale(topic) == []
    _append(at(3_000, topic), events[4], envelope=envelope)
    assert (_stale(topic), topic.table(schema="body string").to_pylist()) == ([], [{"body": "whole"}])
    topic.roll()
    at(10_000, topic).clean(force=True)
    again = LogDir(tmp_path).topic(topic.name)
    assert (topic.records().num_rows, _stale(again)) == (1, [] if positions[0] == 10 else ['{"id":1}'])


def test_a_stale_row_that_gets_another_key_leaves_a_stale_key(tmp_path: Path) -> None:
    """The old one: the new key took a column from it that the refused event may have changed."""
    topic, envelope = topic_in(tmp_path), Envelope(schema="id int, day date, body string")
    whole, refused = ({"id": 5, "day": 0, "body": "old"}, {"id": 5, "day": _MISFIT, "body": "new"})
    left_out = {"id": 50, "day": 1, "body": "__debezium_unavailable_value"}
    _append(topic, change("c", 5, 10, whole), change("u", 5, 20, refused), envelope=envelope)
    (goes, comes) = (change("d", 5, 40), change("c", 50, 40, left_out))
    rows = [
        {"key": event[0], "value": event[1], "headers": [{"key": f"__debezium.{name}", "value": json.dumps({"id": key}).encode()}]}
        for event, name, key in ((goes, "newkey", 50), (comes, "oldkey", 5))
    ]
    assert not topic.append(rows, envelope=envelope, on_invalid="dead-letter").refused
    assert (topic.table(schema="body string").to_pylist(), _stale(topic)) == ([{"body": "old"}], ['{"id":5}'])


def test_a_purge_finds_the_key_of_a_dead_letter_as_the_log_has_it(tmp_path: Path) -> None:
    """The source wrote it in another form, or not at all."""
    topic = topic_in(tmp_path)
    _append(topic, ('{"id": 1}', _upsert(1, 5, _MISFIT)[1]))
    mail = Envelope(key=("mail",), schema="mail string, day date")
    _append(topic, change("u", 5, 6, {"mail": "lime", "day": _MISFIT}), envelope=mail)
    for key in ('{"id":1}', '{"mail":"lime"}'):
        assert topic.purge(key).dead_letters_removed == 1
    assert (topic.dead_letters().num_rows, _stale(topic)) == (0, [])


def test_a_call_with_dead_letters_takes_the_good_rows_and_a_replay_doubles_none(tmp_path: Path) -> None:
    """By its idempotency key; without the policy one row refuses all; another policy is refused by name."""
    topic = topic_in(tmp_path)
    rows = [{"key": key, "value": value} for key, value in (_upsert(1, 1), _upsert(2, 2, _MISFIT))]
    with pytest.raises(Exception, match="nothing was appended"):
        topic.append(rows, envelope=_DAYS)
    first = topic.append(rows, envelope=_DAYS, on_invalid="dead-letter", idempotency_key="k")
    again = topic.append(rows, envelope=_DAYS, on_invalid="dead-letter", idempotency_key="k")
    assert (first.record_count, first.refused, again.replayed) == (1, {"no_event": 1}, True)
    assert (topic.dead_letters().num_rows, topic.records().num_rows) == (1, 1)
    with pytest.raises(InvalidConfiguration, match=r"on\.invalid = skip: dead-letter or fail"):
        topic.append(rows, on_invalid="skip")


def test_a_damaged_file_leaves_the_number_unknown(tmp_path: Path) -> None:
    """`describe` says all else; without dead letters no record is read for it."""
    topic = topic_in(tmp_path)
    _append(topic, _upsert(1, 5))
    (path,) = topic.log.snapshot().files.path.tolist()
    file = tmp_path / "t" / "log" / path
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    assert (topic.describe().stale_keys, topic.describe().record_count) == (0, 1)
    file.write_bytes(whole)
    _append(topic, _upsert(1, 6, _MISFIT))
    file.write_bytes(whole[:100])
    assert topic.describe().stale_keys is None
    with pytest.raises(CorruptLog):
        topic.stale_keys()


@pytest.mark.parametrize(("times", "is_found"), [(2, True), (3, False)])
def test_files_that_vacuum_takes_while_they_are_read_are_looked_for_anew(tmp_path: Path, times: int, *, is_found: bool) -> None:
    """Twice; a folder whose files never hold still is an error, and what was half read then counts for nothing."""
    topic = topic_in(tmp_path)
    _append(topic, _upsert(1, 10), _upsert(1, 12, _MISFIT))
    failures = iter(range(times))

    class Taken(StaleKeys):
        def _read_letters(self, path: str, truncated: tuple[str, ...]) -> set[bytes]:
            if next(failures, None) is not None:
                raise FileNotFoundError
            return super()._read_letters(path, truncated)

    stale = Taken(topic.log)
    with nullcontext() if is_found else pytest.raises(FileNotFoundError):
        assert [one.key for one in stale.collect()] == [b'{"id":1}']
    assert [one.key for one in stale.collect()] == [b'{"id":1}']
