"""Logs as text, for tests of the rules that read like the documentation.

Segments, `drawn`: one word each, `base:size`, oldest first; a bare number is the log end.

```
 "0:750 100:750 | 200:500 300:1* 310"
                |                          the cleaner checkpoint: what is left of it is clean
                                 *         the active segment; without one even the last segment is closed
```

More about a segment follows its size: `∅` it holds EMPTY rows alone, `@9` its records have the time 9, `~7` its earliest delete horizon is
7, `#3` it holds three records (else one at each of its offsets), `..5` its last record has the offset 5.

Rows, `rows` and `cleaned`: one word each, `offset:row`, where a row is `key=value`, `key=∅` (a tombstone), `=value` (no key), `COMMIT`,
`ABORT` or `EMPTY`. A producer stands before it, `7.0:` with its epoch, `7.0#5:` with its sequence, `7.0t3:` in its transaction that began
at offset 3; a delete horizon behind it, `~10`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from lastword.compaction.config.topic_config import parse_topic_config
from lastword.compaction.log.segments import NO_TIMESTAMP, Segment
from lastword.compaction.planning.bounds import PartitionLog
from lastword.compaction.producers import Control
from lastword.compaction.rows.fates import CleaningPass, fates, survivors
from tests.compaction.row_rules import Pass, Row, last_rows_of_producers, pinned_transactions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lastword.compaction.config.topic_config import TopicConfig

HOUR_MS: Final = 3_600_000
MIB: Final = 2**20

_SEGMENT = re.compile(r"(\d+):(\d+)(∅?)(?:@(-?\d+))?(?:~(\d+))?(?:#(\d+))?(?:\.\.(\d+))?(\*?)")
_ROW = re.compile(r"(\d+):(?:(\d+)\.(\d+)(?:#(\d+))?(?:t(\d+))?:)?(?:(COMMIT|ABORT|EMPTY)|([^=~]*)=([^~]*))(?:~(\d+))?")


def config(settings: Mapping[str, object] | None = None) -> TopicConfig:
    """Return the configuration of a compacted topic with some settings of its own."""
    return parse_topic_config({"cleanup.policy": "compact", **(settings or {})})


def drawn(
    picture: str,
    settings: Mapping[str, object] | None = None,
    *,
    topic: str = "fruit",
    partition: int = 0,
    unit: int = 1,
    log_start: int = 0,
    stable: int | None = None,
    checkpoint: int | None = None,
    rounds_left: int = 0,
) -> PartitionLog:
    """Return the log that a picture draws; `unit` is what its sizes count, `stable` the last stable offset (default: the log end)."""
    words = picture.split()
    log_end = next((int(word) for word in words if word.isdigit()), 0)
    found = [match for match in map(_SEGMENT.fullmatch, words) if match is not None]
    assert len(found) == len([word for word in words if ":" in word]), picture
    bases = [int(match[1]) for match in found]
    segments = [_segment(match, end, partition, unit) for match, end in zip(found, [*bases[1:], log_end], strict=bool(found))]
    before = [word for word in words[: words.index("|")] if ":" in word] if "|" in words else None
    if checkpoint is None and before is not None:
        checkpoint = bases[len(before)] if len(before) < len(bases) else log_end
    return PartitionLog(
        topic=topic,
        partition=partition,
        config=config(settings),
        segments=tuple(segments),
        active_base_offset=bases[-1] if found and found[-1][8] else log_end,
        log_start_offset=log_start,
        log_end_offset=log_end,
        last_stable_offset=log_end if stable is None else stable,
        checkpoint=checkpoint,
        rounds_left=rounds_left,
    )


def _segment(match: re.Match[str], end: int, partition: int, unit: int) -> Segment:
    """Return the segment of one word; the next one begins at `end`."""
    base, size, empty, time, horizon, count, last, _ = match.groups()
    first = int(base)
    last_offset = end - 1 if last is None else int(last)
    timestamp_ms = NO_TIMESTAMP if empty else int(time or 0)
    return Segment(
        partition=partition,
        label=first,
        base_offset=first,
        slices=(first,),
        size_bytes=int(size) * unit,
        record_count=last_offset - first + 1 if count is None else int(count),
        first_offset=first,
        last_offset=last_offset,
        min_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        first_timestamp_ms=timestamp_ms,
        appended_at_ms=int(time or 0),
        delete_horizon_ms=None if horizon is None else int(horizon),
    )


def bases(segments: Iterable[Segment]) -> list[int]:
    """Return segments as a test names them."""
    return [one.base_offset for one in segments]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRow:
    """A row with its value, which the rules do not look at."""

    row: Row
    value: str | None = None

    def __str__(self) -> str:
        """Return the word that draws it."""
        row = self.row
        producer = "" if row.producer_id is None else f"{row.producer_id}.{row.epoch}"
        sequence = "" if row.sequence is None else f"#{row.sequence}"
        transaction = "" if row.txn_first_offset is None else f"t{row.txn_first_offset}"
        body = (
            row.control.value
            if row.control
            else f"{'' if row.key is None else row.key.decode()}={'∅' if self.value is None else self.value}"
        )
        horizon = "" if row.delete_horizon_ms is None else f"~{row.delete_horizon_ms}"
        return f"{row.offset}:{producer}{sequence}{transaction}{':' if producer else ''}{body}{horizon}"


def rows(picture: str) -> list[DrawnRow]:
    """Return the rows that a picture draws."""
    return [_row(word) for word in picture.split()]


def _row(word: str) -> DrawnRow:
    match = _ROW.fullmatch(word)
    assert match is not None, word
    offset, producer, epoch, sequence, first, control, key, value, horizon = match.groups()
    row = Row(
        offset=int(offset),
        key=key.encode() if key else None,
        has_value=control is None and value != "∅",
        producer_id=None if producer is None else int(producer),
        epoch=None if epoch is None else int(epoch),
        sequence=None if sequence is None else int(sequence),
        txn_first_offset=None if first is None else int(first),
        control=None if control is None else Control(control),
        delete_horizon_ms=None if horizon is None else int(horizon),
    )
    return DrawnRow(row=row, value=None if value == "∅" else value)


def pass_over(
    log: Sequence[Row],
    *,
    first_dirty: int,
    end: int,
    now_ms: int,
    delete_retention_ms: int,
    places: Collection[int] = (),
    begin: int = 0,
) -> Pass:
    """Return what a cleaning of the dirty range `first_dirty` to `end` knows of a log; what lies before `begin` stays, whatever it is."""
    aborted = {
        (row.producer_id, row.txn_first_offset)
        for row in log
        if row.control is Control.ABORT and row.producer_id is not None and row.txn_first_offset is not None
    }
    newest = {
        row.key: row.offset
        for row in log
        if first_dirty <= row.offset < end and row.control is None and row.key is not None and _transaction(row) not in aborted
    }
    cleaning = Pass(
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        end_offset=end,
        newest=newest,
        aborted=aborted,
        pinned=frozenset(),
        places=places,
    )
    stays = {
        (row.producer_id, row.txn_first_offset)
        for row in log
        if row.offset < begin and row.control is None and row.producer_id is not None and row.txn_first_offset is not None
    }
    return replace(cleaning, pinned={*pinned_transactions(log, cleaning), *stays})


def _transaction(row: Row) -> tuple[int | None, int | None]:
    return row.producer_id, row.txn_first_offset


def arrow_rows(log: Sequence[DrawnRow]) -> pa.Table:
    """Return rows as they stand in a data file."""
    bare = [one.row for one in log]
    horizons = [None if row.delete_horizon_ms is None else row.delete_horizon_ms * 1000 for row in bare]
    values = [(one.value or "").encode() if one.row.has_value else None for one in log]
    columns = {
        "offset": pa.array([row.offset for row in bare], pa.int64()),
        "key": pa.array([row.key for row in bare], pa.binary()),
        "value": pa.array(values, pa.binary()),
        "producer_id": pa.array([row.producer_id for row in bare], pa.int64()),
        "producer_epoch": pa.array([row.epoch for row in bare], pa.int32()),
        "sequence": pa.array([row.sequence for row in bare], pa.int32()),
        "txn_first_offset": pa.array([row.txn_first_offset for row in bare], pa.int64()),
        "control": pa.array([None if row.control is None else row.control.value for row in bare], pa.string()),
        "delete_horizon": pa.array(horizons, pa.timestamp("us", "UTC")),
    }
    return pa.table(columns)


def drawn_rows(table: pa.Table) -> list[DrawnRow]:
    """Return rows of a data file as drawn ones."""
    horizons = table.column("delete_horizon").cast(pa.int64()).to_pylist()
    return [
        DrawnRow(
            row=Row(
                offset=row["offset"],
                key=row["key"],
                has_value=row["value"] is not None,
                producer_id=row["producer_id"],
                epoch=row["producer_epoch"],
                sequence=row["sequence"],
                txn_first_offset=row["txn_first_offset"],
                control=None if row["control"] is None else Control(row["control"]),
                delete_horizon_ms=None if horizon is None else horizon // 1000,
            ),
            value=None if row["value"] is None else row["value"].decode(),
        )
        for row, horizon in zip(table.drop_columns(["delete_horizon"]).to_pylist(), horizons, strict=True)
    ]


def cleaning_pass(log: Sequence[Row], cleaning: Pass, *, first_dirty: int) -> CleaningPass:
    """Return what production knows of a cleaning that the specification describes: sets of offsets instead of a map."""
    newest = sorted(cleaning.newest.values())
    clean = [row for row in log if row.offset < first_dirty and row.control is None and row.key is not None]
    superseded = [row.offset for row in clean if cleaning.newest.get(row.key or b"", -1) > row.offset]
    return CleaningPass(
        now_ms=cleaning.now_ms,
        horizon_ms=cleaning.now_ms + cleaning.delete_retention_ms,
        first_dirty_offset=first_dirty,
        end_offset=cleaning.end_offset,
        newest=np.asarray(newest, dtype=np.int64),
        superseded=np.asarray(sorted(superseded), dtype=np.int64),
        aborted=frozenset(cleaning.aborted),
        pinned=frozenset(cleaning.pinned),
        places=np.asarray(sorted(cleaning.places), dtype=np.int64),
        released=np.asarray(sorted(cleaning.released), dtype=np.int64),
        unread_offset=cleaning.unread_offset,
    )


def cleaned(
    picture: str,
    *,
    now_ms: int = 0,
    retention_ms: int = 10,
    first_dirty: int = 0,
    end: int | None = None,
    active: Collection[int] = (),
    log_end: int | None = None,
    unread: int | None = None,
    released: Collection[int] = (),
) -> str:
    """Return the picture of a log after one cleaning of all its rows; tombstones from `unread` on wait for a reader, `released` ones go.

    The dirty range reaches from `first_dirty` to `end` (default: past the last row). `log_end` is by default far past the last row, as if
    more were in the active segment.
    """
    log = rows(picture)
    last = log[-1].row.offset
    bare = [one.row for one in log]
    cleaning = pass_over(
        bare,
        first_dirty=first_dirty,
        end=last + 1 if end is None else end,
        now_ms=now_ms,
        delete_retention_ms=retention_ms,
        places=last_rows_of_producers(bare, active) | {last + 999 if log_end is None else log_end - 1},
    )
    cleaning = replace(cleaning, unread_offset=unread, released=released)
    known, found = cleaning_pass(bare, cleaning, first_dirty=first_dirty), arrow_rows(log)
    return " ".join(map(str, drawn_rows(survivors(found, fates(found, known), known))))
