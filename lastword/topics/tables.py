"""Tables that are kept in step with a topic without Spark: one call that takes all steps, or a thread that follows."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict

from lastword.change_data.columns.table_columns import TableColumns
from lastword.compaction.display import Displayed
from lastword.compaction.errors import UserError
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import EXPIRATION_MS, Reader
from lastword.storage.files.locations import location_of
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.reading.view import check_isolation
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_log import TableLog
from lastword.storage.tables.table_options import TableLimits, TableOptions
from lastword.storage.tables.table_rows import RowMaker, TableLayout
from lastword.storage.tables.typed_rows import ColumnsUnknown, columns_of_sources, table_columns
from lastword.streaming.events import logger
from lastword.topics.decisions import drop_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.tables.table_options import TableStep
    from lastword.storage.tasks import Cluster

_LOG: Final = logger("tables")
#: A reader in the ledger has a name of up to 249 characters.
_LONGEST_LOCATION: Final = 240
#: How often a table that moves says where it is, so that tombstones and files which it has read may go.
_TELL_MS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableProgress(Displayed):
    """What was done to a table: commits that changed rows, rows written and deleted, and where the table is.

    `misfit_rows` are records with a value that did not fit its column. `kind` is what the first commit was: bootstrap, rebuild, step, or
    empty when nothing was new.
    """

    path: str
    kind: str = ""
    steps: int = 0
    written_rows: int = 0
    deleted_rows: int = 0
    misfit_rows: int = 0
    table_version: int = -1
    position: Position = field(default_factory=lambda: Position(offsets=()))

    def plus(self, step: TableStep) -> TableProgress:
        """Return the progress after one more commit."""
        return replace(
            self,
            kind=self.kind or step.kind,
            steps=self.steps + 1,
            written_rows=self.written_rows + step.written_rows,
            deleted_rows=self.deleted_rows + step.deleted_rows,
            misfit_rows=self.misfit_rows + step.misfit_rows,
            table_version=step.table_version,
            position=step.position,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableDescription(Displayed):
    """A typed table that follows a topic: what it has read, how many offsets it is behind, and when it said so last.

    `offsets` is empty, and `lag` and `seen_ms` are None, for a table that has said nothing since its registration as a reader expired.
    """

    path: str
    history: bool
    paused: bool
    offsets: tuple[int, ...] = ()
    lag: int | None = None
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TableDetails(TableDescription):
    """A typed table and its files: rows that are not deleted, rows that are marked as deleted, files, bytes, and columns as Delta has them.

    `columns` are {name: Delta's type}. `table_version` is -1, and the counts are 0, for a table that is not there.
    """

    BRIEF: ClassVar = ("path", "paused", "lag", "table_version", "rows", "files", "size_bytes")

    table_version: int = -1
    rows: int = 0
    deleted_rows: int = 0
    files: int = 0
    size_bytes: int = 0
    deletion_vectors: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)


class TableArguments(TypedDict, total=False):
    """The arguments of `materialize` that say what a table is like."""

    schema: str | None
    record_columns: Sequence[str]
    history: bool
    mode: str
    on_type_change: str
    partition_by: Sequence[str]
    deletion_vectors: bool
    column_mapping: bool
    properties: Mapping[str, str] | None
    rebuild: bool
    isolation: str
    max_offsets_per_step: int | None


class TablePaused(UserError):
    """A table that takes no steps until it is resumed."""


class TableKeeper:
    """Takes the steps of one table, and tells the topic how far it has come."""

    def __init__(
        self,
        log: TopicLog,
        path: str,
        layout: Callable[[], TableLayout],
        options: TableOptions,
        *,
        storage_options: Mapping[str, str],
        clock_ms: Callable[[], int],
        cluster: Cluster | None = None,
    ) -> None:
        """Keep the table at a path; nothing is read yet. On a cluster its executors write a large table that is made, or written anew."""
        self._topic, self._clock_ms, self._layout = log, clock_ms, layout
        self.table = MaterializedTable(log, path, layout, options, storage_options, cluster=cluster)
        self.progress = TableProgress(path=self.table.location)
        self._told_ms = 0

    def start(self, *, rebuild: bool) -> None:
        """Register the table in the ledger, so that a purge finds it, and write it anew if that is asked for.

        Raises `UserError` before anything is made for a table that is none of the topic, or was changed by somebody else.
        """
        self.table.check(rebuild=rebuild or "rebuild_ms" in self._topic.decisions().targets.get(self.table.location, {}))
        layout = self._layout()
        details = {"history": layout.history, "typed": True, "column_mapping": None if layout.column_mapping else False}
        decide_table(self._topic, self.table.location, details, now_ms=self._clock_ms())
        if rebuild:
            self._take(self.table.rebuild())

    def catch_up(self, *, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Take steps until nothing is new, then do what upkeep is due; tell whether nothing was new, and not `stopping` ended it.

        Raises `TablePaused` for a table that is paused.
        """
        details = self._topic.decisions().targets.get(self.table.location, {})
        if details.get("paused"):
            message = f"table {self.table.location} of topic {self._topic.name} is paused: lastword tables resume goes on with it"
            raise TablePaused(message)
        if "rebuild_ms" in details:
            self._take(self.table.rebuild())
            _end_rebuild(self._topic, self.table.location, details["rebuild_ms"], now_ms=self._clock_ms())
        while (step := self.table.step()) is not None:
            self._take(step)
            if stopping():
                return False
        done = self.table.upkeep(now_ms=self._clock_ms())
        if done.merged_files or done.deleted_files:
            files = {"merged_files": done.merged_files, "deleted_files": done.deleted_files}
            _LOG.info("table files merged and deleted", topic=self._topic.name, table=self.table.location, **files)
        if self.progress.steps == 0:
            position = self.table.position()
            if position is not None:
                self.progress = replace(self.progress, position=position)
        self._tell(at_once=True)
        return True

    def _take(self, step: TableStep) -> None:
        self.progress = self.progress.plus(step)
        self._tell(at_once=False)

    def _tell(self, *, at_once: bool) -> None:
        now_ms, position = self._clock_ms(), self.progress.position
        if not position.offsets or (not at_once and now_ms - self._told_ms < _TELL_MS):
            return
        self._told_ms = now_ms
        reader = Reader(name=reader_name(self.table.location), position=position, seen_ms=now_ms, expiration_ms=EXPIRATION_MS)
        self._topic.reader_positions.write(reader, self._topic.ledger)


class TableFollower:
    """A thread that keeps a table in step until it is stopped."""

    def __init__(self, keeper: TableKeeper, *, every_seconds: float) -> None:
        """Start to follow; a look at the topic comes each `every_seconds`."""
        self._keeper, self._every_seconds = keeper, every_seconds
        self._stopping, self._caught_up, self._error = threading.Event(), threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._run, name=f"lastword-table-{keeper.table.location}", daemon=True)
        self._thread.start()

    @property
    def progress(self) -> TableProgress:
        """What was done since the start."""
        return self._keeper.progress

    @property
    def is_in_step(self) -> bool:
        """Whether it has taken all that was in the topic when it looked last."""
        return self._caught_up.is_set()

    def stop(self) -> TableProgress:
        """End after the commit in hand, and return what was done; raises the error that it ended with before, if there is one."""
        self._stopping.set()
        self.wait()
        return self.progress

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait for the end; tell whether it came. Raises the error that it ended with."""
        self._thread.join(timeout_seconds)
        if self._error:
            raise self._error[0]
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._keeper.catch_up(stopping=self._stopping.is_set):
                    self._caught_up.set()
                self._stopping.wait(self._every_seconds)
        except BaseException as error:  # noqa: BLE001  raised by `wait`
            self._error.append(error)


def keep_table(
    log: TopicLog,
    path: str,
    *,
    storage_options: Mapping[str, str],
    clock_ms: Callable[[], int],
    cluster: Cluster | None = None,
    limits: TableLimits | None = None,
    schema: str | None = None,
    record_columns: Sequence[str] = (),
    history: bool = False,
    mode: str = "FAILFAST",
    on_type_change: str = "rebuild",
    partition_by: Sequence[str] = (),
    deletion_vectors: bool = True,
    column_mapping: bool = True,
    properties: Mapping[str, str] | None = None,
    isolation: str = "read_committed",
    max_offsets_per_step: int | None = None,
) -> TableKeeper:
    """Return what keeps a table, by the arguments of `ArrowTopic.materialize`; raise `UserError` for one that is wrong."""
    options = TableOptions(
        isolation=check_isolation(isolation),
        mode=mode,
        deletion_vectors=deletion_vectors,
        on_type_change=on_type_change,
        partition_by=(partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
        max_offsets_per_step=max_offsets_per_step,
        properties=dict(properties or {}),
        limits=limits or TableLimits(),
    )

    def layout() -> TableLayout:
        try:
            columns = table_columns(log, schema)
        except ColumnsUnknown as error:
            if "_value" not in record_columns:
                message = f'{error}; or keep the values as they are: record_columns=["_value"] (--column _value)'
                raise ColumnsUnknown(message) from None
            columns = TableColumns()
        return TableLayout(columns=columns, record_columns=tuple(record_columns), history=history, column_mapping=column_mapping)

    RowMaker(layout(), topic=log.name)  # it raises for columns that no table has
    return TableKeeper(log, path, layout, options, storage_options=storage_options, clock_ms=clock_ms, cluster=cluster)


def decide_table(log: TopicLog, location: str, details: Mapping[str, Any], *, now_ms: int) -> None:
    """Write into the ledger what holds for a table that follows the topic, unless it says so; a purge erases there too.

    What `details` does not name stays as it is.
    """

    def missing(known: Mapping[str, Any]) -> list[Decision]:
        today = dict(known.get(location, {}))
        after = {name: value for name, value in {**today, **details}.items() if value is not None}
        return [] if after == today else [Decision(kind=Kind.TARGET, time_ms=now_ms, name=location, details=after)]

    if missing(log.decisions().targets):
        log.ledger.decide(lambda today: (missing(today.targets), None))


def describe_tables(log: TopicLog) -> list[TableDescription]:
    """Return the typed tables that are registered, by path."""
    state = log.at()
    readers, tables = log.readers(state.decisions), list[TableDescription]()
    for location, details in sorted(state.decisions.targets.items()):
        if details.get("typed"):
            table = TableDescription(path=location, history=bool(details["history"]), paused=bool(details.get("paused")))
            reader = readers.get(reader_name(location))
            if reader is not None:
                lag = reader.lag(state.log_end_offsets)
                table = replace(table, offsets=reader.position.offsets, lag=lag, seen_ms=reader.seen_ms)
            tables.append(table)
    return tables


def describe_table(log: TopicLog, path: str, *, storage_options: Mapping[str, str]) -> TableDetails:
    """Return a typed table with what its Delta log says of it; raise `UserError` naming those that are registered otherwise."""
    location = registered_location(log, path)
    [description] = [table for table in describe_tables(log) if table.path == location]
    known = {attribute.name: getattr(description, attribute.name) for attribute in fields(description)}
    state = TableLog(location, storage_options).state()
    if state is None:
        return TableDetails(**known)
    columns = {column["name"]: column["type"] for column in json.loads(state.metadata["schemaString"])["fields"]}
    return TableDetails(
        **known,
        table_version=state.version,
        rows=state.live_rows,
        deleted_rows=sum(file.deleted_rows for file in state.files.values()),
        files=len(state.files),
        size_bytes=sum(file.size_bytes for file in state.files.values()),
        deletion_vectors=state.takes_vectors,
        columns=columns,
    )


def _end_rebuild(log: TopicLog, location: str, rebuild_ms: int, *, now_ms: int) -> None:
    """Write into the ledger that the rebuild which was asked for at a time is done; one that was asked for later is not."""

    def done(today: Decisions) -> tuple[list[Decision], None]:
        details = dict(today.targets.get(location, {}))
        if details.pop("rebuild_ms", None) != rebuild_ms:
            return [], None
        return [Decision(kind=Kind.TARGET, time_ms=now_ms, name=location, details=details)], None

    log.ledger.decide(done)


def registered_location(log: TopicLog, path: str) -> str:
    """Return the location of a typed table that is registered; raise `UserError` naming those that are otherwise."""
    location = location_of(path)
    tables = [name for name, details in sorted(log.decisions().targets.items()) if details.get("typed")]
    if location not in tables:
        message = f"topic {log.name} has no table {location}: allowed is {', '.join(tables) or 'none; lastword materialize makes one'}"
        raise UserError(message)
    return location


def drop_table(log: TopicLog, path: str, *, now_ms: int) -> str:
    """Let a table be no table of the topic any more, and return its location; its files stay."""
    location = registered_location(log, path)
    decide_table(log, location, {"dropped": True}, now_ms=now_ms)
    if reader_name(location) in log.decisions().readers:
        drop_reader(log, reader_name(location), now_ms=now_ms)
    return location


def reader_name(location: str) -> str:
    """Return the name under which a table is a reader of its topic."""
    return f"table:{location[-_LONGEST_LOCATION:]}"


def table_for_erasure(log: TopicLog, location: str, details: Mapping[str, Any], *, storage_options: Mapping[str, str]) -> MaterializedTable:
    """Return a registered table to erase a key from: of its columns those of the key alone are known."""
    layout = TableLayout(
        columns=columns_of_sources(log) or TableColumns(),
        history=bool(details["history"]),
        column_mapping=bool(details.get("column_mapping", True)),
    )
    return MaterializedTable(log, location, lambda: layout, TableOptions(), storage_options)


def check_follow(*, follow: bool, every_seconds: float) -> None:
    """Raise `UserError` for a time between two looks that is not above 0."""
    if follow and not every_seconds > 0:
        message = f"every_seconds = {every_seconds}: allowed is a number above 0"
        raise UserError(message)
