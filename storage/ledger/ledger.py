"""The ledger: the Delta table of a topic's decisions (`lastword.storage.ledger.decisions`), one row each.

`sequence` numbers the decisions. A commit raises the version of the ledger's application id from the one that its writer has read
(compare-and-set), so that two writers cannot both take a number. A commit takes milliseconds, and other processes may decide something
while a service runs. Losing the ledger loses decisions, never a record.
"""

from __future__ import annotations

import json
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from lastword.compaction.errors import (
    CommitConflict,
    CorruptLog,
    LedgerUnreadable,
    TopicExists,
    UnknownFormat,
    UnknownTopic,
)
from lastword.storage.delta.commit import flush_delta_log
from lastword.storage.delta.folder_locks import folder_lock
from lastword.storage.delta.history import check_commits, commit_file
from lastword.storage.delta.small_tables import AppVersion, commit_rows, create_small_table, current_files
from lastword.storage.delta.tables import open_table, refresh_table, txn_version
from lastword.storage.files import schema
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of, storage_faults
from lastword.storage.files.row_files import read_row_file, write_row_file, writer_of
from lastword.storage.ledger.decisions import Decision, Decisions, Kind, drop_obsolete, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from deltalake import DeltaTable

    from lastword.storage.files.row_files import RowFile

T = TypeVar("T")
_APP_ID: Final = "lastword-ledger"
_FIRST_COMMIT: Final = "_delta_log/00000000000000000000.json"
_ARROW: Final = pa.schema(schema.ledger_schema().to_arrow())
#: A decision is tried for so long while other writers come between, and waits so long for the folder's lock.
_PATIENCE_SECONDS: Final = 120
_LOCK_SECONDS: Final = 5


class Ledger:
    """The decisions of one topic. Safe to share between threads; other processes may write too."""

    def __init__(
        self, uri: str, topic: str, storage_options: Mapping[str, str] | None = None, *, lock_seconds: float = _LOCK_SECONDS
    ) -> None:
        """Open the ledger lazily; nothing is read yet."""
        self._uri = uri
        self._topic = topic
        self._options = dict(storage_options or {})
        self._lock_seconds = lock_seconds
        self._lock = threading.RLock()
        self._table: DeltaTable | None = None
        self._version = self._app_version = -1
        self._opened: tuple[int, int] | None = None
        self._rows: dict[str, list[Decision]] = {}
        self._decisions: Decisions | None = None
        self._topic_id: str | None = None

    @cached_property
    def _files(self) -> fs.FileSystem:
        return filesystem_of(self._uri, self._options)

    def create(self, decisions: list[Decision]) -> None:
        """Make the ledger with its first decisions in one commit; raise `TopicExists` when it is there already."""
        try:
            create_small_table(
                self._uri,
                self._options,
                schema.ledger_schema(),
                schema.small_table_properties(),
                self._write_file([(1 + number, row) for number, row in enumerate(decisions)]),
                kind="ledger",
                version=AppVersion(app_id=_APP_ID, expected=-1, next=len(decisions)),
            )
        except FileExistsError:
            message = f"topic {self._topic} exists already"
            raise TopicExists(message) from None

    def read(self) -> Decisions:
        """Return today's decisions; raise `UnknownTopic` when the ledger is gone, also if another topic took its name since."""
        with self._lock:
            self._refresh()
            if self._decisions is None:
                self._decisions = self._fold()
            if self._topic_id is None:
                self._topic_id = self._decisions.topic_id
            elif self._decisions.topic_id != self._topic_id:
                message = f"topic {self._topic} was deleted and another one created under its name; open it again"
                raise UnknownTopic(message)
            return self._decisions

    def _fold(self) -> Decisions:
        try:
            return fold(row for rows in self._rows.values() for row in rows)
        except StopIteration as error:
            why = "it does not say how the topic was created"
            raise self._unreadable(why) from error
        except (TypeError, KeyError, ValueError) as error:
            writers = sorted({writer_of(read_row_file(self._uri, self._options, path)) for path in self._rows})
            message = (
                f"topic {self._topic}: the ledger has a decision that this version of lastword cannot read ({error}); it was written by "
                f"versions {', '.join(writers)}. Use the latest of them, or a later one; nothing was changed"
            )
            raise UnknownFormat(message) from error

    def rows(self) -> list[Decision]:
        """Return every decision, oldest first."""
        with self._lock:
            self._refresh()
            return sorted((row for rows in self._rows.values() for row in rows), key=lambda row: row.sequence)

    def append(self, decisions: list[Decision]) -> Decisions:
        """Add decisions in one commit and return what holds now; tried again while other writers come between."""
        self.decide(lambda _today: (decisions, None))
        return self.read()

    def decide(self, choose: Callable[[Decisions], tuple[list[Decision], T]]) -> T:
        """Add what `choose` makes of today's decisions in one commit, and return what it says of them.

        `choose` returns the decisions and what to return here. It is asked anew while other writers come between; what it raises is raised.
        """

        def once() -> T:
            with self._lock, folder_lock(local_path(self._uri), max_wait_seconds=self._lock_seconds):
                today, expected = self.read(), self._app_version
                chosen, result = choose(today)
                self._append_once(chosen, today, expected)
                return result

        retrying = Retrying(
            retry=retry_if_exception_type(CommitConflict),
            stop=stop_after_delay(_PATIENCE_SECONDS),
            wait=wait_random(0.01, 0.1),
            reraise=True,
        )
        return retrying(once)

    def is_long(self, least_files: int) -> bool:
        """Tell whether the ledger has so many files that `compact` writes it again."""
        with self._lock:
            self.read()
            return len(self._rows) >= least_files

    def compact(self, *, before_ms: int, least_files: int, silent_ms: int = 0, open_ids: Container[str] = ()) -> int:
        """Rewrite the ledger without superseded decisions older than `before_ms`, if it has `least_files` files; return how many went.

        `drop_obsolete` says what stays: the state of the topic is the same, whatever RESTORE comes next. Forgotten are readers that had
        expired by `before_ms`, and transactional.ids without a transaction since `silent_ms`, but for `open_ids`.
        """
        with self._lock:
            rows = self.rows()
            if len(self._rows) < least_files:
                return 0
            today = fold(rows)  # of just these: what somebody decides from here on makes the commit fail
            kept = drop_obsolete(rows, today, before_ms, forgotten=today.silent_producers(silent_ms, open_ids))
            table = self._opened_table()
            try:
                commit_rows(
                    self._uri,
                    self._options,
                    self._newest_table,
                    self._write_file([(row.sequence, row) for row in kept]),
                    kind="ledger",
                    version=AppVersion(app_id=_APP_ID, expected=self._app_version, next=self._app_version + 1),
                    removes=current_files(table),
                    planned_version=self._version,
                )
            except CommitConflict:
                return 0  # somebody decided something: next time
            newest = self._newest_table()
            with storage_faults(self._uri):
                newest.vacuum(retention_hours=24, dry_run=False, enforce_retention_duration=False, full=True)
            flush_delta_log(self._uri, since_version=newest.version() - 2)
            return len(rows) - len(kept)

    def _append_once(self, decisions: list[Decision], today: Decisions, expected: int) -> None:
        """Commit what was chosen by `today`, where the application id has the version `expected`; others may have come since."""
        if not decisions:
            return
        numbered = [(today.sequence + 1 + number, row) for number, row in enumerate(decisions)]
        version = AppVersion(app_id=_APP_ID, expected=expected, next=expected + len(decisions))
        commit_rows(self._uri, self._options, self._newest_table, self._write_file(numbered), kind="ledger", version=version)

    def _opened_table(self) -> DeltaTable:
        assert self._table is not None  # noqa: S101  read() has opened it
        return self._table

    def _newest_table(self) -> DeltaTable:
        return refresh_table(self._opened_table())

    def _write_file(self, numbered: list[tuple[int, Decision]]) -> list[RowFile]:
        """Write numbered decisions into a file of the ledger's folder."""
        file = write_row_file(self._uri, self._options, [_to_arrow(numbered)], _ARROW)
        return [] if file is None else [file]

    def _refresh(self) -> None:
        """Bring the rows up to date; what was folded from older ones is forgotten."""
        identity = self._identity()
        if identity != self._opened:  # deleted, or deleted and made again under the same name
            self._table, self._version, self._rows = None, -1, {}
        elif self._table is not None and self._is_newest():
            return
        try:
            if self._table is None:
                self._table = open_table(self._uri, self._options)
            else:
                refresh_table(self._table)
        except TableNotFoundError as error:
            self._table, self._version = None, -1
            message = f"topic {self._topic} does not exist (no ledger at {self._uri})"
            raise UnknownTopic(message) from error
        except CorruptLog as error:
            self._table, self._version = None, -1
            raise self._unreadable(str(error)) from error
        if self._table.version() == self._version:  # a write of ours has moved the handle too: compare with what was read
            return
        check_commits(self._table, None if self._version < 0 else self._version)
        paths = [current_file.path for current_file in current_files(self._table)]
        self._rows = {path: self._rows[path] if path in self._rows else self._read(path) for path in paths}
        self._app_version = txn_version(self._table, _APP_ID)
        self._version, self._opened, self._decisions = self._table.version(), identity, None

    def _is_newest(self) -> bool:
        """Whether there is no commit after the version that was read: it is there, and the next is not."""
        names = [commit_file(self._version), commit_file(self._version + 1)]
        this, after = self._files.get_file_info(names)
        return bool(this.type == fs.FileType.File and after.type == fs.FileType.NotFound)

    def _read(self, path: str) -> list[Decision]:
        try:
            rows = read_row_file(self._uri, self._options, path)
            unknown = sorted(set(rows.column("kind").to_pylist()) - {kind.value for kind in Kind})
            if unknown:
                message = (
                    f"topic {self._topic}: the ledger has decisions that this version of lastword does not know ({', '.join(unknown)}; "
                    f"{path}, written by version {writer_of(rows)}). Use that version or a later one; nothing is damaged or changed"
                )
                raise UnknownFormat(message)
            return _from_arrow(rows)
        except (CorruptLog, ValueError, pa.ArrowException) as error:
            why = str(error) if isinstance(error, CorruptLog) else f"{path}: {error}"
            raise self._unreadable(why) from error

    def _unreadable(self, why: str) -> LedgerUnreadable:
        message = (
            f"topic {self._topic}: the ledger cannot be read ({why}). Put the file back; or move the folder {self._uri} away and "
            "create the topic again with the same number of partitions: no record is lost, but settings, rolls, log starts and "
            "transactional ids are"
        )
        return LedgerUnreadable(message)

    def _identity(self) -> tuple[int, int] | None:
        """Return what tells a ledger from another at the same place; None when it is not there.

        The folder's inode may be given to the next folder of that name, so the time of the first commit counts too.
        """
        if local_path(self._uri) is None:
            return self._stored_identity()
        try:
            inode = Path(self._uri).stat().st_ino
        except OSError:
            return None
        try:
            return inode, Path(self._uri, _FIRST_COMMIT).stat().st_mtime_ns
        except OSError:
            return inode, 0

    def _stored_identity(self) -> tuple[int, int] | None:
        """Return when the first commit that is left was written: that of a topic which took the name is another object."""
        files = self._files.get_file_info(fs.FileSelector("_delta_log", allow_not_found=True))
        commits = sorted((file.base_name, file.mtime_ns or 0, file.size) for file in files if file.base_name.endswith(".json"))
        commits = [commit for commit in commits if commit[0][:20].isdigit()]
        return (commits[0][1], commits[0][2]) if commits else None


def _to_arrow(numbered: list[tuple[int, Decision]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "sequence": number,
                "kind": row.kind.value,
                "partition": row.partition,
                "name": row.name,
                "offset": row.offset,
                "table_version": row.table_version,
                "time": row.time_ms * 1000,
                "details": json.dumps(dict(row.details), separators=(",", ":"), sort_keys=True),
            }
            for number, row in numbered
        ],
        schema=_ARROW,
    )


def _from_arrow(table: pa.Table) -> list[Decision]:
    times = table.column("time").cast(pa.int64()).to_pylist()
    return [
        Decision(
            sequence=row["sequence"],
            kind=Kind(row["kind"]),
            time_ms=time // 1000,
            partition=row["partition"],
            name=row["name"],
            offset=row["offset"],
            table_version=row["table_version"],
            details=json.loads(row["details"] or "{}"),
        )
        for row, time in zip(table.drop_columns(["time"]).to_pylist(), times, strict=True)
    ]
