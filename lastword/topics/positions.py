"""Where a reader begins: names and moments as offset vectors."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from lastword.compaction.errors import OffsetOutOfRange, UserError
from lastword.compaction.read_positions import Position, parse_offsets
from lastword.storage.reading.arrow_rows import offsets_at
from lastword.storage.reading.arrow_view import arrow_view
from lastword.storage.reading.view import view_of

if TYPE_CHECKING:
    from lastword.storage.log.topic_log import TopicLog


def starting_position(log: TopicLog, starting_offsets: object, starting_timestamp: int | datetime | None, isolation: str) -> Position:
    """Return where a reader begins that asks for `starting_offsets` or `starting_timestamp` (which wins), at the newest table version.

    Of offsets that somebody remembers nobody knows which version they are from (unless they are a `Position`, or the ends of the log, where
    a new reader begins): every tombstone at or past them counts as missed once it was removed. Raises `UserError` for what is no position,
    `OffsetOutOfRange` for one past the log end.
    """
    view = view_of(log, log.snapshot(), isolation)
    if starting_timestamp is not None:
        return replace(view.position, offsets=offsets_at(arrow_view(log, view), _millis(starting_timestamp)))
    if isinstance(starting_offsets, Position):
        offsets, seen = starting_offsets.offsets, starting_offsets
        if len(offsets) != view.partitions:
            message = f"topic {log.name}: a position of {len(offsets)} partitions; the topic has {view.partitions}"
            raise UserError(message)
    else:
        option = "starting_offsets"
        offsets = parse_offsets(starting_offsets, option=option, partitions=view.partitions, earliest=view.start, latest=view.end)
        new = all(at <= first or at >= last for at, first, last in zip(offsets, view.start, view.end, strict=True))
        seen = replace(view.position, offsets=offsets, since_version=view.snapshot.version if new else -1)
        ends = view.snapshot.log_end_offsets(view.partitions)
        past = {one: offset for one, (offset, end) in enumerate(zip(offsets, ends, strict=True)) if offset > end}
        if past:
            allowed = ", ".join(f"partition {one} up to {ends[one]}" for one in past)
            message = f"topic {log.name}: starting_offsets {past}: allowed is {allowed} (log end offset)"
            raise OffsetOutOfRange(message)
    return seen


def _millis(moment: int | datetime) -> int:
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int):
        message = f"starting_timestamp = {moment!r}: allowed is milliseconds since 1970, or a datetime"
        raise UserError(message)
    return moment
