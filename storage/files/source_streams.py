"""The bytes of a source's file: decompressed as its name says, whole or line by line.

```
 a.json                           the file
 a.json.gz, .bz2, .zst, .lz4      decompressed by Arrow
 a.json.xz                        decompressed by Python, as Arrow has no xz
```

An error of the disk or the network is `Unreachable`; an error of the content is a `CorruptFile`.
"""

from __future__ import annotations

import lzma
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from lastword.change_data.files.file_rows import CorruptFile
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: What reading and parsing raise of a damaged file.
_DAMAGE: Final = (pa.ArrowInvalid, EOFError, lzma.LZMAError, pa.ArrowNotImplementedError, pa.ArrowTypeError)
#: Codecs of Arrow by the ending of a name.
_CODECS: Final = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
#: Endings of compressed files.
COMPRESSIONS: Final = frozenset({*_CODECS, "xz"})


class RawFile:
    """A file as it lies on the disk or in the store; what goes wrong there is `Unreachable`."""

    def __init__(self, path: str, storage_options: Mapping[str, str]) -> None:
        """Open the file."""
        folder, _, name = path.rpartition("/")
        local = local_path(path)
        with _unreachable():
            self._file = local.open("rb") if local is not None else filesystem_of(folder, storage_options).open_input_file(name)

    def __getattr__(self, name: str) -> Any:
        """Return what Arrow and the decompressors ask for beside `read`."""
        return getattr(self._file, name)

    def read(self, size: int | None = -1) -> bytes:
        """Return so many bytes, and fewer only at the end; without a size all that are left."""
        with _unreachable():
            return cast("bytes", self._file.read(-1 if size is None else size))


class Unreachable(OSError):
    """The disk or the network did not give a file."""


@contextmanager
def _unreachable() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreachable(str(error)) from error


@contextmanager
def open_stream(path: str, storage_options: Mapping[str, str], *, block_bytes: int) -> Iterator[IO[bytes]]:
    """Open a file, decompressed as its name says: gz, bz2, xz, zst, lz4; another one is read `block_bytes` at a time."""
    raw = cast("IO[bytes]", RawFile(path, storage_options))
    kind = path.rpartition(".")[2].lower()
    with naming_damage():
        if kind == "xz":
            with lzma.LZMAFile(raw) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), _CODECS[kind]) if kind in _CODECS else raw
            yield cast("IO[bytes]", _Lines(stream, block_bytes))


class _Lines:
    """A stream of bytes, whole or line by line."""

    def __init__(self, stream: Any, block_bytes: int) -> None:
        self._stream, self._block_bytes = stream, block_bytes
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        if size >= 0:
            return cast("bytes", self._stream.read(size))
        return b"".join(iter(lambda: self._stream.read(self._block_bytes), b""))

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        while block := self._stream.read(self._block_bytes):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
        if rest:
            yield rest


@contextmanager
def naming_damage() -> Iterator[None]:
    """Say as `CorruptFile` what is wrong with the content of a file; `Unreachable` and a file that is gone stay what they are."""
    try:
        yield
    except (Unreachable, FileNotFoundError, CorruptFile):
        raise
    except (*_DAMAGE, OSError) as error:  # an OSError here is a decompressor's: those of the disk are `Unreachable`
        raise CorruptFile(str(error)) from error
