"""Positions of registered readers: a file each, which costs no row of the ledger, and without which more is kept and never less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.config.keys import DAY_MS
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import Reader
from lastword.storage.files.json_files import json_file
from lastword.storage.ledger.decisions import Decision, Decisions, Kind
from lastword.storage.ledger.ledger import Ledger
from lastword.storage.log.reader_positions import ReaderPositions

if TYPE_CHECKING:
    from collections.abc import Callable


_EXPIRATION_MS = DAY_MS


class _Topic:
    """The ledger and the position files of a topic with one partition."""

    def __init__(self, root: Path, topic_id: str = "id") -> None:
        self.root = root
        self.ledger = Ledger(str(root / "ledger"), "fruit")
        self.ledger.create([Decision(kind=Kind.CREATE, time_ms=0, details={"topic_id": topic_id, "partitions": 1})])
        self.positions = ReaderPositions(str(root), {})

    def tell(self, name: str, offset: int, now_ms: int, expiration_ms: int = _EXPIRATION_MS) -> None:
        position = Position(offsets=(offset,), table_version=offset, since_version=offset)
        self.positions.write(Reader(name=name, position=position, seen_ms=now_ms, expiration_ms=expiration_ms), self.ledger)

    def drop(self, name: str) -> None:
        self.ledger.append([Decision(kind=Kind.READER, time_ms=0, name=name, details={"offsets": None})])
        self.positions.drop(name)

    def readers(self) -> dict[str, Reader]:
        """Return the readers as another process sees them."""
        return ReaderPositions(str(self.root), {}).newest(Ledger(str(self.root / "ledger"), "fruit").read())

    def offsets(self) -> dict[str, int]:
        return {name: one.position.offsets[0] for name, one in self.readers().items()}

    def registrations(self) -> int:
        return sum(row.kind is Kind.READER for row in self.ledger.rows())

    def files(self) -> list[str]:
        return sorted(one.name for one in (self.root / "readers").iterdir())


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> _Topic:
    return _Topic(tmp_path / "fruit")


def test_a_reader_that_moves_costs_one_row_and_one_file(topic: _Topic) -> None:
    """Another process sees its position and when it was seen."""
    for number in range(100):
        topic.tell("cache", number, number)
    assert (topic.registrations(), topic.files()) == (1, ["cache.json"])
    (reader,) = topic.readers().values()
    position = Position(offsets=(99,), table_version=99, since_version=99)
    assert reader == Reader(name="cache", position=position, seen_ms=99, expiration_ms=_EXPIRATION_MS, registration=2)
    topic.tell("cache", 7, 100)
    assert topic.offsets() == {"cache": 7}, "a reader that reads again"


def test_a_row_is_written_for_half_an_expiration_and_for_another_one(topic: _Topic) -> None:
    """So the row of a live reader never looks expired, even if a clock was set back."""
    rows = []
    for now_ms in (0, DAY_MS // 2 - 1, DAY_MS // 2, DAY_MS - 1, DAY_MS, 0, 1):
        topic.tell("cache", 5, now_ms)
        rows.append(topic.registrations())
        registered = topic.ledger.read().readers["cache"]
        assert not registered.is_expired(now_ms)
        assert topic.readers()["cache"].seen_ms == now_ms
    assert rows == [1, 1, 2, 2, 3, 4, 4]
    topic.tell("cache", 6, 2, expiration_ms=9)
    assert (topic.registrations(), topic.readers()["cache"].expiration_ms, topic.offsets()) == (5, 9, {"cache": 6})


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _changed(name: str, value: Any, *, is_whole: bool = False) -> Callable[[Path], None]:
    """Return what changes a value in a file; its checksum is that of before, or right if it `is_whole`."""

    def change(file: Path) -> None:
        kept = json.loads(file.read_text(encoding="utf-8"))
        kept["body"][name] = value
        file.write_bytes(json_file(kept["body"]) if is_whole else json.dumps(kept).encode())

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        _cut,
        lambda file: file.write_bytes(b"\xff"),
        lambda file: file.write_text("[]"),
        _changed("offsets", [9]),
        _changed("offsets", None, is_whole=True),
    ],
)
def test_without_its_file_a_reader_is_where_it_registered_and_expires_later(topic: _Topic, spoil: Callable[[Path], object]) -> None:
    """It may have been seen for half an expiration after its row; the files that it needs are kept since the row."""
    topic.tell("cache", 1, 0)
    topic.tell("cache", 5, 10)
    spoil(topic.root / "readers" / "cache.json")
    (reader,) = topic.readers().values()
    assert (reader.position.offsets, reader.seen_ms) == ((1,), 0)
    assert [reader.is_expired(now_ms) for now_ms in (DAY_MS // 2 + DAY_MS - 1, DAY_MS // 2 + DAY_MS)] == [False, True]
    topic.tell("cache", 6, 20)
    assert (topic.offsets(), topic.registrations()) == ({"cache": 6}, 1)


def test_a_file_counts_for_its_own_registration_alone(topic: _Topic, tmp_path: Path) -> None:
    """Not for a reader that was dropped and comes back, nor for a topic that has the name now."""
    topic.tell("cache", 5, 0)
    topic.tell("cache", 7, 1)
    old = (topic.root / "readers" / "cache.json").read_bytes()
    topic.drop("cache")
    assert (topic.readers(), topic.files()) == ({}, [])
    (topic.root / "readers" / "cache.json").write_bytes(old)
    assert topic.readers() == {}, "written by a process that did not know yet"
    topic.tell("cache", 3, 2)
    (topic.root / "readers" / "cache.json").write_bytes(old)
    assert topic.offsets() == {"cache": 3}

    another = _Topic(tmp_path / "again", "another id")
    another.tell("cache", 1, 0)
    (another.root / "readers" / "cache.json").write_bytes(old)
    assert another.offsets() == {"cache": 1}


def test_any_name_has_a_file_of_its_own(topic: _Topic) -> None:
    """Slashes, dots, names longer than a file's may be, names that begin alike."""
    names = ["a/b", "..", "ä" * 249, "ä" * 248 + "x", "x" * 249, "A", "a%2Fb"]
    for offset, name in enumerate(names):
        topic.tell(name, 0, 0)
        topic.tell(name, offset, 1)
    assert topic.offsets() == {name: offset for offset, name in enumerate(names)}
    assert len(topic.files()) == len(names)
    assert all(len(name.encode()) < 200 for name in topic.files())


def test_a_new_registration_deletes_the_files_of_readers_that_are_gone(topic: _Topic) -> None:
    """Names that are used once do not accumulate."""
    topic.tell("first", 1, 0)
    topic.tell("second", 2, 0)
    (topic.root / "readers" / "gone.json").write_text("{}", encoding="utf-8")
    (topic.root / "readers" / "gone.json.new").write_text("{", encoding="utf-8")
    topic.tell("third", 3, 0)
    assert topic.files() == ["first.json", "second.json", "third.json"]


def test_a_folder_that_cannot_be_written_is_no_failure(topic: _Topic) -> None:
    """The registration counts."""
    (topic.root / "readers").write_text("a file", encoding="utf-8")
    topic.tell("cache", 1, 0)
    topic.tell("cache", 2, 1)
    topic.tell("other", 3, 1)
    assert topic.offsets() == {"cache": 1, "other": 3}


def test_a_compacted_ledger_keeps_a_reader_that_its_file_still_names(topic: _Topic) -> None:
    """A reader that was seen last just before its next row was due expires that much later than its row."""
    topic.tell("cache", 1, 0)
    topic.tell("cache", 9, DAY_MS // 2 - 1)
    assert topic.ledger.compact(before_ms=DAY_MS + DAY_MS // 2 - 1, least_files=1) == 0
    assert not topic.readers()["cache"].is_expired(DAY_MS + DAY_MS // 2 - 2)
    assert topic.offsets() == {"cache": 9}
    topic.ledger.append([Decision(kind=Kind.PAUSE, time_ms=0, partition=0, details={"count": 1})])
    assert topic.ledger.compact(before_ms=DAY_MS + DAY_MS // 2, least_files=1) == 1
    assert topic.readers() == {}


def test_a_reader_that_goes_back_is_registered_again(topic: _Topic) -> None:
    """A file that cannot be replaced would say that it has read on, and tombstones would go that it needs."""
    topic.tell("cache", 90, 0)
    (topic.root / "readers" / "cache.json.new").mkdir()  # no file can be written there
    topic.tell("cache", 4, 1)
    assert (topic.offsets(), topic.registrations()) == ({"cache": 4}, 2)


def test_a_reader_that_is_dropped_as_it_registers_leaves_no_file(topic: _Topic) -> None:
    """Its position would be that of a reader which nobody waits for; told again, it is registered again."""
    dropping = iter(["cache"])

    class Overtaken(Ledger):
        def append(self, decisions: list[Decision]) -> Decisions:
            super().append(decisions)
            for name in dropping:
                topic.drop(name)
            return self.read()

    topic.ledger = Overtaken(str(topic.root / "ledger"), "fruit")
    topic.tell("cache", 1, 0)
    assert topic.readers() == {}
    assert not (topic.root / "readers" / "cache.json").exists()
    topic.tell("cache", 2, 1)
    assert topic.offsets() == {"cache": 2}
