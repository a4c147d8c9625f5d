"""Deletion vectors: written in the forms of roaring bitmaps, read in those and in the forms of others, and never guessed."""

from __future__ import annotations

import struct
import uuid
import zlib
from base64 import b85decode, b85encode
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyroaring import BitMap

from lastword.compaction.errors import CorruptLog
from lastword.storage.files.paths import filesystem_of
from lastword.storage.tables import vectors
from lastword.storage.tables.vectors import Vector, read_vector, write_vectors
from tests.storage.tables.kept import Kept, rows_of
from tests.storage.tables.readers import READERS
from tests.storage.tables.strangers import actions_of, versions

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Rows that make each kind of container of a roaring bitmap, and what lies around their limits.
_ROWS: Final[dict[str, Iterable[int]]] = {
    "one": [0],
    "the last of a container": [65_535],
    "the first of the next": [65_536],
    "an array": range(1, 1000, 3),
    "the largest array": range(0, 2 * 4096, 2),
    "the smallest bitset": range(0, 2 * 4097, 2),
    "a bitset": range(0, 65_536, 2),
    "a run": range(10, 60_000),
    "a full container": range(65_536),
    "several kinds": [*range(100), *range(70_000, 131_000), *range(140_000, 200_000, 2)],
    "four billion": [2**32 - 1],
}


@pytest.mark.parametrize("name", _ROWS)
def test_a_vector_reads_as_it_was_written(tmp_path: Path, name: str) -> None:
    """With each kind of container that a roaring bitmap has."""
    rows = BitMap(_ROWS[name])
    written = write_vectors(str(tmp_path), {}, {"a": BitMap(rows)})["a"]
    assert written.cardinality == len(rows)
    assert read_vector(filesystem_of(str(tmp_path), {}), written) == rows


def test_vectors_of_one_step_lie_in_one_file(tmp_path: Path) -> None:
    """Behind each other; a step that marks nothing makes no file."""
    given = {name: BitMap(rows) for name, rows in _ROWS.items()}
    written = write_vectors(str(tmp_path), {}, {name: BitMap(rows) for name, rows in given.items()})
    (path,) = {one.path for one in written.values()}
    assert [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.bin")] == [path]
    for name, rows in given.items():
        assert read_vector(filesystem_of(str(tmp_path), {}), written[name]) == rows
    assert write_vectors(str(tmp_path), {}, {}) == {}


def test_the_path_of_a_vector_is_that_of_the_protocol() -> None:
    """The example of PROTOCOL.md: a random prefix, and a UUID in z85."""
    given = Vector(storage_type="u", path_or_inline="ab^-aqEH.-t@S}K{vb[*k^", offset=4, size_bytes=40, cardinality=6)
    assert given.path == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert Vector.of_action(given.action()) == given
    bare = Vector(storage_type="u", path_or_inline="^-aqEH.-t@S}K{vb[*k^", offset=None, size_bytes=40, cardinality=6)
    assert bare.path == "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert "offset" not in bare.action()


def test_a_vector_that_stands_in_the_log_is_read(tmp_path: Path) -> None:
    """The example of the Delta kernel: rows 3, 4, 7, 11, 18, 29."""
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    given = Vector(storage_type="i", path_or_inline=text, offset=None, size_bytes=44, cardinality=6)
    assert given.path is None
    assert list(read_vector(filesystem_of(str(tmp_path), {}), given)) == [3, 4, 7, 11, 18, 29]


def _inline(body: bytes) -> Vector:
    padded = body + b"\0" * (-len(body) % 4)
    text = b85encode(padded).translate(vectors._TO_Z85).decode()  # noqa: SLF001
    return Vector(storage_type="i", path_or_inline=text, offset=None, size_bytes=len(body), cardinality=0)


def test_an_empty_vector_deletes_nothing(tmp_path: Path) -> None:
    """As a writer may leave it."""
    given = _inline(struct.pack("<iq", 1681511377, 0))
    assert not read_vector(filesystem_of(str(tmp_path), {}), given)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<iq", 1, 1) + struct.pack("<i", 0) + BitMap([1]).serialize(),
        struct.pack("<iq", 1681511377, 2) + struct.pack("<i", 0) + BitMap([1]).serialize(),
        struct.pack("<iq", 1681511377, 1) + struct.pack("<i", 1) + BitMap([1]).serialize(),
        struct.pack("<iq", 1681511377, 1) + struct.pack("<i", 0) + b"rubbish",
        struct.pack("<iq", 1681511377, 1),
    ],
    ids=["nothing", "another magic number", "two bitmaps", "rows past 2^32", "no bitmap", "cut short"],
)
def test_a_vector_that_cannot_be_read_is_an_error(tmp_path: Path, body: bytes) -> None:
    """The rows that it deletes cannot be told from the others."""
    with pytest.raises(CorruptLog, match="Rebuild the table"):
        read_vector(filesystem_of(str(tmp_path), {}), _inline(body))


def test_a_vector_of_another_place_is_an_error(tmp_path: Path) -> None:
    """An absolute path, as a shallow clone has it; and text that is not z85."""
    for kind, text in (("p", "/elsewhere/a.bin"), ("i", "~~~~~")):
        given = Vector(storage_type=kind, path_or_inline=text, offset=1, size_bytes=40, cardinality=6)
        with pytest.raises(CorruptLog, match="Rebuild the table"):
            read_vector(filesystem_of(str(tmp_path), {}), given)


@pytest.mark.parametrize("at", [9, 20, -1])
def test_a_damaged_file_of_vectors_is_an_error(tmp_path: Path, at: int) -> None:
    """A byte of the body or the checksum; the text names the file."""
    written = write_vectors(str(tmp_path), {}, {"a": BitMap(range(0, 100, 3))})["a"]
    path = tmp_path / str(written.path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLog, match=str(written.path)):
        read_vector(filesystem_of(str(tmp_path), {}), written)


@pytest.mark.parametrize("left", [0, 1, 10])
def test_a_file_of_vectors_that_is_cut_short_is_an_error(tmp_path: Path, left: int) -> None:
    """As a machine that loses its power leaves it."""
    written = write_vectors(str(tmp_path), {}, {"a": BitMap([1, 5])})["a"]
    path = tmp_path / str(written.path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptLog, match="damaged"):
        read_vector(filesystem_of(str(tmp_path), {}), written)


def test_a_table_whose_deletion_vector_file_is_missing_is_not_updated_until_a_rebuild(tmp_path: Path) -> None:
    """A deleted row never reappears."""
    kept = Kept(tmp_path)
    kept.fill(4)
    kept.append((1, 7))
    kept.table.step()
    for path in Path(kept.location, "_dv").iterdir():
        path.unlink()
    kept.append((2, 7), (1, 8))
    engine = kept.engine()
    for _ in range(2):
        with pytest.raises(CorruptLog, match="is not there"):
            engine.step()
    engine.rebuild()
    assert kept.rows() == [(0, 0), (1, 8), (2, 7), (3, 0)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("count", [10, 70_000])
def test_no_reader_shows_a_row_that_is_marked(tmp_path: Path, reader: str, count: int) -> None:
    """In arrays, runs and bitsets; counted, filtered and whole."""
    kept = Kept(tmp_path)
    kept.fill(count)
    expected = dict.fromkeys(range(count), 0)
    for gone in (range(0, count, 2), range(count // 3, count // 2)):
        kept.append(*((number, None) for number in gone))
        kept.table.step()
        for number in gone:
            expected.pop(number, None)
    kept.append((count - 1, 9))
    kept.table.step()
    expected[count - 1] = 9
    assert dict(rows_of(READERS[reader](kept.location))) == expected


def test_vectors_are_in_a_hidden_folder_and_wide_bounds_are_said(tmp_path: Path) -> None:
    """A full VACUUM of delta-rs deletes vectors that lie beside the data files (TABLES A1)."""
    kept = Kept(tmp_path)
    kept.fill(4)
    kept.append((1, 7))
    kept.table.step()
    adds: list[dict[str, Any]] = [one["add"] for one in actions_of(kept.location, versions(kept.location)[-1]) if "add" in one]
    (marked,) = [one for one in adds if "deletionVector" in one]
    assert marked["deletionVector"]["pathOrInlineDv"].startswith("_dv")
    assert '"tightBounds":false' in marked["stats"]
    name = uuid.UUID(bytes=b85decode(marked["deletionVector"]["pathOrInlineDv"][3:].encode().translate(vectors._FROM_Z85)))  # noqa: SLF001
    content = Path(kept.location, f"_dv/deletion_vector_{name}.bin").read_bytes()
    assert content[0] == 1
    (size,) = struct.unpack(">i", content[1:5])
    assert size == marked["deletionVector"]["sizeInBytes"]
    assert struct.unpack(">I", content[5 + size :]) == (zlib.crc32(content[5 : 5 + size]),)
