"""Samples of each topic over the last day, in memory and in a file of the log.dir that outlives the service.

```
 every minute  ─► one sample a topic, and one of all topics together (`ALL_TOPICS`)
 last 3 hours     each of them      before that   the last one of each 10 minutes      after a day   none
 every 5 min   ─► <log.dir>/.history/HOST.PORT.json, replaced whole
```

The file lies in the log.dir, not on the disk of the process: a container that is moved finds it again, and so does an object store's
service. Each service writes a file of its own. At its start it reads its own, else the newest of the others: samples are of the log, not
of the service. A file that is damaged, foreign or too large counts as none; one that cannot be written is tried again later.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import astuple, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from lastword.compaction.config.keys import DAY_MS, HOUR_MS, MIB, MINUTE_MS
from lastword.compaction.errors import first_line
from lastword.storage.files.json_files import json_file, read_json_file, replace_file
from lastword.storage.files.locations import local_path
from lastword.storage.files.paths import filesystem_of
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

#: The name of the samples of all topics together; no topic can have it.
ALL_TOPICS: Final = ""
_FORMAT: Final = 1
_FOLDER: Final = ".history"
_SAVE_MS: Final = 5 * MINUTE_MS
_LOG: Final = logger("history")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The measurements of a topic at a moment. Counts grow: a rate is the difference of two samples over the time between them.

    `end_offsets` is the sum of the log end offsets, `cleaning_ms` the time of all cleanings since the first sample. `appended` and `late`
    count from the start of the service. `compaction_lag_ms` and `dirty_percent` are those of the worst partition; `reader_lag` is the
    consumer lag of the slowest reader or table, in offsets.
    """

    time_ms: int
    size_bytes: int
    record_count: int
    cleanable_bytes: int
    appended: int = 0
    late: int = 0
    end_offsets: int = 0
    compaction_lag_ms: int = 0
    dirty_percent: int = 0
    reader_lag: int = 0
    dead_letters: int = 0
    cleaning_ms: int = 0


_FIELDS: Final = tuple(attribute.name for attribute in fields(Sample))


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimits:
    """Limits of the history: how long samples are kept in memory, and how many the file holds."""

    every_ms: int = MINUTE_MS
    fine_ms: int = 3 * HOUR_MS
    coarse_ms: int = 10 * MINUTE_MS
    kept_ms: int = DAY_MS
    #: Samples of all topics in the file; with more topics the file holds the newest few of each.
    max_saved: int = 40_000
    #: A file that is larger was not written by a service, or by one of another kind.
    max_file_bytes: int = 8 * MIB
    #: Files of services in one log.dir; a service that starts deletes the oldest above it.
    max_files: int = 8


_LIMITS: Final = HistoryLimits()


@dataclass(slots=True)
class SampleHistory:
    """The samples of every topic, oldest first."""

    limits: HistoryLimits = _LIMITS
    _samples: dict[str, deque[Sample]] = field(default_factory=dict)

    def of(self, topic: str) -> tuple[Sample, ...]:
        """Return the samples of a topic, oldest first."""
        return tuple(self._samples.get(topic, ()))

    def is_due(self, topic: str, now_ms: int) -> bool:
        """Tell whether the newest sample of a topic is old enough for another one."""
        samples = self._samples.get(topic)
        return not samples or now_ms - samples[-1].time_ms >= self.limits.every_ms

    def add(self, topic: str, sample: Sample) -> None:
        """Add the newest sample of a topic, and thin out the older ones. A topic whose offsets begin again is another one."""
        samples = self._samples.setdefault(topic, deque())
        if topic != ALL_TOPICS and samples and sample.end_offsets < samples[-1].end_offsets:
            samples.clear()
        samples.append(sample)
        self._samples[topic] = self._thin_out(samples, sample.time_ms)

    def keep(self, topics: Collection[str]) -> None:
        """Forget the topics that are not among `topics`."""
        self._samples = {name: samples for name, samples in self._samples.items() if name in topics or name == ALL_TOPICS}

    def load(self, samples: Mapping[str, Iterable[Sample]], now_ms: int) -> None:
        """Begin with samples from before; those that are older than a day, or of the future, are left out."""
        for topic, unordered in samples.items():
            ordered = sorted((sample for sample in unordered if sample.time_ms <= now_ms), key=lambda sample: sample.time_ms)
            if ordered:
                self._samples[topic] = self._thin_out(deque(ordered), now_ms)

    def _thin_out(self, samples: deque[Sample], now_ms: int) -> deque[Sample]:
        """Return the samples of the last hours, the last of each ten minutes before them, and none that is older than a day."""
        limits = self.limits
        kept = deque[Sample]()
        for sample in samples:
            if now_ms - sample.time_ms > limits.kept_ms:
                continue
            is_old = now_ms - sample.time_ms > limits.fine_ms
            if is_old and kept and kept[-1].time_ms // limits.coarse_ms == sample.time_ms // limits.coarse_ms:
                kept.pop()
            kept.append(sample)
        return kept

    def body(self) -> dict[str, Any]:
        """Return what the file holds: rows of numbers under the names of topics. Samples of all topics together come first."""
        names = sorted(self._samples)
        most = max(2, self.limits.max_saved // max(1, len(names)))
        topics = {name: [astuple(sample) for sample in list(self._samples[name])[-most:]] for name in names[: self.limits.max_saved // 2]}
        return {"format": _FORMAT, "columns": list(_FIELDS), "topics": topics}


def read_samples(body: Any) -> dict[str, list[Sample]]:
    """Return the samples of a file; raise `ValueError`, `KeyError` or `TypeError` for what `SampleHistory.body` has not made."""
    if body["format"] != _FORMAT or body["columns"] != list(_FIELDS):
        raise ValueError(body["format"])
    samples = {}
    for topic, rows in body["topics"].items():
        if any(len(row) != len(_FIELDS) or any(type(value) is not int for value in row) for row in rows):
            raise ValueError(topic)
        samples[topic] = [Sample(**dict(zip(_FIELDS, row, strict=True))) for row in rows]
    return samples


class HistoryFile:
    """The file of one service, which a history is written to now and then."""

    def __init__(self, log_dir: str, storage_options: Mapping[str, str], *, host: str, port: int, limits: HistoryLimits = _LIMITS) -> None:
        """Take the name of the file from the host and the port of a service; nothing is read or made yet."""
        self._limits = limits
        self._location = f"{log_dir}/{_FOLDER}"
        self._is_local = local_path(log_dir) is not None
        self._filesystem = filesystem_of(log_dir, storage_options)
        self.name = f"{re.sub(r'[^A-Za-z0-9-]', '-', host)[:80] or 'host'}.{port}.json"
        self._saved_ms = 0
        self._fails = False

    def load(self, history: SampleHistory, now_ms: int) -> None:
        """Let a history begin with the samples of this service, else with the newest of another one; delete files above the limit."""
        try:
            infos = self._filesystem.get_file_info(fs.FileSelector(_FOLDER, allow_not_found=True))
        except OSError as error:
            _LOG.warning("the history of the status page cannot be read, it begins anew", folder=self._location, error=first_line(error))
            return
        files = [info for info in infos if info.base_name.endswith(".json")]
        files.sort(key=lambda info: (info.base_name != self.name, -(info.mtime_ns or 0)))
        for info in files[: self._limits.max_files]:
            samples = self._read(info)
            if samples is not None:
                history.load(samples, now_ms)
                break
        for info in files[self._limits.max_files :]:
            self._delete(info.path)
        self._saved_ms = now_ms

    def _read(self, info: fs.FileInfo) -> dict[str, list[Sample]] | None:
        """Return the samples of a file; None, with one line in the log, for a file that does not count."""
        why: object = f"it has {info.size:,} bytes; allowed are {self._limits.max_file_bytes:,}"
        if info.size <= self._limits.max_file_bytes:
            try:
                return read_samples(read_json_file(self._filesystem, info.path))
            except OSError as error:
                why = first_line(error)
            except (ValueError, KeyError, TypeError, AttributeError):
                why = "it is damaged, or of another version"
        _LOG.warning("a history file of the status page does not count", file=f"{self._location}/{info.base_name}", why=why)
        return None

    def _delete(self, path: str) -> None:
        try:
            self._filesystem.delete_file(path)
        except OSError as error:  # another service may have deleted it
            _LOG.info("an old history file of the status page is not deleted", file=path, why=first_line(error))

    def save(self, history: SampleHistory, now_ms: int, *, at_once: bool = False) -> None:
        """Write a history when that is due, or `at_once`. What the storage does not take is reported once, and tried again later."""
        if not at_once and 0 <= now_ms - self._saved_ms < _SAVE_MS:
            return
        self._saved_ms = now_ms
        path = f"{_FOLDER}/{self.name}"
        write = partial(replace_file, self._filesystem, path, json_file(history.body()))
        try:
            self._filesystem.create_dir(_FOLDER, recursive=False)  # never the log.dir itself: its volume may have gone away
            write(unfinished=f"{path}.unfinished" if self._is_local else path)  # a store's objects appear whole
        except (OSError, NotImplementedError) as error:
            if not self._fails:
                _LOG.warning("the history of the status page cannot be written", folder=self._location, error=first_line(error))
            self._fails = True
            return
        self._fails = False
