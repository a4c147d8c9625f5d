"""Which table version answers a question about the past, or why none does.

```
 asked: the last words as of offset 4                 offset   0   1   2   3   4   5
 version 7, as appended                                        a   b   a   c   b   a
 version 8, cleaned up to 3: checkpoint 3                          b   a   c   b   a      a=2, b=1, c=3: right
 version 9, cleaned up to 6: checkpoint 6                                  c   b   a      c=3 alone: wrong
```

A version is right for an offset vector while no partition was cleaned past it. Each partition is asked of the newest such version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from lastword.compaction.errors import HistoryCleaned, OffsetOutOfRange, UserError
from lastword.compaction.moments import instant, moment_ms
from lastword.compaction.read_positions import Position, newest_whole_version, parse_offsets
from lastword.storage.reading.view import view_of

if TYPE_CHECKING:
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View


def version_at(log: TopicLog, as_of: object) -> int:
    """Return the table version that `as_of` names: a version itself, or the newest at a moment (datetime, or ISO 8601 text).

    A datetime without a zone is UTC. Raises `HistoryCleaned` when the Delta log does not reach back so far, `UserError` when `as_of` is
    neither.
    """
    newest = log.snapshot().version
    if isinstance(as_of, int) and not isinstance(as_of, bool):
        if not 0 <= as_of <= newest:
            message = f"topic {log.name}: as_of = {as_of}: allowed are the table versions 0 to {newest}"
            raise UserError(message)
        return as_of
    moment = _moment_ms(log, as_of)
    commits = log.commit_times()
    versions = [version for version, time_ms in commits if time_ms <= moment]
    if not versions:
        oldest = min(time_ms for _, time_ms in commits)
        message = f"topic {log.name}: as_of = {as_of}: the history of the log begins at {instant(oldest)}"
        raise HistoryCleaned(message)
    return max(versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """A view of an old table version in which the records of some `partitions` below an offset vector are whole."""

    view: View
    partitions: tuple[int, ...]

    def below(self, vector: Sequence[int]) -> View:
        """Return the view of these partitions below a vector; of the others it shows nothing."""
        return replace(self.view, end=tuple(end if number in self.partitions else 0 for number, end in enumerate(vector)))


def witnesses(log: TopicLog, vector: Sequence[int], isolation: str, *, asked: str = "as_of") -> list[Witness]:
    """Return views that together hold every partition as it was below `vector`, each of the newest version that does.

    Raises `OffsetOutOfRange` for an offset that a reader of `isolation` cannot have reached yet, `HistoryCleaned` when records below it
    have been deleted, or cleaned away in every version whose files are still there. `asked` names the request in messages.
    """
    now = view_of(log.at(), isolation)
    decisions = now.state.decisions
    for partition, offset in enumerate(vector):
        if offset > now.end[partition]:
            what = "last stable offset" if isolation == "read_committed" else "log end offset"
            message = f"topic {log.name}, partition {partition}: {asked} offset {offset}; allowed is up to {now.end[partition]} ({what})"
            raise OffsetOutOfRange(message)
        if offset < now.start[partition]:
            message = (
                f"topic {log.name}, partition {partition}: {asked} offset {offset} was deleted; the log starts at {now.start[partition]}"
            )
            raise HistoryCleaned(message)
    by_version: dict[int, list[int]] = {}
    for partition, offset in enumerate(vector):
        cleanings = [(row.table_version or 0, row.offset or 0) for row in decisions.cleanings.get(partition, ()) if decisions.contains(row)]
        by_version.setdefault(newest_whole_version([offset], [cleanings], now.version), []).append(partition)
    views = []
    for version, mine in by_version.items():
        offsets = ", ".join(f"{partition}: {vector[partition]}" for partition in mine)
        view = now if version == now.version else _view_at(log, version, isolation, f"{asked} offsets {{{offsets}}}")
        views.append(Witness(view=view, partitions=tuple(mine)))
    return views


def check_range(log: TopicLog, begin: Sequence[int], end: Sequence[int]) -> None:
    """Raise `OffsetOutOfRange` for changes from an offset to an earlier one."""
    for partition, (first, last) in enumerate(zip(begin, end, strict=True)):
        if first > last:
            message = f"topic {log.name}, partition {partition}: changes from offset {first} to {last}; allowed is a later one, or the same"
            raise OffsetOutOfRange(message)


def change_witnesses(log: TopicLog, begin: Sequence[int], end: Sequence[int], isolation: str) -> list[Witness]:
    """Return `witnesses` of `begin` that hold every record up to `end`.

    Raises `OffsetOutOfRange` for a vector that goes back or is not reached yet, `HistoryCleaned` when cleaning has removed records between
    the two.
    """
    check_range(log, begin, end)
    views = witnesses(log, begin, isolation, asked="changes from")
    for witness in views:
        view = witness.view
        short = {number: end[number] for number in witness.partitions if end[number] > view.end[number]}
        if short:
            message = (
                f"topic {log.name}: changes to offsets {short}: they were appended after records from offset {begin[next(iter(short))]} on "
                f"had been cleaned (table version {view.version + 1}); ask for net changes, or begin later"
            )
            raise HistoryCleaned(message)
    return views


def views_as_of(log: TopicLog, as_of: object, isolation: str) -> list[View]:
    """Return views that together show what `as_of` names: a table version, a moment, an offset vector, or, by None, the newest version.

    Raises `HistoryCleaned`, `OffsetOutOfRange` and `UserError` as `version_at`, `view_at` and `witnesses` do.
    """
    if as_of is None:
        return [view_of(log.at(), isolation)]
    if not is_vector(as_of):
        return [view_at(log, version_at(log, as_of), isolation)]
    vector = vector_of(log, as_of, "as_of")
    return [witness.below(vector) for witness in witnesses(log, vector, isolation)]


def is_vector(as_of: object) -> bool:
    """Tell whether something names an offset for each partition."""
    return isinstance(as_of, (Mapping, Position)) or (isinstance(as_of, Sequence) and not isinstance(as_of, (str, bytes)))


def vector_of(log: TopicLog, given: object, option: str) -> tuple[int, ...]:
    """Return the offset vector that `given` names: a mapping, a sequence or a position; `UserError` naming `option` otherwise."""
    offsets = given.offsets if isinstance(given, Position) else given
    partitions = log.decisions().partitions
    nowhere = [0] * partitions
    return parse_offsets(offsets, option=option, partitions=partitions, earliest=nowhere, latest=nowhere, allow_latest=False)


def view_at(log: TopicLog, version: int, isolation: str) -> View:
    """Return the view of a table version; raise `HistoryCleaned` when VACUUM has taken files of it."""
    newest = log.at()
    if version == newest.version:
        return view_of(newest, isolation)
    return _view_at(log, version, isolation, f"as_of table version {version}")


def _view_at(log: TopicLog, version: int, isolation: str, asked: str) -> View:
    """Return the view of an old version if every file of it is there: Spark would answer a count from metadata without looking."""
    newest = set(log.snapshot().files.path.tolist())
    try:
        state = log.at(version)
    except Exception as error:
        message = f"topic {log.name}: {asked}: table version {version} cannot be read any more ({error})"
        raise HistoryCleaned(message) from error
    old = [path for path in state.files.path.tolist() if path not in newest]
    gone = log.missing_files(old)
    if gone:
        message = (
            f"topic {log.name}: {asked}: cleaning has passed that point, and VACUUM took {len(gone)} of the {len(old)} files of table "
            f"version {version} that held it"
        )
        raise HistoryCleaned(message)
    return view_of(state, isolation)


def _moment_ms(log: TopicLog, as_of: object) -> float:
    try:
        if isinstance(as_of, (str, datetime)):
            return moment_ms(as_of)
    except ValueError:
        pass
    message = (
        f"topic {log.name}: as_of = {as_of!r}: allowed is a table version, a datetime (or its ISO 8601 text), or an offset for each "
        "partition"
    )
    raise UserError(message)
