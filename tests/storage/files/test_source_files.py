"""The files that a path names, and their rows: hostile names, damage, encodings; a disk that fails is no damage."""

from __future__ import annotations

import bz2
import contextlib
import gc
import gzip
import io
import lzma
import os
import re
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastword.change_data.files.file_rows import CorruptFile
from lastword.compaction.errors import UserError
from lastword.storage.files.file_format import FileFormat
from lastword.storage.files.source_files import (
    FileReadLimits,
    _LentStream,
    _PutBackStream,
    _wait_for_release,
    check_apart,
    find_files,
    parquet_schema,
    read_columns_of,
    read_lines,
    read_texts,
)
from lastword.storage.files.source_streams import Unreachable, naming_damage

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = (
    "monday.json",
    "[1].json",
    "x.json",
    "{a,b}.json",
    "2024-05-01T10:00:00.json",
    "a b.json",
    "ü – 漢.json",
    "50%25.json",
    "#1?.json",
    "a'\"b.json",
    "*.json",
    "-rf.json",
    "back\\slash.json",
    "new\nline.json",
)


def _name(given: str | bytes) -> str:
    """Return the name of a file as a test's id, which compressed bytes cannot be: they have the time."""
    return given if isinstance(given, str) else f"{len(given) > 0}"


def _write(folder: Path, name: str, content: bytes, second: int = 0) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1_700_000_000 + second, 1_700_000_000 + second))
    return str(path)


def _rows(path: str, name: str = "json", **options: Any) -> list[str]:
    """Return the rows of a file as text, a malformed one with `!` before it."""
    found = [row for rows in read_texts(path, FileFormat(name=name, **options), {}) for row in rows]
    return [row.text.decode() if row.malformed is None else f"!{row.malformed}" for row in found]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "a,b\n1,2,3\n", "a,a\n1,2\n", 'a\n"x\n'])
def test_arrow_has_let_go_of_a_csv_file_that_was_read(tmp_path: Path, text: str) -> None:
    """Whether or not it could be read: else a thread of Arrow's that does so while the process ends would abort it."""
    path = _write(tmp_path, "a.csv", text.encode())
    with contextlib.suppress(CorruptFile):
        list(read_texts(path, FileFormat(name="csv"), {}))
    assert [thing for thing in gc.get_objects() if isinstance(thing, _LentStream)] == []


def test_arrow_is_waited_for_a_while() -> None:
    """Not for ever: what holds the object may be someone else."""
    held = _LentStream(_PutBackStream(io.BytesIO(), '"', 1))
    _wait_for_release([weakref.ref(held)], seconds=0.01)
    assert held.read() == b""


def test_every_file_is_found_whatever_its_name_and_age(tmp_path: Path) -> None:
    """In the order in which they were modified; unfinished ones are not there yet."""
    for number, name in enumerate(_NAMES):
        _write(tmp_path / "in", name, b'{"k":1}', second=-number * 86_400)
    for name in ("_SUCCESS", ".hidden.json", "_temporary/0/a.json", ".git/a.json", "b.json._COPYING_"):
        _write(tmp_path / "in", name, b'{"k":1}')
    assert [Path(file.path).name for file in find_files(str(tmp_path / "in"), {})] == list(reversed(_NAMES))
    for name in _NAMES:
        (one,) = find_files(str(tmp_path / "in" / name), {})
        assert Path(one.path).name == name
        assert _rows(one.path) == ['{"k":1}']


@pytest.mark.parametrize(
    ("path", "is_apart"),
    [
        ("", False),
        ("data", False),
        ("data/logs", False),
        ("data/logs/", False),
        ("data/logs/fruit/log", False),
        ("data/logs/*/log", False),
        ("data/*", False),
        ("*/logs", False),
        ("*/*/*.json", False),
        ("**/*.json", False),
        ("{in,data/logs}/*.json", False),
        ("data/../data/logs", False),
        ("link", False),
        ("linked", False),
        ("linked/*", False),
        ("data/*.json", True),
        ("data/in", True),
        ("data/log", True),
        ("data/log*/in/*.json", False),
        ("data/[!l]*/*.json", True),
        ("in", True),
        ("in/*", True),
    ],
)
def test_a_source_does_not_read_the_log_that_it_fills(tmp_path: Path, path: str, *, is_apart: bool) -> None:
    """By a folder in the log.dir, one above it, a pattern, or a link to it, at any depth; one error that names both."""
    log_dir = tmp_path / "data/logs"
    for name in ("data/logs/fruit/log/partition=0/a.parquet", "data/in/a.json", "data/log/a.json", "in/a.json"):
        _write(tmp_path, name, b"")
    (tmp_path / "link").symlink_to(log_dir)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/deeper").symlink_to(log_dir / "fruit")
    where = f"{tmp_path}/{path}"
    with (
        contextlib.nullcontext()
        if is_apart
        else pytest.raises(UserError, match=f"^{re.escape(where)} names files of the log.dir {log_dir}")
    ):
        check_apart(where, str(log_dir), find_files(where, {}))


def test_a_source_on_a_store_does_not_read_the_log_that_it_fills() -> None:
    """By its URI, under both names of the scheme; a folder whose name only begins alike is another one."""
    for path in ("s3://b", "s3a://b/logs", "s3://b/logs/fruit", "s3://b/*"):
        with pytest.raises(UserError, match=r"names files of the log\.dir"):
            check_apart(path, "s3://b/logs", [])
    for path in ("s3://b/logs-in", "s3://other/logs", "s3://b/in/*", "/logs", "gs://b/logs"):
        check_apart(path, "s3://b/logs", [])
    check_apart("s3://b/in", "s3://b/in/.logs", [])  # no source reads what lies in a hidden folder


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.json", ["a.json", "b1.json"]),
        ("*", ["a.json", "b1.json", "c.csv", "d/e.json", "d/f/g.json"]),
        ("?.json", ["a.json"]),
        ("[ab]*.json", ["a.json", "b1.json"]),
        ("[!a]*.json", ["b1.json"]),
        ("{a,c}.{json,csv}", ["a.json", "c.csv"]),
        ("**/*.json", ["a.json", "b1.json", "d/e.json", "d/f/g.json"]),
        ("d/**", ["d/e.json", "d/f/g.json"]),
        ("d", ["d/e.json", "d/f/g.json"]),
        ("d/*/g.json", ["d/f/g.json"]),
        ("A.json", []),
        ("a.{", []),
        ("[", []),
    ],
)
def test_a_glob_names_files_and_folders(tmp_path: Path, pattern: str, names: list[str]) -> None:
    """A folder that matches is its files; case counts."""
    for name in ("a.json", "b1.json", "c.csv", "d/e.json", "d/f/g.json"):
        _write(tmp_path, name, b"")
    if pattern == "A.json":
        with pytest.raises(FileNotFoundError, match="there is no file and no folder"):
            find_files(f"{tmp_path}/{pattern}", {})
        return
    assert sorted(str(Path(file.path).relative_to(tmp_path)) for file in find_files(f"{tmp_path}/{pattern}", {})) == names
    assert [file.path for file in find_files(f"file://{tmp_path}/c.csv", {})]
    assert [Path(file.path).name for file in find_files(str(tmp_path), {}, name_filter="*.csv")] == ["c.csv"]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        find_files(f"{tmp_path}/nothing/*.json", {})


_GZIPPED = gzip.compress(b'{"k":1}\n' * 5_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.json", b'{"k":1}\n' * 3),
        ("a.json.gz", gzip.compress(b'{"k":1}\n' * 2) + gzip.compress(b'{"k":1}\n')),
        ("a.json.bz2", bz2.compress(b'{"k":1}\n' * 3)),
        ("a.json.xz", lzma.compress(b'{"k":1}\n' * 3)),
        ("a.json.zst", pa.compress(b'{"k":1}\n' * 3, "zstd", asbytes=True)),
    ],
    ids=_name,
)
def test_files_are_decompressed_as_their_name_says(tmp_path: Path, name: str, content: bytes) -> None:
    """Members that follow each other are one file."""
    assert _rows(_write(tmp_path, name, content)) == ['{"k":1}'] * 3
    assert [line for lines in read_lines(str(tmp_path / name), {}) for line in lines] == [b'{"k":1}'] * 3


def _parquet(path: Path) -> bytes:
    pq.write_table(pa.table({"k": [1, 2]}), path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.json.gz", _GZIPPED[:-20]),
        ("garbled.json.gz", _GZIPPED[:40] + b"\0\0\0\0" + _GZIPPED[44:]),
        ("text.json.gz", b'{"k":1}'),
        ("cut.json.bz2", bz2.compress(b'{"k":1}\n' * 9_000)[:-9]),
        ("cut.json.xz", lzma.compress(b'{"k":1}\n' * 9_000)[:-9]),
        ("text.json.zst", b'{"k":1}'),
        ("cut.json.zst", pa.compress(b'{"k":1}\n' * 9_000, "zstd", asbytes=True)[:-3]),
        ("wide.json", '{"k":1}'.encode("utf-16")),
        ("twice.csv", b"a,b,a\n1,2,3\n"),
        ("open.csv", b'a,b\n1,"2\n3,4\n'),
        ("wide.csv", "a,b\n1,2".encode("utf-16")),
    ],
    ids=_name,
)
def test_a_damaged_file_gives_no_row(tmp_path: Path, name: str, content: bytes) -> None:
    """It is read to its end before the first row is given."""
    with pytest.raises(CorruptFile):
        next(read_texts(_write(tmp_path, name, content), FileFormat(name=name.split(".")[1]), {}))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", "cut"])
def test_a_damaged_parquet_file_gives_no_row(tmp_path: Path, content: bytes | str) -> None:
    """A file with other types, or with unexpected columns, gives none either."""
    whole = _parquet(tmp_path / "whole.parquet")
    path = _write(tmp_path, "a.parquet", whole[:-20] if isinstance(content, str) else content)
    schema = pa.schema([("k", pa.int64())])
    with pytest.raises(CorruptFile):
        next(read_columns_of(path, schema, {}, may_have_more=True))
    with pytest.raises(CorruptFile):
        parquet_schema(path, {})
    pq.write_table(pa.table({"k": ["x"], "new": [1]}), tmp_path / "other.parquet")
    with pytest.raises(CorruptFile, match="column k is string, and cannot be taken as int64"):
        next(read_columns_of(str(tmp_path / "other.parquet"), schema, {}, may_have_more=True))
    with pytest.raises(CorruptFile, match="columns that the files before did not have: new"):
        next(read_columns_of(str(tmp_path / "other.parquet"), schema, {}, may_have_more=False))


def test_columns_of_parquet_are_taken_by_name(tmp_path: Path) -> None:
    """In another order, in another case where that is clear, in a narrower type; one that is missing is null."""
    pq.write_table(pa.table({"B": ["x"], "a": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())])
    (batch,) = read_columns_of(str(tmp_path / "a.parquet"), schema, {}, may_have_more=False)
    assert batch.to_pylist() == [{"a": 1, "b": "x", "c": None}]


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ('a,b\n1,\n\n007,""\n', {}, ['{"a":"1","b":null}', '{"a":"007","b":""}']),
        ("b,a\n2,1", {}, ['{"b":"2","a":"1"}']),
        ("a\n1", {}, ['{"a":"1"}']),
        ("a\n", {}, []),
        ("a", {}, []),
        ("", {}, []),
        ("a;b\n1;2\n", {"separator": ";"}, ['{"a":"1","b":"2"}']),
        ("1,2\n3,4\n", {"header": False}, ['{"_c0":"1","_c1":"2"}', '{"_c0":"3","_c1":"4"}']),
        ('a,b\n"x,\ny","say ""hi"""\n', {}, ['{"a":"x,\\ny","b":"say \\"hi\\""}']),
        ("a,b\n'x,y',2\n", {"quote": "'"}, ['{"a":"x,y","b":"2"}']),
        ('a,b\n5" pipe,2\n', {"quote": ""}, ['{"a":"5\\" pipe","b":"2"}']),
        ('a,b\n"5\\" pipe",2\n', {"escape": "\\"}, ['{"a":"5\\" pipe","b":"2"}']),
        ("a,b\n1,2,3\n4\n5,6", {}, ['{"a":"5","b":"6"}', "!1,2,3", "!4"]),
        ("a,b\r\n1,2\r\n", {}, ['{"a":"1","b":"2"}']),
        ("\ufeffa\n1", {}, ['{"a":"1"}']),
        ("ä\nü", {"encoding": "ISO-8859-1"}, ['{"ä":"ü"}']),
        ("ä\nü", {"encoding": "UTF-16"}, ['{"ä":"ü"}']),
        ("ä\n漢", {"encoding": "GB18030"}, ['{"ä":"漢"}']),
    ],
)
def test_csv_is_read_by_its_own_header(tmp_path: Path, text: str, options: dict[str, Any], rows: list[str]) -> None:
    """Each file has one; a text is what stands in it."""
    path = _write(tmp_path, "a.csv", text.encode(options.get("encoding", "UTF-8")))
    assert _rows(path, "csv", **options) == rows


@pytest.mark.parametrize("options", [{"separator": "\n"}, {"quote": "\n"}, {"escape": "\r"}], ids=lambda given: next(iter(given)))
def test_an_end_of_line_that_is_to_be_something_else_is_said_as_it_is(tmp_path: Path, options: dict[str, str]) -> None:
    """It is no row that does not end."""
    with pytest.raises(CorruptFile, match=r"cannot be \\r or \\n"):
        _rows(_write(tmp_path, "a.csv", b"k,v\n1,2\n"), "csv", **options)


def test_a_stream_gives_no_more_bytes_than_it_is_asked_for() -> None:
    """Bytes that were put back count, too: the caller has room for no more."""
    source = _PutBackStream(io.BytesIO(b"k,v\n1,2\n"), '"', 4)
    source.put_back(source.read(6))
    assert [source.read(size) for size in (2, 3, -1, 9)] == [b"k,", b"v\n1", b",2\n", b""]


def test_rows_that_do_not_decode_are_malformed_and_the_others_are_rows(tmp_path: Path) -> None:
    """Two names that differ in such a byte alone stay two."""
    path = _write(tmp_path, "a.csv", b"n,m\nM\xfcller,1\nM\xf6ller,2\nMeier,3\nM\xff,4,5\n")
    assert _rows(path, "csv") == ["!M\\xfcller,1", "!M\\xf6ller,2", '{"n":"Meier","m":"3"}', "!M\\xff,4,5"]
    assert _rows(_write(tmp_path, "a.json", b'{"n":"M\xfcller"}\n{"n":"Meier"}')) == ['!{"n":"M\\xfcller"}', '{"n":"Meier"}']
    assert _rows(str(tmp_path / "a.json"), encoding="ISO-8859-1") == ['{"n":"Müller"}', '{"n":"Meier"}']
    wide = _write(tmp_path, "w.json", '{"n":"ü"}\n{"n":1}'.encode("utf-16-le")[:-1])
    with pytest.raises(CorruptFile, match="it is not UTF-16-LE"):
        _rows(wide, encoding="UTF-16-LE")


def test_a_large_file_is_read_twice_and_a_large_damaged_one_gives_no_row(tmp_path: Path) -> None:
    """What is held of a file is bounded."""
    path, damaged = _write(tmp_path, "a.json.gz", _GZIPPED), _write(tmp_path, "b.json.gz", _GZIPPED[:-20])
    for held_bytes in (0, 10_000, 2**26):
        limits = FileReadLimits(held_bytes=held_bytes)
        texts = [row.text for rows in read_texts(path, FileFormat(name="json"), {}, limits=limits) for row in rows]
        assert texts == [b'{"k":1}'] * 5_000
        assert [line for lines in read_lines(path, {}, limits=limits) for line in lines] == [b'{"k":1}'] * 5_000
        with pytest.raises(CorruptFile):
            next(read_texts(damaged, FileFormat(name="json"), {}, limits=limits))
        with pytest.raises(CorruptFile):
            next(read_lines(damaged, {}, limits=limits))


def test_a_file_of_many_parts_that_is_damaged_at_its_end_gives_no_row(tmp_path: Path) -> None:
    """It is read to its end before the first row is given."""
    content = gzip.compress(b'{"k":1}\n' * 25_000)
    path, damaged = _write(tmp_path, "a.json.gz", content), _write(tmp_path, "b.json.gz", content[:-4])
    limits = FileReadLimits(held_bytes=0)
    assert [len(rows) for rows in read_texts(path, FileFormat(name="json"), {}, limits=limits)] == [10_000, 10_000, 5_000]
    with pytest.raises(CorruptFile):
        next(read_texts(damaged, FileFormat(name="json"), {}, limits=limits))


@pytest.mark.parametrize("held_bytes", [0, 79, 80, 2**26])
def test_rows_of_parquet_are_the_same_however_many_bytes_are_held(tmp_path: Path, held_bytes: int) -> None:
    """Ten numbers are 80 bytes: held up to that limit, read twice below it."""
    pq.write_table(pa.table({"k": pa.array(range(10), pa.int64())}), tmp_path / "a.parquet")
    limits = FileReadLimits(held_bytes=held_bytes)
    batches = read_columns_of(str(tmp_path / "a.parquet"), pa.schema([("k", pa.int64())]), {}, may_have_more=False, limits=limits)
    assert [number for batch in batches for number in batch.column("k").to_pylist()] == list(range(10))


_LONG_ROW = "it has a row of more than 16 bytes, which is too long for CSV; often a quote that nothing closes is the cause"


@pytest.mark.parametrize(
    "text",
    ["k,v\n1,xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n2,y\n", "kkkkkkkkkkkkkkkkkkkk,v\n1,x\n", 'k,v\n1,"x\n2,yyyyyyyyy\n3,zzzzzzzzzzzzzz\n4,y\n'],
)
def test_a_row_of_csv_that_is_too_long_is_named(tmp_path: Path, text: str) -> None:
    """In the header and behind it, also where only an open quote makes the row so long; larger blocks have room for it."""
    path = _write(tmp_path, "a.csv", text.encode())
    with pytest.raises(CorruptFile, match=_LONG_ROW):
        list(read_texts(path, FileFormat(name="csv"), {}, limits=FileReadLimits(block_bytes=16)))
    if '"' not in text:
        assert len(_rows(path, "csv")) == text.count("\n") - 1


@pytest.mark.parametrize(
    ("text", "escape", "message"), [('"k,v\n1,x\n', "", "a quote .* that nothing closes"), ("k,v\\", "\\", "an escape is its")]
)
def test_a_first_row_that_does_not_end_is_named(tmp_path: Path, text: str, escape: str, message: str) -> None:
    """What is missing is said, not that the file is empty."""
    path = _write(tmp_path, "a.csv", text.encode())
    with pytest.raises(CorruptFile, match=message):
        list(read_texts(path, FileFormat(name="csv", escape=escape), {}))


@pytest.mark.parametrize("block_bytes", [16, 17, 31, 64, 2**24])
@pytest.mark.parametrize("name", ["a.json", "a.json.zst", "a.csv", "a.csv.gz"])
def test_rows_are_the_same_however_many_bytes_are_read_at_a_time(tmp_path: Path, name: str, block_bytes: int) -> None:
    """Rows end inside of blocks and at their ends; the last row has no line end."""
    numbers = range(100, 140)
    lines = ["k,v", *(f"{number},é" for number in numbers)] if "csv" in name else [f'{{"k":"{number}","v":"é"}}' for number in numbers]
    content = "\n".join(lines).encode()
    ending = name.rpartition(".")[2]
    packed = gzip.compress(content) if ending == "gz" else pa.Codec("zstd").compress(content, asbytes=True) if ending == "zst" else content
    path = _write(tmp_path, name, packed)
    file_format = FileFormat(name=name.split(".")[1])
    rows = [row for rows in read_texts(path, file_format, {}, limits=FileReadLimits(block_bytes=block_bytes)) for row in rows]
    assert [row.malformed for row in rows] == [None] * 40
    assert [row.text.decode() for row in rows] == [f'{{"k":"{number}","v":"é"}}' for number in numbers]


class _Fails:
    """A file of which a read fails."""

    def __init__(self, file: Any, error: OSError) -> None:
        self._file, self._error = file, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, _size: int = -1) -> bytes:
        raise self._error


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), TimeoutError(), ConnectionResetError(), PermissionError(13, "denied")])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.csv", "a.parquet", "a.json.zst"])
def test_what_the_disk_does_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
    """It is an `OSError`, which is tried again; a file that is gone is said to be."""
    path = _write(tmp_path, name, b"PAR1 and more PAR1")
    opened: Callable[..., Any] = Path.open
    monkeypatch.setattr(Path, "open", lambda *given: _Fails(opened(*given), error))

    def read() -> None:
        if name == "a.parquet":
            next(read_columns_of(path, pa.schema([("k", pa.int64())]), {}, may_have_more=True))
        else:
            next(read_texts(path, FileFormat(name=name.split(".")[1]), {}))

    with pytest.raises(Unreachable):
        read()
    Path(path).unlink()
    with pytest.raises(FileNotFoundError):
        read()


@given(content=st.binary(max_size=200), name=st.sampled_from(["json", "csv"]), options=st.sampled_from([{}, {"multi_line": True}]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_rows_or_malformed_rows_or_a_corrupt_file(tmp_path: Path, content: bytes, name: str, options: dict[str, Any]) -> None:
    """Nothing else ever comes of a file."""
    path = _write(tmp_path, f"a.{name}", content)
    try:
        rows = _rows(path, name, **options)
    except CorruptFile:
        return
    lines = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    if name == "json" and not options:
        assert len(rows) in {len(lines), len([line for line in content.split(b"\n") if line.strip()])}


def test_what_the_machine_lacks_is_no_damage_of_a_file() -> None:
    """A row too many for the memory of an executor says nothing of the bytes."""
    full = pa.ArrowMemoryError("malloc of size 1 failed")
    with pytest.raises(pa.ArrowMemoryError) as caught, naming_damage():
        raise full
    assert caught.value is full
    cut = EOFError("Compressed file ended before the end-of-stream marker was reached")
    with pytest.raises(CorruptFile, match="before the end-of-stream marker"), naming_damage():
        raise cut
