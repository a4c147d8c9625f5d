"""Where a reader begins: names and moments as offset vectors."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from lastword.compaction.errors import UserError
from lastword.compaction.read_positions import Position, starting_at
from lastword.storage.reading.arrow_rows import offsets_at
from lastword.storage.reading.view import view_of

if TYPE_CHECKING:
    from lastword.storage.log.topic_log import TopicLog


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


def _millis(moment: int | datetime) -> int:
    if isinstance(moment, datetime):
        return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int):
        message = f"starting_timestamp = {moment!r}: allowed is milliseconds since 1970, or a datetime"
        raise UserError(message)
    return moment
