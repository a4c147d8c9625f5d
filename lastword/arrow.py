"""Read a topic without a JVM: the last word on every key, the log, and where a reader stands, as Arrow tables or Polars frames.

```python
from lastword import arrow

arrow.latest("data/fruit-prices").to_pandas()                     # the same rows as Topic.latest() in Spark
arrow.scan_latest("data/fruit-prices").filter(...).collect()      # lazy: only the columns and files that the answer needs
words = arrow.bootstrap("data/fruit-prices")                      # and go on from words.offsets
```

`path` is a topic's folder `<log.dir>/<topic>`, as a path or URI; `storage_options` are those of delta-rs and Polars. Every function reads
one table version, the newest, and takes no lock. `isolation` is Kafka's isolation.level: `read_committed` shows nothing at or past the
last stable offset and nothing of an aborted transaction. Rules: docs/semantics.md#1.2, docs/semantics.md#A.2, docs/semantics.md#A.11,
docs/semantics.md#A.42. Importing this starts no JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa

from lastword.checkpoints.producer_cache import ProducerSnapshots
from lastword.compaction.errors import HistoryCleaned, UserError
from lastword.compaction.read_positions import Position, parse_offsets
from lastword.storage.files.paths import filesystem_of
from lastword.storage.files.schema import RECORD_COLUMNS
from lastword.storage.log.topic_log import TopicLog
from lastword.storage.reading import arrow_changes, arrow_frames, arrow_rows
from lastword.storage.reading.arrow_view import ArrowLog, ArrowView, arrow_view
from lastword.storage.reading.sql import latest_sql
from lastword.storage.reading.time_travel import vector_of, views_as_of
from lastword.storage.reading.view import LATEST_COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

__all__ = [
    "Bootstrap",
    "PartitionOffsets",
    "bootstrap",
    "changes",
    "latest",
    "latest_sql",
    "offsets",
    "record_batches",
    "records",
    "scan_latest",
    "scan_records",
]

#: "earliest", "latest", or the next offset of every partition.
Offsets: TypeAlias = str | Mapping[int, int] | Sequence[int] | Position
T = TypeVar("T")
_ATTEMPTS: Final = 5


class PartitionOffsets(NamedTuple):
    """Where a partition stands: records below `log_start` are gone, those from `last_stable` on are not decided, `log_end` comes next."""

    log_start: int
    last_stable: int
    log_end: int


class Bootstrap(NamedTuple):
    """The last words at one table version, and the position from which a reader goes on there, as `Topic.tail` takes it."""

    table: pa.Table
    position: Position

    @property
    def offsets(self) -> dict[int, int]:
        """For each partition the next offset to read."""
        return self.position.vector()

    @property
    def table_version(self) -> int:
        """The version of the log that the words are of."""
        return self.position.table_version


def latest(
    path: str | Path,
    *,
    isolation: str = "read_committed",
    as_of: object | None = None,
    partitions: Iterable[int] | None = None,
    keys: Iterable[str | bytes] | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> pa.Table:
    """Return the last record of every (partition, key) that is not a tombstone, by partition and offset.

    Columns: partition int32, key binary, value binary, headers list<struct<key string, value binary>>, timestamp timestamp[us, UTC], offset
    int64; or the `columns` of the log that are named. Only of some `partitions` or `keys` (strings are UTF-8) when they are given. Keyless
    records have no last word. `as_of` asks the past as in `Topic.latest`: a table version, a moment, or an offset vector. Raises
    `UnknownTopic` when there is none at `path`, `UserError` for a value that is not allowed; with `as_of` also `HistoryCleaned` and
    `OffsetOutOfRange`.
    """
    wanted = _keys(keys)
    if as_of is not None:
        log = _topic_log(path, storage_options)
        views = [arrow_view(log, view) for view in views_as_of(log, as_of, isolation)]
        named = columns or LATEST_COLUMNS
        given = _partitions(views[0], partitions)
        chosen = range(views[0].partitions) if given is None else sorted(set(given))

        def words() -> pa.Table:
            found = [arrow_frames.latest(view, named, partitions=[partition], keys=wanted) for partition in chosen for view in views]
            return pa.concat_tables(found) if found else arrow_frames.latest(views[0], named, partitions=[], keys=wanted)

        return _of_the_past(log, words)

    def read(view: ArrowView) -> pa.Table:
        return arrow_frames.latest(view, columns or LATEST_COLUMNS, partitions=_partitions(view, partitions), keys=wanted)

    return _reading(path, isolation, storage_options, read)


def changes(
    path: str | Path,
    begin: Offsets,
    end: Offsets,
    *,
    net: bool = False,
    isolation: str = "read_committed",
    storage_options: Mapping[str, str] | None = None,
) -> pa.Table:
    """Return what changed from one offset vector to another (exclusive), with the values from before, by partition and offset.

    Columns: those of `latest`, and change_type string: insert, update_before, update_after or delete; a delete carries the value from
    before. Each record makes a change at its offset; with `net` a key changes once at most. Raises `HistoryCleaned` when cleaning has
    removed what the answer needs, `OffsetOutOfRange` for a vector that goes back or is not reached yet.
    """
    log = _topic_log(path, storage_options)
    told = arrow_changes.net_changes if net else arrow_changes.changes
    vectors = vector_of(log, begin, "begin"), vector_of(log, end, "end")
    return _of_the_past(log, lambda: told(log, *vectors, isolation=isolation))


def scan_latest(
    path: str | Path,
    *,
    isolation: str = "read_committed",
    partitions: Iterable[int] | None = None,
    keys: Iterable[str | bytes] | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> pl.LazyFrame:
    """Return the rows of `latest` as a lazy frame: columns and predicates are pushed down to the files. No order is promised.

    The files are those of the newest version now: collect it before VACUUM removes them (24 hours by default).
    """
    view = ArrowLog(path, storage_options).view(isolation)
    return arrow_frames.scan_latest(view, columns or LATEST_COLUMNS, partitions=_partitions(view, partitions), keys=_keys(keys))


def records(
    path: str | Path,
    *,
    isolation: str = "read_uncommitted",
    include_control: bool = False,
    partitions: Iterable[int] | None = None,
    from_offsets: Offsets | None = None,
    to_offsets: Offsets | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> pa.Table:
    """Return the rows of the log from `from_offsets` to `to_offsets` (exclusive), by partition and offset.

    Columns: those of `Topic.records`, or the `columns` that are named. Control rows (markers, and EMPTY rows that only hold a place) are
    shown on request. Offsets that cleaning took are missing without a word. Errors as `latest`.
    """

    def read(view: ArrowView) -> pa.Table:
        return arrow_rows.records(
            view,
            columns or RECORD_COLUMNS,
            control=include_control,
            begin=_vector(view, from_offsets, "from_offsets"),
            end=_vector(view, to_offsets, "to_offsets"),
            partitions=_partitions(view, partitions),
        )

    return _reading(path, isolation, storage_options, read)


def record_batches(
    path: str | Path,
    *,
    isolation: str = "read_uncommitted",
    include_control: bool = False,
    partitions: Iterable[int] | None = None,
    from_offsets: Offsets | None = None,
    to_offsets: Offsets | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `records` as record batches, in the same order; a file is opened when its rows are asked for.

    Arguments and errors as `records`, and `HistoryCleaned` when VACUUM removes a file of this table version before it is opened.
    """
    view = ArrowLog(path, storage_options).view(isolation)
    begin, end = (_vector(view, given, name) for given, name in ((from_offsets, "from_offsets"), (to_offsets, "to_offsets")))
    chosen = _partitions(view, partitions)
    try:
        yield from arrow_rows.record_batches(
            view, columns or RECORD_COLUMNS, control=include_control, begin=begin, end=end, partitions=chosen
        )
    except FileNotFoundError as error:
        message = f"topic {view.topic}: VACUUM removed files of table version {view.version} while it was read ({error}); read again"
        raise HistoryCleaned(message) from error


def scan_records(
    path: str | Path,
    *,
    isolation: str = "read_uncommitted",
    include_control: bool = False,
    partitions: Iterable[int] | None = None,
    from_offsets: Offsets | None = None,
    to_offsets: Offsets | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> pl.LazyFrame:
    """Return the rows of `records` as a lazy frame; as `scan_latest`."""
    view = ArrowLog(path, storage_options).view(isolation)
    return arrow_frames.scan_records(
        view,
        columns or RECORD_COLUMNS,
        control=include_control,
        begin=_vector(view, from_offsets, "from_offsets"),
        end=_vector(view, to_offsets, "to_offsets"),
        partitions=_partitions(view, partitions),
    )


def bootstrap(path: str | Path, *, isolation: str = "read_committed", storage_options: Mapping[str, str] | None = None) -> Bootstrap:
    """Return the last words at one table version, and the offsets from which a reader goes on exactly there.

    They are the last stable offsets (`read_committed`) or the log ends: give them to `startingOffsets` of `format("lastword")`, to
    `Topic.tail`, or to `from_offsets` of `records`.
    """

    def read(view: ArrowView) -> Bootstrap:
        return Bootstrap(table=arrow_frames.latest(view), position=view.position)

    return _reading(path, isolation, storage_options, read)


def offsets(path: str | Path, *, storage_options: Mapping[str, str] | None = None) -> dict[int, PartitionOffsets]:
    """Return for each partition its log start offset, last stable offset and log end offset."""

    def read(view: ArrowView) -> dict[int, PartitionOffsets]:
        return {one: PartitionOffsets(*found) for one, found in enumerate(zip(view.start, view.stable, view.log_end, strict=True))}

    return _reading(path, "read_committed", storage_options, read)


def _of_the_past(log: TopicLog, read: Callable[[], pa.Table]) -> pa.Table:
    try:
        return read()
    except FileNotFoundError as error:
        message = f"topic {log.name}: VACUUM removed files of an old table version while they were read ({error}); ask again"
        raise HistoryCleaned(message) from error


def _topic_log(path: str | Path, storage_options: Mapping[str, str] | None) -> TopicLog:
    """Return the log of the topic at `path`, for questions about the past; raises `UnknownTopic` when there is none."""
    opened = ArrowLog(path, storage_options)
    opened.table()
    folder = filesystem_of(opened.paths.root, opened.storage_options)
    log = TopicLog(
        opened.topic,
        opened.paths,
        defaults={},
        storage_options=opened.storage_options,
        producer_cache=ProducerSnapshots(folder, lambda: log.decisions().topic_id),
    )
    return log


def _reading(path: str | Path, isolation: str, storage_options: Mapping[str, str] | None, read: Callable[[ArrowView], T]) -> T:
    """Return what `read` makes of the newest view; of a newer one when VACUUM took a file of it meanwhile."""
    log = ArrowLog(path, storage_options)
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            return read(log.view(isolation))
        except FileNotFoundError as error:
            failure = error
    message = f"topic {log.topic}: files of the newest table version are not there; was the log's folder changed by hand? ({failure})"
    raise HistoryCleaned(message) from failure


def _partitions(view: ArrowView, given: Iterable[int] | None) -> list[int] | None:
    chosen = None if given is None else list(given)
    for one in chosen or ():
        if not 0 <= one < view.partitions:
            message = f"topic {view.topic} has no partition {one}: allowed is 0 to {view.partitions - 1}"
            raise UserError(message)
    return chosen


def _keys(given: Iterable[str | bytes] | None) -> list[bytes] | None:
    return None if given is None else [one.encode() if isinstance(one, str) else bytes(one) for one in given]


def _vector(view: ArrowView, given: Offsets | None, option: str) -> tuple[int, ...] | None:
    if given is None:
        return None
    named = given.vector() if isinstance(given, Position) else given
    return parse_offsets(named, option=option, partitions=view.partitions, earliest=view.start, latest=view.end)
