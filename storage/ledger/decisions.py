"""A topic's decisions that are not records: what kinds there are, and what holds today of all that were made.

```
sequence  kind    partition  name             offset  table_version  time  details (JSON)
1         create  -          -                -       -              …     {"partitions":4,"topic_id":"…"}
2         config  -          -                -       -              …     {"cleanup.policy":"compact"}
3         roll    0          -                731     42             …     {}
4         query   -          orders-appender  -       -              …     {"query_id":"…","reads":"files /in"}
5         clean   0          -                731     43             …     {"removed":{"superseded":12},…}      first dirty offset, receipt
6         start   0          -                412     43             …     {"why":"retention"}                  log start offset
7         pause   0          -                -       -              …     {"count":1}
8         restore -          -                -       50             …     {"restored_version":42}              5 and 6 are void
9         purge   0          -                812     51             …     {}                       this tombstone may go at once
10        target  -          /tables/prices   -       -              …     {"history":false}        a table that follows the topic
11        looked  -          -                -       60             …     {}                       history is known up to there
12        failure 0          -                -       61             …     {"failures":1,…}         its cleaning failed; 0 after a success
13        truncate -         @postgresql.s:6f -       -              …     {"position":"…",…}       a table of a source was truncated there
14        columns -          -                -       -              …     {"value":"id int",…}     the columns of the rows
15        upkeep  -          orphans          -       -              …     {}                       when it was done last
16        snapshot -         @mysql.s:0/…     -       -              …     {"epoch":1,…}            a snapshot of a source, and its place
17        source   -         @mysql.s:        -       -              …     {"retired":false,…}      a source of events: what is known of it
18        sweep    -         @mysql.s:0/…     -       -              …     {"position":"…",…}       what a snapshot of it lacked was deleted
```

Rows are never changed: a later one takes the place of an earlier one, or makes it void. `lastword.storage.ledger.ledger`
keeps them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lastword.compaction.log.restores import Restore, is_contained, is_contained_after
from lastword.compaction.order.source_epochs import Snapshot, SourceEpochs
from lastword.compaction.order.source_positions import SourcePosition, highest_of_each_place
from lastword.compaction.order.source_states import SourceState
from lastword.compaction.planning.backoff import CleaningFailure
from lastword.compaction.planning.receipt import removed_positions_of
from lastword.compaction.readers import Reader, renewal_ms

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

#: Under these names a receipt has the highest tombstone that its cleaning removed: of all, and of those that had expired.
_TOMBSTONE_FIELDS: Final = ("highest_removed_tombstone", "highest_expired_tombstone")


class Kind(str, Enum):
    """What a decision is about."""

    CREATE = "create"
    CONFIG = "config"
    ROLL = "roll"
    QUERY = "query"
    MIRROR = "mirror"
    SCHEMA = "schema"
    PRODUCER = "producer"
    CLEAN = "clean"
    START = "start"
    PAUSE = "pause"
    RESTORE = "restore"
    READER = "reader"
    PURGE = "purge"
    TARGET = "target"
    LOOKED = "looked"
    FAILURE = "failure"
    CLAIM = "claim"
    TRUNCATE = "truncate"
    COLUMNS = "columns"
    UPKEEP = "upkeep"
    SNAPSHOT = "snapshot"
    SOURCE = "source"
    SWEEP = "sweep"


#: What a RESTORE of the log makes void.
_VOIDABLE: Final = frozenset({Kind.CLEAN, Kind.PURGE, Kind.ROLL, Kind.START})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One row of the ledger; `sequence` is 0 until it is written."""

    kind: Kind
    time_ms: int
    partition: int | None = None
    name: str | None = None
    offset: int | None = None
    table_version: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """Who a transactional.id is: its producer id, its newest epoch, since when, its own timeout and its streaming query, if any."""

    producer_id: int
    epoch: int
    since_ms: int
    timeout_ms: int | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """That a cleaner works on the topic, until a moment by the wall clock (`lastword.streaming.cleaning.claims`)."""

    owner: str
    until_ms: int


class Truncation(NamedTuple):
    """Where a table of a source was truncated last, the empty text for nowhere, and whether the rows before it are deleted."""

    position: str = ""
    is_applied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What the ledger says today: every decision folded, newest last.

    `rolls`, `cleanings`, `starts` and `purges` are the decisions of each partition in order, receipts in that of their swaps: one may be
    written late, when somebody misses it. `failures` are the newest of each partition. Which of them hold depends on the `restores`.
    `readers` are where their newest rows say; where they are now is in their position files (`lastword.storage.log.reader_positions`).
    """

    topic_id: str
    partitions: int
    created_ms: int
    overrides: Mapping[str, str]
    rolls: Mapping[int, Sequence[Decision]]
    queries: Mapping[str, str | None]
    #: What each query reads, as its source names it; only of those whose source is known.
    query_sources: Mapping[str, str]
    mirror: Mapping[str, Any] | None
    schemas: Mapping[str, Mapping[str, Any]]
    producers: Mapping[str, Producer]
    cleanings: Mapping[int, Sequence[Decision]]
    starts: Mapping[int, Sequence[Decision]]
    pauses: Mapping[int, int]
    restores: tuple[Restore, ...]
    readers: Mapping[str, Reader]
    purges: Mapping[int, Sequence[Decision]]
    targets: Mapping[str, Mapping[str, Any]]
    failures: Mapping[int, Decision]
    claim: Claim | None
    #: By scope and table (`lastword.compaction.order.source_positions`).
    truncations: Mapping[tuple[str, str], Truncation]
    #: The snapshots of sources that the log has seen.
    epochs: SourceEpochs
    #: The sources of change events, by scope.
    sources: Mapping[str, SourceState]
    #: The deletions of rows that a snapshot of a source lacks.
    swept: Sequence[Decision]
    #: As `lastword.change_data.columns.table_columns.TableColumns` says them, and the source sequence of their schema; None if not known.
    columns: Mapping[str, Any] | None
    #: When each kind of upkeep that a restart must not repeat was done last.
    upkeep_ms: Mapping[str, int]
    looked_at_version: int
    sequence: int

    def newest_cleaning(self, partition: int, *, as_of_version: int | None = None) -> Decision | None:
        """Return the newest receipt of a partition whose swap the log still contains, at a table version (default: the newest)."""
        contained = (
            cleaning
            for cleaning in reversed(self.cleanings.get(partition, ()))
            if is_contained(self.restores, cleaning.table_version or 0, as_of_version=as_of_version)
        )
        return next(contained, None)

    def with_history(self, rows: Sequence[Decision]) -> Decisions:
        """Return these decisions and some of the log's own history, RESTOREs and receipts, that are not in the ledger yet, oldest first."""
        restores = (_restore(row) for row in rows if row.kind is Kind.RESTORE)
        cleanings = _receipts([*(receipt for mine in self.cleanings.values() for receipt in mine), *rows])
        return replace(self, restores=(*self.restores, *restores), cleanings=cleanings)

    def holds(self, row: Decision) -> bool:
        """Tell whether no RESTORE made a decision void; a log start names the version that it was decided at, before its own commit."""
        if row.kind is Kind.START:
            return is_contained_after(self.restores, row.table_version or 0)
        return row.kind not in _VOIDABLE or self.contains(row)

    def contains(self, decision: Decision) -> bool:
        """Tell whether the log still contains what a decision speaks of: no RESTORE took its table version back."""
        return is_contained(self.restores, decision.table_version or 0)

    def cleaner_checkpoint(self, partition: int, *, as_of_version: int | None = None) -> int | None:
        """Return the first dirty offset that the newest valid receipt names; None when there is none."""
        newest = self.newest_cleaning(partition, as_of_version=as_of_version)
        return None if newest is None else newest.offset

    def rounds_left(self, partition: int) -> int:
        """Return how many rounds the newest valid receipt left of the dirty range that it began; 0 when there is none."""
        newest = self.newest_cleaning(partition)
        return 0 if newest is None else int(newest.details.get("rounds_left", 0))

    def log_start_offset(self, partition: int) -> int:
        """Return the offset below which records are gone for readers, 0 when none is."""
        held = [start.offset or 0 for start in self.starts.get(partition, ()) if self.holds(start)]
        return max(held, default=0)

    def log_start_offsets(self) -> list[int]:
        """Return the log start offset of every partition."""
        return [self.log_start_offset(partition) for partition in range(self.partitions)]

    @property
    def sweeps(self) -> frozenset[tuple[str, str, str, int]]:
        """The snapshots of which what they lack was deleted, and no RESTORE brought it back: scope, Kafka's partition, position, epoch."""
        rows = (row.details for row in self.swept if self.contains(row))
        return frozenset((row["scope"], row["partition"], row["position"], row["epoch"]) for row in rows)

    def removed_positions(self, partition: int) -> dict[str, str]:
        """Return the highest order of the deletions that left a partition, by `place_name` of scope and Kafka's partition.

        Those are tombstones that cleaning removed, and whatever retention removed.
        """
        cleaning = self.newest_cleaning(partition)
        starts = [start.details for start in self.starts.get(partition, ()) if self.holds(start)]
        return highest_of_each_place(*map(removed_positions_of, [*starts, {} if cleaning is None else cleaning.details]))

    def released_offsets(self, partition: int) -> list[int]:
        """Return the offsets of tombstones that a purge lets go, and that no cleaning since has passed.

        A RESTORE gives offsets again, to other records: a decision from before it is void unless the restored log held it already.
        """
        cleaning = self.newest_cleaning(partition)
        after, passed = (0, 0) if cleaning is None else (cleaning.sequence, cleaning.offset or 0)
        held = (purge for purge in self.purges.get(partition, ()) if self.holds(purge) and purge.offset is not None)
        return sorted({purge.offset for purge in held if purge.offset is not None and (purge.sequence > after or purge.offset >= passed)})

    def silent_producers(self, before_ms: int, open_ids: Container[str]) -> frozenset[str]:
        """Return each transactional.id whose last transaction began before a moment, is over, and whose producer may be forgotten.

        That of a streaming query is not: its micro-batches go on under it. Nor the highest producer id: no other producer may be given it.
        """
        highest = max((producer.producer_id for producer in self.producers.values()), default=-1)
        kept = {
            name
            for name, producer in self.producers.items()
            if producer.query is not None or producer.producer_id == highest or name in open_ids
        }
        return frozenset(name for name, producer in self.producers.items() if producer.since_ms < before_ms and name not in kept)

    def cleaning_failure(self, partition: int) -> CleaningFailure | None:
        """Return the failures in a row of a partition's cleaning; None after a success.

        A RESTORE makes them void that takes back the table version at which the last one was: the log is another one.
        """
        row = self.failures.get(partition)
        return None if row is None or not self.contains(row) else CleaningFailure.from_details(row.details, row.time_ms)

    def cleaning_failures(self) -> dict[int, CleaningFailure]:
        """Return `cleaning_failure` of each partition that has one."""
        failures = {partition: self.cleaning_failure(partition) for partition in sorted(self.failures)}
        return {partition: failure for partition, failure in failures.items() if failure is not None}

    def closed_offset(self, partition: int, log_end_offset: int) -> int:
        """Return the offset below which every segment is closed, -1 when none is known to be.

        Rolled by command; or cleaned, as only closed segments are; or emptied by retention up to the log end. What lies past the log end
        says nothing of the segments that are there.
        """
        rolled = [roll.offset for roll in self.rolls.get(partition, ()) if self.holds(roll)]
        emptied = self.log_start_offset(partition)
        closed = [*rolled, self.cleaner_checkpoint(partition), emptied if emptied == log_end_offset else None]
        return max((offset for offset in closed if offset is not None and offset <= log_end_offset), default=-1)


def fold(rows: Iterable[Decision]) -> Decisions:
    """Return the state of a topic that its decisions make, in the order of their numbers."""
    ordered = sorted(rows, key=lambda row: row.sequence)
    of: defaultdict[Kind, list[Decision]] = defaultdict(list)
    for row in ordered:
        of[row.kind].append(row)
    created, config, queries = next(iter(of[Kind.CREATE])), _last(of[Kind.CONFIG]), _newest(of[Kind.QUERY])
    return Decisions(
        topic_id=created.details["topic_id"],
        partitions=int(created.details["partitions"]),
        created_ms=created.time_ms,
        overrides={key: str(value) for key, value in (config or {}).items()},
        rolls=_by_partition(of[Kind.ROLL]),
        queries={name: row.details.get("query_id") for name, row in queries.items()},
        query_sources=_query_sources(queries),
        mirror=_last(of[Kind.MIRROR]),
        schemas={name: dict(row.details) for name, row in _newest(of[Kind.SCHEMA]).items()},
        producers={name: Producer(**row.details, since_ms=row.time_ms) for name, row in _newest(of[Kind.PRODUCER]).items()},
        readers=_readers(of[Kind.READER]),
        purges=_by_partition(of[Kind.PURGE]),
        targets={name: dict(row.details) for name, row in _newest(of[Kind.TARGET]).items() if not row.details.get("dropped")},
        failures={partition: rows[-1] for partition, rows in _by_partition(of[Kind.FAILURE]).items()},
        claim=next((Claim(row.details["owner"], row.details["until_ms"]) for row in reversed(of[Kind.CLAIM])), None),
        truncations=_truncations(of[Kind.TRUNCATE]),
        epochs=_epochs(of[Kind.SNAPSHOT]),
        sources={row.details["scope"]: SourceState.of_details(row.details) for row in of[Kind.SOURCE]},
        swept=of[Kind.SWEEP],
        upkeep_ms={name: row.time_ms for name, row in _newest(of[Kind.UPKEEP]).items()},
        columns=_last(of[Kind.COLUMNS]),
        cleanings=_receipts(of[Kind.CLEAN]),
        starts=_by_partition(of[Kind.START]),
        pauses={number: count for number, rows in _by_partition(of[Kind.PAUSE]).items() if (count := int(rows[-1].details["count"]))},
        restores=tuple(map(_restore, of[Kind.RESTORE])),
        looked_at_version=max((row.table_version or 0 for row in of[Kind.LOOKED]), default=0),
        sequence=ordered[-1].sequence,
    )


def _last(rows: Sequence[Decision]) -> dict[str, Any] | None:
    """Return the details of the last of some decisions; None for none."""
    return dict(rows[-1].details) if rows else None


def _newest(rows: Iterable[Decision]) -> dict[str, Decision]:
    """Return the last decision of each name."""
    return {row.name: row for row in rows if row.name is not None}


def _readers(rows: Iterable[Decision]) -> dict[str, Reader]:
    """Return the readers that were not dropped, by name."""
    readers = {name: Reader.from_details(name, row.details, row.time_ms, row.sequence) for name, row in _newest(rows).items()}
    return {name: reader for name, reader in readers.items() if reader is not None}


def _query_sources(queries: Mapping[str, Decision]) -> dict[str, str]:
    """Return the source of each registered query that names one."""
    reads = {name: str(row.details.get("reads", "")) for name, row in queries.items() if row.details.get("query_id") is not None}
    return {name: source for name, source in reads.items() if source}


def _truncations(rows: Iterable[Decision]) -> dict[tuple[str, str], Truncation]:
    """Return the newest TRUNCATE of each table."""
    newest: dict[tuple[str, str], Truncation] = {}
    for row in rows:
        position = SourcePosition.of(row.details["position"])
        place, truncation = (position.scope, position.table), Truncation(row.details["position"], row.details["applied"])
        newest[place] = max(truncation, newest.get(place, Truncation()), key=_order_of_truncation)
    return newest


def _order_of_truncation(truncation: Truncation) -> tuple[str, bool]:
    return SourcePosition.of(truncation.position).in_table, truncation.is_applied


def _epochs(rows: Iterable[Decision]) -> SourceEpochs:
    """Return the snapshots of sources by scope and Kafka's partition, oldest first."""
    return SourceEpochs.after(((row.details["scope"], row.details["partition"]), _snapshot(row)) for row in rows)


def _snapshot(row: Decision) -> Snapshot:
    return Snapshot(
        position=row.details["position"],
        epoch=row.details["epoch"],
        offset=row.details["offset"],
        is_first=row.details.get("is_first", True),
        begun_ms=row.time_ms,
    )


def _restore(row: Decision) -> Restore:
    return Restore(version=row.table_version or 0, restored_version=int(row.details["restored_version"]))


def _by_partition(rows: Iterable[Decision]) -> dict[int, list[Decision]]:
    """Return decisions by partition, in their order; those of no partition are left out."""
    by_partition: dict[int, list[Decision]] = {}
    for row in rows:
        if row.partition is not None:
            by_partition.setdefault(row.partition, []).append(row)
    return by_partition


def _receipts(rows: Iterable[Decision]) -> dict[int, list[Decision]]:
    """Return the receipts among decisions by partition, in the order of their swaps."""
    receipts = _by_partition(row for row in rows if row.kind is Kind.CLEAN)
    return {partition: sorted(mine, key=_swap_key) for partition, mine in receipts.items()}


def drop_obsolete(rows: Iterable[Decision], today: Decisions, before_ms: int, *, forgotten: Container[str] = ()) -> list[Decision]:
    """Return the decisions that a smaller ledger needs, in order: those that hold, and those that a RESTORE may yet make void or valid.

    A RESTORE changes only what was decided at `before_ms` or later. Left out are the producers of the transactional.ids that are
    `forgotten`, readers that were dropped or had expired by `before_ms`, failures that a success ended, and a released claim.
    """
    rows = [row for row in rows if row.kind is not Kind.PRODUCER or row.name not in forgotten]
    newest = {(row.kind, row.partition, row.name): row for row in rows if row.kind not in _VOIDABLE and row.kind is not Kind.RESTORE}
    restores = [row for row in rows if row.kind is Kind.RESTORE]
    settled = replace(today, restores=tuple(_restore(row) for row in restores if row.time_ms < before_ms))
    voidable = [row for row in rows if row.kind in _VOIDABLE]
    unsettled = [row for row in voidable if row.time_ms >= before_ms or (settled.holds(row) and not today.holds(row))]
    holding = [row for row in voidable if row.time_ms < before_ms and today.holds(row)]
    needed = [row for row in newest.values() if not _is_over(row, before_ms)]
    needed += [*restores, *unsettled, *_highest(holding), *_tombstone_receipts(holding), *_pending_purges(holding, today)]
    by_sequence = {row.sequence: row for row in needed}
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def _is_over(row: Decision, before_ms: int) -> bool:
    """Tell whether a decision, the newest about its subject, says that there is nothing to know of it any more."""
    if row.kind is Kind.READER:
        return not _pins_since(row, before_ms)
    if row.kind is Kind.FAILURE:
        return not row.details["failures"]
    return row.kind is Kind.CLAIM and not row.details["until_ms"]


def _highest(holding: Sequence[Decision]) -> list[Decision]:
    """Return the newest receipt of each partition, and its highest log start and roll, in whichever order they were written."""
    highest: dict[tuple[Kind, int | None], Decision] = {}
    for row in holding:
        other = highest.get((row.kind, row.partition))
        if row.kind is not Kind.PURGE and (other is None or _rank(other) <= _rank(row)):
            highest[row.kind, row.partition] = row
    return list(highest.values())


def _rank(row: Decision) -> tuple[int, int]:
    return _swap_key(row) if row.kind is Kind.CLEAN else (row.offset or 0, row.sequence)


def _swap_key(receipt: Decision) -> tuple[int, int]:
    """Order receipts by their swaps, and several of one swap as they were written."""
    return receipt.table_version or 0, receipt.sequence


def _pins_since(row: Decision, moment_ms: int) -> bool:
    """Tell whether a reader of the ledger had not been dropped, and may not have expired, at a moment.

    It may have been seen after its newest row, as long as the next one was not due (`Reader.is_due`).
    """
    reader = Reader.from_details(row.name or "", row.details, row.time_ms)
    return reader is not None and not reader.is_expired(moment_ms - renewal_ms(reader.expiration_ms))


def highest_tombstone(receipt: Mapping[str, Any], name: str) -> int | None:
    """Return the highest tombstone of a receipt under one of its two names; receipts from before there were purges know one alone."""
    offset: int | None = receipt.get(name, receipt.get(_TOMBSTONE_FIELDS[0]))
    return offset


def _tombstone_receipts(holding: Sequence[Decision]) -> list[Decision]:
    """Return the receipts that removed a higher tombstone than every later receipt: they say what a slow reader missed."""
    receipts = []
    highest: dict[tuple[str, int | None], int] = {}
    for row in [receipt for mine in _receipts(holding).values() for receipt in reversed(mine)]:
        for name in _TOMBSTONE_FIELDS:
            removed = highest_tombstone(row.details, name)
            if removed is not None and removed > highest.get((name, row.partition), -1):
                highest[name, row.partition] = removed
                receipts.append(row)
    return receipts


def _pending_purges(holding: Sequence[Decision], today: Decisions) -> list[Decision]:
    """Return the purges that wait for a cleaning, and the highest of each partition: a table that follows the topic may be behind it."""
    then = replace(today, cleanings=_receipts(holding), purges=_by_partition(row for row in holding if row.kind is Kind.PURGE))
    pending = []
    for partition, purges in then.purges.items():
        released = then.released_offsets(partition)
        highest = max(purges, key=lambda row: row.offset or 0)
        pending += [row for row in purges if row is highest or row.offset in released]
    return pending
