"""The tables of the service: each follows its topic in steps, by a few threads; one that fails never stops another.

```
 due ─► a thread: all steps up to the log end, upkeep ─► due again after `every`
          │ error                                         paused (ledger): not due until it is resumed
          └─► wait, longer each time, up to 5 min          its topic is deleted: gone
```
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import LastwordError, UnknownTopic, first_line
from lastword.service.supervisor import LONGEST_RESTART_SECONDS, Backoff
from lastword.status.standing import TableStanding
from lastword.storage.reading.view import view_of
from lastword.storage.tables.table_options import TableLimits
from lastword.storage.tables.typed_rows import ColumnsUnknown
from lastword.streaming.events import logger
from lastword.topics.tables import TablePaused, keep_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lastword.service.table_settings import TableSettings
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.tasks import Cluster
    from lastword.topics.tables import TableKeeper

_THREADS: Final = 2
_LOG: Final = logger("tables")


class _Empty(Exception):
    """A topic has no record yet, so that no source has said what its columns are."""


@dataclass(slots=True)
class _Table:
    """One table of one topic."""

    settings: TableSettings
    log: TopicLog
    backoff: Backoff
    keeper: TableKeeper | None = None
    working: Future[bool] | None = None
    due: float = 0.0
    paused: bool = False
    message: str = ""
    retry_ms: int | None = None
    #: When it was in step last, and how long the last look at the topic took.
    in_step_ms: int | None = None
    step_seconds: float = 0.0

    @property
    def place(self) -> tuple[str, str]:
        """The topic, and the path of the table."""
        return self.log.name, self.settings.path_of(self.log.name)


@dataclass(slots=True, kw_only=True)
class TableSupervisor:
    """Keeps the tables of a configuration; `topics` returns the topics that are there now, by name."""

    settings: Sequence[TableSettings]
    topics: Callable[[], Mapping[str, TopicLog]]
    storage_options: Mapping[str, str]
    clock_ms: Callable[[], int]
    cluster: Cluster | None = None
    limits: TableLimits = field(default_factory=TableLimits)
    longest_seconds: float = LONGEST_RESTART_SECONDS
    monotonic: Callable[[], float] = time.monotonic
    _tables: dict[tuple[str, str], _Table] = field(default_factory=dict)
    _threads: ThreadPoolExecutor | None = None
    _stopping: bool = False

    def step(self) -> None:
        """Look at every table once: collect what ended, start what is due. Returns at once."""
        if not self.settings:
            return
        self._find()
        for table in list(self._tables.values()):
            if table.working is not None:
                self._collect(table, table.working)
            elif self.monotonic() >= table.due:
                self._threads = self._threads or ThreadPoolExecutor(_THREADS, "table")
                table.working = self._threads.submit(self._work, table)

    def finish(self) -> None:
        """Take all steps up to the log ends, here and now; raise the first error when every table had its turn."""
        if not self.settings:
            return
        self._find()
        failure: Exception | None = None
        for table in self._tables.values():
            try:
                if table.working is not None:
                    table.working.result()
                self._work(table)
            except (TablePaused, _Empty):
                continue
            except Exception as error:  # noqa: BLE001  the other tables have their turn all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End after the commits in hand."""
        self._stopping = True
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def standings(self) -> list[TableStanding]:
        """Return the state of every table; reads how far the topics are."""
        return [self._standing(table) for table in list(self._tables.values())]

    def _find(self) -> None:
        """Add the tables of topics that came, and forget those of topics that are gone."""
        topics = self.topics()
        for settings in self.settings:
            for name, log in topics.items():
                place = name, settings.path_of(name)
                known = self._tables.get(place)
                if settings.matches(name) and (known is None or (known.log is not log and known.working is None)):
                    self._tables[place] = _Table(settings, log, Backoff(self.longest_seconds))
        for place, table in list(self._tables.items()):
            if table.log.name not in topics and table.working is None:
                del self._tables[place]

    def _work(self, table: _Table) -> bool:
        """Take all steps up to the log end; tell whether the table is in step."""
        if table.keeper is None:
            table.keeper = self._keeper(table)
            table.keeper.start(rebuild=False)
        began = self.monotonic()
        is_in_step = table.keeper.catch_up(stopping=lambda: self._stopping)
        table.step_seconds = self.monotonic() - began
        return is_in_step

    def _keeper(self, table: _Table) -> TableKeeper:
        given = table.settings
        try:
            return keep_table(
                table.log,
                given.path_of(table.log.name),
                schema=given.columns or None,
                record_columns=given.record_columns,
                history=given.history,
                mode=given.mode,
                on_type_change=given.on_type_change,
                partition_by=given.partition_by,
                deletion_vectors=given.deletion_vectors,
                column_mapping=given.column_mapping,
                isolation=given.isolation,
                max_offsets_per_step=given.max_offsets_per_step or None,
                properties=given.properties,
                storage_options=self.storage_options,
                clock_ms=self.clock_ms,
                cluster=self.cluster,
                limits=self.limits,
            )
        except ColumnsUnknown:
            if any(table.log.at().log_end_offsets):
                raise
            raise _Empty from None

    def _collect(self, table: _Table, working: Future[bool]) -> None:
        if not working.done():
            return
        table.working, table.due = None, self.monotonic() + table.settings.every
        topic, path = table.place
        try:
            if working.result():
                table.in_step_ms = self.clock_ms()
        except TablePaused:
            table.paused = True
            return
        except _Empty:
            table.message, table.retry_ms = "", None
            return
        except UnknownTopic:
            return  # it is forgotten when the topics are looked at again
        except Exception as error:  # noqa: BLE001  whatever becomes of one table, the others go on
            table.message = (str(error).splitlines() or [""])[0] if isinstance(error, LastwordError) else first_line(error)
            table.paused, table.keeper = False, None
            seconds = table.backoff.next_seconds(worked_seconds=0)
            table.due, table.retry_ms = self.monotonic() + seconds, self.clock_ms() + round(seconds * 1000)
            _LOG.error("table failed", topic=topic, table=path, failures=table.backoff.failures, restart_in_s=seconds, error=table.message)
            return
        if table.message:
            _LOG.info("table works again", topic=topic, table=path, failures=table.backoff.failures)
        table.paused, table.message, table.retry_ms, table.backoff = False, "", None, Backoff(self.longest_seconds)

    def _standing(self, table: _Table) -> TableStanding:
        topic, path = table.place
        standing = TableStanding(
            topic=topic,
            path=path,
            paused=table.paused,
            failures=table.backoff.failures if table.message else 0,
            retry_ms=table.retry_ms,
            message=table.message,
            step_ms=round(table.step_seconds * 1000),
        )
        if table.keeper is None:
            return standing
        progress = table.keeper.progress
        standing = replace(
            standing,
            steps=progress.steps,
            written_rows=progress.written_rows,
            deleted_rows=progress.deleted_rows,
            misfit_rows=progress.misfit_rows,
            table_version=progress.table_version,
        )
        if not progress.position.offsets:
            return standing
        try:
            end = view_of(table.log.at(), table.settings.isolation).end
        except (LastwordError, OSError):  # the topic says by itself that it cannot be read
            return standing
        lag = sum(max(0, to - at) for at, to in zip(progress.position.offsets, end, strict=True))
        lag_ms = max(0, self.clock_ms() - table.in_step_ms) if lag and table.in_step_ms is not None else 0
        return replace(standing, lag_offsets=lag, lag_ms=lag_ms)
