"""What is counted and kept of each source, and the texts that say what is new of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lastword.compaction.order.source_positions import NO_SCOPE
from lastword.compaction.order.source_states import UNNAMED, SourceCounts, SourceState, notes_of, source_name, sum_counts

_NEW = SourceState(scope="@postgresql.shop:", since_ms=5)


def test_a_source_is_shown_by_connector_and_name() -> None:
    """Events that do not say their source have a name that no source has."""
    assert source_name("@mysql.a.b:") == "mysql.a.b"
    assert _NEW.name == "postgresql.shop"
    assert source_name(NO_SCOPE) == UNNAMED


def test_counts_of_tasks_are_summed_by_source() -> None:
    """The example is that of the first which has one."""
    one = SourceCounts(rows=3, late=1, lower_positions=1, example="7.1")
    other = SourceCounts(rows=2, without_position=2, example="8.1", is_by_lsn=True)
    expected = SourceCounts(rows=5, late=1, without_position=2, lower_positions=1, example="7.1", is_by_lsn=True)
    assert sum_counts([{"@b:": one}, {"@a:": one, "@b:": other}]) == {"@a:": one, "@b:": expected}


def test_lower_positions_are_kept_once_an_epoch() -> None:
    """They end with a new epoch; of a source that is retired they say nothing."""
    low = SourceCounts(rows=1, late=1, lower_positions=1, example="7.1")
    state = _NEW.after(low, 1)
    assert (state.lower_epoch, state.lower_example) == (1, "7.1")
    assert state.after(replace(low, example="9.1"), 1) == state
    assert [state.has_lower_positions(epoch) for epoch in (1, 2)] == [True, False]
    assert state.after(replace(low, example="9.1"), 2).lower_example == "9.1"
    retired = replace(_NEW, is_retired=True)
    assert retired.after(low, 1) == retired
    assert not replace(state, is_retired=True).has_lower_positions(1)


def test_a_state_is_the_same_from_the_ledger() -> None:
    """A state that is written to the ledger and read again is equal."""
    state = SourceState(scope="@a:", since_ms=1, is_retired=True, is_by_lsn=True, lower_epoch=2, lower_example="7.1")
    assert SourceState.of_details(state.to_details()) == state


@pytest.mark.parametrize(
    ("before", "after", "others", "expected"),
    [
        (None, _NEW, [], []),
        (None, _NEW, [SourceState(scope="@mysql.old:", since_ms=1)], ["another one beside mysql.old"]),
        (
            None,
            _NEW,
            [SourceState(scope=f"@mysql.shard{number}:", since_ms=1) for number in range(7)],
            ["beside mysql.shard0, mysql.shard1, mysql.shard2, mysql.shard3, mysql.shard4 and 2 more:"],
        ),
        (_NEW, replace(_NEW, is_by_lsn=True), [], ["no source.sequence"]),
        (replace(_NEW, is_by_lsn=True), replace(_NEW, is_by_lsn=True, lower_epoch=1), [], ["sources new-epoch t postgresql.shop"]),
        (replace(_NEW, lower_epoch=1), replace(_NEW, lower_epoch=1), [_NEW], []),
        (None, replace(_NEW, is_by_lsn=True, lower_epoch=1), [], ["no source.sequence", "count from lower positions"]),
    ],
)
def test_what_is_new_is_said(before: SourceState | None, after: SourceState, others: list[SourceState], expected: list[str]) -> None:
    """A second source, an order by LSN alone, lower positions: each with what to do."""
    notes = notes_of(before, after, others, topic="t", has_columns=True)
    assert len(notes) == len(expected)
    assert all(part in note for note, part in zip(notes, expected, strict=True))


@pytest.mark.parametrize(
    ("before", "others", "has_columns", "is_said"),
    [(None, [], False, True), (None, [], True, False), (_NEW, [], False, False), (None, [replace(_NEW, scope="@mysql.b:")], False, False)],
)
def test_a_topic_whose_first_events_have_no_schema_is_noted_once(
    before: SourceState | None, others: list[SourceState], *, has_columns: bool, is_said: bool
) -> None:
    """With its first source, and only while nothing says which columns the rows have."""
    notes = notes_of(before, replace(_NEW), others, topic="t", has_columns=has_columns)
    assert any("no event so far carried a schema" in note and "topic t has no columns" in note for note in notes) is is_said
