"""Dead letters: the table of the rows that a log rejected, with the reason of each.

One row a refusal in `dead_letters/`, with the reason, the value that was wrong and what is allowed, and the row itself. Committed
*before* the good rows of the same micro-batch. An attempt takes the place of an earlier one of the same micro-batch, so that each refused
row is there once, whatever crashed in between and whichever settings the replay has. A batch call refuses instead: it raises, and nothing
is written anywhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lastword.storage.delta.commit import retry_on_conflict
from lastword.storage.delta.history import check_commits
from lastword.storage.delta.small_tables import commit_rows, current_files
from lastword.storage.delta.tables import open_table, refresh_table
from lastword.storage.files.data_files import complete
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.row_files import RowFile, read_row_file, write_row_file
from lastword.storage.files.schema import dead_letter_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    from deltalake import DeltaTable
    from numpy.typing import NDArray

_SHOWN: Final = ("refused_at", "source", "reason", "detail", "partition", "offset", "key")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterOrigin:
    """Whose refused rows these are: a streaming query's micro-batch (`source` is the query's name); and where its dead letters lie."""

    location: str
    storage_options: Mapping[str, str]
    source: str
    query_id: str
    batch_id: int
    refused_ms: int


def dead_letters_of(
    rows: pa.RecordBatch, reasons: Sequence[str], details: Sequence[str], record_keys: pa.Array, origin: LetterOrigin
) -> pa.Table:
    """Return refused rows, as they were validated, as rows of the dead letters; `record_keys` are the keys that are stale by them."""
    count = len(rows)
    columns = {
        "refused_at": pa.array([origin.refused_ms * 1000] * count, pa.int64()).cast(pa.timestamp("us", "UTC")),
        "source": pa.array([origin.source] * count),
        "query_id": pa.array([origin.query_id] * count),
        "batch_id": pa.array([origin.batch_id] * count),
        "reason": pa.array(reasons),
        "detail": pa.array(details),
        **{name: rows.column(name) for name in ("partition", "offset", "timestamp", "key", "value", "headers", "raw")},
        "record_key": record_keys,
        "source_sequence": rows.column("source_sequence") if "source_sequence" in rows.schema.names else pa.nulls(count, pa.string()),
    }
    return pa.table(columns)


def write_dead_letters(rows: Iterable[pa.Table], origin: LetterOrigin) -> RowFile | None:
    """Write dead letters as one file, which is in no commit yet, and return it; None, and no file, when there are none."""
    name = _micro_batch_name(origin.query_id, origin.batch_id)
    return write_row_file(origin.location, origin.storage_options, rows, dead_letter_arrow_schema(), name=name, time_ms=origin.refused_ms)


def add_dead_letters(location: str, storage_options: Mapping[str, str], files: Sequence[RowFile]) -> None:
    """Commit files beside the dead letters that are there; tried again when others come first."""

    def once() -> None:
        table = open_dead_letters(location, storage_options)
        commit_rows(location, storage_options, _following(table), files, kind="dead letters", removes=[], time_column="refused_at")

    retry_on_conflict(once, attempts=50)


def places_of_letters(location: str, storage_options: Mapping[str, str], *, query_id: str) -> frozenset[tuple[int, int]]:
    """Return the partitions and offsets of the dead letters of a query."""
    places, prefix = set[tuple[int, int]](), f"{_query_name(query_id)}-"
    for file in current_files(open_dead_letters(location, storage_options)):
        if file.path.startswith(prefix):
            letters = read_letters(location, storage_options, file.path)
            places.update(zip(letters.column("partition").to_pylist(), letters.column("offset").to_pylist(), strict=True))
    return frozenset(places)


def replace_dead_letters(
    location: str, storage_options: Mapping[str, str], files: Sequence[RowFile], *, query_id: str, batch_id: int | None
) -> None:
    """Commit files as the dead letters of a micro-batch, in the place of those that an earlier attempt of it wrote.

    Without a `batch_id` they take the place of all of the query.

    An attempt that crashed before the log was committed may have refused other rows, under other settings.
    """
    prefix = f"{_query_name(query_id)}-" if batch_id is None else f"{_micro_batch_name(query_id, batch_id)}."

    def once() -> None:
        table = open_dead_letters(location, storage_options)
        there = {current_file.path: current_file for current_file in current_files(table) if current_file.path.startswith(prefix)}
        written = [file for file in files if file.path not in there]  # an attempt that was overtaken may have committed the same files
        removed = [there[path] for path in there.keys() - {file.path for file in files}]
        if written or removed:
            version = table.version()
            commit_rows(
                location,
                storage_options,
                _following(table),
                written,
                kind="dead letters",
                removes=removed,
                planned_version=version,
                time_column="refused_at",
            )

    retry_on_conflict(once, attempts=50)


def read_dead_letters(location: str, storage_options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of a topic, oldest first, with the columns of the table; a file is opened when its rows are asked for."""
    files = current_files(open_dead_letters(location, storage_options), "refused_at")
    for file in sorted(files, key=lambda file: (file.time_ms or 0, file.path)):
        yield from read_letters(location, storage_options, file.path).to_pylist()


def read_letters(location: str, storage_options: Mapping[str, str], path: str) -> pa.Table:
    """Return the dead letters of one file, with all columns; errors as `read_row_file`."""
    return complete(read_row_file(location, storage_options, path), dead_letter_arrow_schema())


def letter_keys(location: str, storage_options: Mapping[str, str], *, since_ms: int) -> frozenset[bytes]:
    """Return the canonical keys of the dead letters that were refused since a moment; errors as `read_letters`."""
    keys = set[bytes]()
    for file in current_files(open_dead_letters(location, storage_options)):
        letters = read_letters(location, storage_options, file.path)
        recent = letters.column("record_key").filter(pa.array(_millis(letters.column("refused_at")) >= since_ms))
        keys.update(recent.drop_null().to_pylist())
    return frozenset(keys)


def expire_dead_letters(location: str, storage_options: Mapping[str, str], *, before_ms: int) -> int:
    """Take the dead letters that were refused before a moment out of the table; return how many. Runs no Spark job."""

    def gone(rows: pa.Table) -> NDArray[np.bool_]:
        is_older: NDArray[np.bool_] = _millis(rows.column("refused_at")) < before_ms
        return is_older

    def whole(file: RowFile) -> bool | None:
        """Tell from its newest one whether a file goes; the dead letters of a file are of one moment."""
        return None if file.time_ms is None else file.time_ms < before_ms

    return delete_dead_letters(location, storage_options, gone, whole=whole)


def delete_dead_letters(
    location: str,
    storage_options: Mapping[str, str],
    gone: Callable[[pa.Table], NDArray[np.bool_]],
    *,
    whole: Callable[[RowFile], bool | None] = lambda _: None,
) -> int:
    """Take the dead letters that `gone` tells out of the table, in one commit, and return how many; tried again when others come first.

    `whole(file)` returns True to delete all of a file, False to keep it, None if its rows must be read. Files stay until VACUUM, as
    older table versions need them.
    """

    def once() -> int:
        table = open_dead_letters(location, storage_options)
        written, removed, count = list[RowFile](), list[RowFile](), 0
        for file in current_files(table, "refused_at"):
            known = whole(file)
            if known is not None:
                removed += [file] if known else []
                count += file.record_count if known else 0
                continue
            rows = read_letters(location, storage_options, file.path)
            going = gone(rows)
            if not going.any():
                continue
            count += int(going.sum())
            removed.append(file)
            name, refused_ms = file.path.split(".", maxsplit=1)[0], int(_millis(rows.column("refused_at")).max())
            left = write_row_file(
                location, storage_options, [rows.filter(pa.array(~going))], dead_letter_arrow_schema(), name=name, time_ms=refused_ms
            )
            written += [] if left is None else [left]
        if removed:
            commit_rows(
                location, storage_options, _following(table), written, kind="dead letters", removes=removed, time_column="refused_at"
            )
        return count

    return retry_on_conflict(once)


def open_dead_letters(location: str, storage_options: Mapping[str, str]) -> DeltaTable:
    """Return the table of dead letters; raise `CorruptLog` for a commit that the machine lost with its power."""
    table = open_table(location, storage_options)
    check_commits(table)
    return table


def _micro_batch_name(query_id: str, batch_id: int) -> str:
    """Return how the files of a micro-batch's dead letters are called."""
    return f"{_query_name(query_id)}-{batch_id}"


def _query_name(query_id: str) -> str:
    return hashlib.sha256(query_id.encode()).hexdigest()[:16]


def _following(table: DeltaTable) -> Callable[[], DeltaTable]:
    """Return a function that brings a table to its newest version."""
    return lambda: refresh_table(table)


def _millis(times: pa.ChunkedArray) -> NDArray[np.int64]:
    millis: NDArray[np.int64] = times.cast(pa.int64()).fill_null(0).to_numpy() // 1000
    return millis


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersView:
    """How many dead letters there are, and the newest of them: refused_at, source, reason, detail, partition, offset, key."""

    count: int
    newest: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class DeadLetters:
    """The dead letters of one topic for people, without a Spark job; read again only when there are others."""

    location: str
    storage_options: Mapping[str, str]
    most: int = 20
    _table: DeltaTable | None = None
    _seen: tuple[int, DeadLettersView] | None = field(default=None)

    def look(self) -> DeadLettersView:
        """Return the count, and the newest `most` of them, newest first."""
        if self._table is None:
            self._table = open_table(self.location, self.storage_options)
        else:
            refresh_table(self._table)
        version = self._table.version()
        if self._seen is None or self._seen[0] != version:
            check_commits(self._table, None if self._seen is None else self._seen[0])
            self._seen = version, self._read(self._table)
        return self._seen[1]

    def _read(self, table: DeltaTable) -> DeadLettersView:
        files = table.get_add_actions(flatten=True)
        paths = files.column("path").to_pylist()
        counts = files.column("num_records").to_pylist()
        times = files.column("modification_time").to_pylist()
        filesystem = filesystem_of(self.location, self.storage_options)
        newest: list[dict[str, Any]] = []
        for _, path in sorted(zip(times, paths, strict=True), reverse=True):
            if len(newest) >= self.most:
                break
            with pq.ParquetFile(path, filesystem=filesystem) as file:
                for batch in file.iter_batches(batch_size=self.most, columns=list(_SHOWN)):
                    newest += batch.to_pylist()
                    break
        newest.sort(key=lambda row: (row["refused_at"], row["offset"] or 0), reverse=True)
        return DeadLettersView(count=sum(count or 0 for count in counts), newest=tuple(newest[: self.most]))
