"""Reads the records of a topic that a request of the status page asks for, within limits, and returns them as texts.

```
 ?look=newest [&partition=0] [&limit=50]
 ?look=offset  &partition=0   &offset=120 [&limit=50]
 ?look=time    &partition=0   &time=2026-11-29T08:00Z [&limit=50]
 ?look=key     &key=lime [&encoding=base64] [&partition=0] [&limit=50]
```

No Spark: files are read by Arrow and Polars in the thread of the request, a few requests at a time. How much one of them may read is in
`LookLimits`.
"""

from __future__ import annotations

import base64
import binascii
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lastword.compaction.errors import UnknownTopic, UserError
from lastword.compaction.moments import instant, moment_ms
from lastword.compaction.rows.partitioners import partitions_of
from lastword.storage.files.data_reader import named_errors, second_look
from lastword.storage.reading.arrow_rows import offsets_at
from lastword.storage.reading.key_history import key_histories
from lastword.storage.reading.record_page import PageLimits, PageRecord, RecordPage, read_newest_page, read_page_from
from lastword.storage.reading.view import view_of
from lastword.text import bytes_as_text, printable, size
from lastword.topics.keys import only_history, read_wanted_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from lastword.storage.log.topic_log import LogState, TopicLog
    from lastword.storage.reading.key_history import KeyHistory
    from lastword.storage.reading.view import View

_LOOKS: Final = {
    "newest": ("look", "partition", "limit"),
    "offset": ("look", "partition", "offset", "limit"),
    "time": ("look", "partition", "time", "limit"),
    "key": ("look", "key", "encoding", "partition", "limit"),
}
_DEFAULT_COUNT: Final = 50
_ATTEMPTS: Final = 3
_MAX_DIGITS: Final = 19


class InvalidRequest(UserError):
    """A request that asks for what is not there, or cannot be read: the message says what is allowed."""


class LooksBusy(UserError):
    """As many looks at records are being taken as may be taken at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookLimits:
    """Limits of what a request for records reads and shows, and of the requests that run at once."""

    page: PageLimits = field(default_factory=PageLimits)
    #: Bytes of the files that are searched for a key: their keys and offsets are read, and the values of the records that are shown.
    max_searched_bytes: int = 512 * 2**20
    max_value_characters: int = 2_000
    max_key_characters: int = 500
    max_headers: int = 20
    max_at_once: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    """A record as texts; `value` is None for a tombstone, `value_bytes` the whole length of a value that is cut."""

    partition: int
    offset: int
    timestamp: datetime
    status: str
    key: str | None
    value: str | None
    value_bytes: int = 0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLook:
    """What a request gets: records, what was looked at in words, and the offsets where the records before and after them begin."""

    asked: Mapping[str, str]
    summary: str
    records: tuple[ShownRecord, ...]
    note: str = ""
    earlier: int | None = None
    later: int | None = None


@dataclass(slots=True, kw_only=True)
class RecordLooks:
    """Reads records of topics for requests; `log_of` returns the log of a topic, None for a topic that is not there."""

    log_of: Callable[[str], TopicLog | None]
    limits: LookLimits = field(default_factory=LookLimits)
    _free: threading.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Let some looks be taken at once."""
        self._free = threading.Semaphore(self.limits.max_at_once)

    def look(self, topic: str, asked: Mapping[str, str]) -> RecordLook:
        """Return the records that a request asks for.

        Raises `InvalidRequest` for a mistake in it, `UnknownTopic`, `LooksBusy`, and what a damaged log or a storage that does not answer
        raises.
        """
        log = self.log_of(topic)
        if log is None:
            message = f"topic {topic} does not exist"
            raise UnknownTopic(message)
        if not self._free.acquire(blocking=False):
            message = f"{self.limits.max_at_once} looks at records are being taken, which is the most at once: try again"
            raise LooksBusy(message)
        try:
            return second_look(lambda: self._look_again(log, asked))
        finally:
            self._free.release()

    def _look_again(self, log: TopicLog, asked: Mapping[str, str]) -> RecordLook:
        """Look at the newest table version; at a newer one when VACUUM took a file of it meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._look(log, asked)
            except FileNotFoundError:
                continue
        return self._look(log, asked)

    def _look(self, log: TopicLog, asked: Mapping[str, str]) -> RecordLook:
        look = asked.get("look", "newest")
        if look not in _LOOKS:
            raise _mistake(name="look", value=look, allowed="newest, offset, time or key")
        for name, value in asked.items():
            if name not in _LOOKS[look]:
                raise _mistake(name=name, value=value, allowed=f"with look = {look} the parameters {', '.join(_LOOKS[look])}")
        count = _read_number(asked, "limit", 1, self.limits.page.max_records)
        count = min(_DEFAULT_COUNT, self.limits.page.max_records) if count is None else count
        state = log.at()
        partition = _read_number(asked, "partition", 0, state.partitions - 1)
        with named_errors(log.paths.log, may_be_gone=True):
            view = view_of(state, "read_committed")
            if look == "key":
                return self._look_for_key(view, asked, partition, count)
            if look == "offset":
                return self._look_from(view, asked, partition, count)
            if look == "time":
                return self._look_from_time(view, asked, partition, count)
            return self._look_at_newest(view, asked, partition, count)

    def _look_at_newest(self, view: View, asked: Mapping[str, str], partition: int | None, count: int) -> RecordLook:
        everything = view_of(view.state, "read_uncommitted")
        chosen = None if partition is None else [partition]
        page = read_newest_page(view, everything, chosen, count=count, limits=self.limits.page)
        where = f"partition {partition}" if partition is not None else "all partitions"
        first = min((record.offset for record in page.records), default=0)
        return RecordLook(
            asked=asked,
            summary=f"the newest {len(page.records):,} of {where}, the latest timestamp first",
            records=tuple(map(self._show, page.records)),
            note=self._describe_cut(page),
            earlier=_earlier(view, partition, first, count),
        )

    def _look_from_time(self, view: View, asked: Mapping[str, str], partition: int | None, count: int) -> RecordLook:
        """Return the records from the first offset whose timestamp is not older than a moment (Kafka's offsetsForTimes)."""
        at, _, end = self._read_partition(view, partition, "a time")
        try:
            moment = round(moment_ms(asked.get("time", "")))
        except (ValueError, OverflowError):
            raise _mistake(name="time", value=asked.get("time", ""), allowed="ISO 8601 such as 2026-11-29T08:00, in UTC") from None
        offset = offsets_at(view_of(view.state, "read_uncommitted"), moment, [at])[at]
        if offset >= end:
            return RecordLook(asked=asked, summary=f"no record of partition {at} is from {instant(moment)} or later", records=())
        look = self._look_from(view, {**asked, "offset": str(offset)}, at, count)
        return replace(look, asked=asked, summary=f"{look.summary}, the first that is not older than {instant(moment)}")

    def _read_partition(self, view: View, partition: int | None, what: str) -> tuple[int, int, int]:
        """Return the partition that a request names, its log start offset and its log end offset; it must have records."""
        if partition is None and view.partitions > 1:
            raise _mistake(name="partition", value="", allowed=f"with {what} a number from 0 to {view.partitions - 1}")
        at = partition or 0
        start, end = view.start[at], view.state.log_end_offsets[at]
        if start == end:
            message = f"partition {at} of topic {view.topic} has no records: its next offset is {end}"
            raise InvalidRequest(message)
        return at, start, end

    def _look_from(self, view: View, asked: Mapping[str, str], partition: int | None, count: int) -> RecordLook:
        at, start, end = self._read_partition(view, partition, "an offset")
        offset = _read_number(asked, "offset", start, end - 1, of=f" (partition {at}: log start offset to the last offset)")
        if offset is None:
            raise _mistake(name="offset", value="", allowed=f"a whole number from {start} to {end - 1}")
        page = read_page_from(view, view_of(view.state, "read_uncommitted"), at, offset, count=count, limits=self.limits.page)
        after = page.records[-1].offset + 1 if page.records else end
        return RecordLook(
            asked=asked,
            summary=f"{len(page.records):,} records of partition {at} from offset {offset} on",
            records=tuple(map(self._show, page.records)),
            note=self._describe_cut(page),
            earlier=_earlier(view, at, offset, count),
            later=after if after < end else None,
        )

    def _look_for_key(self, view: View, asked: Mapping[str, str], partition: int | None, count: int) -> RecordLook:
        keys = _read_key(asked)
        chosen, note = self._choose_partitions(view.state, keys[0], partition)
        histories = key_histories(view, keys, partitions=chosen, limit=count)
        try:
            history = only_history(histories, keys, topic=view.topic)
        except UserError as error:
            raise InvalidRequest(str(error)) from None
        shown = bytes_as_text(keys[0], self.limits.max_key_characters)
        if history is None:
            where = f"partition {chosen[0]}" if chosen is not None and len(chosen) == 1 else "the topic"
            return RecordLook(asked=asked, summary=f"no record of the key {shown} in {where}", records=(), note=note)
        count_of_key = f"{history.record_count:,} record{'' if history.record_count == 1 else 's'}"
        return RecordLook(
            asked=asked,
            summary=f"key {shown}: {count_of_key} in partition {history.partition}, the newest {len(history.records):,}, latest first",
            records=tuple(reversed(self._show_history(history))),
            note=note,
        )

    def _choose_partitions(self, state: LogState, key: bytes, partition: int | None) -> tuple[list[int] | None, str]:
        """Return the partitions that are searched for a key, None for all, and what is to be said of the choice."""
        most, files = self.limits.max_searched_bytes, state.files
        if partition is None and int(files.size_bytes.sum()) <= most:
            return None, ""
        note = ""
        if partition is None:
            keys = pa.array([key], pa.binary())
            partition = int(partitions_of(keys, keys, partitions=state.partitions, partitioner=state.config.partitioner)[0])
            note = f"Only partition {partition} was searched, where the partitioner puts the key: the topic has more than {size(most)}."
        size_bytes = int(files.size_bytes[files.partition == partition].sum())
        if size_bytes > most:
            message = (
                f"partition {partition} of topic {state.log.name} has {size(size_bytes)}; allowed for a search by key on this page are "
                f"{size(most)}: use lastword get {state.log.name} KEY --partition {partition}"
            )
            raise InvalidRequest(message)
        return [partition], note

    def _show_history(self, history: KeyHistory) -> list[ShownRecord]:
        pages = (
            PageRecord(
                partition=record.partition,
                offset=record.offset,
                timestamp=record.timestamp,
                key=history.key,
                value=record.value,
                headers=record.headers,
                status=record.status.value,
            )
            for record in history.records
        )
        return [self._show(page) for page in pages]

    def _show(self, record: PageRecord) -> ShownRecord:
        limits = self.limits
        headers = tuple((printable(name, 100), bytes_as_text(value or b"", 200)) for name, value in record.headers[: limits.max_headers])
        return ShownRecord(
            partition=record.partition,
            offset=record.offset,
            timestamp=record.timestamp,
            status=record.status,
            key=None if record.key is None else bytes_as_text(record.key, limits.max_key_characters),
            value=None if record.value is None else bytes_as_text(record.value, limits.max_value_characters),
            value_bytes=len(record.value or b""),
            headers=headers,
        )

    def _describe_cut(self, page: RecordPage) -> str:
        if not page.is_cut:
            return ""
        limits = self.limits.page
        return (
            f"More was not read: one look reads at most {size(limits.max_bytes)} and {limits.max_partitions} partitions. "
            "Name a partition, an offset or a lower limit."
        )


def _earlier(view: View, partition: int | None, offset: int, count: int) -> int | None:
    """Return the offset from which the records before `offset` are looked at; None at the log start, and for several partitions."""
    if partition is None and view.partitions == 1:
        partition = 0
    if partition is None or offset <= view.start[partition]:
        return None
    return max(view.start[partition], offset - count)


def _read_key(asked: Mapping[str, str]) -> Sequence[bytes]:
    """Return the bytes that the key of a request may have in the log, the likeliest first."""
    if "key" not in asked:
        raise _mistake(name="key", value="", allowed="a text, or with encoding = base64 bytes")
    encoding = asked.get("encoding", "text")
    if encoding == "base64":
        try:
            return [base64.b64decode(asked["key"], validate=True)]
        except (binascii.Error, ValueError):
            raise _mistake(name="key", value=asked["key"], allowed="base64, as encoding says") from None
    if encoding != "text":
        raise _mistake(name="encoding", value=encoding, allowed="text or base64")
    try:
        return read_wanted_key(asked["key"])
    except UserError as error:
        raise InvalidRequest(str(error)) from None


def _read_number(asked: Mapping[str, str], name: str, least: int, most: int, *, of: str = "") -> int | None:
    """Return a number of a request, None where it is left out; raise `InvalidRequest` for what is none, or not from `least` to `most`."""
    text = asked.get(name, "").strip()
    if not text:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    if not is_number or not least <= int(text) <= most:
        raise _mistake(name=name, value=text, allowed=f"a whole number from {least} to {most}{of}")
    return int(text)


def _mistake(*, name: str, value: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{printable(name, 80)} = {printable(value, 80)!r}: allowed is {allowed}")
