"""The look-up of a late row's key: local files are scanned by Polars, those of an object store are read row group by row group."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastword import LogDir
from lastword.compaction.order.source_positions import SourcePosition
from lastword.compaction.rows.unchanged_columns import MOVED, Moved
from lastword.storage.append.key_lookup import KeyLookup
from lastword.storage.files.data_reader import RowGroup
from tests.change_events import append, change, topic_in
from tests.object_store import URI, running_store, storage_options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastword import ArrowTopic

_PARTITIONS: Final = 2


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Return what reaches a store with an empty bucket."""
    with running_store() as endpoint:
        yield storage_options_of(endpoint)


def _appends(seed: int) -> list[list[dict[str, Any]]]:
    """Return appends of which each row may be later, earlier or as old as what the log has of its key."""
    chance = random.Random(seed)
    return [
        [
            {"key": f"k{chance.randrange(9)}", "value": chance.choice([f"{number}", None]), "source_sequence": chance.randrange(60)}
            for _ in range(8)
        ]
        for number in range(6)
    ]


def _newest(topic: ArrowTopic, at_least: str) -> list[list[tuple[bytes, str, str]]]:
    """Return what the look-up of each partition finds of ten keys, one of which the log does not have."""
    log, keys = topic.log, pa.array([b"k%d" % number for number in range(10)], pa.binary())
    lookups = [KeyLookup.of(log.paths.log, log.storage_options, log.snapshot().files, partition) for partition in range(_PARTITIONS)]
    return [sorted(lookup.newest(keys, at_least).drop("time", "last").rows()) for lookup in lookups]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_late_rows_are_the_same_on_a_local_disk_and_on_an_object_store(tmp_path: Path, options: dict[str, str], seed: int) -> None:
    """Late rows, records and what the look-up itself finds, from each sequence on."""
    config = {"cleanup.policy": "compact"}
    places = (LogDir(str(tmp_path)), LogDir(f"{URI}/lookup-{seed}", storage_options=options))
    topics = [logs.create_topic("fruit", partitions=_PARTITIONS, config=config) for logs in places]
    late = [[topic.append(rows).late for rows in _appends(seed)] for topic in topics]
    assert late[0] == late[1]
    assert sum(late[0]) > 0
    columns = ["partition", "offset", "key", "value"]
    local, remote = (topic.records().select(columns).to_pylist() for topic in topics)
    assert local == remote
    sequences = sorted({*topics[0].log.snapshot().files.max_sequence.tolist()})
    for at_least in sequences:
        on_disk, on_store = (_newest(topic, at_least) for topic in topics)
        assert on_disk == on_store, at_least
        assert all(newest >= at_least for found in on_disk for _, _, newest in found)


def _in_row_groups(topic: ArrowTopic) -> KeyLookup:
    """Write each file of partition 0 again with a row group for each row, as a large file has many; return the look-up."""
    log = topic.log
    for path in log.snapshot().files.path.tolist():
        file = Path(log.paths.log, path)
        pq.write_table(pq.ParquetFile(file).read(), file, row_group_size=1)
    return KeyLookup.of(log.paths.log, {}, log.snapshot().files, 0)


def test_row_groups_below_the_sequence_that_is_asked_for_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an object store, where each is a request; what is found is what a local scan finds."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append([{"key": f"k{number}", "value": "1", "source_sequence": number} for number in range(6)])
    lookup, keys = _in_row_groups(topic), pa.array([b"k1", b"k4", b"k5"], pa.binary())
    [(_, _, least)] = lookup.newest(pa.array([b"k4"], pa.binary()), "").drop("time", "last").rows()
    local = sorted(lookup.newest(keys, least).drop("time", "last").rows())
    read, groups = RowGroup.read, list[RowGroup]()

    def counted(group: RowGroup) -> pa.Table:
        groups.append(group)
        return read(group)

    monkeypatch.setattr("lastword.storage.append.key_lookup.local_path", lambda _: None)
    monkeypatch.setattr(RowGroup, "read", counted)
    assert sorted(lookup.newest(keys, least).drop("time", "last").rows()) == local
    assert ([key for key, *_ in local], len(groups)) == ([b"k4", b"k5"], 2)


def test_the_last_record_of_a_key_is_found_in_its_row_group(tmp_path: Path) -> None:
    """Others of the file are passed over; a key that the log does not have is not found."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append([{"key": f"k{number % 3}", "value": f"{number}", "source_sequence": number} for number in range(5)])
    found = _in_row_groups(topic).records([b"k1", b"k2", b"x"])
    assert {key: record.value for key, record in found.items()} == {b"k1": b"4", b"k2": b"2"}


@pytest.mark.parametrize(
    ("appends", "row"),
    [
        pytest.param("moved", "r", id="the deletion itself"),
        pytest.param("moved tombstone", "r", id="in one file"),
        pytest.param("moved | tombstone", "r", id="in two files"),
        pytest.param("moved | tombstone | other | tombstone tombstone", "r", id="several tombstones"),
        pytest.param("moved | live | tombstone", None, id="a row between them"),
        pytest.param("moved | live tombstone", None, id="a row between them, in the file of the tombstone"),
        pytest.param("moved live", None, id="a row behind it"),
        pytest.param("guessed | tombstone", None, id="of a guessed position"),
        pytest.param("tombstone", None, id="no deletion"),
    ],
)
def test_a_tombstone_has_the_row_of_the_deletion_that_it_is_behind(tmp_path: Path, appends: str, row: str | None) -> None:
    """Wherever an append ended; for the keys that are asked for so, as it may take a look into more files."""
    topic = LogDir(str(tmp_path)).create_topic("fruit", config={"cleanup.policy": "compact"})
    header = {"key": MOVED, "value": msgspec.json.encode(Moved("r", "new"))}
    records: dict[str, dict[str, Any]] = {
        "moved": {"key": "k", "value": None, "headers": [header]},
        "guessed": {
            "key": "k",
            "value": None,
            "headers": [{"key": MOVED, "value": msgspec.json.encode(Moved("r", "new", is_guessed=True))}],
        },
        "tombstone": {"key": "k", "value": None},
        "live": {"key": "k", "value": "v"},
        "other": {"key": "other", "value": "v"},
    }
    for append_ in appends.split(" | "):
        topic.append([records[name] for name in append_.split()])
    lookup = KeyLookup.of(topic.log.paths.log, topic.log.storage_options, topic.log.snapshot().files, 0)
    for key in (b"k", b"x"):
        record = lookup.records([b"k", b"x"], moved={key})[b"k"]
        assert record.value == (b"v" if appends.endswith("live") else None)
        if key == b"k":
            assert (record.moved and record.moved.row) == row


def test_the_highest_order_of_a_source_is_read_from_the_files_that_may_have_it(tmp_path: Path) -> None:
    """Not from one whose highest sequence is of a source that sorts before; of a source that is not there it is empty."""
    topic = topic_in(tmp_path)
    for name, lsn in (("a", 90), ("b", 7), ("b", 5)):
        append(topic, change("c", f"{name}{lsn}", {"connector": "postgresql", "name": name, "lsn": lsn}, {"id": lsn}))
    log = topic.log
    lookup = KeyLookup.of(log.paths.log, {}, log.snapshot().files, 0)
    highest = {SourcePosition.of(text).scope: SourcePosition.of(text).commit for text in lookup.highest[:2]}
    assert lookup.highest_in([(scope, "") for scope in [*highest, "postgresql:z"]]) == {
        (scope, ""): order for scope, order in highest.items()
    }
