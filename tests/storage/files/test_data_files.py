"""Data files: what is written, in which files, with which statistics; and what is read of them."""

from __future__ import annotations

import errno
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastword.compaction.errors import CorruptLog
from lastword.storage.files import data_files, data_reader
from lastword.storage.files.data_files import DataFile, RowGroupLimits, SliceWriter, complete, output_file
from lastword.storage.files.data_reader import check_order, named_errors, read_columns, row_groups
from lastword.storage.files.paths import _NumbersErrors
from lastword.storage.files.schema import DATA_SCHEMA
from tests.compaction.logs import arrow_rows, rows

if TYPE_CHECKING:
    from collections.abc import Iterator


def _offsets(*offsets: int) -> pa.Table:
    return complete(pa.table({"offset": pa.array(offsets, pa.int64())}))


def test_a_slice_is_a_file_in_the_folder_of_its_place(tmp_path: Path) -> None:
    """It is one file for any sizes of the batches, and its footer says what it holds."""
    writer = SliceWriter(str(tmp_path), {}, partition=1, segment=2, slice_=2, codec="zstd")
    writer.write(_offsets(2, 3))
    writer.write(_offsets(7))
    file = writer.close()
    assert (file.partition, file.segment, file.slice, file.first_offset, file.last_offset, file.record_count) == (1, 2, 2, 2, 7, 3)
    assert file.path.startswith("partition=1/segment=2/slice=2/part-")
    assert Path(tmp_path, file.path).stat().st_size == file.size_bytes
    assert pq.read_schema(Path(tmp_path, file.path)).remove_metadata() == DATA_SCHEMA


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    """Within a batch, or from one to the next: readers rely on ascending offsets."""
    for before, wrong in (([], (1, 1)), ([_offsets(5)], (4,))):
        writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=0, codec="zstd")
        for batch in before:
            writer.write(batch)
        with pytest.raises(ValueError, match="not in offset order after offset"):
            writer.write(_offsets(*wrong))
        writer.abandon()


def test_statistics_say_least_greatest_and_nulls_and_nothing_of_keys_and_values(tmp_path: Path) -> None:
    """They cover the columns that planning reads; a column with nulls alone has no bounds."""
    writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=3, codec="zstd")
    writer.write(complete(arrow_rows(rows("3:k=v 4:7.0t4:j=∅~1234"))))
    writer.write(complete(arrow_rows(rows("9:9.0t4:COMMIT~99"))))
    found = json.loads(writer.close().stats)

    assert found == {
        "numRecords": 3,
        "minValues": {"offset": 3, "producer_id": 7, "delete_horizon": "1970-01-01T00:00:00.099Z"},
        "maxValues": {"offset": 9, "producer_id": 9, "delete_horizon": "1970-01-01T00:00:01.234Z"},
        "nullCount": {"offset": 0, "timestamp": 3, "appended_at": 3, "delete_horizon": 1, "producer_id": 1, "source_sequence": 3},
    }


def test_a_row_group_is_bounded_in_rows_and_in_bytes(tmp_path: Path) -> None:
    """So the memory of a reader does not depend on the size of values."""
    drawn = arrow_rows(rows(" ".join(f"{n}:k={n}" for n in range(10))))

    def groups(table: pa.Table, limits: RowGroupLimits) -> list[int]:
        writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=0, codec="zstd", limits=limits)
        writer.write(complete(table))
        return [one.rows for one in row_groups(str(tmp_path), {}, writer.close().path, ["offset"])]

    assert groups(drawn, RowGroupLimits()) == [10]
    assert groups(drawn, RowGroupLimits(max_rows=4)) == [4, 4, 2]
    assert groups(drawn, RowGroupLimits(max_rows=4, max_bytes=1)) == [1] * 10


@pytest.mark.parametrize("codec", ["zstd", "snappy", "lz4", "gzip", "uncompressed"])
def test_every_compression_type_is_written_and_read(tmp_path: Path, codec: str) -> None:
    """The topic's compression.type; the file's name says it."""
    writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=0, codec=codec)
    writer.write(complete(arrow_rows(rows("0:k=v"))))
    file = writer.close()
    assert file.path.endswith(f".{codec}.parquet")
    assert read_columns(str(tmp_path), {}, file.path, ["key", "value"]).to_pylist() == [{"key": b"k", "value": b"v"}]


@pytest.mark.parametrize("harm", ["gone", "cut", "garbled"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, harm: str) -> None:
    """It is never taken for an empty one."""
    writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=0, codec="zstd")
    writer.write(complete(arrow_rows(rows("0:k=v 1:k=w"))))
    file: DataFile = writer.close()
    path = Path(tmp_path, file.path)
    whole = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2] if harm == "cut" else whole[:4] + bytes(200) + whole[204:])
    with pytest.raises(CorruptLog, match=f"{file.path} cannot be read"):
        read_columns(str(tmp_path), {}, file.path, DATA_SCHEMA.names)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "no answer"), TimeoutError("no answer"), PermissionError(errno.EACCES, "no"), pa.ArrowMemoryError("full")]
)
def test_what_the_storage_or_the_memory_does_not_give_now_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is raised as it comes: whoever reads may try again. A plain error of pyarrow without a number is about the bytes."""
    writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=0, codec="zstd")
    writer.write(complete(arrow_rows(rows("0:k=v"))))
    file: DataFile = writer.close()
    raised: list[Exception] = [error, OSError("Couldn't deserialize thrift")]

    def failing(*_: object, **__: object) -> None:
        raise raised[0]

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", failing)
    with pytest.raises(type(error)) as caught:
        read_columns(str(tmp_path), {}, file.path, DATA_SCHEMA.names)
    assert caught.value is error
    del raised[0]
    with pytest.raises(CorruptLog, match="cannot be read: Couldn't deserialize thrift"):
        read_columns(str(tmp_path), {}, file.path, DATA_SCHEMA.names)


@pytest.mark.parametrize("what", ["footer", "row group"])
def test_a_file_that_is_whole_at_a_second_look_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A disk or a network gave less of it than there is."""
    writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=0, codec="zstd")
    writer.write(complete(arrow_rows(rows("0:k=v 1:k=w"))))
    file = writer.close()
    whole = Path(tmp_path, file.path).read_bytes()
    looks = [whole[:-9] if what == "footer" else whole[:4] + bytes(400) + whole[404:], whole]

    @contextmanager
    def opened(*_: object) -> Iterator[pq.ParquetFile]:
        yield pq.ParquetFile(pa.BufferReader(looks.pop(0)))

    monkeypatch.setattr(data_reader, "_open", opened)
    assert read_columns(str(tmp_path), {}, file.path, ["offset"]).column("offset").to_pylist() == [0, 1]
    assert not looks


def test_errors_of_an_object_store_have_a_number() -> None:
    """delta-rs' have none, as those of a damaged file; a file that is not there stays what it is."""

    class Store:
        def read(self, _size: int | None) -> bytes:
            raise self.error

        error: Exception = OSError("Generic S3 error: no answer")

    stream = _NumbersErrors(Store(), "s3://bucket/log")
    with pytest.raises(OSError, match="no answer") as caught:
        stream.read(1)
    assert caught.value.errno == errno.EIO
    for error in (FileNotFoundError("gone"), TimeoutError("late"), ValueError("closed")):
        Store.error = error
        with pytest.raises(type(error)) as caught_as_is:
            stream.read(1)
        assert caught_as_is.value is error


@pytest.fixture(name="flushed")
def _flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the folders below the test's own that are flushed, as it goes."""
    folders: list[str] = []
    monkeypatch.setattr(data_files, "sync_folder", lambda folder: folders.append(folder.relative_to(tmp_path).as_posix()))
    return folders


def test_files_and_the_folders_made_for_them_are_flushed(tmp_path: Path, flushed: list[str]) -> None:
    """A commit that names a file promises that it is there after a power loss."""
    for slice_ in (0, 1):
        writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=slice_, codec="zstd")
        writer.write(complete(arrow_rows(rows(f"{slice_}:k=v"))))
        writer.close()
    assert flushed == [
        *("partition=0/segment=0/slice=0", "partition=0/segment=0", "partition=0", "."),
        *("partition=0/segment=0/slice=1", "partition=0/segment=0", "partition=0", "."),
    ]


def test_folders_that_a_commit_names_files_in_are_not_flushed_again(tmp_path: Path, flushed: list[str]) -> None:
    """The names that a new file adds are; all of them if somebody has removed the folders."""
    for slice_, known in ((0, 2), (1, 2), (2, 1)):
        flushed.clear()
        writer = SliceWriter(str(tmp_path), {}, partition=0, segment=0, slice_=slice_, codec="zstd", known_folders=known)
        writer.write(complete(arrow_rows(rows(f"{slice_}:k=v"))))
        writer.close()
        names = [f"partition=0/segment=0/slice={slice_}", "partition=0/segment=0", "partition=0", "."]
        assert flushed == names[: 4 if slice_ == 0 else 4 - known]


def test_what_another_writer_left_is_read_as_what_it_is_or_named(tmp_path: Path) -> None:
    """INT96 timestamps and views have other types; a missing column and rows out of order are damage: readers rely on both."""
    drawn = complete(arrow_rows(rows("3:k=v 4:j=∅~1234")))
    views = {"key": pa.binary_view(), "control": pa.string_view()}
    foreign = pa.table({name: drawn.column(name).cast(views.get(name, drawn.schema.field(name).type)) for name in drawn.schema.names})
    pq.write_table(foreign, tmp_path / "foreign.parquet", use_deprecated_int96_timestamps=True)
    assert pq.read_schema(tmp_path / "foreign.parquet").field("delete_horizon").type == pa.timestamp("ns")

    assert read_columns(str(tmp_path), {}, "foreign.parquet", DATA_SCHEMA.names).equals(drawn)
    pq.write_table(drawn.drop_columns(["key"]), tmp_path / "lacking.parquet")
    with pytest.raises(CorruptLog, match=r"lacking\.parquet has no column key"):
        read_columns(str(tmp_path), {}, "lacking.parquet", ["offset", "key"])
    for order in ([1, 0], [0, 0]):
        pq.write_table(drawn.take(order), tmp_path / "turned.parquet", row_group_size=1)
        with pytest.raises(CorruptLog, match=r"turned\.parquet: offsets do not ascend after \d; no writer of lastword leaves such a file"):
            read_columns(str(tmp_path), {}, "turned.parquet", ["offset"])


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """Nor deleted, as one is that could not be written whole."""
    with output_file(str(tmp_path), {}, "a/b.txt") as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), output_file(str(tmp_path), {}, "a/b.txt") as file:
        file.write(b"second")
    assert (tmp_path / "a/b.txt").read_bytes() == b"first"
    with pytest.raises(ZeroDivisionError), output_file(str(tmp_path), {}, "a/c.txt") as file:
        file.write(b"half" * (1 // 0))
    assert not (tmp_path / "a/c.txt").exists()


def test_what_polars_says_of_a_store_has_a_number(tmp_path: Path) -> None:
    """It is no damage of the file; what it says of the bytes is."""
    of_store = pl.exceptions.ComputeError("Generic S3 error: no answer")
    with pytest.raises(OSError, match=r"a\.parquet: Generic S3 error") as caught, named_errors("a.parquet"):
        raise of_store
    assert caught.value.errno == errno.EIO
    of_bytes = pl.exceptions.ComputeError("parquet: File out of specification")
    with pytest.raises(CorruptLog, match=r"a\.parquet cannot be read: parquet: File out of specification"), named_errors("a.parquet"):
        raise of_bytes


def test_no_rows_are_in_order(tmp_path: Path) -> None:
    """A row group without rows, as other writers may leave one, passes the check of the order."""
    pq.write_table(_offsets(), tmp_path / "empty.parquet")
    assert check_order(_offsets().column("offset").to_numpy(), 7, "empty.parquet") == 7
    with pq.ParquetWriter(tmp_path / "some.parquet", DATA_SCHEMA) as writer:
        for batch in (_offsets(3), _offsets(), _offsets(4)):
            writer.write_table(batch)
    assert read_columns(str(tmp_path), {}, "some.parquet", ["offset"]).column("offset").to_pylist() == [3, 4]
