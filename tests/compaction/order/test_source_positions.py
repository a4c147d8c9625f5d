"""Positions of change events as texts: what is compared, and with what."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lastword.compaction.order.source_positions import (
    UNNAMED_BELOW,
    Positions,
    SourcePosition,
    commits_of_one_scope,
    highest_by_place,
    highest_of_each_place,
    highest_of_scope,
    highest_of_scopes,
    highest_text,
    is_after,
    is_before,
    is_before_truncate,
    is_order_of_event,
    is_same_event,
    last_truncates,
    parse_highest,
    parse_place,
    parts_of,
    place_name,
    scope_name,
    scope_of,
    scope_text,
    shown_position,
    table_code,
    with_partitions,
)
from lastword.compaction.planning.receipt import removed_positions_of


def _at(order: str, identity: str = "", *, scope: str = "@mysql.s:", epoch: int = 1, table: str = "", partition: str = "") -> str:
    position = SourcePosition(scope=scope, epoch=epoch, order=order, identity=identity, table=table, partition=partition)
    return position.text


@pytest.mark.parametrize(
    ("position", "text", "commit"),
    [
        (SourcePosition(scope="@a.b:", order="7.1", identity="9", table="t", partition="3"), "@a.b:0001/7.1/9/t/3", "@a.b:0001/7.1"),
        (SourcePosition(scope="@a.b:", epoch=2), "@a.b:0002////", ""),
        (SourcePosition(scope="@a.b:", floor="5.1"), "@a.b:0001/>5.1///", ""),
        (SourcePosition(scope="", order="0042"), "0042", "0042"),
    ],
)
def test_a_position_is_a_text(position: SourcePosition, text: str, commit: str) -> None:
    """Which is read back as it was; what is no position is an order of no scope."""
    assert (position.text, position.commit, SourcePosition.of(text)) == (text, commit, position)


def test_names_of_scopes() -> None:
    """A sign that would end the scope is escaped."""
    assert scope_text("sqlserver", "srv/1:x", "", "db") == "@sqlserver.srv%2F1%3Ax.db:"
    assert scope_name("@mysql.shop:") == "mysql.shop"
    assert table_code("", "", "") == ""
    assert table_code("a", "b") != table_code("ab", "")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (_at("2.1"), _at("1.1"), True),
        (_at("1.1"), _at("1.1", "9"), False),
        (_at("1.1", epoch=2), _at("9.1"), True),
        (_at("2.1", scope="@mysql.x:"), _at("1.1"), False),
        (_at("2.1"), _at(""), False),
        ("2", "1", True),
        (_at("2.1"), "1", False),
    ],
)
def test_which_of_two_is_after_the_other(one: str, other: str, *, expected: bool) -> None:
    """By the commit, within one scope."""
    assert is_after(one, other) is expected


def test_which_of_two_is_before_the_other() -> None:
    """In one commit by the identity."""
    assert is_before(_at("1.1", "3"), _at("1.1", "4"))
    assert not is_before(_at("1.1", "4"), _at("1.1", "4"))
    assert not is_before(_at("1.1", scope="@mysql.x:"), _at("2.1"))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (_at("1.1", "3"), _at("1.1", "3", partition="1"), True),
        (_at("1.1", "3"), _at("2.1", "3"), False),
        (_at("1.1", "3", scope="@postgresql.s:"), _at("2.1", "3", scope="@postgresql.s:"), True),
        (_at("1.1", scope="@postgresql.s:"), _at("2.1", scope="@postgresql.s:"), False),
        (_at("1.1", "3"), _at("1.1", "4"), False),
        (_at("1.1", "3"), _at("1.1", "3", scope="@mysql.x:"), False),
    ],
)
def test_an_event_that_comes_again_is_the_same(one: str, other: str, *, expected: bool) -> None:
    """An LSN tells an event of PostgreSQL, whatever commit is known to be before it."""
    assert is_same_event(one, other) is expected


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (_at("4.1", "9", table="t"), True),
        (_at("5.1", "6", table="t"), True),
        (_at("5.1", "8", table="t"), False),
        (_at("4.1", table="u"), False),
        (_at("4.1"), True),
        (_at("4.1", scope="@mysql.x:", table="t"), False),
        (_at("", table="t"), True),
        ("0042", True),
        ("@:0001////", True),
    ],
)
def test_what_a_truncate_deletes(row: str, *, expected: bool) -> None:
    """Rows of its table from before it, in its commit too; and those that do not say from where they are."""
    assert is_before_truncate(row, _at("5.1", "7", table="t")) is expected


def test_a_truncate_of_postgresql_has_an_lsn_that_parts_the_rows() -> None:
    """Whichever commits are known before them."""
    scope = "@postgresql.s:"
    rows = [_at(order, lsn, scope=scope) for order, lsn in (("1.1", "8"), ("9.1", "6"), ("7.0", "7"), ("7.1", "7"), ("7.0", "8"))]
    assert [is_before_truncate(row, _at("5.1", "7", scope=scope)) for row in rows] == [False, True, True, False, False]
    assert Positions.of(pa.array(rows)).in_table.to_pylist() == [SourcePosition.of(row).in_table for row in rows]


def test_a_tombstone_gets_the_order_of_its_key() -> None:
    """And the scope, where it has none; one that a user gave has no scope."""
    unknown = SourcePosition(scope="@:", table="", partition="3")
    assert unknown.with_order_of("@mysql.s:0002/5.1").text == "@mysql.s:0002/5.1///3"
    assert unknown.with_order_of("0042").text == "0042"
    assert SourcePosition.of(_at("", "7")).with_order_of("@mysql.s:0001/5.1").text == _at("5.1", "7")


def test_a_truncate_of_no_scope_deletes_what_has_none() -> None:
    """As of a stream with a sequence that a user gave."""
    assert is_before_truncate("0041", "0042")
    assert not is_before_truncate("0042", "0042")
    assert not is_before_truncate(_at("1.1"), "0042")


def test_the_last_truncates_are_those_of_each_table() -> None:
    """The highest of each."""
    texts = [_at("5.1", table="t"), _at("7.1", table="t"), _at("6.1", table="u"), _at("1.1", table="t")]
    assert last_truncates(texts) == (_at("6.1", table="u"), _at("7.1", table="t"))


def test_the_highest_orders_of_each_place() -> None:
    """There is a highest order for each source and Kafka partition; records without an order are ignored."""
    texts = pa.array([_at("5.1", partition="0"), _at("7.1", "9", partition="0"), _at("6.1", partition="1"), _at(""), "3", "4", None])
    found = highest_by_place(texts)
    assert found == {"@mysql.s:0": "@mysql.s:0001/7.1", "@mysql.s:1": "@mysql.s:0001/6.1", "": "4"}
    lsns = pa.array([_at("5.1", "7", scope="@postgresql.s:", partition="0"), _at("6.0", "9", scope="@postgresql.s:", partition="1")])
    assert highest_by_place(lsns, by="reach") == {"@postgresql.s:0": "@postgresql.s:0001/7.1", "@postgresql.s:1": "@postgresql.s:0001/6.0"}
    assert highest_of_each_place(found, {"": "9"}, {"@mysql.s:1": "@mysql.s:0001/2.1"}) == {**found, "": "9"}
    places = {parse_place(place): commit for place, commit in found.items()}
    assert places == {("@mysql.s:", "0"): "@mysql.s:0001/7.1", ("@mysql.s:", "1"): "@mysql.s:0001/6.1", ("", ""): "4"}
    assert place_name("@mysql.s:", "1") == "@mysql.s:1"
    assert highest_of_scope(places, _at("1.1")) == "@mysql.s:0001/7.1"
    assert highest_of_scope(places, _at("1.1", scope="@mysql.x:")) == ""


def test_what_an_older_version_told_of_removed_deletions() -> None:
    """One text, of no scope."""
    assert removed_positions_of({}) == {}
    assert removed_positions_of({"removed_positions": {"@mysql.s:0": "x"}}) == {"@mysql.s:0": "x"}
    assert removed_positions_of({"removed_sequence": "0042", "removed_positions": {"": "0041"}}) == {"": "0042"}


def test_positions_by_their_parts() -> None:
    """A column each."""
    texts = pa.array([_at("5.1", "7", table="t", partition="2"), "0042", _at(""), "@x:0001/>5.1///"])
    found = Positions.of(texts)
    assert found.scope.to_pylist() == ["@mysql.s:", "", "@mysql.s:", "@x:"]
    assert found.commit.to_pylist() == ["@mysql.s:0001/5.1", "0042", "", ""]
    assert found.in_table.to_pylist() == ["@mysql.s:0001/5.1/7", "0042", "", ""]
    assert (found.table.to_pylist(), found.partition.to_pylist()) == (["t", "", "", ""], ["2", "", "", ""])
    assert Positions.of(texts.slice(1, 1)).commit.to_pylist() == ["0042"]
    assert len(Positions.of(texts.slice(0, 0)).commit) == 0
    assert parts_of(texts)["order"].to_list() == ["5.1", "0042", "", ">5.1"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([_at("5.1"), _at("7.1")], ("@mysql.s:", ["@mysql.s:0001/5.1", "@mysql.s:0001/7.1"])),
        (["1", "2"], ("", ["1", "2"])),
        (["1", _at("5.1")], None),
        ([_at("5.1"), _at("17.1")], None),
        ([_at("5.1"), _at("7.1", scope="@mysql.t:")], None),
        ([_at(""), _at("7.1")], None),
        ([_at("5.1"), _at("", "1.1")], None),
    ],
)
def test_sequences_of_one_form_are_compared_as_they_are(texts: list[str], expected: tuple[str, list[str]] | None) -> None:
    """If all are of one source and equally long, the texts are compared together; others one by one."""
    found = commits_of_one_scope(pa.array(texts))
    assert (None if found is None else (found[0], found[1].to_pylist())) == expected


def test_kafkas_partition_is_the_last_part() -> None:
    """A sequence with a source ends with the Kafka partition."""
    partitions = pa.array(["3", None])
    assert with_partitions(pa.array([_at("5.1"), _at("6.1")]), partitions).to_pylist() == [_at("5.1", partition="3"), _at("6.1")]
    assert with_partitions(pa.array([_at("5.1"), "7"]), partitions).to_pylist() == [_at("5.1", partition="3"), "7"]
    assert with_partitions(pa.array(["5", "7"]), partitions).to_pylist() == ["5", "7"]


@pytest.mark.parametrize(
    "sequences",
    [
        [],
        ["0007"],
        [_at("5.1"), _at("7.1")],
        [_at("5.1"), _at("7.1", scope="@a:")],
        [_at("5.1"), "0007", _at("7.1", scope="@a:")],
        [_at("5.1"), "zz\ttop", _at("7.1", scope="@a:")],
        ["0007\t8", _at("5.1")],
        ["0005", "zz", "0007"],
    ],
)
def test_the_highest_of_each_scope_is_one_text_that_is_not_below_any(sequences: list[str]) -> None:
    """A file's statistic: whatever a user's own texts have in them."""
    found = highest_of_scopes(pa.array([*sequences, None], pa.string()))
    assert found == {scope_of(text): max(one for one in sequences if scope_of(one) == scope_of(text)) for text in sequences}
    text = highest_text(found)
    assert parse_highest(text) == found
    assert all(text >= sequence for sequence in sequences)


def test_a_change_of_postgresql_is_not_before_a_position_below_its_lsn() -> None:
    """A connector that begins again in the first transaction takes 1004 for a commit; a row of a snapshot was not written there."""
    scope = "@postgresql.s:"
    first = _at("1004.1", "1004", scope=scope)
    assert not is_after(first, _at("1003.1", "1010", scope=scope))
    assert is_after(first, _at("1003.1", "1003", scope=scope))
    assert is_after(first, _at("1003.1", "", scope=scope))
    assert SourcePosition.of(_at("1003.0", "1010", scope=scope)).reach == f"{scope}0001/1003.0"
    texts = pa.array([first, _at("1003.1", "1010", scope=scope), _at("1003.0", "1010", scope=scope), _at("3.1", "9"), _at(""), "0007"])
    assert Positions.of(texts).reach.to_pylist() == [SourcePosition.of(text).reach for text in texts.to_pylist()]


def test_a_change_at_its_own_lsn_has_no_commit() -> None:
    """As of flattened events without source.sequence."""
    assert is_order_of_event(_at("7.1", "7", scope="@postgresql.s:"))
    assert not is_order_of_event(_at("7.0", "7", scope="@postgresql.s:"))
    assert not is_order_of_event(_at("6.1", "7", scope="@postgresql.s:"))
    assert not is_order_of_event(_at("7.1", "7"))


def test_a_position_is_shown_as_people_know_it() -> None:
    """SQL Server's as it is."""
    assert shown_position(f"{1:020}.{70:020}.1") == "1.70"
    assert shown_position("00000027:00000ac0:0003.0") == "00000027:00000ac0:0003"


def test_the_highest_of_an_older_version_bounds_what_it_does_not_name() -> None:
    """It is the highest of all sources of a file; the text of no scope is all that its file has."""
    old = _at("5.1")
    assert parse_highest(old) == {"@mysql.s:": old, UNNAMED_BELOW: old}
    assert [parse_highest(text) for text in ("", "0007", "zz\t", "a\tb")] == [{}, {"": "0007"}, {"": "zz\t"}, {"": "a\tb"}]
