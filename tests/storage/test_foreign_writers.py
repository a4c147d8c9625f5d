"""What other writers do to the files of a log, without a JVM: every reader shows the same as before, or one error says what happened."""

from __future__ import annotations

import json
import string
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from lastword import ArrowTopic, CorruptLog, LogDir
from tests.clocks import at
from tests.pictures import T0, latest, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl
    import pyarrow as pa


def _merged_and_vacuumed(table: DeltaTable) -> None:
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)


def _without_statistics(table: DeltaTable) -> None:
    table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    table.optimize.compact()


def _merged_into_a_checkpoint(table: DeltaTable) -> None:
    table.optimize.compact()
    table.create_checkpoint()


#: What keeps the rows and their order.
_HARMLESS: Final[Mapping[str, Callable[[DeltaTable], object]]] = {
    "compact": lambda table: table.optimize.compact(),
    "compact of small files": lambda table: table.optimize.compact(target_size=1),
    "compact and vacuum": _merged_and_vacuumed,
    "compact and checkpoint": _merged_into_a_checkpoint,
    "no statistics": _without_statistics,
    "z-order by offset": lambda table: table.optimize.z_order(["offset"]),
    "update": lambda table: table.update({"timestamp": "timestamp"}),  # delta-rs writes views in the place of strings
    "overwrite": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="overwrite"),
    "column": lambda table: table.alter.add_columns([Field("more", PrimitiveType("long"))]),
    "description": lambda table: table.alter.set_table_description("prices"),
    "deletion vectors": lambda table: table.alter.set_table_properties({"delta.enableDeletionVectors": "true"}),
    "append only": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "constraint": lambda table: table.alter.add_constraint({"small": "offset < 100"}),
}
#: What puts the rows of a file into another order.
_SHUFFLING: Final[Mapping[str, Callable[[DeltaTable], object]]] = {
    "z-order by key": lambda table: table.optimize.z_order(["key"]),
    "z-order by value": lambda table: table.optimize.z_order(["value", "key"]),
    "sorted by key": lambda table: write_deltalake(table, table.to_pyarrow_table().sort_by("key"), mode="overwrite"),
    "newest first": lambda table: write_deltalake(table, table.to_pyarrow_table().sort_by([("offset", "descending")]), mode="overwrite"),
}


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    """A topic with a clean section, two closed segments and an active one in each of two partitions."""
    topic = LogDir(tmp_path).create_topic("fruit", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for pictures in (("z=1 a=1 m=1", "z=2 b=1"), ("y=1 a=2", "c=2 a=3")):
        for number in range(4):
            at(T0, topic).append(rows(pictures[number // 2], partition=number % 2))
        at(T0, topic).roll()
        if pictures[0].startswith("z"):
            at(T0, topic).clean()
    return topic


def _pairs(table: pa.Table) -> list[tuple[int, int, bytes, bytes]]:
    return sorted(zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "key", "value")), strict=True))


def _shown(topic: ArrowTopic) -> list[list[tuple[int, int, bytes, bytes]]]:
    lazy: list[pl.LazyFrame] = [topic.scan_latest(), topic.scan_records()]
    return [_pairs(one) for one in (topic.records(), topic.latest(), topic.bootstrap().rows, *(one.collect().to_arrow() for one in lazy))]


@pytest.mark.long
def test_what_keeps_the_order_changes_no_answer(topic: ArrowTopic) -> None:
    """One after the other, by the handle that was open and by a new one; appends and cleaning go on behind them."""
    before = _shown(topic)
    for name, change in _HARMLESS.items():
        change(DeltaTable(topic.log.paths.log))
        fresh = LogDir(topic.log.paths.root.rpartition("/")[0]).topic("fruit")
        assert _shown(topic) == _shown(fresh) == before, name
    assert at(T0, topic).append(rows("y=2", partition=0)).ranges[0].first_offset == 9
    assert [dict(one.removed) for one in at(T0, topic).clean()] == [{"superseded": 2}, {"superseded": 2}]
    assert latest(topic) == {"z": "2", "m": "1", "b": "1", "y": "1", "c": "2", "a": "3"}


@pytest.mark.long
def test_another_order_is_one_error_and_not_another_answer(topic: ArrowTopic) -> None:
    """Readers that rely on the order name the file and the way out; frames of Polars do not rely on it; nothing is cleaned by it."""
    before = _shown(topic)
    version = topic.log.snapshot().version
    for name, change in _SHUFFLING.items():
        change(DeltaTable(topic.log.paths.log))
        for read in (topic.records, topic.latest, topic.bootstrap, partial(topic.records, columns=["key"])):
            with pytest.raises(CorruptLog, match=r"partition=.*offsets do not ascend .* RESTORE the table to the version before"):
                read()
        assert _pairs(topic.scan_latest().collect().to_arrow()) == before[1], name
        assert at(T0, topic).clean(force=True) == []
        assert {"offsets do not ascend" in str(one.uncleanable_reason) for one in at(T0, topic).explain()} == {True}
        DeltaTable(topic.log.paths.log).restore(version)
        assert _shown(topic) == before, name
    assert len(at(T0, topic).clean(force=True)) == 2


@pytest.mark.parametrize("vector", [(0,), (0, 2), ()], ids=["one row", "two rows", "unreadable"])
def test_rows_that_a_deletion_vector_hides_are_an_error(topic: ArrowTopic, vector: tuple[int, ...]) -> None:
    """Delta's readers leave them out and those of Parquet do not; a cleaning would bring them back."""
    before = _shown(topic)
    location = Path(topic.log.paths.log)
    table = DeltaTable(location)
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    [added] = [one["add"] for one in _actions(location, table.version() - 2) if "add" in one]
    removed = {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}
    hidden = {**added, "deletionVector": _deletion_vector(vector)}
    _put(location, {"commitInfo": {"operation": "DELETE"}}, {"remove": removed}, {"add": hidden})
    for one in (topic, LogDir(location.parent.parent).topic("fruit")):
        for act in (one.records, one.latest, one.scan_latest, one.verify, partial(one.append, rows("x=1"))):
            with pytest.raises(CorruptLog, match=r"have deletion vectors \(1\).*another writer deleted rows.*RESTORE"):
                act()
    Path(location, "_delta_log", f"{table.version() + 1:020}.json").unlink()
    assert _shown(LogDir(location.parent.parent).topic("fruit")) == before


def _actions(location: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(location, "_delta_log", f"{version:020}.json").read_text().splitlines()]


def _put(location: Path, *actions: dict[str, Any]) -> None:
    """Put a commit of somebody else's into the Delta log."""
    text = "".join(f"{json.dumps(one)}\n" for one in actions)
    Path(location, "_delta_log", f"{DeltaTable(location).version() + 1:020}.json").write_text(text)


def _deletion_vector(rows_: Sequence[int]) -> dict[str, Any]:
    """Return an inline deletion vector of some rows, as Delta's protocol writes it; of none: bytes that are no bitmap."""
    container = struct.pack("<IIHHI", 12346, 1, 0, max(len(rows_) - 1, 0), 16) + b"".join(struct.pack("<H", row) for row in rows_)
    body = struct.pack("<IQI", 1681511377 if rows_ else 7, 1, 0) + container
    body += bytes(-len(body) % 4)
    digits = string.digits + string.ascii_lowercase + string.ascii_uppercase + ".-:+=^!/*?&<>()[]{}@%$#"
    words = [struct.unpack(">I", body[begin : begin + 4])[0] for begin in range(0, len(body), 4)]
    text = "".join(digits[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(body), "cardinality": len(rows_)}


def test_offsets_that_another_writer_gave_again_stop_the_cleaning_of_their_partition(topic: ArrowTopic) -> None:
    """The reason names both files; the other partition is cleaned."""
    table = DeltaTable(topic.log.paths.log)
    write_deltalake(table, table.to_pyarrow_table(filters=[("partition", "=", 1)]).slice(0, 1), mode="append")
    assert [one.partition for one in at(T0, topic).clean()] == [0]
    reason = str(at(T0, topic).explain()[1].uncleanable_reason)
    assert "begins before partition=1/" in reason
    assert "another writer made one of them" in reason
