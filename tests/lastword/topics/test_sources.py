"""The sources of a topic: what is seen of them, and what new-epoch, retire and sweep do. Rules: A.60 to A.62 of docs/semantics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lastword import Envelope, LogDir, UserError, copy_topic
from lastword.compaction.order.source_states import SourceCounts
from lastword.storage.delta.tables import open_table
from lastword.storage.files import data_files
from lastword.topics.sources import SourceDescriptions
from tests.change_events import append, change, rows_of, topic_in
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.topics.sources import SourceDescription

#: Many of these take half a second; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_REPLACE = Envelope(on_snapshot="replace")


def _source(file: int, pos: int, *, ts_ms: int | None = None, **fields: Any) -> dict[str, Any]:
    names = {"connector": "mysql", "name": "shop", "db": "d", "table": "t"}
    return {**names, "file": f"bin.{file:06}", "pos": pos, "row": 0, "ts_ms": ts_ms, **fields}


def _row(number: int, value: str = "") -> dict[str, Any]:
    return {"id": number, "v": value}


def _values(topic: ArrowTopic) -> dict[int, str]:
    return {row["id"]: row["v"] for row in rows_of(topic).values()}


def _sources(topic: ArrowTopic) -> dict[str, SourceDescription]:
    return {one.name: one for one in topic.sources()}


def test_an_append_says_what_came_of_each_source(tmp_path: Path) -> None:
    """Rows, late ones, those without a position; a second source and LSNs without commits are said once."""
    topic = topic_in(tmp_path)
    done = append(topic, change("c", 1, _source(1, 100), _row(1)), change("c", 2, _source(1, 200), _row(2)))
    assert done.sources == {"mysql.shop": SourceCounts(rows=2)}
    assert ["source mysql.shop: no event so far carried a schema" in note for note in done.notes] == [True]
    lsn = {"connector": "postgresql", "name": "pg", "lsn": 7}
    done = append(topic, change("u", 1, _source(1, 50), _row(1)), change("c", 3, lsn, _row(3)), change("c", 4, {}, _row(4)))
    assert done.sources == {
        "(unnamed)": SourceCounts(rows=1, without_position=1),
        "mysql.shop": SourceCounts(rows=1, late=1),
        "postgresql.pg": SourceCounts(rows=1, is_by_lsn=True),
    }
    assert ["another one beside mysql.shop" in note or "no source.sequence" in note for note in done.notes] == [True, True]
    assert append(topic, change("c", 3, {**lsn, "lsn": 8}, _row(3))).notes == ()
    found = _sources(topic)
    assert {name: one.by_lsn for name, one in found.items()} == {"mysql.shop": False, "postgresql.pg": True}
    assert [one.epoch for one in found.values()] == [1, 1]
    assert topic.describe().sources == topic.sources()


def test_a_failover_without_a_snapshot_is_noticed_and_a_new_epoch_is_the_way_on(tmp_path: Path) -> None:
    """What came before is older from then on, whatever its position; the snapshot of the new server brings what was left out."""
    topic = at(T0, topic_in(tmp_path))
    append(topic, *(change("c", one, _source(9, 100 * one, ts_ms=T0), _row(one, "old")) for one in (1, 2, 3)))
    again = append(topic, change("c", 1, _source(9, 50, ts_ms=T0), _row(1, "again")))
    assert (again.late, again.notes, _sources(topic)["mysql.shop"].lower_positions) == (1, (), "")
    lost = append(topic, change("u", 1, _source(1, 70, ts_ms=T0 + HOUR_MS), _row(1, "new")))
    assert (lost.late, lost.sources["mysql.shop"].lower_positions) == (1, 1)
    assert "lastword sources new-epoch" in lost.notes[0]
    assert _sources(topic)["mysql.shop"].lower_positions == "1.70"
    assert append(topic, change("u", 2, _source(1, 80, ts_ms=T0 + HOUR_MS), _row(2, "new"))).notes == ()
    assert topic.new_epoch("mysql.shop") == 2
    assert _sources(topic)["mysql.shop"].lower_positions == ""
    append(topic, change("r", 1, _source(1, 90, snapshot="true"), _row(1, "new")), change("u", 2, _source(1, 95), _row(2, "new")))
    append(topic, change("u", 2, _source(1, 94), _row(2, "late")))
    assert _values(topic) == {1: "new", 2: "new", 3: "old"}
    assert _sources(topic)["mysql.shop"].epoch == 2


def test_a_retired_source_is_left_out_until_it_is_taken_back(tmp_path: Path) -> None:
    """Its rows and its TRUNCATEs; another source goes on."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, _source(1, 100), _row(1, "blue")), change("c", 2, _source(1, 101), _row(2, "blue")))
    append(topic, change("c", 1, _source(1, 5, name="green"), _row(1, "green")))
    assert topic.retire_source("mysql.shop")
    assert not topic.retire_source("mysql.shop")
    done = append(topic, change("u", 1, _source(1, 200), _row(1, "blue")), change("t", None, _source(1, 201)))
    append(topic, change("u", 1, _source(1, 6, name="green"), _row(1, "green 2")))
    assert (done.late, _values(topic)) == (1, {1: "green 2", 2: "blue"})
    assert [one.retired for one in topic.sources()] == [False, True]
    assert topic.retire_source("mysql.shop", undo=True)
    append(topic, change("u", 2, _source(1, 202), _row(2, "back")))
    assert _values(topic) == {1: "green 2", 2: "back"}


@pytest.mark.parametrize("decide", ["new_epoch", "retire_source", "sweep_source"])
def test_a_source_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, decide: str) -> None:
    """Also where there is none."""
    topic = topic_in(tmp_path)
    with pytest.raises(UserError, match="its sources are: none"):
        getattr(topic, decide)("mysql.shop")
    append(topic, change("c", 1, _source(1, 100), _row(1)))
    with pytest.raises(UserError, match=r"has no source 'mysql.shpo'; its sources are: mysql.shop"):
        getattr(topic, decide)("mysql.shpo")


def _gap(topic: ArrowTopic, *, cut: bool, envelope: Envelope | None = None) -> None:
    """Bring three rows, and after a gap a snapshot that lacks the first; another table of the server has no snapshot."""
    append(topic, *(change("c", one, _source(1, 100 + one), _row(one, "old")) for one in (1, 2, 3)), envelope=envelope)
    append(topic, change("c", 9, _source(1, 150, table="other"), _row(9, "other")), envelope=envelope)
    snapshot = [change("r", one, _source(2, 50, snapshot="true"), _row(one, "kept")) for one in (2, 3)]
    behind = change("u", 3, _source(2, 60), _row(3, "newer"))
    for events in (snapshot, [behind]) if cut else ([*snapshot, behind],):
        append(topic, *events, envelope=envelope)


@pytest.mark.parametrize("cut", [True, False])
def test_rows_that_a_complete_snapshot_lacks_are_counted_and_swept_when_somebody_says_so(tmp_path: Path, cut: bool) -> None:  # noqa: FBT001
    """They are deletions of a gap. Rows of another table stay; what the snapshot brings later comes back."""
    topic = topic_in(tmp_path)
    _gap(topic, cut=cut)
    assert _values(topic) == {1: "old", 2: "kept", 3: "newer", 9: "other"}
    assert _sources(topic)["mysql.shop"].rows_not_in_snapshot == 1
    assert topic.sweep_source("mysql.shop") == 1
    assert _values(topic) == {2: "kept", 3: "newer", 9: "other"}
    found = _sources(topic)["mysql.shop"]
    assert (found.rows_not_in_snapshot, [one.swept for one in found.snapshots]) == (0, [True])
    assert topic.sweep_source("mysql.shop") == 0
    append(topic, change("r", 1, _source(2, 50, snapshot="true"), _row(1, "late row of the snapshot")))
    append(topic, change("u", 1, _source(1, 140), _row(1, "before it")))
    assert _values(topic)[1] == "late row of the snapshot"


@pytest.mark.parametrize("cut", [True, False])
def test_a_source_whose_snapshots_replace_sweeps_by_itself(tmp_path: Path, cut: bool) -> None:  # noqa: FBT001
    """When a change has come behind the snapshot, and once."""
    topic = topic_in(tmp_path)
    _gap(topic, cut=cut, envelope=_REPLACE)
    assert _values(topic) == {2: "kept", 3: "newer", 9: "other"}
    assert [one.swept for one in _sources(topic)["mysql.shop"].snapshots] == [True]


def test_a_snapshot_that_may_be_under_way_is_swept_only_as_it_is(tmp_path: Path) -> None:
    """A row that it brings later comes back."""
    topic = topic_in(tmp_path)
    append(topic, *(change("c", one, _source(1, 100 + one), _row(one, "old")) for one in (1, 2)))
    append(topic, change("r", 1, _source(2, 50, snapshot="true"), _row(1, "kept")))
    found = _sources(topic)["mysql.shop"]
    assert (found.rows_not_in_snapshot, found.incomplete_snapshots) == (0, ("",))
    with pytest.raises(UserError, match="no change has come behind it in Kafka's partition -"):
        topic.sweep_source("mysql.shop")
    assert topic.sweep_source("mysql.shop", incomplete=True) == 1
    assert _values(topic) == {1: "kept"}
    append(topic, change("r", 2, _source(2, 50, snapshot="last"), _row(2, "kept")))
    assert _values(topic) == {1: "kept", 2: "kept"}


def test_the_first_snapshot_lacks_nothing(tmp_path: Path) -> None:
    """Nothing was there before it, so no key is read."""
    topic = topic_in(tmp_path)
    append(topic, change("r", 1, _source(1, 50, snapshot="true"), _row(1)), change("u", 1, _source(1, 60), _row(1)))
    found = _sources(topic)["mysql.shop"]
    assert (found.rows_not_in_snapshot, found.incomplete_snapshots, len(found.snapshots)) == (0, (), 1)
    assert topic.sweep_source("mysql.shop") == 0


def test_a_service_counts_again_while_a_snapshot_may_lack_rows(tmp_path: Path) -> None:
    """At most once a minute, and no more when nothing is left."""
    topic = topic_in(tmp_path)
    descriptions = SourceDescriptions(topic.log)
    assert descriptions.collect(now_ms=T0) == ()
    _gap(topic, cut=False)
    assert descriptions.collect(now_ms=T0)[0].rows_not_in_snapshot == 1
    append(topic, change("d", 1, _source(2, 61)))
    assert descriptions.collect(now_ms=T0 + 1000)[0].rows_not_in_snapshot == 1
    assert descriptions.collect(now_ms=T0 + 60_000)[0].rows_not_in_snapshot == 0
    assert descriptions.collect(now_ms=T0 + DAY_MS) == topic.sources()


def test_what_was_decided_is_the_same_after_the_ledger_was_compacted(tmp_path: Path) -> None:
    """Sources, epochs and sweeps."""
    topic = topic_in(tmp_path)
    _gap(topic, cut=True)
    topic.sweep_source("mysql.shop")
    topic.new_epoch("mysql.shop")
    topic.retire_source("mysql.shop")
    before = topic.sources()
    topic.log.ledger.compact(before_ms=T0 + 400 * DAY_MS, least_files=1)
    assert topic.sources() == before
    assert (before[0].retired, before[0].epoch) == (True, 2)


def test_a_retired_source_can_be_swept_and_its_keys_purged(tmp_path: Path) -> None:
    """What is left out is what comes from the source, not what is decided of it."""
    topic = topic_in(tmp_path)
    _gap(topic, cut=True)
    topic.retire_source("mysql.shop")
    assert topic.sweep_source("mysql.shop") == 1
    assert set(_values(topic)) == {2, 3, 9}
    topic.roll()
    topic.purge('{"id":2}')
    assert set(_values(topic)) == {3, 9}


def test_a_key_whose_row_of_the_snapshot_is_a_dead_letter_stays(tmp_path: Path) -> None:
    """The source has it, although the log does not know which row."""
    topic = topic_in(tmp_path, max_message_bytes="200")
    append(topic, *(change("c", one, _source(1, 100 + one), _row(one, "old")) for one in (1, 2)))
    rows = [change("r", one, _source(2, 50, snapshot="true"), _row(one, "x" * length)) for one, length in ((1, 300), (3, 3))]
    topic.append([{"key": key, "value": value} for key, value in rows], envelope=Envelope(), on_invalid="dead-letter")
    append(topic, change("u", 3, _source(2, 60), _row(3)))
    assert topic.sweep_source("mysql.shop") == 1
    assert set(_values(topic)) == {1, 3}


def test_rows_without_a_position_or_a_table_are_not_swept(tmp_path: Path) -> None:
    """Whether they are older than the snapshot, or of its table, cannot be told; nor a row that came after it."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, _source(1, 101), _row(1)), change("c", 2, _source(1, 102, table=None, db=None), _row(2)))
    append(topic, change("r", 5, {**_source(1, 1), "file": None}, _row(5)))
    append(topic, change("r", 3, _source(2, 50, snapshot="true"), _row(3)))
    append(
        topic,
        change("r", 4, _source(2, 50, snapshot="true", table=None, db=None), _row(4)),
        change("r", 1, {**_source(1, 1), "file": None}, _row(1)),
    )
    append(topic, change("u", 3, _source(2, 60), _row(3)))
    assert _sources(topic)["mysql.shop"].rows_not_in_snapshot == 0
    assert topic.sweep_source("mysql.shop") == 0


def test_a_snapshot_that_arrives_while_its_source_is_retired_deletes_no_rows(tmp_path: Path) -> None:
    """The log left out row 2 of the snapshot: if the snapshot counted as complete, key 2 would look missing and be deleted."""
    topic = topic_in(tmp_path)
    append(topic, *(change("c", one, _source(1, 100 + one), _row(one, "old")) for one in (1, 2)), envelope=_REPLACE)
    append(topic, change("r", 1, _source(2, 50, snapshot="true"), _row(1, "kept")), envelope=_REPLACE)
    topic.retire_source("mysql.shop")
    append(topic, change("r", 2, _source(2, 50, snapshot="true"), _row(2, "left out")), envelope=_REPLACE)
    topic.retire_source("mysql.shop", undo=True)
    append(topic, change("u", 1, _source(2, 60), _row(1, "newer")), envelope=_REPLACE)
    assert _values(topic) == {1: "newer", 2: "old"}


@pytest.mark.parametrize("names", [("a", "z"), ("z", "a")])
def test_a_null_tombstone_is_behind_the_last_record_of_its_key(tmp_path: Path, names: tuple[str, str]) -> None:
    """Whichever source that is from, and whether the one of before is retired."""
    topic, (blue, green) = topic_in(tmp_path), names
    append(topic, change("c", 1, _source(1, 100, name=blue), _row(1)))
    append(topic, change("c", 1, _source(1, 5, name=green), _row(1)))
    topic.retire_source(f"mysql.{blue}")
    append(topic, ('{"id":1}', None), envelope=Envelope(kind="debezium-flat"))
    assert _values(topic) == {}


def test_a_restore_to_before_a_sweep_lets_it_be_done_again(tmp_path: Path) -> None:
    """What came back is counted again."""
    topic = topic_in(tmp_path)
    _gap(topic, cut=True)
    version = topic.describe().table_version
    topic.sweep_source("mysql.shop")
    open_table(topic.log.paths.log, {}).restore(version)
    assert _sources(topic)["mysql.shop"].rows_not_in_snapshot == 1
    assert topic.sweep_source("mysql.shop") == 1


def test_a_copy_knows_the_sources_of_its_topic(tmp_path: Path) -> None:
    """Epochs, and which are retired: what is late for the one is late for the other."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, _source(9, 100), _row(1, "old")), change("c", 2, _source(1, 5, name="blue"), _row(2, "blue")))
    topic.new_epoch("mysql.shop")
    topic.retire_source("mysql.blue")
    copy_topic(LogDir(tmp_path), "t", "copy", partitions=2)
    copy = LogDir(tmp_path).topic("copy")
    for one in (topic, copy):
        done = append(one, change("u", 1, _source(1, 70), _row(1, "new")), change("u", 2, _source(1, 6, name="blue"), _row(2, "late")))
        assert (done.late, _values(one)) == (1, {1: "new", 2: "blue"})
    assert [(one.name, one.epoch, one.retired) for one in copy.sources()] == [("mysql.blue", 1, True), ("mysql.shop", 2, False)]


def test_each_table_has_a_snapshot_of_its_own(tmp_path: Path) -> None:
    """One of another table that comes later takes nothing away."""
    topic = topic_in(tmp_path)
    _gap(topic, cut=True)
    append(
        topic,
        change("r", 9, _source(3, 50, table="other", snapshot="true"), _row(9)),
        change("u", 9, _source(3, 60, table="other"), _row(9)),
    )
    assert _sources(topic)["mysql.shop"].rows_not_in_snapshot == 1
    assert topic.sweep_source("mysql.shop") == 1


def test_a_snapshot_of_a_new_epoch_may_have_the_position_of_an_earlier_one(tmp_path: Path) -> None:
    """As after RESET MASTER."""
    topic = topic_in(tmp_path)
    snapshot = _source(1, 157, snapshot="true")
    append(topic, change("r", 1, snapshot, _row(1)), change("r", 2, snapshot, _row(2)), change("u", 2, _source(1, 900), _row(2)))
    topic.new_epoch("mysql.shop")
    append(topic, change("r", 1, snapshot, _row(1)), change("u", 1, _source(1, 300), _row(1)))
    assert topic.sweep_source("mysql.shop") == 1
    assert set(_values(topic)) == {1}


def test_files_of_an_older_version_bound_sources_that_they_do_not_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their statistic is the highest of all alone: rows of the other sources are looked up."""
    topic = topic_in(tmp_path)
    with monkeypatch.context() as older:
        older.setattr(data_files, "highest_text", lambda highest: max(highest.values()))
        other = {"connector": "postgresql", "name": "zz", "lsn": 7}
        append(topic, change("c", 1, _source(1, 100), _row(1, "new")), change("c", 2, other, _row(2)))
    assert append(topic, change("u", 1, _source(1, 50), _row(1, "old"))).late == 1
    assert _values(topic) == {1: "new", 2: ""}
    assert [one.name for one in topic.sources()] == ["mysql.shop", "postgresql.zz"]


def test_a_name_may_have_any_characters(tmp_path: Path) -> None:
    """It is known as it is, and as the list shows it."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, _source(1, 100, name="ü b"), _row(1)))
    assert topic.retire_source("mysql.ü b")
    assert not topic.retire_source("mysql.%C3%BC%20b")
