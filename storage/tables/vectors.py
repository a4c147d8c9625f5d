"""Deletion vectors: which rows of a data file are deleted, in files of Delta's format.

```
 file of vectors      01 │ size  magic  bitmap  crc │ size  magic  bitmap  crc │ …          one for each data file that lost rows
 its name             _dv/deletion_vector_<uuid>.bin
 in the Delta log     {"storageType":"u","pathOrInlineDv":"_dv<uuid in z85>","offset":1,"sizeInBytes":34,"cardinality":2}
```

The folder is hidden (`_dv`): a full VACUUM of delta-rs deletes vectors that lie beside the data files. So only `upkeep` deletes them.
Vectors of other writers are read wherever they are. Format: Delta's PROTOCOL.md, "Deletion Vector Format".
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyroaring import BitMap

from lastword.compaction.errors import CorruptLog
from lastword.storage.files.data_files import output_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyarrow import fs

#: The folder of the vectors below that of the table.
FOLDER: Final = "_dv"
_MAGIC: Final = 1681511377
_HEADER: Final = struct.Struct("<iq")
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_UUID_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """Where a deletion vector is, by the fields of the Delta log, and how many rows it deletes (`cardinality`)."""

    storage_type: str
    path_or_inline: str
    offset: int | None
    size_bytes: int
    cardinality: int

    @staticmethod
    def of_action(body: Mapping[str, Any] | None) -> Vector | None:
        """Return the vector that an add or remove names; None for none."""
        if body is None:
            return None
        return Vector(
            storage_type=body["storageType"],
            path_or_inline=body["pathOrInlineDv"],
            offset=body.get("offset"),
            size_bytes=body["sizeInBytes"],
            cardinality=body["cardinality"],
        )

    def action(self) -> dict[str, Any]:
        """Return it as the Delta log writes it."""
        return {
            "storageType": self.storage_type,
            "pathOrInlineDv": self.path_or_inline,
            **({} if self.offset is None else {"offset": self.offset}),
            "sizeInBytes": self.size_bytes,
            "cardinality": self.cardinality,
        }

    @property
    def identity(self) -> str:
        """What Delta tells vectors of one file apart by."""
        return f"{self.storage_type}{self.path_or_inline}@{self.offset}"

    @property
    def path(self) -> str | None:
        """The path of its file below the table's folder; None for a vector that stands in the Delta log itself."""
        if self.storage_type != "u":
            return None
        prefix, coded = self.path_or_inline[:-_UUID_CHARACTERS], self.path_or_inline[-_UUID_CHARACTERS:]
        name = f"deletion_vector_{uuid.UUID(bytes=_of_z85(coded))}.bin"
        return f"{prefix}/{name}" if prefix else name


def read_vector(filesystem: fs.FileSystem, vector: Vector) -> BitMap:
    """Return the numbers of the rows that a vector deletes.

    Raises `CorruptLog` when it is damaged or its file is not there: the rows that it deletes cannot be told from the others then.
    """
    if vector.storage_type == "i":
        return _bitmap(_of_z85(vector.path_or_inline)[: vector.size_bytes], "a deletion vector in the Delta log")
    path = vector.path
    if path is None:
        message = f"a deletion vector has the storage type {vector.storage_type}; allowed are u and i. Rebuild the table"
        raise CorruptLog(message)
    try:
        with filesystem.open_input_file(path) as stream:
            stream.seek(vector.offset or 0)
            data = stream.read(vector.size_bytes + 8)
    except FileNotFoundError as error:
        message = f"the file of deletion vectors {path} is not there: which rows are deleted is not known any more. Rebuild the table"
        raise CorruptLog(message) from error
    body = data[4:-4]
    if len(data) != vector.size_bytes + 8 or zlib.crc32(body) != int.from_bytes(data[-4:], "big"):
        message = f"the file of deletion vectors {path} is damaged at byte {vector.offset}. Rebuild the table"
        raise CorruptLog(message)
    return _bitmap(body, path)


def write_vectors(location: str, storage_options: Mapping[str, str], rows_by_file: Mapping[str, BitMap]) -> dict[str, Vector]:
    """Write the vectors of some data files into one new file, and return them by data file; no file for none."""
    if not rows_by_file:
        return {}
    name, content, vectors = uuid.uuid4(), bytearray(b"\x01"), dict[str, Vector]()
    for file, rows in rows_by_file.items():
        rows.run_optimize()
        # One bitmap of 32 bits stands for all 64-bit row numbers below 2^32: no data file has more rows.
        body = _HEADER.pack(_MAGIC, 1) + struct.pack("<i", 0) + rows.serialize()
        vectors[file] = Vector(
            storage_type="u", path_or_inline=FOLDER + _z85(name.bytes), offset=len(content), size_bytes=len(body), cardinality=len(rows)
        )
        content += struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    with output_file(location, storage_options, f"{FOLDER}/deletion_vector_{name}.bin") as stream:
        stream.write(bytes(content))
    return vectors


def _bitmap(data: bytes, where: str) -> BitMap:
    try:
        magic, count = _HEADER.unpack_from(data)
        if magic == _MAGIC and not count:
            return BitMap()
        (key,) = struct.unpack_from("<i", data, _HEADER.size)
        rows = BitMap.deserialize(data[_HEADER.size + 4 :]) if magic == _MAGIC and count == 1 and not key else None
    except (ValueError, struct.error):
        rows = None
    if rows is None:
        message = f"{where}: a deletion vector cannot be read. Rebuild the table"
        raise CorruptLog(message)
    return rows


def _z85(data: bytes) -> str:
    return base64.b85encode(data).translate(_TO_Z85).decode()


def _of_z85(text: str) -> bytes:
    try:
        return base64.b85decode(text.encode().translate(_FROM_Z85))
    except ValueError as error:
        message = f"a deletion vector is not in z85: {text!r}. Rebuild the table"
        raise CorruptLog(message) from error
