"""Keys whose last record is stale: a newer row of theirs is a dead letter.

```
 log             id 1 = a (sequence 5)      id 2 = b (sequence 6)     id 2 = d (sequence 9)
 dead letters    id 1, sequence 7           id 2, sequence 8
 stale           id 1                       id 2 is not: its record of sequence 9 is newer
```

A dead letter makes its key stale until the log has a newer record of the key: one of the same or a higher sequence, or, where one of the
two has no sequence, one that was appended later. A deletion is such a record. A key without any record is stale, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from pyarrow import array, binary

from lastword.storage.append.dead_letters import open_dead_letters, read_letters
from lastword.storage.delta.small_tables import current_files
from lastword.storage.files.data_reader import row_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog

_LETTER_COLUMNS: Final = ("record_key", "source_sequence", "refused_at", "source", "reason", "detail")
_RECORD_COLUMNS: Final = ("key", "source_sequence", "appended_at", "control")
#: The most keys that are followed: a source of which every row is refused must not fill the memory.
MAX_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleKey:
    """A key whose last record is stale since `refused_at`, with the source, the reason and the sequence of the row that was refused."""

    key: bytes
    refused_at: datetime
    source: str
    reason: str
    detail: str
    source_sequence: str

    def is_older_than(self, record: Mapping[str, Any]) -> bool:
        """Tell whether a record of the key (source_sequence, appended_at) is at least as new as the row that was refused."""
        sequence = record["source_sequence"] or ""
        if sequence and self.source_sequence:
            return bool(sequence >= self.source_sequence)
        return bool(record["appended_at"] > self.refused_at)


class StaleKeys:
    """Follows the stale keys of a topic; what was read once is not read again."""

    def __init__(self, log: TopicLog, *, max_keys: int = MAX_KEYS) -> None:
        """Follow at most `max_keys` keys."""
        self._log, self._max_keys = log, max_keys
        self._reset()

    def _reset(self) -> None:
        self._keys: dict[bytes, StaleKey] = {}
        self._letter_files, self._log_files = set[str](), set[str]()
        self._version = -1

    def collect(self) -> tuple[StaleKey, ...]:
        """Return the keys that are stale now, the oldest first; none of a topic that is not compacted.

        Raises `CorruptLog` for a file that cannot be read, `OSError` for a storage that does not give it now.
        """
        if not self._log.config().compacted:
            return ()
        snapshot = self._log.snapshot()
        files = {file.path for file in current_files(open_dead_letters(self._log.paths.dead_letters, self._log.storage_options))}
        if self._letter_files - files or snapshot.version < self._version:  # dead letters expired, or a RESTORE
            self._reset()
        fresh = self._read_letters(sorted(files - self._letter_files))
        self._letter_files, self._version = files, snapshot.version
        self._remove_known(snapshot, fresh)
        return tuple(sorted(self._keys.values(), key=lambda stale: (stale.refused_at, stale.key)))

    def _read_letters(self, paths: Iterable[str]) -> set[bytes]:
        """Take the keys of dead letters, each with its newest one, and return those keys."""
        fresh = set[bytes]()
        for path in paths:
            letters = read_letters(self._log.paths.dead_letters, self._log.storage_options, path).select(_LETTER_COLUMNS)
            for letter in letters.filter(pc.is_valid(letters.column("record_key"))).to_pylist():
                key = letter.pop("record_key")
                stale = StaleKey(key=key, **{**letter, "source_sequence": letter["source_sequence"] or ""})
                known = self._keys.get(key)
                is_newer = known is None or (stale.source_sequence, stale.refused_at) >= (known.source_sequence, known.refused_at)
                if is_newer and (known is not None or len(self._keys) < self._max_keys):
                    self._keys[key] = stale
                    fresh.add(key)
        return fresh

    def _remove_known(self, snapshot: LogSnapshot, fresh: set[bytes]) -> None:
        """Remove the keys of which the log has a newer record; files that were read before are read for fresh keys alone."""
        paths = snapshot.files.path.tolist()
        for path, highest in zip(paths, snapshot.files.max_sequence.tolist(), strict=True):
            keys = fresh & self._keys.keys() if path in self._log_files else set(self._keys)
            keys = {key for key in keys if not self._keys[key].source_sequence or highest >= self._keys[key].source_sequence}
            if keys:
                self._remove_by_file(path, keys)
        self._log_files = set(paths)

    def _remove_by_file(self, path: str, keys: set[bytes]) -> None:
        wanted = array(sorted(keys), binary())
        for group in row_groups(self._log.paths.log, self._log.storage_options, path, _RECORD_COLUMNS):
            rows = group.read()
            rows = rows.filter(pc.and_(pc.is_in(rows.column("key"), value_set=wanted), pc.is_null(rows.column("control"))))
            for record in rows.to_pylist():
                stale = self._keys.get(record["key"])
                if stale is not None and stale.is_older_than(record):
                    del self._keys[record["key"]]
