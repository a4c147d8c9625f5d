"""Keys whose last record is stale: a newer row of theirs is a dead letter.

```
 log             id 1 = a (sequence 5)      id 2 = b (sequence 6)     id 2 = d (sequence 9)
 dead letters    id 1, sequence 7           id 2, sequence 8
 stale           id 1                       id 2 is not: its record of sequence 9 is newer
```

A dead letter makes its key stale until the log has a newer record of the key: one of a higher sequence, or of the same or none that was
appended later. A deletion is such a record, and a TRUNCATE of the source at a higher position. A record with columns that the source left
out, and that were filled in, is as old as the record that they come from. A key without any record is stale, too.
Records of transactions that are open or were aborted count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.display import Displayed
from lastword.compaction.errors import CorruptLog
from lastword.compaction.order.source_positions import SourcePosition, is_after, is_before_truncate
from lastword.compaction.rows.unchanged_columns import columns_since
from lastword.storage.append.dead_letters import open_dead_letters, read_letters
from lastword.storage.delta.small_tables import current_files
from lastword.storage.files.paths import filesystem_of
from lastword.storage.reading.arrow_rows import file_ranges, range_batches
from lastword.storage.reading.view import view_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.arrow_rows import FileRange
    from lastword.storage.reading.view import View

_LETTER_COLUMNS: Final = ("record_key", "source_sequence", "refused_at", "source", "reason", "detail")
_RECORD_COLUMNS: Final = ("key", "source_sequence", "appended_at", "headers")
#: The most keys that are followed: a source of which every row is refused must not fill the memory.
MAX_KEYS: Final = 100_000
#: How often the log is looked at anew when VACUUM removes a file while it is read.
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StaleKey(Displayed):
    """A key whose last record is stale since `refused_at`, with the source, the reason and the sequence of the row that was refused."""

    key: bytes
    refused_at: datetime
    source: str
    reason: str
    detail: str
    source_sequence: str

    def is_older_than(self, record: Mapping[str, Any]) -> bool:
        """Tell whether a record of the key (source_sequence, appended_at, headers) is newer than the row that was refused.

        One that was filled in with columns that the source left out is as old as these; so is a deletion of a row that has another key now.
        """
        since = columns_since(record["headers"])
        sequence = (record["source_sequence"] or "") if since is None else since
        if is_after(sequence, self.source_sequence) or is_after(self.source_sequence, sequence):
            return is_after(sequence, self.source_sequence)
        return since is None and bool(record["appended_at"] > self.refused_at)

    def is_truncated(self, truncated: Iterable[str]) -> bool:
        """Tell whether the row was in its source's table before one of some TRUNCATEs."""
        has_order = bool(SourcePosition.of(self.source_sequence).order)
        return has_order and any(is_before_truncate(self.source_sequence, position) for position in truncated)


class StaleKeys:
    """Follows the stale keys of a topic, up to a limit of keys; what was read once is not read again."""

    def __init__(self, log: TopicLog, *, max_keys: int = MAX_KEYS) -> None:
        """Follow at most `max_keys` keys."""
        self._log, self._max_keys = log, max_keys
        self._reset()

    def _reset(self) -> None:
        #: The newest dead letter of a key among those with a sequence (True), and among those without.
        self._letters: dict[bytes, dict[bool, StaleKey]] = {}
        self._letter_files, self._log_files = set[str](), set[str]()
        self._version, self._truncated = -1, tuple[str, ...]()

    def collect(self) -> tuple[StaleKey, ...]:
        """Return the keys that are stale now, the oldest first; none of a topic that is not compacted.

        Raises `CorruptLog` for a file that cannot be read, `OSError` for a storage that does not give it now.
        """
        if not self._log.config().compacted:
            return ()
        attempts = 0
        while True:
            try:
                self._follow()
                break
            except FileNotFoundError:
                self._reset()
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise
        newest = (max(letters.values(), key=lambda letter: letter.refused_at) for letters in self._letters.values())
        return tuple(sorted(newest, key=lambda stale: (stale.refused_at, stale.key)))

    def count(self) -> int | None:
        """Return how many keys are stale; None if a file that tells it is damaged, which `verify` names."""
        try:
            return len(self.collect())
        except CorruptLog:
            return None

    def _follow(self) -> None:
        files = {file.path for file in current_files(open_dead_letters(self._log.paths.dead_letters, self._log.storage_options))}
        version = self._log.snapshot().version
        if self._letter_files - files or version < self._version:  # dead letters expired, or a RESTORE
            self._reset()
        if not files and not self._letters:
            return
        state = self._log.at()
        truncated = tuple(truncation.position for truncation in state.decisions.truncations.values())
        if (files, state.version, truncated) == (self._letter_files, self._version, self._truncated):
            return
        self._remove_truncated(truncated)
        fresh = set[bytes]()
        view = view_of(state, "read_committed")
        for path in sorted(files - self._letter_files):
            fresh |= self._read_letters(path, truncated)
            if len(self._letters) >= self._max_keys:  # those that are not stale any more make room for others
                self._remove_known(view, fresh)
                fresh.clear()
        self._remove_known(view, fresh)
        self._letter_files, self._version, self._truncated = files, state.version, truncated

    def _remove_truncated(self, truncated: tuple[str, ...]) -> None:
        """Remove the dead letters that came before a TRUNCATE of the source."""
        for key, letters in list(self._letters.items()):
            if True in letters and letters[True].is_truncated(truncated):
                del letters[True]
            if not letters:
                del self._letters[key]

    def _read_letters(self, path: str, truncated: tuple[str, ...]) -> set[bytes]:
        """Read one file of dead letters, keep the newest letter of each key, and return the keys that were added or updated."""
        fresh = set[bytes]()
        letters = read_letters(self._log.paths.dead_letters, self._log.storage_options, path).select(_LETTER_COLUMNS)
        for letter in letters.filter(pc.is_valid(letters.column("record_key"))).to_pylist():
            sequence = letter["source_sequence"] or ""
            stale = StaleKey(key=letter.pop("record_key"), **{**letter, "source_sequence": sequence})
            if stale.is_truncated(truncated):
                continue
            if stale.key not in self._letters and len(self._letters) >= self._max_keys:
                continue
            known = self._letters.setdefault(stale.key, {})
            has_order = bool(SourcePosition.of(sequence).order)
            newest = known.setdefault(has_order, stale)
            is_newer = is_after(sequence, newest.source_sequence)
            if is_newer or (not is_after(newest.source_sequence, sequence) and stale.refused_at > newest.refused_at):
                known[has_order] = stale
            fresh.add(stale.key)
        return fresh

    def _remove_known(self, view: View, fresh: set[bytes]) -> None:
        """Remove the dead letters than which the log has a newer record; files that were read before are read for fresh keys alone."""
        filesystem, read = filesystem_of(self._log.paths.log, self._log.storage_options), set[str]()
        for wanted in file_ranges(view, view.start, view.end):
            keys = fresh & self._letters.keys() if wanted.path in self._log_files else set(self._letters)
            if keys:
                self._remove_by_file(view, filesystem, wanted, keys)
            if wanted.last_offset < wanted.end:  # what lies behind the last stable offset is read again
                read.add(wanted.path)
        self._log_files = read

    def _remove_by_file(self, view: View, filesystem: Any, wanted: FileRange, keys: set[bytes]) -> None:
        given = pa.array(sorted(keys), pa.binary())
        for rows in range_batches(filesystem, [wanted], _RECORD_COLUMNS, aborted=view.aborted):
            for record in rows.filter(pc.is_in(rows.column("key"), value_set=given)).to_pylist():
                letters = self._letters.get(record["key"], {})
                left = {kind: letter for kind, letter in letters.items() if not letter.is_older_than(record)}
                if left:
                    self._letters[record["key"]] = left
                else:
                    self._letters.pop(record["key"], None)
