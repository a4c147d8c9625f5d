"""The order of change events, case by case: what a source sends, and the table that a log of it is.

Random lives of sources: `tests/test_source_lives.py`; the rules: A.52 to A.60 of docs/semantics.md.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lastword import Envelope, InvalidRecords
from tests.change_events import FLAT, append, change, key_of, rows_of, topic_in
from tests.clocks import at
from tests.pictures import HOUR_MS, T0

if TYPE_CHECKING:
    from pathlib import Path


#: Many of these take half a second; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long


def _postgresql(before: int | None, lsn: int, **fields: Any) -> dict[str, Any]:
    sequence = json.dumps([None if before is None else str(before), str(lsn)])
    return {"connector": "postgresql", "name": "s", "sequence": sequence, "lsn": lsn, **fields}


def _row(number: int, value: str = "") -> dict[str, Any]:
    return {"id": number, "v": value}


def _binlog(file: int, pos: int, row: int = 0, **fields: Any) -> dict[str, Any]:
    return {"connector": "mysql", "name": "s", "file": f"bin.{file:06}", "pos": pos, "row": row, **fields}


def _values(topic: Any) -> dict[int, str]:
    return {row["id"]: row["v"] for row in rows_of(topic).values()}


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (3,), (1, 2, 3)])
def test_a_null_tombstone_that_comes_again_stands_at_its_own_key(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """However the events are cut, the event that comes again behind it wins; a neighbour's position is nothing to it."""
    sent: list[tuple[str | None, str | None]] = [
        (key_of(8), '{"id":8,"v":"second","__op":"c","__source_lsn":30}'),
        (key_of(9), '{"id":9,"v":"x","__op":"c","__source_lsn":40}'),
        (key_of(8), None),
        (key_of(8), '{"id":8,"v":"second","__op":"c","__source_lsn":30}'),
    ]
    topic = topic_in(tmp_path)
    for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True):
        append(topic, *sent[start:end], envelope=FLAT)
    assert _values(topic) == {8: "second", 9: "x"}


@pytest.mark.parametrize("cut", range(6))
def test_a_tombstone_with_its_position_in_headers_that_comes_again_is_late(tmp_path: Path, cut: int) -> None:
    """So a row that was inserted after it stays, also between two appends."""

    def event(value: str | None, op: str, lsn: int) -> dict[str, Any]:
        headers = [{"key": "__op", "value": op.encode()}, {"key": "__source_lsn", "value": str(lsn).encode()}]
        return {"key": key_of(1), "value": value, "headers": headers}

    first, gone, second = event('{"id":1,"v":"first"}', "c", 10), event(None, "d", 20), event('{"id":1,"v":"second"}', "c", 30)
    sent, topic = [first, gone, second, first, gone, second], topic_in(tmp_path)
    for events in (sent[:cut], sent[cut:]):
        if events:
            topic.append(events, envelope=FLAT)
        if cut > 2:
            assert _values(topic) == {1: "second"}
    assert _values(topic) == {1: "second"}
    assert len(topic.records()) == 4


@pytest.mark.parametrize("mode", ["", "rewrite-with-tombstone"])
def test_a_tombstone_behind_a_deletion_that_is_a_row_deletes_nothing_if_the_mode_is_known(tmp_path: Path, mode: Any) -> None:
    """Else a row is gone that was made later, until it comes again, too."""
    envelope = Envelope(kind="debezium-flat", delete_tombstone_handling_mode=mode)
    deletion = (key_of(1), '{"id":1,"__deleted":"true","__source_lsn":20}'), (key_of(1), None)
    later = key_of(1), '{"id":1,"v":"second","__source_lsn":30}'
    topic = topic_in(tmp_path)
    append(topic, (key_of(1), '{"id":1,"v":"first","__source_lsn":10}'), *deletion, later, *deletion, envelope=envelope)
    assert _values(topic) == ({1: "second"} if mode else {})
    append(topic, later, envelope=envelope)
    assert _values(topic) == {1: "second"}


def test_two_shards_share_a_topic(tmp_path: Path) -> None:
    """Their positions are not compared, a TRUNCATE empties the one, and a deletion that is gone says nothing of the other."""
    topic = at(T0, topic_in(tmp_path, delete_retention_ms="0"))
    first, second = ({"name": f"shard{number}", "db": "d", "schema": "p", "table": "t"} for number in (1, 2))
    append(topic, *(change("c", one, _postgresql(990_000 + one, 1_000_000 + one, **first), _row(one, "a")) for one in (1, 2, 3)))
    append(topic, *(change("c", one, _postgresql(490 + one, 500 + one, **second), _row(one, "b")) for one in (11, 12)))
    append(topic, change("d", 3, _postgresql(1_000_100, 1_000_200, **first)))
    append(topic, change("t", None, _postgresql(1_000_300, 1_000_400, **first)))
    assert _values(topic) == {11: "b", 12: "b"}
    for hour in (1, 2, 3):
        topic.roll()
        at(T0 + hour * HOUR_MS, topic).clean()
    assert append(topic, change("u", 11, _postgresql(600, 700, **second), _row(11, "c"))).late == 0
    assert append(topic, change("c", 13, _postgresql(600, 701, **second), _row(13, "new"))).refused == {}
    assert _values(topic) == {11: "c", 12: "b", 13: "new"}


def test_a_truncate_is_of_its_own_table(tmp_path: Path) -> None:
    """Two tables of one server in one topic."""
    topic = topic_in(tmp_path)
    for number, table in ((1, "orders_1"), (2, "orders_2")):
        append(topic, change("c", number, _binlog(1, 100, db="d", table=table), _row(number)))
    append(topic, change("t", None, _binlog(1, 200, db="d", table="orders_1")))
    assert set(_values(topic)) == {2}


@pytest.mark.parametrize("cuts", [(), (1,)])
def test_an_event_whose_commit_is_not_known_says_how_far_its_source_had_come(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """A snapshot below its LSN is one of a new epoch, in whichever append it comes: so a TRUNCATE of that epoch deletes its rows."""
    topic = topic_in(tmp_path)
    events = [change("u", 1, _postgresql(None, 1016), _row(1)), change("r", 1, _postgresql(None, 101), _row(1, "new server"))]
    for begin, end in zip((0, *cuts), (*cuts, len(events)), strict=True):
        append(topic, *events[begin:end])
    assert [source.epoch for source in topic.sources()] == [2]
    append(topic, change("u", 1, _postgresql(102, 103), _row(1, "later")))
    assert _values(topic) == {1: "later"}


def test_truncates_of_several_sources_come_in_one_append(tmp_path: Path) -> None:
    """Each deletes the rows of its own source that are from before it, by one append of tombstones."""
    topic = topic_in(tmp_path)
    sources = [{**_postgresql(90, 100), "name": name} for name in ("a", "b", "c")]
    append(topic, *(change("c", number, source, _row(number)) for number, source in enumerate(sources)))
    versions = topic.describe().table_version
    append(
        topic, *(change("t", None, {**source, "sequence": None, "lsn": lsn}) for source, lsn in zip(sources, (101, 99, 101), strict=True))
    )
    assert set(_values(topic)) == {1}
    assert topic.describe().table_version == versions + 1


@pytest.mark.parametrize("snapshot", [None, 95, 107])
def test_the_lsn_alone_does_not_say_that_a_row_of_no_record_comes_again(tmp_path: Path, snapshot: int | None) -> None:
    """Its transaction wrote before the deletion and committed behind it, when the tombstone was gone: the row is the first of its key."""
    topic = topic_in(tmp_path, delete_retention_ms="1d")

    def arrive(*events: tuple[str | None, str]) -> None:
        topic.append([{"key": key, "value": value, "partition": 0} for key, value in events], envelope=Envelope())

    if snapshot is not None:
        arrive(change("r", 3, snapshot, _row(3)))
    arrive(change("c", 1, 108, _row(1)), change("d", 1, 109))
    for day in (0, 2, 4):
        topic.roll()
        at(T0 + day * 24 * HOUR_MS, topic).clean()
    arrive(change("c", 2, 106, _row(2, "first of its key")))
    arrive(change("c", 1, 108, _row(1)), change("d", 1, 109))  # they come again
    assert _values(topic) == {2: "first of its key", **({} if snapshot is None else {3: ""})}


@pytest.mark.parametrize("before", [None, 90, 100])
@pytest.mark.parametrize("order", ["rows first", "TRUNCATE first", "rows again"])
def test_a_truncate_at_the_lsn_of_a_snapshot_deletes_its_rows(tmp_path: Path, before: int | None, order: str) -> None:
    """PostgreSQL decodes from this LSN on, so the rows of the snapshot were there before; rows of a later one at its LSN stay."""
    topic = topic_in(tmp_path)
    rows = [change("r", number, _postgresql(None, 100), _row(number, "old")) for number in (1, 2)]
    truncate = change("t", None, _postgresql(before, 100))
    for batch in {"rows first": [rows, [truncate]], "TRUNCATE first": [[truncate], rows], "rows again": [rows, [truncate], rows]}[order]:
        append(topic, *batch)
    append(topic, change("r", 2, _postgresql(100, 100), _row(2, "of a later snapshot")), change("c", 3, _postgresql(100, 101), _row(3)))
    assert _values(topic) == {2: "of a later snapshot", 3: ""}


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param([_binlog(3, 1000, 3), _binlog(3, 1000, 0)], id="rows of a compressed transaction"),
        pytest.param([_postgresql(90, 100), _postgresql(110, 95)], id="an INSERT that was written before the DELETE that it waited for"),
        pytest.param([_postgresql(90, 100), _postgresql(90, 95)], id="two changes of one transaction"),
        pytest.param(
            [
                {
                    "connector": "sqlserver",
                    "name": "s",
                    "commit_lsn": "0000002a:00000d38:0005",
                    "change_lsn": f"0000002a:00000d38:000{number}",
                }
                for number in (4, 3)
            ],
            id="change_lsn that descends in a commit",
        ),
        pytest.param(
            [
                {"connector": "sqlserver", "name": "s", "commit_lsn": "0000002a:00000d38:0005"},
                {"connector": "sqlserver", "name": "s", "commit_lsn": None, "change_lsn": None},
            ],
            id="a row of an incremental snapshot without LSNs",
        ),
        pytest.param([{"connector": "informix", "commit_lsn": lsn} for lsn in ("9999999000", "10000000016")], id="LSNs of Informix"),
        pytest.param(
            [{"connector": "mongodb", "ts_ms": 1_700_000_000_200}, {"connector": "mongodb", "ts_ms": 1_700_000_000_000, "ord": 1}],
            id="a clock of MongoDB's connector that is ahead",
        ),
        pytest.param(
            [{"connector": "oracle", "scn": "90", "commit_scn": "100"}, {"connector": "oracle", "scn": "80", "commit_scn": "110"}], id="SCN"
        ),
    ],
)
def test_what_commits_later_is_newer(tmp_path: Path, sources: list[dict[str, Any]]) -> None:
    """Even if its changes were written first."""
    topic = topic_in(tmp_path)
    for number, source in enumerate(sources):
        row: Any = _row(1, str(number))
        assert append(topic, change("u", 1, source, json.dumps(row) if source["connector"] == "mongodb" else row)).late == 0
    assert _values(topic) == {1: "1"}


def test_a_transaction_that_was_open_at_the_snapshot_is_newer_than_it(tmp_path: Path) -> None:
    """Though its change was written before."""
    topic = topic_in(tmp_path)
    append(topic, change("r", 1, _postgresql(None, 100), _row(1, "snapshot")))
    assert append(topic, change("u", 1, _postgresql(None, 95), _row(1, "open"))).late == 0
    assert append(topic, change("u", 1, _postgresql(98, 97), _row(1, "open too"))).late == 0
    assert _values(topic) == {1: "open too"}


@pytest.mark.parametrize("is_in_one_append", [True, False])
def test_a_new_server_counts_from_the_start(tmp_path: Path, *, is_in_one_append: bool) -> None:
    """Its snapshot is newer than all before it, and what the old one sends again is late then."""
    topic = topic_in(tmp_path, partitions=2)
    old = [change("c", one, _binlog(900, 100 + one), _row(one, "old")) for one in (1, 2)]
    new = [change("r", one, _binlog(3, 50), _row(one, "new")) for one in (1, 2)]
    later = change("u", 2, _binlog(3, 70), _row(2, "newest"))
    for events in [[*old, *new, later]] if is_in_one_append else [old, new, [later]]:
        append(topic, *events)
    assert _values(topic) == {1: "new", 2: "newest"}
    assert append(topic, change("u", 2, _binlog(3, 60), _row(2, "late"))).late == 1


def test_an_event_without_a_position_of_a_new_key_is_taken_after_a_truncate(tmp_path: Path) -> None:
    """As that of an incremental snapshot of PostgreSQL may have none."""
    topic = topic_in(tmp_path)
    append(topic, change("c", 1, 30, _row(1)))
    append(topic, change("t", None, 40))
    assert append(topic, change("r", 7, {"connector": "postgresql"}, _row(7))).late == 0
    assert set(_values(topic)) == {7}


def test_a_topic_of_before_goes_on(tmp_path: Path) -> None:
    """Its records have sequences of another form: new events are newer, and a TRUNCATE is of them too."""
    topic = topic_in(tmp_path)
    text = " ".join(f"{part:020}" for part in (10**9, 1))
    rows = [{"key": key_of(one), "value": json.dumps(_row(one, "before")), "source_sequence": text} for one in (1, 2)]
    topic.append(rows, sequence_as="text")
    assert append(topic, change("u", 1, _postgresql(90, 100), _row(1, "after"))).late == 0
    assert _values(topic) == {1: "after", 2: "before"}
    append(topic, change("t", None, _postgresql(200, 210)))
    assert _values(topic) == {}


@pytest.mark.parametrize("kind", ["debezium", "debezium-flat"])
def test_what_has_no_order_is_refused_by_name(tmp_path: Path, kind: Any) -> None:
    """Once for each event, with what to do."""
    topic = topic_in(tmp_path)
    value = {"op": "c", "after": _row(1), "source": {"connector": "cassandra"}}
    flat = {**_row(1), "__op": "c", "__source_connector": "cassandra"}
    with pytest.raises(InvalidRecords, match=r"source\.connector cassandra: its events come in no order"):
        append(topic, (key_of(1), json.dumps(value if kind == "debezium" else flat)), envelope=Envelope(kind=kind))


def _at_partition(partition: int, event: tuple[str | None, str], **headers: str) -> dict[str, Any]:
    listed = [{"key": name, "value": text.encode()} for name, text in headers.items()]
    return {"key": event[0], "value": event[1], "partition": partition, "headers": listed}


@pytest.mark.parametrize("cut", [1, 2])
def test_a_changed_key_beside_the_rows_of_a_snapshot_begins_no_epoch(tmp_path: Path, cut: int) -> None:
    """So a TRUNCATE in its Kafka partition leaves newer rows of another one in place."""
    table = {"schema": "public", "table": "t"}
    row = _at_partition(1, change("r", 1, _postgresql(None, 100, snapshot="true", **table), _row(1)))
    moved = _at_partition(1, change("d", 1, _postgresql(200, 190, **table), before=_row(1)), **{"__debezium.newkey": '{"id":2}'})
    topic, other = topic_in(tmp_path / "a"), topic_in(tmp_path / "b")
    for one in (topic, other):
        for events in ([row, moved][:cut], [row, moved][cut:]):
            if events:
                one.append(events, envelope=Envelope())
        assert [source.epoch for source in one.sources()] == [1]
    topic.append([_at_partition(0, change("c", 9, _postgresql(390, 400, **table), _row(9)))], envelope=Envelope())
    topic.append([_at_partition(1, change("t", None, _postgresql(300, 310, **table)))], envelope=Envelope())
    assert set(_values(topic)) == {9}
    other.append([_at_partition(1, change("c", 1, _postgresql(210, 220, **table), _row(1)))], envelope=Envelope())
    other.append([_at_partition(0, change("t", None, _postgresql(300, 310, **table)))], envelope=Envelope())
    assert _values(other) == {}


def test_a_change_before_a_snapshot_in_its_append_stays_behind_a_truncate_of_the_new_epoch(tmp_path: Path) -> None:
    """Although no commit before it is known, and its key has the tombstone of the TRUNCATE already."""
    topic = topic_in(tmp_path)
    append(topic, change("r", 1, _postgresql(None, 1022, snapshot="true"), _row(1, "old")))
    append(
        topic,
        change("u", 1, _postgresql(None, 1025), _row(1, "newer")),
        change("r", 1, _postgresql(None, 102, snapshot="true"), _row(1, "newer")),
        change("t", None, _postgresql(None, 110)),
    )
    assert _values(topic) == {}


@pytest.mark.parametrize("envelope", [Envelope(), FLAT], ids=["raw", "flat"])
def test_headers_may_be_empty_in_all_rows(tmp_path: Path, envelope: Envelope) -> None:
    """Arrow has a type of its own for lists that are all empty."""
    key, value = change("c", 1, _postgresql(1, 2), _row(1)) if envelope.kind == "debezium" else (key_of(1), '{"id":1,"v":""}')
    topic = topic_in(tmp_path)
    topic.append([{"key": key, "value": value, "headers": []}], envelope=envelope)
    assert _values(topic) == {1: ""}
