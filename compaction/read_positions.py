"""Where a reader is, how far it goes next, and what it may have missed: rules over offsets alone.

```
 offset     0   .   .   3   4   5   6   7   8            · compacted away
                        ▲ position 3           ▲ end 9   a reader of three offsets a micro-batch reads [3, 6), [6, 9)
```

A position is an *offset vector*: for each partition the offset of the next record. It is the only progress that a reader keeps; so it
survives cleaning, VACUUM and restarts. What was compacted away is skipped without a word, as in Kafka. Three things are not, because a
reader cannot notice them by itself: records below the log start are gone (`Loss.DELETED`); records were taken back by a RESTORE
(`Loss.TRUNCATED`); a tombstone that the reader had not read was removed, so that it may still hold the key (`Loss.TOMBSTONE`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from lastword.compaction.errors import OffsetOutOfRange, UnknownFormat, UserError
from lastword.compaction.log.restores import Restore, is_contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: Kafka's names for the two ends of a log, and the numbers that stand for them in an offset vector.
#: A position that says nothing of its format has this one.
_FORMAT: Final = 1
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_EARLIEST_OFFSET: Final = -2
_LATEST_OFFSET: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The offset vector of a reader, and the table versions that it comes from.

    `offsets[partition]` is the next offset to read. `table_version` is the version of the log that was read last. `since_version` is the
    version at which the reader began: what was removed before that was never there for it. Both are -1 if unknown. `topic_id` is
    the topic's, empty if unknown: another topic may have the same name today.
    """

    offsets: tuple[int, ...]
    table_version: int = -1
    since_version: int = -1
    topic_id: str = ""

    def to_json(self) -> str:
        """Return it as one line of JSON, as it stands in a query checkpoint."""
        body = {
            "offsets": {str(partition): offset for partition, offset in enumerate(self.offsets)},
            "table_version": self.table_version,
            "since_version": self.since_version,
            "topic_id": self.topic_id,
        }
        return json.dumps(body, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Position:
        """Return the position that `to_json` wrote."""
        return Position.from_dict(json.loads(text))

    @staticmethod
    def from_dict(body: Mapping[str, Any]) -> Position:
        """Return the position of a parsed `to_json`; raise `UnknownFormat` for one that says that a later version wrote it."""
        if body.get("format", _FORMAT) != _FORMAT:
            message = (
                f"a position has format {body['format']}, and this version of lastword reads {_FORMAT}: a later version has written it. "
                "Use that version or a later one"
            )
            raise UnknownFormat(message)
        return Position(
            offsets=tuple(int(body["offsets"][str(partition)]) for partition in range(len(body["offsets"]))),
            table_version=int(body["table_version"]),
            since_version=int(body["since_version"]),
            topic_id=str(body.get("topic_id", "")),
        )

    def vector(self) -> dict[int, int]:
        """Return the offsets by partition."""
        return dict(enumerate(self.offsets))


def parse_offsets(
    given: object, *, option: str, partitions: int, earliest: Sequence[int], latest: Sequence[int], allow_latest: bool = True
) -> tuple[int, ...]:
    """Return the offset vector that `given` names.

    `given` is "earliest", "latest", a mapping {partition: offset}, a sequence of offsets, or such a mapping as JSON, in which -2 stands for
    earliest and -1 for latest, as in Spark's Kafka source. Every partition has to be named. Raises `UserError` naming `option`, the value
    and what is allowed.
    """
    allowed = f"earliest{', latest' if allow_latest else ''} or an offset for each of the partitions 0 to {partitions - 1}, such as " + (
        json.dumps({str(partition): 0 for partition in range(min(partitions, 2))})
    )
    if isinstance(given, str):
        match given.strip().lower():
            case "earliest":
                return tuple(earliest)
            case "latest" if allow_latest:
                return tuple(latest)
            case text:
                given = _from_json(text, option=option, allowed=allowed)
    named = _offset_by_partition(given, option=option, allowed=allowed)
    wrong = sorted(set(named) ^ set(range(partitions)))
    if wrong:
        what = "unknown partition" if wrong[0] in named else "no offset for partition"
        message = f"{option} = {given}: {what} {', '.join(map(str, wrong))}; allowed is {allowed}"
        raise UserError(message)
    low = _LATEST_OFFSET if allow_latest else 0
    negative = {partition: offset for partition, offset in named.items() if offset < low and offset != _EARLIEST_OFFSET}
    if negative:
        message = f"{option} = {given}: negative offset {negative}; allowed is {allowed}, -2 for earliest, -1 for latest"
        raise UserError(message)
    ends = {_EARLIEST_OFFSET: earliest, _LATEST_OFFSET: latest}
    return tuple(ends[named[partition]][partition] if named[partition] < 0 else named[partition] for partition in range(partitions))


def _offset_by_partition(given: object, *, option: str, allowed: str) -> dict[int, int]:
    """Return offsets by partition as whole numbers; raise `UserError` for what is neither a mapping nor a list of them."""
    if isinstance(given, (list, tuple)):
        given = dict(enumerate(given))
    if not isinstance(given, dict):
        message = f"{option} = {given!r}: allowed is {allowed}"
        raise UserError(message)
    named: dict[int, int] = {}
    for partition, offset in given.items():
        try:
            named[int(partition)] = int(offset)
        except (TypeError, ValueError):
            message = f"{option} = {given}: {partition!r}: {offset!r} is no partition with its offset; allowed is {allowed}"
            raise UserError(message) from None
    return named


def _from_json(text: str, *, option: str, allowed: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        message = f"{option} = {text!r}: allowed is {allowed}"
        raise UserError(message) from None


def offsets_within(given: object, *, option: str, topic: str, newest: Position, log: Extent) -> tuple[int, ...]:
    """Return the offset vector that `given` names in a log; `newest` is what a reader may see of it.

    "latest" is the end of `newest`. Raises `UserError` as `parse_offsets`, and `OffsetOutOfRange` for an offset past the log end offset.
    """
    ends = log.log_end_offsets
    offsets = parse_offsets(given, option=option, partitions=len(ends), earliest=log.log_start_offsets, latest=newest.offsets)
    past = {partition: offset for partition, (offset, end) in enumerate(zip(offsets, ends, strict=True)) if offset > end}
    if past:
        allowed = ", ".join(f"partition {partition} up to {ends[partition]}" for partition in past)
        message = f"topic {topic}: {option} {past}: allowed is {allowed} (log end offset)"
        raise OffsetOutOfRange(message)
    return offsets


def starting_at(given: object, *, option: str, topic: str, newest: Position, log: Extent) -> Position:
    """Return where a reader begins that names offsets, as `offsets_within` does.

    A reader that begins where the log starts or ends holds no records yet. The table version of offsets in between is unknown: every
    removed tombstone at or past them counts as missed.
    """
    offsets = offsets_within(given, option=option, topic=topic, newest=newest, log=log)
    fresh = all(at <= first or at >= last for at, first, last in zip(offsets, log.log_start_offsets, newest.offsets, strict=True))
    return replace(newest, offsets=offsets, since_version=newest.table_version if fresh else -1)


def advance(begin: Sequence[int], end: Sequence[int], limit: int | None) -> tuple[int, ...]:
    """Return where a micro-batch of at most about `limit` offsets ends, the partitions sharing it by what they still have to give.

    Every partition that has something gets at least one offset, so that none starves (Spark's `KafkaMicroBatchStream.rateLimit`). Never
    goes back: a partition whose end lies below its begin stays where it is.
    """
    waiting = [max(0, to - at) for at, to in zip(begin, end, strict=True)]
    total = sum(waiting)
    if limit is None or total <= limit:
        return tuple(at + more for at, more in zip(begin, waiting, strict=True))
    return tuple(at + min(more, max(1, limit * more // total)) for at, more in zip(begin, waiting, strict=True))


class Loss(str, Enum):
    """What a reader may have missed without noticing."""

    RECREATED = "recreated"
    DELETED = "deleted"
    TRUNCATED = "truncated"
    TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """What a reader at `offset` of a partition missed, or may have missed; `resume_at` is where it can go on."""

    loss: Loss
    partition: int
    offset: int
    resume_at: int
    detail: str

    def __str__(self) -> str:
        """Return the line that a person reads."""
        return f"partition {self.partition}, offset {self.offset}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedTombstone:
    """The highest tombstone that the cleaning committed as `table_version` removed from a partition."""

    table_version: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """A RESTORE, committed as `table_version`, after which the log ended at `log_end_offsets` (None: unknown)."""

    table_version: int
    restored_version: int
    log_end_offsets: Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The log as a reader finds it: whose it is, at which version, and from where to where it reaches."""

    topic_id: str
    table_version: int
    log_start_offsets: Sequence[int]
    log_end_offsets: Sequence[int]


class History(Protocol):
    """What happened after a version that a reader cannot see in the rows."""

    @property
    def tombstones(self) -> Sequence[RemovedTombstone]:
        """The tombstones that cleanings removed."""

    @property
    def restores(self) -> Sequence[TakenBack]:
        """The RESTOREs."""


def overtaken(position: Position, log: Extent, history: Callable[[int], History]) -> list[Missed]:
    """Return all that a reader at `position` missed of `log`; `history(version)`, which costs a look, is asked only where it can matter."""
    if whole_log := missed_by_recreation(position, log):
        return whole_log
    nothing_new = position.since_version >= 0 and log.table_version <= position.table_version
    if nothing_new and all(at >= start for at, start in zip(position.offsets, log.log_start_offsets, strict=True)):
        return []
    past = history(min(position.since_version, position.table_version))
    return missed_ranges(
        position,
        log_start_offsets=log.log_start_offsets,
        log_end_offsets=log.log_end_offsets,
        tombstones=past.tombstones,
        restores=past.restores,
    )


def missed_by_recreation(position: Position, log: Extent) -> list[Missed]:
    """Return the whole log, partition by partition, as missed when `position` is of a topic that had this name before; else nothing.

    A topic's table version never falls and its partitions stay as many, which tells it of positions without a topic id.
    """
    partitions = len(log.log_start_offsets)
    same = position.topic_id in {"", log.topic_id} and position.table_version <= log.table_version and len(position.offsets) == partitions
    return [
        Missed(
            loss=Loss.RECREATED,
            partition=partition,
            offset=dict(enumerate(position.offsets)).get(partition, 0),
            resume_at=start,
            detail=f"the topic was deleted, and another was created under its name; its log starts at {start}",
        )
        for partition, start in enumerate(log.log_start_offsets)
        if not same
    ]


def resume_offsets(position: Position, ranges: Iterable[Missed], partitions: int) -> tuple[int, ...]:
    """Return where a reader at `position` goes on that accepts what it missed."""
    offsets = dict(enumerate(position.offsets)) | {missed.partition: missed.resume_at for missed in ranges}
    return tuple(offsets[partition] for partition in range(partitions))


def missed_ranges(
    position: Position,
    *,
    log_start_offsets: Sequence[int],
    log_end_offsets: Sequence[int],
    tombstones: Iterable[RemovedTombstone] = (),
    restores: Iterable[TakenBack] = (),
) -> list[Missed]:
    """Return what a reader at `position` missed, in the order of the partitions; an empty list when nothing.

    A removed tombstone counts when it lay at or past the position and went after the reader began: the reader may then hold a value that
    was deleted. A RESTORE counts when the reader had read a version that it took back, beyond the end that it left. Rules:
    docs/semantics.md#B.12, docs/semantics.md#A.29. KIP-58 asks the same of a Kafka consumer by a prose warning alone.
    """
    highest: dict[int, int] = {}
    for tombstone in tombstones:
        if tombstone.table_version > position.since_version and tombstone.offset >= position.offsets[tombstone.partition]:
            highest[tombstone.partition] = max(tombstone.offset, highest.get(tombstone.partition, -1))
    left = _left_by_restores(position, log_end_offsets, list(restores))
    losses: list[Missed] = []
    for partition, offset in enumerate(position.offsets):
        start, end = log_start_offsets[partition], left[partition]
        if end is None or offset > end:
            at = "an offset that is not known any more" if end is None else f"offset {end}"
            detail = f"the log was taken back to {at} by a RESTORE; the records read from there on were undone"
            resume_at = log_end_offsets[partition] if end is None else end
            losses.append(Missed(loss=Loss.TRUNCATED, partition=partition, offset=offset, resume_at=resume_at, detail=detail))
        elif offset < start:
            detail = f"the records {offset} to {start - 1} were deleted; the log starts at {start}"
            losses.append(Missed(loss=Loss.DELETED, partition=partition, offset=offset, resume_at=start, detail=detail))
        if partition in highest:
            detail = (
                f"tombstones up to offset {highest[partition]} were removed before they were read (delete.retention.ms): "
                "keys that were deleted may still be held"
            )
            losses.append(Missed(loss=Loss.TOMBSTONE, partition=partition, offset=offset, resume_at=offset, detail=detail))
    return losses


def _left_by_restores(position: Position, log_end_offsets: Sequence[int], restores: Sequence[TakenBack]) -> list[int | None]:
    """Return where each partition ended after the RESTOREs that took back what a reader had read; None where that is not known.

    The log end offset where there is none, or where a later RESTORE has brought the reader's version back.
    """
    lineage = [Restore(version=restore.table_version, restored_version=restore.restored_version) for restore in restores]
    undone = [restore for restore in restores if restore.restored_version < position.table_version < restore.table_version]
    if is_contained(lineage, position.table_version):
        undone = []
    left: list[int | None] = list(log_end_offsets)
    for restore in undone:
        for partition, end in enumerate(left):
            ends = None if restore.log_end_offsets is None else restore.log_end_offsets[partition]
            left[partition] = None if end is None or ends is None else min(end, ends)
    return left


def newest_whole_version(vector: Sequence[int], checkpoints: Sequence[Sequence[tuple[int, int]]], newest_version: int) -> int:
    """Return the newest table version at which no partition was cleaned past `vector`: up to there its past is whole.

    `checkpoints[partition]` lists (table version, cleaner checkpoint) of the cleanings that hold, oldest first.
    """
    version = newest_version
    for partition, cleanings in enumerate(checkpoints):
        for table_version, checkpoint in cleanings:
            if checkpoint > vector[partition]:
                version = min(version, table_version - 1)
                break
    return version
