"""Inputs and results of an append: rows, the micro-batch that they are, and what was appended by partition and by source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from lastword.compaction.display import Displayed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.order.source_epochs import NewSnapshot
    from lastword.compaction.order.source_states import SourceCounts
    from lastword.compaction.rows.input_columns import EventPolicy, InputColumn
    from lastword.storage.append.plan import AppendPlan, Written
    from lastword.storage.append.ranges import AppendedRange

#: The application ids of the partitions of a source of change events begin with this.
_SOURCE: Final = "lastword-source/"


class InputRows(Protocol):
    """The input of an append, wherever its rows are: an Arrow table (`ArrowRows`), or a DataFrame of Spark."""

    @property
    def columns(self) -> Mapping[str, InputColumn]:
        """The columns."""

    @property
    def policy(self) -> EventPolicy | None:
        """What is done with rows that are change events; None for others."""

    def write(self, plan: AppendPlan) -> Written:
        """Write the rows as files that are in no commit; called again with another plan when another append was first."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AppendResult(Displayed):
    """What one append did: the table version that shows it, and the offsets of every partition that it touched.

    `table_version` is None when nothing was committed: an empty input, or a micro-batch or an idempotency key that had been committed
    before (`replayed`).
    `refused` counts dead letters by reason, `duplicates` the rows that were in the log already: of a mirror, below the log end; of a
    producer, by their sequence. `late` counts the rows that were left out because the log has a record of their key with a higher
    `source_sequence`; `skipped` the events of an envelope that were no rows, by what they were. `sources` are the counts of each source
    of change events, by its name (`postgresql.shop`), and `notes` say what is new of them: each text comes once. `complete_snapshots` are
    the snapshots behind which the first change has come, by scope and Kafka's partition, where rows that they lack are deleted.
    """

    table_version: int | None
    ranges: Mapping[int, AppendedRange] = field(default_factory=dict)
    refused: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    late: int = 0
    sources: Mapping[str, SourceCounts] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    complete_snapshots: frozenset[tuple[str, str]] = frozenset()
    skipped: Mapping[str, int] = field(default_factory=dict)
    replayed: bool = False

    @property
    def record_count(self) -> int:
        """The number of records that were appended."""
        return sum(appended.record_count for appended in self.ranges.values())


@dataclass(frozen=True, slots=True)
class EventSource:
    """A source of change events that gives each a partition and an offset for ever: an id, and the number of partitions.

    Which events are in the log is known by their offsets, whatever becomes of the query's checkpoint.
    """

    source_id: str
    partitions: int

    def app_id(self, partition: int) -> str:
        """Return under which application id Delta keeps the last offset of a partition."""
        return f"{_SOURCE}{self.source_id}/{partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Whose rows these are: a streaming query's micro-batch, which may come again after a crash."""

    query_id: str
    query_name: str
    batch_id: int
    fail_on_invalid: bool = False
    source: EventSource | None = None


@dataclass(slots=True)
class AppendStats:
    """State that the appends of a streaming query, or of a `Topic` object, keep between them."""

    #: Whether one of them was tried: the first may be a replay of a micro-batch, of which an earlier process wrote dead letters.
    is_first: bool = True
    #: The micro-batch that the last attempt wrote dead letters of.
    put_aside: tuple[str, int] | None = None
    #: The snapshots of sources that begin in the rows which are tried now.
    begun: tuple[NewSnapshot, ...] = ()
    #: Whether Spark's tasks write the next DataFrame, without a try to collect it.
    is_large: bool = False
    #: How often in a row a DataFrame could not be collected that would have fitted, because the rows of one task were too many.
    skewed: int = 0
    #: How many DataFrames the tasks write before the next one is collected again.
    left_to_tasks: int = 0
