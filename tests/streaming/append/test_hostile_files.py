"""Folders of hostile files: each row is in the log or in the dead letters, exactly once, and a file that is none is named there.

The files are listed, read and appended by what the file source is made of, without a JVM.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from lastword import LogDir
from lastword.change_data.files.file_rows import FileColumns
from lastword.compaction.errors import InvalidRecords, UserError
from lastword.storage.append.append import append_rows
from lastword.storage.append.dead_letters import read_dead_letters
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.files.file_format import FileFormat
from lastword.storage.files.file_listing import FileListing
from lastword.storage.files.source_files import FoundFile
from lastword.streaming.append.file_source import FilePlanner, _first_names, file_format_of
from lastword.streaming.append.file_task import read_as_they_stand
from lastword.streaming.append.source_settings import FileSource
from tests.lives import Crash, crashing
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

_NAMES: Final = ("a", "[1]", "x", "{a,b}", "10:00:00", "a b", "ü漢", "50%25", "#?", "*", "-rf", "new\nline", "sub/folder/a", "a.json")
_KEYS: Final = ("a", "A", "a.b", "007", "7", "", " ", "é", "\\", "'", '"', "\u2028")
_COLUMNS: Final = ("k", "K", "v", "a.b", "`", "*", "_metadata", "", "ü")


class _Source:
    """A file source over a topic, as Spark would run it."""

    def __init__(self, folder: Path, topic: ArrowTopic, **settings: Any) -> None:
        given = {"name": "files", "topic": topic.name, "format": "json", "path": str(folder), "key": ["k"], **settings}
        self.source, self.topic, self.stats = FileSource.model_validate(given), topic, AppendStats()
        self.batch, self.offset = 0, json.dumps({"files": 0})
        columns = FileColumns(key=self.source.key)
        self._read = partial(read_as_they_stand, file_format_of(self.source), {}, columns)
        self.restart()

    def restart(self) -> None:
        names = {"__key": T.BinaryType(), "__value": T.BinaryType(), "__malformed": T.StringType(), "__refusal": T.StringType()}
        order = {"__order_1_file": T.IntegerType(), "__order_2_row": T.LongType()}
        schema = T.StructType([T.StructField(name, one) for name, one in {**names, **order}.items()])
        self.planner = FilePlanner(cast("Any", None), self.source, self.topic.log, self._read, schema)
        self.stats = AppendStats()

    def run(self, crash: CrashPoint | None = None) -> bool:
        """Run one micro-batch; tell whether there was something for it."""
        end = self.planner.latest(self.offset, "")
        if end == self.offset:
            return False
        task = self.planner.task(self.offset, end, parts=3)
        batches = [rows for part in range(len(task.parts)) for rows in task(iter([pa.record_batch({"id": pa.array([part])})]))]
        rows = pa.Table.from_batches(batches, task.schema).rename_columns(["key", "value", *task.schema.names[2:]])
        micro_batch = MicroBatch(query_id="q", query_name="files", batch_id=self.batch)
        with crashing(crash):
            append_rows(self.topic.log, ArrowRows(rows), now_ms=1_700_000_000_000, stats=self.stats, micro_batch=micro_batch)
        self.batch, self.offset = self.batch + 1, end
        return True


def _row(chance: random.Random, number: int) -> tuple[bytes, str]:
    """Return a line, and what becomes of it: `log`, or `letters`."""
    row: dict[str, Any] = {name: chance.choice((number, None, str(number), [number], {"x": number})) for name in chance.sample(_COLUMNS, 3)}
    row["n"] = number
    kind = chance.random()
    if kind < 0.7:
        row["k"] = chance.choice(_KEYS)
        return json.dumps(row, ensure_ascii=chance.random() < 0.5).encode(), "log"
    if kind < 0.8:
        row.pop("k", None)
        return json.dumps(row).encode(), "letters"
    text = json.dumps({"k": "x", "n": number}).encode()
    return chance.choice(
        (text[:-1], text + b"}", b"[" + text + b"]", text.replace(b"x", b"\xff"), b'{"k":"x","k":"y"}', b"\0", b"NaN")
    ), "letters"


def _file(chance: random.Random, first: int) -> tuple[bytes, str, list[str]]:
    """Return the content of a file, how its name ends, and what becomes of its lines; none of a damaged one."""
    lines = [_row(chance, first + number) for number in range(chance.choice((0, 1, 1, 3, 8)))]
    text = chance.choice((b"\n", b"\r\n")).join(line for line, _ in lines) + chance.choice((b"", b"\n", b"\n\n"))
    if lines and chance.random() < 0.1:
        text = b"\xef\xbb\xbf" + text
    fates = [fate for _, fate in lines]
    kind = chance.random()
    if kind < 0.15:
        return gzip.compress(text), ".json.gz", fates
    if kind < 0.25:
        return gzip.compress(text)[: -chance.randrange(1, 9)], ".json.gz", ["corrupt"]
    if kind < 0.3:
        return text or b"x", ".json.bz2", ["corrupt"]
    return text, ".json", fates


def _live(folder: Path, chance: random.Random) -> None:
    """Let files arrive in any order, with crashes in between; compare."""
    topic = LogDir(folder / "logs").create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
    arriving = folder / "in"
    arriving.mkdir()
    source, fates, lines = _Source(arriving, topic, **{"max.files.per.trigger": chance.choice((0, 1, 3))}), list[str](), 0
    for step in range(chance.choice((1, 2, 4))):
        for number in range(chance.choice((0, 1, 5))):
            content, suffix, becoming = _file(chance, lines)
            path = arriving / f"{chance.choice(_NAMES)}{step}{number}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            age = chance.choice((0, 10, 10 * 86_400, 10_000 * 86_400))
            os.utime(path, (1_700_000_000 - age, 1_700_000_000 - age))
            fates += becoming
            lines += len(becoming)
        while True:
            crash = chance.choice((None, None, None, CrashPoint.DEAD_LETTERS_WRITTEN, CrashPoint.APPEND_COMMITTED))
            try:
                if not source.run(crash):
                    break
            except Crash:
                source.restart()
    letters = list(read_dead_letters(topic.log.paths.dead_letters, {}))
    records = topic.records().to_pylist()
    assert len(records) == fates.count("log")
    assert sum(one["reason"] == "corrupt_file" for one in letters) == fates.count("corrupt")
    assert len(letters) == len(fates) - fates.count("log")
    numbers = [json.loads(bytes(row["value"]))["n"] for row in records]
    assert len(numbers) == len(set(numbers))


@pytest.mark.long
def test_each_row_of_hostile_folders_is_in_the_log_or_a_dead_letter_once(tmp_path: Path) -> None:
    """LASTWORD_SEED repeats the folders of a run."""
    chance = random.Random(seed_of_this_run())
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        _live(tmp_path / str(number), chance)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_thousands_of_hostile_folders(tmp_path: Path) -> None:
    """LASTWORD_HISTORIES says how many."""
    chance = random.Random(seed_of_this_run())
    for number in range(int(os.environ.get("LASTWORD_HISTORIES", "5000"))):
        (tmp_path / str(number)).mkdir()
        _live(tmp_path / str(number), chance)


def _topic(tmp_path: Path) -> ArrowTopic:
    return LogDir(tmp_path / "logs").create_topic("t", config={"cleanup.policy": "compact"})


def test_a_corrupt_file_ends_the_query_if_it_shall_and_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    """`on.corrupt.file = fail`: nothing of the micro-batch is appended, and nothing is a dead letter."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(b'{"k":"a"}')
    (tmp_path / "in" / "b.json.gz").write_bytes(gzip.compress(b'{"k":"b"}')[:-4])
    source = _Source(tmp_path / "in", _topic(tmp_path), **{"on.corrupt.file": "fail"})
    for _ in range(2):
        with pytest.raises(InvalidRecords, match=r"b\.json\.gz cannot be read: .*; mend it, or set on\.corrupt\.file = skip"):
            source.run()
        assert source.topic.records().num_rows == 0
        source.restart()
    (tmp_path / "in" / "b.json.gz").write_bytes(gzip.compress(b'{"k":"b"}'))
    assert source.run()
    assert [bytes(row["key"]) for row in source.topic.records().to_pylist()] == [b"a", b"b"]
    assert list(read_dead_letters(source.topic.log.paths.dead_letters, {})) == []


def test_a_file_that_changes_after_it_was_read_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Grown, rewritten or touched: its rows are not read again."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("grown", "rewritten", "touched", "gone"):
        (folder / f"{name}.json").write_bytes(b'{"k":"a"}\n')
    source = _Source(folder, _topic(tmp_path))
    assert source.run()
    (folder / "grown.json").write_bytes(b'{"k":"a"}\n{"k":"b"}\n')
    (folder / "rewritten.json").write_bytes(b'{"k":"c"}\n')
    os.utime(folder / "rewritten.json", (1, 1))
    os.utime(folder / "touched.json", (2, 2))
    (folder / "gone.json").unlink()
    with caplog.at_level("WARNING"):
        assert not source.run()
        assert not source.run()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all("file changed after it was read" in one for one in said)
    assert source.topic.records().num_rows == 4


def test_a_folder_that_goes_away_and_comes_back_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its absence is said; its files are not read again. A file that goes between listing and reading is a dead letter."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "1.json").write_bytes(b'{"k":"a"}\n')
    source = _Source(folder, _topic(tmp_path))
    assert source.run()
    folder.rename(tmp_path / "away")
    with caplog.at_level("WARNING"):
        assert not source.run()
        assert not source.run()
    assert caplog.text.count("files cannot be listed") == 1, "not with every look"
    (tmp_path / "away" / "2.json").write_bytes(b'{"k":"b"}\n')
    (tmp_path / "away").rename(folder)
    assert source.run()
    assert not source.run()
    (folder / "3.json").write_bytes(b'{"k":"c"}\n')
    found = FileListing(source.topic.log.paths.query("files"), {})
    found.add([FoundFile(f"{folder}/gone.json", 1, 1)])
    source.restart()
    assert source.run()
    assert source.run()
    assert [bytes(row["key"]) for row in source.topic.records().to_pylist()] == [b"a", b"b", b"c"]
    (letter,) = read_dead_letters(source.topic.log.paths.dead_letters, {})
    assert (letter["reason"], letter["raw"]) == ("corrupt_file", f"{folder}/gone.json")
    assert "it is gone since it was listed" in letter["detail"]


@pytest.mark.parametrize(
    ("path", "is_unmounted"),
    [("in", False), ("in/", False), ("[in]", False), ("in/*/[ab]*.json", False), ("in/{x,y}", False), ("in", True)],
    ids=["folder", "slash", "a name that is a glob", "glob", "braces", "an empty folder is left"],
)
def test_a_folder_that_goes_between_listing_and_reading_is_waited_for(tmp_path: Path, path: str, *, is_unmounted: bool) -> None:
    """It is not each file that is gone: nothing is appended, nothing is a dead letter, and all is read when the folder is back."""
    folder = tmp_path / path.partition("/")[0]
    (folder / "x").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / "x" / f"{name}.json").write_text(json.dumps({"k": name}))
    source = _Source(tmp_path / path, _topic(tmp_path))
    end = source.planner.latest(source.offset, "")
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    if is_unmounted:
        folder.mkdir()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            source.run()
        source.restart()
    assert source.planner.latest(source.offset, "") == end
    if is_unmounted:
        folder.rmdir()
    elsewhere.rename(folder)
    assert source.run()
    assert not source.run()
    assert [bytes(row["key"]) for row in source.topic.records().to_pylist()] == [b"a", b"b"]
    assert list(read_dead_letters(source.topic.log.paths.dead_letters, {})) == []


@pytest.mark.parametrize("path", ["in", "in/*.json", "in/a.json"])
def test_a_file_that_goes_alone_is_a_dead_letter(tmp_path: Path, path: str) -> None:
    """What the path names is there; a file of it is not."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "kept.txt").touch()
    (tmp_path / "in" / "a.json").write_text('{"k":"a"}')
    source = _Source(tmp_path / path, _topic(tmp_path), options={} if path.endswith("json") else {"pathGlobFilter": "*.json"})
    source.planner.latest(source.offset, "")
    (tmp_path / "in" / "a.json").unlink()
    assert source.run()
    (letter,) = read_dead_letters(source.topic.log.paths.dead_letters, {})
    assert (letter["reason"], letter["raw"]) == ("corrupt_file", f"{tmp_path}/in/a.json")


@pytest.mark.parametrize("name", ["pathGlobFilter", "pathglobfilter", "PATHGLOBFILTER"])
def test_the_filter_of_names_holds_however_its_option_is_written(tmp_path: Path, name: str) -> None:
    """Spark's options have no case."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_bytes(b'{"k":"a"}')
    (tmp_path / "in" / "b.txt").write_bytes(b'{"k":"b"}')
    source = _Source(tmp_path / "in", _topic(tmp_path), options={name: "*.json"})
    assert source.run()
    assert not source.run()
    assert [bytes(row["key"]) for row in source.topic.records().to_pylist()] == [b"a"]


def test_a_listing_is_the_same_after_a_restart_however_long_it_is(tmp_path: Path) -> None:
    """Entries go into one now and then; those that another version wrote, or that are damaged, are an error that names the file."""
    listing = FileListing(str(tmp_path), {})
    for number in range(200):
        assert listing.add([FoundFile(f"/in/{number}", number, number), FoundFile(f"/in/{number}b", 1, 1)]) == number + 1
    again = FileListing(str(tmp_path), {})
    assert (again.last, again.known) == (200, listing.known)
    assert again.files(200) == [FoundFile("/in/199", 199, 199), FoundFile("/in/199b", 1, 1)]
    assert len(list((tmp_path / "files").iterdir())) < 80
    newest = tmp_path / "files" / "0000000200.json"
    whole = newest.read_bytes()
    for content in (whole[:-9], b"", whole.replace(b"199b", b"198b"), b"[]"):
        newest.write_bytes(content)
        with pytest.raises(UserError, match=r"0000000200\.json is damaged"):
            FileListing(str(tmp_path), {})
    body = {**json.loads(whole)["body"], "format": 2}
    checksum = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    newest.write_bytes(json.dumps({"crc32": checksum, "body": body}).encode())
    with pytest.raises(UserError, match=r"has format 2, and this version of lastword reads 1"):
        FileListing(str(tmp_path), {})


def test_a_checkpoint_of_another_file_source_says_so(tmp_path: Path) -> None:
    """An earlier version let Spark list the files."""
    (tmp_path / "in").mkdir()
    source = _Source(tmp_path / "in", _topic(tmp_path))
    source.offset = '{"logOffset":3}'
    with pytest.raises(UserError, match="its checkpoint is of an earlier version of lastword"):
        source.run()


def test_a_row_whose_key_cannot_be_computed_with_is_a_dead_letter(tmp_path: Path) -> None:
    """It is JSON, and its number is too large to be written in another way."""
    path, text = tmp_path / "a.json", '{"k":1e9999999999999999999}'
    path.write_text(f'{text}\n{{"k":1}}\n')
    [rows] = read_as_they_stand(FileFormat(name="json"), {}, FileColumns(key=["k", "v"]), str(path))
    first, second = rows.to_pylist()
    assert (first["__key"], first["__text"], first["__malformed"]) == (None, None, text)
    assert first["__refusal"].startswith("malformed: the key's column k = 1e9999999999999999999: it cannot be a key")
    assert (second["__key"], second["__malformed"], second["__refusal"]) == (b'{"k":1,"v":null}', None, None)


def test_types_are_those_of_the_first_file_that_can_be_read(tmp_path: Path) -> None:
    """If no file of a folder can be read, the message names the first one."""
    whole, cut = tmp_path / "b.json.gz", tmp_path / "a.json.gz"
    whole.write_bytes(gzip.compress(b'{"k":"1","n":5}\n'))
    cut.write_bytes(whole.read_bytes()[:-9])
    source = FileSource.model_validate({"name": "files", "topic": "t", "format": "json", "path": str(tmp_path), "key": ["k"]})
    files = [FoundFile(str(path), 1, 1) for path in (cut, whole)]
    names, wrong = _first_names(source, files, {})
    assert (set(names), wrong.startswith(f" ({cut}: ")) == ({"k", "n"}, True)
    assert _first_names(source, files[:1], {}) == ({}, wrong)
