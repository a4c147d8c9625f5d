"""Snapshots of a source and the epochs that they begin, as pictures: `partition order`."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lastword.compaction.order.source_epochs import (
    EVERY_PARTITION,
    NewSnapshot,
    Snapshot,
    SourceEpochs,
    merge_snapshots,
    new_snapshots,
    places_of_changes,
)
from lastword.compaction.order.source_positions import SourcePosition

_SCOPE = "@postgresql.s:"


def _texts(picture: str, scope: str = _SCOPE) -> pa.Array:
    """Return sequences: `0 r40` is a row of a snapshot in partition 0, `0 u45` a change, and `0 ?45` one of LSN 45 without an order."""
    words, found = picture.split(), []
    for partition, word in zip(words[::2], words[1::2], strict=True):
        number = f"{word[1:]:>04}"
        order = {"r": f"{number}.0", "u": f"{number}.1", "?": ""}[word[0]]
        floor = "0000.1" if word[0] == "?" else ""
        found.append(SourcePosition(scope=scope, order=order, floor=floor, identity=number, partition=partition).text)
    return pa.array(found, pa.string())


def _drawn(texts: pa.Array) -> str:
    found = [SourcePosition.of(text) for text in texts.to_pylist()]
    return " ".join(f"{one.epoch}:{one.order or '>' + one.floor}" for one in found)


def _known(*snapshots: tuple[int, int], partition: str = "0", scope: str = _SCOPE, offsets: tuple[int, ...] = ()) -> SourceEpochs:
    listed = [Snapshot(position=f"{at:04}", epoch=epoch) for at, epoch in snapshots]
    with_offsets = [replace(one, offset=offset) for one, offset in zip(listed, offsets, strict=True)] if offsets else listed
    return SourceEpochs({(scope, partition): tuple(with_offsets)})


def _begun(epochs: SourceEpochs, picture: str, highest: str = "") -> list[tuple[str, str, int]]:
    new = new_snapshots(_texts(picture), None, epochs)
    in_log = {(one.scope, one.partition): highest for one in new}
    return [(one.partition, one.position, epoch) for one, epoch in epochs.epochs_of_new(new, in_log)]


def test_snapshots_are_added_as_they_came() -> None:
    """Those of a source that come after a new epoch of all partitions are behind it; another source has none of this."""
    first, second, third = Snapshot(position="0090", epoch=1), Snapshot(position="", epoch=2), Snapshot(position="0040", epoch=2)
    places = [(_SCOPE, "0"), ("@mysql.s:", "0"), (_SCOPE, EVERY_PARTITION), (_SCOPE, "1")]
    epochs = SourceEpochs.after(zip(places, [first, first, second, third], strict=True))
    assert epochs.of((_SCOPE, "0")) == (first, second)
    assert epochs.of((_SCOPE, "1")) == (second, third)
    assert epochs.of(("@mysql.s:", "0")) == (first,)


@pytest.mark.parametrize(
    ("picture", "begun"),
    [
        ("0 u50 1 u60", []),
        ("0 r40 0 r40 0 u45", [("0", "0040", 1)]),
        ("0 u50 0 r40 0 u45", [("0", "0040", 2)]),
        ("0 r90 0 u95 0 r40 0 u45", [("0", "0090", 1), ("0", "0040", 2)]),
        ("0 ?50 0 r40", [("0", "0040", 2)]),
        ("0 u50 1 u30 0 r40 1 r40", [("0", "0040", 2), ("1", "0040", 2)]),
        ("0 u30 1 u50 0 r40 1 r40", [("0", "0040", 1), ("1", "0040", 2)]),
    ],
)
def test_a_snapshot_below_what_came_before_it_begins_an_epoch(picture: str, begun: list[tuple[str, str, int]]) -> None:
    """In each partition by itself; a snapshot has one epoch, if nothing says otherwise."""
    assert _begun(SourceEpochs(), picture) == begun


def test_the_log_says_what_came_before() -> None:
    """If it is of the epoch in which the partition is."""
    place = SourcePosition(scope=_SCOPE, order="0070.1").commit
    assert _begun(SourceEpochs(), "0 r40", place) == [("0", "0040", 2)]
    assert _begun(_known((80, 2)), "0 r60", place) == [("0", "0060", 2)]


def test_a_snapshot_that_was_seen_says_nothing_new() -> None:
    """Nor does one of an earlier epoch, in another partition."""
    epochs = SourceEpochs({(_SCOPE, "0"): (Snapshot(position="0090", epoch=1), Snapshot(position="0040", epoch=2)), (_SCOPE, "1"): ()})
    assert _begun(epochs, "0 r40 0 r90") == []
    assert _begun(epochs, "1 r90") == [("1", "0090", 1)]
    assert _begun(epochs, "1 r40") == [("1", "0040", 2)]
    (seen,) = new_snapshots(_texts("0 r50"), None, SourceEpochs())
    assert _known((50, 1)).epochs_of_new([seen], {(_SCOPE, "0"): ""}) == []  # another process was first
    behind = SourceEpochs({**epochs.snapshots, (_SCOPE, "1"): (Snapshot(position="0030", epoch=3),)})
    assert _begun(behind, "1 r40") == []


def test_events_are_in_the_epoch_of_their_partition() -> None:
    """What comes before a snapshot, in the same batch, is in the one before; a change is not below the snapshot of PostgreSQL."""
    epochs = _known((90, 1), (40, 2))
    assert _drawn(epochs.with_epochs(_texts("0 u95 0 r40 0 u35 0 ?44 0 u45 1 u99"), None)) == (
        "1:0095.1 2:0040.0 2:0040.1 2:>0040.1 2:0045.1 1:0099.1"
    )
    assert _drawn(epochs.with_epochs(_texts("0 u45"), None)) == "2:0045.1"
    assert _drawn(epochs.with_epochs(_texts("0 u10 0 r90 0 u91 0 r40 0 u41"), None)) == "1:0010.1 1:0090.0 1:0091.1 2:0040.0 2:0041.1"
    assert _drawn(epochs.with_epochs(_texts("1 u10"), None)) == "1:0010.1"


def test_offsets_or_row_numbers_say_where_a_snapshot_begins() -> None:
    """Kafka's, or those of the append."""
    texts = _texts("0 u95 0 u41 0 u42")
    assert _drawn(_known((90, 1), (40, 2), offsets=(5, 11)).with_epochs(texts, pa.array([10, 11, 12]))) == "1:0095.1 2:0041.1 2:0042.1"
    new = NewSnapshot(scope=_SCOPE, partition="0", position="0040", row=101)
    assert _drawn(_known((90, 1), (40, 2)).with_rows([new]).with_epochs(texts, None, 100)) == "1:0095.1 2:0041.1 2:0042.1"


def test_a_source_of_one_snapshot_is_left_as_it_is() -> None:
    """Its events are above it; those of another connector may be below."""
    texts = _texts("0 u95 0 u96")
    assert _known((90, 1)).with_epochs(texts, None) is texts
    assert _drawn(_known((90, 1)).with_epochs(_texts("0 u95 0 u8"), None)) == "1:0095.1 1:0090.1"
    mysql = _texts("0 u95 0 u8", "@mysql.s:")
    assert _known((90, 1), scope="@mysql.s:").with_epochs(mysql, None) is mysql
    assert _drawn(_known((90, 2), scope="@mysql.s:").with_epochs(mysql, None)) == "2:0095.1 2:0008.1"


def test_a_truncate_without_an_order_is_behind_the_snapshots() -> None:
    """It counts as newer than the rows of the snapshots of its epoch, in all Kafka partitions."""
    epochs = SourceEpochs({(_SCOPE, "0"): (Snapshot(position="0040", epoch=1),), (_SCOPE, "1"): (Snapshot(position="0070", epoch=2),)})
    first, ordered = _texts("0 ?45 0 u50").to_pylist()
    assert SourcePosition.of(epochs.truncate_position(first)).order == "0040.1"
    assert SourcePosition.of(SourceEpochs().truncate_position(first)).order == "0000.1"
    assert epochs.truncate_position(ordered) == ordered


def test_several_tasks_see_one_snapshot() -> None:
    """The first of its rows counts, and the highest order before it."""
    offsets = pa.array([7, 8])
    one = new_snapshots(_texts("0 u50 0 r40"), offsets, SourceEpochs(), highest=SourcePosition(scope=_SCOPE, order="0060.1").commit)
    other = new_snapshots(_texts("0 r40 0 u50"), pa.array([3, 4]), SourceEpochs(), seen=10)
    (both,) = merge_snapshots([*one, *other])
    assert (both.offset, both.begin, both.before) == (3, 3, "@postgresql.s:0001/0060.1")


def test_a_new_epoch_that_somebody_begins_holds_for_all_that_comes() -> None:
    """In places with snapshots, with and without offsets, and in places that nobody has seen."""
    epochs = _known((40, 1), (90, 2), offsets=(10, 20))
    epochs = epochs.with_snapshot((_SCOPE, EVERY_PARTITION), Snapshot(position="", epoch=3))
    assert _drawn(epochs.with_epochs(_texts("0 u35 1 u36 0 ?37"), None)) == "3:0035.1 3:0036.1 3:>.1"
    assert _drawn(epochs.with_epochs(_texts("0 u35 0 u36"), pa.array([5, 30]))) == "3:0035.1 3:0036.1"
    assert (epochs.highest_epoch(_SCOPE), epochs.highest_epoch("@other:")) == (3, 1)
    assert epochs.epoch((_SCOPE, "7")) == 3
    again = epochs.with_snapshot((_SCOPE, EVERY_PARTITION), Snapshot(position="", epoch=4))
    assert [again.epoch((_SCOPE, partition)) for partition in ("0", "7")] == [4, 4]


def test_a_snapshot_behind_such_an_epoch_belongs_to_it() -> None:
    """In each partition; one that lies below what came since begins the next."""
    epochs = _known((90, 1)).with_snapshot((_SCOPE, EVERY_PARTITION), Snapshot(position="", epoch=2))
    assert _begun(epochs, "0 u35 0 r40 1 r40", f"{_SCOPE}0001/0095.1") == [("0", "0040", 2), ("1", "0040", 2)]
    assert _begun(epochs, "0 u45 0 r40", f"{_SCOPE}0001/0095.1") == [("0", "0040", 3)]


def test_places_of_changes_are_those_behind_a_snapshot() -> None:
    """Places that have only rows of the snapshot are left out; a change without a known commit counts as a change."""
    texts = pa.concat_arrays([_texts("0 r40 1 r40 1 u45 2 ?50"), pa.array(["0007", ""])])
    begins = {(_SCOPE, partition): "0001/0040.0" for partition in ("0", "1", "2", "3")}
    assert places_of_changes(texts, begins) == {(_SCOPE, "1")}
    assert places_of_changes(texts, {(_SCOPE, "1"): "0001/0045.1", (_SCOPE, "2"): "0000/0"}) == {(_SCOPE, "2")}
