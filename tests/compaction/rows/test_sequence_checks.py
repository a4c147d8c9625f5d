"""Which events of a batch are late, as pictures: `key@sequence`."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from lastword.compaction.order.source_positions import (
    CHANGE,
    NO_SCOPE,
    SNAPSHOT,
    UNNAMED_BELOW,
    SourcePosition,
    highest_of_scopes,
    scope_of,
)
from lastword.compaction.order.source_states import SourceCounts
from lastword.compaction.rows.input_columns import SOURCE_TIME
from lastword.compaction.rows.sequence_bounds import SequenceBounds
from lastword.compaction.rows.sequence_checks import NEWEST, Checked, SequenceChecks

#: When each record of a log came.
_RECORD_MS = 1_700_000_000_000


def _drawn(checked: Checked) -> str:
    return " ".join("late" if a else "unknown" if b else "ok" for a, b in zip(checked.late, checked.unknown, strict=True))


class _Log:
    """The records that a log holds, and what it was asked for."""

    def __init__(self, picture: str) -> None:
        self.events = [(key.encode(), f"{int(sequence):04}") for key, _, sequence in (word.partition("@") for word in picture.split())]
        self.asked: list[tuple[list[bytes], str]] = []

    @property
    def highest(self) -> dict[str, str]:
        return highest_of_scopes(pa.array([sequence for _, sequence in self.events], pa.string()))

    def __call__(self, keys: pa.Array, at_least: str) -> pl.DataFrame:
        self.asked.append((sorted(keys.to_pylist()), at_least))
        newest: dict[tuple[bytes, str], str] = {}
        for key, sequence in self.events:
            place = key, scope_of(sequence)
            if key in keys.to_pylist() and sequence >= at_least:
                newest[place] = max(sequence, newest.get(place, ""))
        rows = [(key, scope, sequence, _RECORD_MS, number) for number, ((key, scope), sequence) in enumerate(newest.items())]
        return pl.DataFrame(rows, schema=NEWEST, orient="row")


def _verdicts(log: _Log, *batches: str, removed: int | None = None, truncated: int | None = None) -> list[str]:
    bounds = SequenceBounds(
        highest=log.highest,
        removed={} if removed is None else {("", ""): f"{removed:04}"},
        truncated={} if truncated is None else {("", ""): f"{truncated:04}"},
    )
    checks, drawn = SequenceChecks(bounds, log), []
    for batch in batches:
        events = [word.partition("@") for word in batch.split()]
        rows = pa.record_batch(
            {
                "key": pa.array([key.encode() for key, _, _ in events], pa.binary()),
                "source_sequence": pa.array([f"{int(sequence):04}" for _, _, sequence in events], pa.string()),
            }
        )
        drawn.append(_drawn(checks.take(rows)))
    return drawn


def test_an_event_below_the_record_of_its_key_is_late() -> None:
    """An event below the record of its key is late."""
    log = _Log("k@20 j@35")
    assert _verdicts(log, "k@36 k@21 j@30 k@36 x@30") == ["ok late late ok ok"]
    assert log.asked == [([b"j", b"x"], "0030")]  # k@21 is late in the append already


def test_a_stream_in_order_asks_for_nothing() -> None:
    """A stream in order asks for nothing."""
    log = _Log("k@20 j@35")
    assert _verdicts(log, "j@35 k@36 j@36", "k@36 k@40") == ["ok ok ok", "ok ok"]
    assert not log.asked


def test_a_later_batch_of_the_append_knows_the_earlier_ones() -> None:
    """A later batch of the append knows the earlier ones."""
    log = _Log("")
    assert _verdicts(log, "k@5 j@9", "k@4 j@9 i@3", "i@2 i@3") == ["ok ok", "late ok ok", "late ok"]
    assert not log.asked


def test_only_the_late_event_is_dropped_not_what_follows_it() -> None:
    """Only the late event is dropped not what follows it."""
    assert _verdicts(_Log("k@20"), "k@10 k@30 k@29 k@31") == ["late ok late ok"]


def test_an_equal_sequence_is_not_late() -> None:
    """An equal sequence is not late."""
    assert _verdicts(_Log("k@20 j@99"), "k@20 k@20") == ["ok ok"]


def test_below_a_removed_deletion_only_what_the_log_knows_can_be_ordered() -> None:
    """Below a removed deletion only what the log knows can be ordered."""
    log = _Log("k@20 j@5 l@30")
    #                         known    no record: deleted at 12, maybe
    assert _verdicts(log, "k@8 j@8 x@8 x@12 x@11", removed=12) == ["late ok unknown ok late"]


def test_an_event_that_was_refused_does_not_vouch_for_a_later_one() -> None:
    """An event that was refused does not vouch for a later one."""
    assert _verdicts(_Log(""), "x@8", "x@9", "y@20", removed=12) == ["unknown", "unknown", "ok"]


def test_what_came_before_a_truncate_is_late_whoever_it_is() -> None:
    """What came before a truncate is late whoever it is."""
    assert _verdicts(_Log("k@20"), "x@8 k@25 x@30 x@31", truncated=30) == ["late late ok ok"]


def _arrived(log: _Log, *batches: str) -> list[str]:
    checks, drawn = SequenceChecks(SequenceBounds(highest=log.highest), log), []
    for batch in batches:
        events = [word.partition("@") for word in batch.split()]
        sequences = [f"{int(sequence):04}" if sequence else "" for _, _, sequence in events]
        keys = pa.array([key.encode() for key, _, _ in events], pa.binary())
        rows = checks.take(pa.record_batch({"key": keys, "source_sequence": pa.array(sequences, pa.string())})).rows
        drawn.append(" ".join(f"{int(text)}" if text else "-" for text in rows.column("source_sequence").to_pylist()))
    return drawn


def test_an_event_without_a_position_comes_behind_the_records_of_its_key() -> None:
    """In the log and in the append; where nobody has a position, nothing is looked up."""
    log = _Log("k@20 j@35")
    assert _arrived(log, "k@ k@30 k@ x@ j@", "k@ x@") == ["20 30 30 - 35", "30 -"]
    nobody = _Log("")
    assert _arrived(nobody, "k@ k@", "k@") == ["- -", "-"]
    assert not nobody.asked


def test_an_empty_batch_is_in_order() -> None:
    """As a partition may have none of the rows."""
    assert _verdicts(_Log("k@20"), "") == [""]


@pytest.mark.parametrize("seed", range(200))
def test_any_batching_keeps_the_newest_of_each_key(seed: int) -> None:
    """Any batching keeps the newest of each key."""
    chance = random.Random(seed)
    known = [(chance.choice("abcd"), chance.randrange(20)) for _ in range(chance.randrange(6))]
    events = [(chance.choice("abcd"), chance.randrange(20)) for _ in range(chance.randrange(1, 30))]
    log = _Log(" ".join(f"{key}@{sequence}" for key, sequence in known))
    cuts = sorted(chance.sample(range(1, len(events)), min(len(events) - 1, chance.randrange(4))))
    batches = [events[start:end] for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    drawn = _verdicts(log, *(" ".join(f"{key}@{sequence}" for key, sequence in batch) for batch in batches))
    newest: dict[str, int] = {}
    for key, sequence in known:
        newest[key] = max(sequence, newest.get(key, -1))
    expected = []
    for key, sequence in events:
        expected.append("late" if sequence < newest.get(key, -1) else "ok")
        newest[key] = max(sequence, newest.get(key, -1))
    assert " ".join(drawn).split() == expected


@pytest.mark.parametrize("seed", range(200))
def test_few_rows_out_of_order_are_taken_as_if_each_row_came_alone(seed: int) -> None:
    """Those in order, of other keys, are taken before them; a row of their key stays in its place among them.

    ```
     one batch    k@41  j@42  k@40  i@43  j@30  k@44  h@45        first: i@43  h@45        then: k@41  j@42  k@40  j@30  k@44
     taken        yes   yes   no    yes   no    yes   yes
    ```
    """
    chance = random.Random(seed)
    log = _Log(" ".join(f"{chance.choice('abcdefgh')}@{chance.randrange(40)}" for _ in range(chance.randrange(1, 6))))
    sequences = [chance.randrange(50) if chance.random() < 0.15 else 40 + number for number in range(30)]
    events = [f"{chance.choice('abcdefghijklmnop')}@{sequence}" for sequence in sequences]
    removed, truncated = (chance.choice([None, 0, 20, 45]) for _ in range(2))
    if removed is not None:
        removed = min(removed, int(max(log.highest.values(), default="0")))
    begins = chance.randrange(len(events))
    together = _verdicts(log, " ".join(events[:begins]), " ".join(events[begins:]), removed=removed, truncated=truncated)
    alone = _verdicts(log, *events, removed=removed, truncated=truncated)
    assert [verdict == "ok" for verdict in " ".join(together).split()] == [verdict == "ok" for verdict in alone]


class _Sources(_Log):
    """A log of the events of sources, by their texts: `k@` and a text."""

    def __init__(self, *events: tuple[str, str]) -> None:
        super().__init__("")
        self.events = [(key.encode(), text) for key, text in events]


def _at(order: int | None, scope: str = "a", *, partition: str = "", table: str = "", floor: str = "") -> str:
    text = "" if order is None else f"{order:04}.1"
    return SourcePosition(scope=f"@{scope}:", order=text, floor=floor, partition=partition, table=table).text


def _checked(log: _Log, *events: tuple[str, str], **bounds: Any) -> str:
    checks = SequenceChecks(SequenceBounds(highest=log.highest, **bounds), log)
    keys, texts = (pa.array(column) for column in zip(*events, strict=True))
    rows = pa.record_batch({"key": keys.cast(pa.binary()), "source_sequence": texts})
    return _drawn(checks.take(rows))


def test_positions_of_two_sources_are_not_compared() -> None:
    """Whichever sorts first; between them arrival counts."""
    log = _Sources(("k", _at(50)), ("k", _at(9, "b")))
    assert _checked(log, ("k", _at(10)), ("k", _at(8, "b")), ("k", _at(51)), ("k", _at(9, "b")), ("k", "0001")) == "late late ok ok ok"
    assert _checked(_Sources(("k", "0050")), ("k", _at(10)), ("k", _at(11)), ("j", "0040")) == "ok ok ok"


def test_an_event_without_an_order_is_behind_its_key_in_its_source() -> None:
    """One that names no source behind the highest of all; one of a new key is taken, whatever was truncated or removed."""
    log = _Sources(("k", _at(50)), ("k", _at(9, "b")))
    checks = SequenceChecks(SequenceBounds(highest=log.highest), log)
    events = [("k", _at(None)), ("k", _at(None, "b")), ("k", "@:0001////"), ("x", _at(None)), ("k", _at(None, floor="0060.1"))]
    rows = pa.record_batch({"key": pa.array([key.encode() for key, _ in events]), "source_sequence": [text for _, text in events]})
    found = checks.take(rows).rows.column("source_sequence").to_pylist()
    assert [SourcePosition.of(text).commit for text in found] == [
        "@a:0001/0050.1",
        "@b:0001/0009.1",
        "@b:0001/0009.1",
        "",
        "@a:0001/0060.1",
    ]
    bounds = {"removed": {("@a:", "0"): "@a:0001/0040.1"}, "truncated": {("@a:", ""): _at(40)}}
    assert _checked(log, ("x", _at(None)), ("x", _at(None, partition="0")), **bounds) == "ok ok"
    again = checks.take(pa.record_batch({"key": [b"k"], "source_sequence": [_at(None)]})).rows
    assert SourcePosition.of(again.column("source_sequence")[0].as_py()).commit == "@a:0001/0060.1"


def test_an_event_that_names_no_source_is_behind_the_last_event_of_its_key_of_any_source() -> None:
    """In the log or in any batch of the append: not behind the highest, as two sources are not compared."""
    log = _Sources(("k", _at(50)), ("k", _at(9, "b")))
    checks, nowhere = SequenceChecks(SequenceBounds(highest=log.highest), log), SourcePosition(scope=NO_SCOPE).text

    def order_of(*events: tuple[str, str]) -> str:
        return SourcePosition.of(checks.take(_events(*events)).rows.column("source_sequence")[-1].as_py()).commit

    assert order_of(("k", nowhere)) == "@b:0001/0009.1"
    assert order_of(("k", _at(60)), ("j", _at(10, "b")), ("k", nowhere)) == "@a:0001/0060.1"
    assert order_of(("k", _at(11, "b"))) == "@b:0001/0011.1"
    assert order_of(("k", nowhere)) == "@b:0001/0011.1"
    assert order_of(("k", _at(59)), ("k", nowhere)) == "@b:0001/0011.1", "a late event is none"
    assert order_of(("new", nowhere)) == ""


def test_an_event_that_comes_again_after_its_deletion_was_removed_is_late() -> None:
    """If the deletion came from its partition of Kafka; of another one it cannot be told."""
    removed = {("@a:", "0"): "@a:0001/0040.1"}
    events = [("x", _at(30, partition="0")), ("x", _at(30, partition="1")), ("x", _at(30)), ("x", _at(40, partition="0"))]
    assert _checked(_Sources(("k", _at(50))), *events, removed=removed) == "late unknown unknown ok"


def test_a_truncate_is_of_its_table() -> None:
    """A row that does not say its table may be of each."""
    truncated = {("@a:", "t"): _at(40, table="t")}
    events = [("x", _at(30, table="t")), ("y", _at(30, table="u")), ("z", _at(30)), ("x", _at(41, table="t"))]
    assert _checked(_Sources(), *events, truncated=truncated) == "late ok late ok"


#: Changes of two transactions in the order in which PostgreSQL sends them: key, LSN, transaction. A row is locked until its writer commits.
_BY_LSN = (("a", 10, 1), ("a", 14, 1), ("b", 15, 1), ("c", 11, 2), ("c", 13, 2), ("b", 17, 2), ("a", 18, 2))


def _deliveries() -> list[list[tuple[str, int, int]]]:
    """Return all that arrives if the connector stops after any event and begins again at any one before it, twice."""
    count, found = len(_BY_LSN), list[list[tuple[str, int, int]]]()
    for first_end in range(1, count + 1):
        for begin in range(first_end):
            for second_end in range(begin + 1, count + 1):
                again = min(begin, second_end - 1)
                found.append([*_BY_LSN[:first_end], *_BY_LSN[begin:second_end], *_BY_LSN[again:]])
    return found


def test_changes_of_one_transaction_by_lsn_need_no_rule_of_their_own() -> None:
    """They come in the order of their LSNs, so one is late behind another one only when it comes again, and then that comes again, too.

    A rule that such a change is not late would end with the same rows, and let keys go back inside their transaction meanwhile.
    """
    went_back = 0
    for arrived in _deliveries():
        newest, by_rule, shown = dict[str, tuple[int, int]](), dict[str, int](), dict[str, int]()
        (verdicts,) = _verdicts(_Log(""), " ".join(f"{key}@{lsn}" for key, lsn, _ in arrived))
        for (key, lsn, transaction), verdict in zip(arrived, verdicts.split(), strict=True):
            known = newest.get(key, (0, 0))
            if lsn >= known[0] or transaction == known[1]:
                went_back += lsn < by_rule.get(key, 0)
                by_rule[key], newest[key] = lsn, max(known, (lsn, transaction))
            if verdict == "ok":
                assert lsn >= shown.get(key, 0)
                shown[key] = lsn
        assert shown == by_rule == {"a": 18, "b": 17, "c": 13}
    assert went_back


def test_changes_of_one_transaction_below_the_log_are_late_until_the_last_one_comes() -> None:
    """The rows of c that the log has are those of its transaction's end."""
    log = _Log("c@13 a@14")
    assert _verdicts(log, "a@10 a@14 c@11", "c@13 b@15") == ["late ok late", "ok ok"]


def _written(commit: int, lsn: int, *, end: str = CHANGE) -> str:
    """Return the sequence of a change of PostgreSQL, or of a row of a snapshot."""
    order = f"{commit:020}{end}"
    return SourcePosition(scope="@postgresql.s:", order=order, identity=f"{lsn:020}", partition="0").text


def _takes(bounds: SequenceBounds, log: _Log, *batches: list[tuple[str, str]]) -> list[str]:
    checks = SequenceChecks(bounds, log)
    return [_drawn(checks.take(_events(*batch))) for batch in batches]


def test_a_change_that_a_later_one_of_its_transaction_followed_is_late() -> None:
    """It comes again: k was deleted and inserted in one transaction.

    As new it would delete k, and once its tombstone had been removed, the insertion would be taken for a row from before it, for ever.
    """
    log = _Log("")
    log.events = [(b"k", _written(130, 137)), (b"j", _written(139, 145))]
    bounds = SequenceBounds(highest=log.highest)
    delete, insert = ("k", _written(130, 134)), ("k", _written(130, 137))
    assert _takes(bounds, log, [delete, insert, ("i", _written(130, 136))]) == ["late ok ok"]
    assert _takes(bounds, log, [delete], [insert, delete]) == ["late", "ok late"]
    others = [("i", _written(120, 136)), ("i", _written(120, 121)), ("i", _written(120, 122))]
    assert _takes(bounds, log, others, [("i", _written(120, 130))], others[:1]) == ["ok late late", "late", "ok"]


def test_changes_that_share_the_order_of_a_snapshot_are_of_several_transactions() -> None:
    """What committed before the snapshot has its order: of those a later transaction may have written before an earlier one."""
    log = _Log("")
    log.events = [(b"k", _written(100, 95)), (b"j", _written(139, 145))]
    delete_of_one, insert_of_another = ("k", _written(100, 95)), ("k", _written(100, 90))
    known = SequenceBounds(highest=log.highest, floors=frozenset({SourcePosition.of(_written(100, 0)).commit}))
    assert _takes(known, log, [delete_of_one, insert_of_another]) == ["ok ok"]
    bounds, row = SequenceBounds(highest=log.highest), ("i", _written(100, 100, end=SNAPSHOT))
    assert _takes(bounds, log, [row, delete_of_one, insert_of_another]) == ["ok ok ok"]
    assert _takes(bounds, log, [("h", _written(150, 150, end=SNAPSHOT))], [("k", _written(150, 149)), ("k", _written(150, 140))]) == [
        "ok",
        "ok ok",
    ]


def test_two_events_of_one_commit_of_another_connector_are_in_the_order_of_arrival() -> None:
    """What tells them apart is not always their order."""
    texts = [SourcePosition(scope="@mysql.s:", order=f"0130{CHANGE}", identity=f"{row:020}").text for row in (7, 3)]
    log = _Log("")
    log.events = [(b"k", texts[0]), (b"j", SourcePosition(scope="@mysql.s:", order=f"0139{CHANGE}").text)]
    assert _takes(SequenceBounds(highest=log.highest), log, [("k", texts[1])]) == ["ok"]


def _verdicts_by_place(log: _Log, *events: str, partition: str = "0", table: str = "t", **bounds: Any) -> str:
    """Return which of some events are deletions that are kept: words as `k@3`, or `k-3` for a deletion; `/1` names another place."""
    keys, texts, values = list[bytes](), list[str](), list[bytes | None]()
    for event in events:
        word, _, place = event.partition("/")
        key, sign, commit = word[0], word[1], int(word[2:])
        keys.append(key.encode())
        texts.append(_at(commit, partition=place or partition, table=table))
        values.append(None if sign == "-" else b"row")
    rows = pa.record_batch({"key": keys, "value": pa.array(values, pa.binary()), "source_sequence": texts})
    checked = SequenceChecks(SequenceBounds(highest=log.highest, **bounds), log).take(rows)
    return " ".join("late" if a else "kept" if b else "ok" for a, b in zip(checked.late, checked.kept, strict=True))


def test_a_deletion_that_comes_again_is_kept_until_its_source_goes_on() -> None:
    """The row that its commit wrote behind it may come again when cleaning has removed other deletions."""
    log = _Sources(("k", _at(3, partition="0", table="t")), ("j", _at(4, partition="0", table="t")))
    assert _verdicts_by_place(log, "k-3") == "kept"
    assert _verdicts_by_place(log, "k-3", "k@3") == "kept ok"
    assert _verdicts_by_place(log, "k-3", "k@3", "j-4") == "ok ok ok", "its source has gone on"
    assert _verdicts_by_place(log, "k-3", "j-4/1") == "kept ok", "in another of Kafka's partitions"
    assert _verdicts_by_place(log, "i-3", "k@3") == "ok ok", "no record of its commit is there"
    assert _verdicts_by_place(log, "k-2") == "late"
    assert _verdicts_by_place(log, "k-4") == "ok", "it is of a later commit"
    assert _verdicts_by_place(log, "i@3", "i-3") == "ok kept", "the record came in the same append"
    assert _verdicts_by_place(log, "i-3", "i@3") == "ok ok"


def test_a_deletion_of_the_last_commit_needs_not_be_kept() -> None:
    """The row behind it is not below any deletion that could have been removed; so in the batch that brings a later commit before it."""
    assert _verdicts_by_place(_Sources(("k", _at(3, partition="0", table="t"))), "k-3", "k@3") == "ok ok"
    log = _Sources(("k", _at(3, partition="0", table="t")))
    assert _verdicts_by_place(log, "j-4", "k-3") == "ok kept"
    assert _verdicts_by_place(log, "j-4", "k-3", "j-4") == "ok ok ok"
    assert _verdicts_by_place(log, "k-3", removed={("@a:", "0"): "@a:0001/0004.1"}) == "kept", "the later deletion was removed already"


def test_deletions_without_a_position_are_never_kept() -> None:
    """Nor rows of snapshots, nor what a user's own sequence orders."""
    log = _Sources(("k", "0003"), ("j", "0004"))
    checks = SequenceChecks(SequenceBounds(highest=log.highest), log)
    rows = pa.record_batch({"key": [b"k"], "value": pa.array([None], pa.binary()), "source_sequence": ["0003"]})
    assert not checks.take(rows).kept.any()


def _events(*events: tuple[str, str], time_ms: int | None = None) -> pa.RecordBatch:
    keys, texts = (pa.array(column) for column in zip(*events, strict=True))
    times = pa.array([time_ms] * len(events), pa.int64())
    return pa.record_batch({"key": keys.cast(pa.binary()), "source_sequence": texts, SOURCE_TIME: times})


def test_what_comes_of_each_source_is_counted() -> None:
    """In order and not; a row that no source sent is of none."""
    log = _Sources(("k", _at(50)), ("k", _at(9, "b")))
    checks = SequenceChecks(SequenceBounds(highest=log.highest), log)
    assert checks.take(_events(("k", _at(51)), ("j", _at(52)))).counts == {"@a:": SourceCounts(rows=2)}
    mixed = checks.take(_events(("k", _at(40)), ("k", _at(None)), ("k", _at(8, "b")), ("k", _at(9, "b")), ("k", "0001")))
    assert mixed.counts == {"@a:": SourceCounts(rows=2, late=1, without_position=1), "@b:": SourceCounts(rows=2, late=1)}
    by_lsn = SourcePosition(scope="@postgresql.s:", order="0007.1", identity="0007").text
    assert checks.take(_events(("k", by_lsn))).counts == {"@postgresql.s:": SourceCounts(rows=1, is_by_lsn=True)}


@pytest.mark.parametrize(("later_ms", "lower"), [(60_001, 1), (60_000, 0), (None, 0)])
def test_a_late_event_that_is_much_younger_is_at_a_lower_position(later_ms: int | None, lower: int) -> None:
    """By more than a minute; one that does not say when it was is only late."""
    log = _Sources(("k", _at(50)))
    checks = SequenceChecks(SequenceBounds(highest=log.highest), log)
    time_ms = None if later_ms is None else _RECORD_MS + later_ms
    counts = checks.take(_events(("k", _at(40)), ("x", _at(41)), time_ms=time_ms)).counts["@a:"]
    assert (counts.late, counts.lower_positions, counts.example) == (1, lower, "0040" if lower else "")


def test_all_of_a_retired_source_is_late() -> None:
    """Events of a retired source are late at any position; events of other sources are not."""
    log = _Sources(("k", _at(50)))
    retired = {"retired": frozenset({"@a:"})}
    assert _checked(log, ("k", _at(51)), ("x", _at(52)), **retired) == "late late"
    assert _checked(log, ("k", _at(51)), ("k", _at(1, "b")), ("j", _at(None)), **retired) == "late ok late"


def test_the_log_is_asked_once_for_a_batch() -> None:
    """For the keys of rows below the highest of their source and of those without a position; not for rows in order."""
    log = _Sources(("k", _at(50)), ("j", _at(9, "b")), ("i", _at(7, "c")))
    checks = SequenceChecks(SequenceBounds(highest=log.highest), log)
    checks.take(_events(("k", _at(40)), ("j", _at(8, "b")), ("n", _at(None)), ("i", _at(8, "c"))))
    assert log.asked == [([b"j", b"k", b"n"], "")]
    log.asked.clear()
    checks.take(_events(("k", _at(40)), ("j", _at(8, "b")), ("i", _at(8, "c"))))
    assert [keys for keys, _ in log.asked] == [[b"j", b"k"]]


def test_a_source_that_an_older_file_may_have_is_looked_up() -> None:
    """Those above the highest of the file are not in it."""
    log = _Sources(("k", _at(50)), ("j", _at(9, "b")))
    checks = SequenceChecks(SequenceBounds(highest={"@b:": _at(9, "b"), UNNAMED_BELOW: _at(9, "b")}), log)
    assert _drawn(checks.take(_events(("k", _at(40)), ("k", _at(60))))) == "late ok"
    assert _drawn(checks.take(_events(("k", _at(1, "c"))))) == "ok"
    assert [keys for keys, _ in log.asked] == [[b"k"]]
