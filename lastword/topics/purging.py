"""Erasing a key for good, step by step, each of which a crash may follow: to purge again goes on where the files say it stands.

```
 look      where does the log hold the key?                                   files, key column
 tombstone into each partition whose newest record of it is none              one append
 decide    these tombstones may go at once                                    ledger: partition and offset, never the key
 clean     the partitions, forced, to the end of the tombstones               one swap: records and tombstone go together
 erase     the rows in dead letters and in registered tables                  one commit each
 sweep     files of older versions that hold the key                          deleted, one by one
 prove     decode every file that is left                                     → receipt; or what remains, and no receipt
```

Records of a key and the tombstone that supersedes them go in one swap, or none of them does; so a tombstone that is let go before its
horizon (ADR 0013) never uncovers an older value. Readers that have not read it are told that they missed one, as always; registered
tables are not, as the row is erased there. What protects the log stays: an open transaction, min.compaction.lag.ms and pauses hold a
purge back. The tombstone is written all the same: for readers the key is gone from then on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from lastword.compaction.config.keys import DAY_MS
from lastword.compaction.display import Displayed
from lastword.compaction.errors import Aborted, PurgeIncomplete, UserError
from lastword.compaction.moments import moment_ms
from lastword.storage.append.append import append_rows
from lastword.storage.append.key_lookup import is_sequenced
from lastword.storage.append.requests import AppendStats
from lastword.storage.append.writing import ArrowRows
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.tables import open_table
from lastword.storage.erasure import erase_dead_letters, rows_of_key, sweep
from lastword.storage.key_search import KeySearch, WantedKey, statistics_naming
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.tables.table_log import TableLog
from lastword.storage.tables.table_options import Erased
from lastword.storage.tables.upkeep import interval_ms
from lastword.streaming.events import logger
from lastword.topics import decisions
from lastword.topics.explanation import partition_reports
from lastword.topics.tables import reader_name, table_for_erasure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lastword.handle import Handle
    from lastword.storage.erasure import KeyRows, Swept
    from lastword.storage.log.topic_log import TopicLog

#: How often the key may come again while it is purged.
_ROUNDS: Final = 20
_TRIES: Final = 3
_LOG: Final = logger("purge")
#: Delta's default of delta.logRetentionDuration.
_LOG_RETENTION_MS: Final = 30 * DAY_MS


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PurgeReceipt(Displayed):
    """That a key is erased: `files_searched` files were decoded, all that lie there now, and none holds it.

    `tombstones` {partition: offset} superseded it and went too; empty when the log held nothing. `kept` {partition: offset} are newest
    records that are not older than `before_ms`. `records_removed` (older tombstones included, the purge's own not), `dead_letters_removed`
    and `target_rows_removed` {target: rows} are what this call found; what an interrupted one before it removed is not counted again.
    `table_version` is the log's. `readers` are registered and had not read the tombstones: they may hold the key, and are told when they
    go on. `absent_targets` were registered and are not there any more, or are another topic's. No older version of a table shows the key:
    its `files_removed` files are gone. `statistics` are files of Delta logs that name it as the least or greatest text of a column; they
    go in their time, not before `statistics_until_ms` (None when there are none).
    """

    BRIEF: ClassVar = (
        "topic", "tombstones", "records_removed", "dead_letters_removed", "target_rows_removed", "files_removed", "files_searched",
    )  # fmt: skip

    topic: str
    now_ms: int
    before_ms: int | None
    tombstones: Mapping[int, int]
    kept: Mapping[int, int]
    records_removed: int
    dead_letters_removed: int
    target_rows_removed: Mapping[str, int]
    files_removed: int
    files_searched: int
    table_version: int
    readers: tuple[str, ...]
    absent_targets: tuple[str, ...]
    statistics: tuple[str, ...]
    statistics_until_ms: int | None

    @property
    def was_found(self) -> bool:
        """Whether anything contained the key when the purge began: the log, dead letters, a target or an old file."""
        return bool(
            self.tombstones
            or self.kept
            or self.records_removed
            or self.dead_letters_removed
            or self.files_removed
            or any(self.target_rows_removed.values())
        )

    def to_details(self) -> dict[str, Any]:
        """Return it as JSON's types alone; partitions become strings there."""
        return asdict(self) | {name: {str(at): offset for at, offset in getattr(self, name).items()} for name in ("tombstones", "kept")}

    @staticmethod
    def from_details(details: Mapping[str, Any]) -> PurgeReceipt:
        """Return the receipt that `to_details` wrote."""
        found = {attribute.name: details[attribute.name] for attribute in fields(PurgeReceipt)}
        found |= {name: {int(at): offset for at, offset in details[name].items()} for name in ("tombstones", "kept")}
        found |= {name: tuple(details[name]) for name in ("readers", "absent_targets", "statistics")}
        return PurgeReceipt(**found)


@dataclass(slots=True)
class _Done:
    """What a purge has done so far."""

    records: int | None = None
    tombstones: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    letters: int = 0
    #: What was erased from tables, by location.
    tables: dict[str, Erased] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)


class Purge:
    """One purge of one key of one topic."""

    def __init__(self, log_dir: Handle, log: TopicLog, key: bytes, *, before_ms: int | None, now_ms: int) -> None:
        """Take what is asked for; nothing is read yet."""
        self._log_dir, self._log, self._key, self._before_ms, self._now_ms = log_dir, log, key, before_ms, now_ms
        self._done = _Done()

    def run(self) -> PurgeReceipt:
        """Erase the key and return the receipt; see `lastword.maintained_topic.MaintainedTopic.purge`."""
        self._check()
        self._erase_from_log()
        crash_points.reached(CrashPoint.PURGE_CLEANED)
        wanted = WantedKey(key=self._key, kept=frozenset(self._done.kept.items()), before_ms=self._before_ms)
        with self._log.append_lock():
            self._done.letters = erase_dead_letters(self._log.paths.dead_letters, self._log.storage_options, wanted)
        for name, details in sorted(self._log.decisions().targets.items()):
            self._erase_from_table(name, details)
        crash_points.reached(CrashPoint.PURGE_ERASED)
        receipt = self._prove(wanted)
        _LOG.info(
            "key purged",
            topic=self._log.name,
            tombstones=dict(receipt.tombstones),
            records_removed=receipt.records_removed,
            files_removed=receipt.files_removed,
            files_searched=receipt.files_searched,
            readers=receipt.readers,
        )
        return receipt

    def _check(self) -> None:
        today = self._log.decisions()
        if today.mirror is not None:
            message = (
                f"topic {self._log.name} mirrors {today.mirror['source']} and keeps its offsets, so it takes records from there alone: "
                "write the tombstone to the source, and let the cleaner and VACUUM do the rest here; or purge a topic that is no mirror"
            )
            raise UserError(message)
        if not self._log.config(today).compacted:
            message = (
                f"topic {self._log.name}: cleanup.policy is {','.join(sorted(self._log.config(today).cleanup_policy)) or 'empty'}, and "
                "nothing supersedes a record there. Either delete whole offsets: lastword delete-records; or let the topic be compacted "
                f"as well, by which keyless records go: lastword topics alter {self._log.name} --config cleanup.policy=compact,delete, "
                "and purge again"
            )
            raise UserError(message)
        former = sorted(name for name, details in today.targets.items() if not details.get("typed"))
        there = [name for name in former if TableLog(name, self._log_dir.storage_options).state() is not None]
        if there:
            message = (
                f"topic {self._log.name} is not purged: a former version of lastword kept the table {', '.join(there)}; this one "
                "cannot erase a key from it: drop the table (DROP TABLE, or delete its folder) and purge again; materialize makes it anew"
            )
            raise UserError(message)

    # --- the log ------------------------------------------------------------------------------------------------------------------------

    def _erase_from_log(self) -> None:
        """Write a tombstone in each partition of the key, allow the cleaner to remove it at once, and clean, until no record is left.

        A newest record that is not older than `before_ms` stays.
        """
        for _ in range(_ROUNDS):
            self._log.sync_ledger_with_history()
            found = rows_of_key(self._log, self._log.snapshot(), self._key)
            self._done.kept = {
                partition_rows.partition: partition_rows.newest_offset
                for partition_rows in found
                if self._stays(partition_rows) and partition_rows.newest_offset is not None
            }
            if self._done.records is None:
                self._done.records = sum(partition_rows.rows for partition_rows in found) - len(self._done.kept)
            going = [
                partition_rows
                for partition_rows in found
                if partition_rows.rows > (1 if partition_rows.partition in self._done.kept else 0)
            ]
            if not going:
                return
            self._release(
                [
                    partition_rows
                    for partition_rows in going
                    if partition_rows.partition not in self._done.kept and partition_rows.newest_offset is not None
                ]
            )
            for partition_rows in going:
                decisions.roll(self._log, partition_rows.partition, now_ms=self._now_ms)
            # No round looks at what lies below the log start whole.
            self._log_dir.idle_cleaner(self._log).apply_retention(self._log, now_ms=self._now_ms)
            self._clean([partition_rows.partition for partition_rows in going])
        remains = f"{_ROUNDS} rounds of cleaning went by, and it is there still: stop its producer, if it has one, and purge again"
        raise PurgeIncomplete(self._log.name, [remains])

    def _stays(self, one: KeyRows) -> bool:
        return self._before_ms is not None and one.newest_offset is not None and one.newest_ms >= self._before_ms

    def _release(self, going: Sequence[KeyRows]) -> None:
        """See that the newest record of the key is a tombstone, and decide that it may go at once."""
        tombstones = {
            partition_rows.partition: partition_rows.newest_offset
            for partition_rows in going
            if partition_rows.newest_is_tombstone and partition_rows.newest_offset is not None
        }
        living = [partition_rows.partition for partition_rows in going if not partition_rows.newest_is_tombstone]
        if living:
            columns = {"partition": living, "key": [self._key] * len(living), "timestamp": [self._now_ms] * len(living)}
            rows = pa.table({**columns, "value": pa.nulls(len(living))})
            if is_sequenced(self._log.snapshot(), self._log.decisions()):
                # The empty one becomes that of the key's newest record: what the source sends again from before it is not taken.
                rows = rows.append_column("source_sequence", pa.array([""] * len(living)))
            result = append_rows(self._log, ArrowRows(rows), now_ms=self._now_ms, stats=AppendStats())
            tombstones |= {partition: one.last_offset for partition, one in result.ranges.items()}
        crash_points.reached(CrashPoint.PURGE_TOMBSTONE_WRITTEN)
        version, today = self._log.snapshot().version, self._log.decisions()
        self._log.ledger.append(
            [
                Decision(kind=Kind.PURGE, time_ms=self._now_ms, partition=partition, offset=offset, table_version=version)
                for partition, offset in sorted(tombstones.items())
                if offset not in today.released_offsets(partition)
            ]
        )
        self._done.tombstones |= tombstones
        crash_points.reached(CrashPoint.PURGE_DECIDED)

    def _clean(self, partitions: Sequence[int]) -> None:
        """Clean some partitions now; raise `PurgeIncomplete` naming the bounds when nothing can be done."""
        cleaner = self._log_dir.cleaner
        for _ in range(_TRIES):
            cleaner.locks.wait(self._log)
            self._check_goes_on()
            receipts = cleaner.clean(self._log, self._log_dir.session, clock_ms=lambda: self._now_ms, force=True, partitions=partitions)
            if any(receipt.removed_count or receipt.end_offset > receipt.first_dirty_offset for receipt in receipts):
                return
        self._check_goes_on()
        plan, _ = cleaner.plan(self._log, now_ms=self._now_ms)
        remains = []
        reports = partition_reports(plan, self._log.decisions().cleaning_failures())
        for report in reports:
            if report.partition not in partitions:
                continue
            reason = report.uncleanable_reason or report.failure
            why = [report.bound_detail] if reason is None else [report.obstacle or "", reason]
            if report.obstacle is not None and "paused" in report.obstacle:
                why = ["cleaning is paused; lastword resume"]
            remains.append(f"partition {report.partition}: the cleaner is held back ({report.bound}): {': '.join(why)}")
        raise PurgeIncomplete(self._log.name, remains)

    def _check_goes_on(self) -> None:
        if self._log_dir.cleaner.stopping.is_set():
            message = f"topic {self._log.name} is not purged: the service stops; to purge again goes on from there"
            raise Aborted(message)

    # --- what holds copies --------------------------------------------------------------------------------------------------------------

    def _erase_from_table(self, name: str, details: Mapping[str, Any]) -> None:
        """Delete the rows of the key from a typed table, and its files that hold one."""
        table = table_for_erasure(self._log, name, details, storage_options=self._log_dir.storage_options)
        if not table.is_of_topic():
            self._done.absent.append(name)
            return
        try:
            self._done.tables[name] = table.erase(self._key, kept=self._done.kept)
        except UserError as error:
            self._done.tables[name] = Erased(left=(f"{name}: {error}",))

    # --- files --------------------------------------------------------------------------------------------------------------------------

    def _prove(self, wanted: WantedKey) -> PurgeReceipt:
        """Delete the old files that hold the key, decode all others, and return the receipt; raise `PurgeIncomplete` for what remains."""
        searches, swept = self._sweep(wanted)
        crash_points.reached(CrashPoint.PURGE_SWEPT)
        tables = self._done.tables
        remains = [
            f"{location}/{file.path}: {'unknown' if file.rows is None else file.rows} rows of it; the file {why}"
            for location, sweeping in swept.items()
            for file, why in sweeping.left
        ]
        remains += [line for erased in tables.values() for line in erased.left]
        if remains:
            raise PurgeIncomplete(self._log.name, remains)
        statistics = self._statistics(wanted)
        return PurgeReceipt(
            topic=self._log.name,
            now_ms=self._now_ms,
            before_ms=self._before_ms,
            tombstones=dict(sorted(self._done.tombstones.items())),
            kept=dict(sorted(self._done.kept.items())),
            records_removed=self._done.records or 0,
            dead_letters_removed=self._done.letters,
            target_rows_removed={name: erased.rows for name, erased in tables.items()},
            files_removed=sum(sweeping.removed for sweeping in swept.values()) + sum(erased.removed_files for erased in tables.values()),
            files_searched=sum(search.decoded for search in searches) + sum(erased.searched_files for erased in tables.values()),
            table_version=self._log.snapshot().version,
            readers=self._readers_behind(),
            absent_targets=tuple(sorted(self._done.absent)),
            statistics=tuple(path for path, _ in statistics),
            statistics_until_ms=max((until for _, until in statistics), default=None),
        )

    def _sweep(self, wanted: WantedKey) -> tuple[list[KeySearch], dict[str, Swept]]:
        """Delete the old files of the log and of the dead letters that hold the key; return the searches, and what was done by location."""
        paths, options = self._log.paths, self._log_dir.storage_options
        searches = {
            paths.log: KeySearch(paths.log, options, wanted),
            paths.dead_letters: KeySearch(paths.dead_letters, options, wanted, texts=True),
        }
        for search in searches.values():
            search.look()  # the most of it before the lock, which keeps appends waiting
        with self._log_dir.cleaner.locks.reserve(self._log), self._log.append_lock():  # nobody writes a file now that is not committed yet
            swept = {
                location: sweep(search, location, options, now_ms=self._now_ms, is_log=location == paths.log)
                for location, search in searches.items()
            }
        return list(searches.values()), swept

    def _statistics(self, wanted: WantedKey) -> list[tuple[str, int]]:
        """Return the files of Delta logs whose column statistics name the key, each with the time until which it stays."""
        options = self._log_dir.storage_options
        return [
            (f"{location}/{path}", written_ms + self._log_retention_ms(location))
            for location in (self._log.paths.dead_letters, *self._done.tables)
            for path, written_ms in statistics_naming(location, options, wanted)
        ]

    def _readers_behind(self) -> tuple[str, ...]:
        """Return the registered readers that have not read the tombstones, tables left out: the key was erased from those."""
        erased = {reader_name(name) for name in self._done.tables}
        tombstones = self._done.tombstones.items()
        return tuple(
            name
            for name, reader in sorted(self._log.readers().items())
            if name not in erased and any(reader.position.offsets[partition] <= offset for partition, offset in tombstones)
        )

    def _log_retention_ms(self, location: str) -> int:
        """Return how long a Delta log keeps its commits."""
        configuration = open_table(location, self._log_dir.storage_options).metadata().configuration
        return interval_ms(configuration, "delta.logRetentionDuration", _LOG_RETENTION_MS)


def before_as_ms(before: datetime | str | int | None) -> int | None:
    """Return a moment in milliseconds: a datetime, ISO 8601 text (a date is its midnight) or milliseconds; without a zone it is UTC."""
    if before is None or (isinstance(before, int) and not isinstance(before, bool)):
        return before
    try:
        return round(moment_ms(before if isinstance(before, datetime) else str(before)))
    except ValueError:
        message = f"before = {before}: allowed is a date or a moment in ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise UserError(message) from None
