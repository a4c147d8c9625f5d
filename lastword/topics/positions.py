"""Where a reader begins: names and moments as offset vectors."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import UserError
from lastword.compaction.moments import moment_ms
from lastword.compaction.read_positions import EARLIEST, LATEST, Position, parse_offsets, starting_at
from lastword.storage.reading.arrow_rows import offsets_at
from lastword.storage.reading.view import view_of

if TYPE_CHECKING:
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View


#: A moment before each record.
_BEGINNING_MS: Final = -(2**53)


def starting_position(log: TopicLog, starting_offsets: object, starting_timestamp: int | datetime | None, isolation: str) -> Position:
    """Return where a reader begins that asks for `starting_offsets` or `starting_timestamp`, at the newest table version.

    Raises `UserError` for both, and for what is no position, `OffsetOutOfRange` for one past the log end.
    """
    view = view_of(log.at(), isolation)
    if starting_timestamp is not None:
        if starting_offsets != "earliest":
            message = f"starting_offsets = {starting_offsets} and starting_timestamp = {starting_timestamp}: give one of them"
            raise UserError(message)
        return replace(view.position, offsets=offsets_at(view, _millis(starting_timestamp)))
    if not isinstance(starting_offsets, Position):
        return starting_at(starting_offsets, option="starting_offsets", topic=log.name, newest=view.position, log=view.extent)
    if len(starting_offsets.offsets) != view.partitions:
        message = f"topic {log.name}: a position of {len(starting_offsets.offsets)} partitions; the topic has {view.partitions}"
        raise UserError(message)
    return starting_offsets


def change_vectors(log: TopicLog, begin: object, end: object, isolation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offset vectors between which changes are asked for, each by its name, a moment, or an offset for each partition.

    `earliest` is the log start, `latest` the end that a reader of `isolation` sees at the newest table version, and a moment the first
    record that is not older. Raises `UserError` for what is none of these.
    """
    view = view_of(log.at(), isolation)
    return _change_vector(view, begin, "begin"), _change_vector(view, end, "end")


def _change_vector(view: View, given: object, option: str) -> tuple[int, ...]:
    """Return the offset vector that one end of the changes names."""
    if isinstance(given, str) and given.strip().lower() not in {EARLIEST, LATEST} and not given.lstrip().startswith("{"):
        try:
            given = moment_ms(given)
        except ValueError:
            first = json.dumps({str(partition): 0 for partition in range(min(view.partitions, 2))})
            allowed = f"earliest, latest, a time (ISO 8601, UTC where it names no zone), or an offset for each partition, such as {first}"
            message = f"topic {view.topic}: {option} = {given!r}: allowed is {allowed}"
            raise UserError(message) from None
        return _offsets_of_time(view, math.ceil(given))
    if isinstance(given, datetime):
        return _offsets_of_time(view, math.ceil(moment_ms(given)))
    named = given.vector() if isinstance(given, Position) else given
    return parse_offsets(named, option=option, partitions=view.partitions, earliest=view.start, latest=view.end)


def _offsets_of_time(view: View, time_ms: int) -> tuple[int, ...]:
    """Return the first offset of each partition that is not older; the log start where no older record is left, as cleaning took it."""
    oldest = offsets_at(view, _BEGINNING_MS)
    return tuple(
        start if offset == first else offset for start, first, offset in zip(view.start, oldest, offsets_at(view, time_ms), strict=True)
    )


def _millis(moment: int | datetime) -> int:
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int):
        message = f"starting_timestamp = {moment!r}: allowed is milliseconds since 1970, or a datetime"
        raise UserError(message)
    return moment
