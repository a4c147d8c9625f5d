"""The plan of an append, and what was written by it: picklable values, so that the same functions write here and in Spark's tasks."""

from __future__ import annotations

from collections import ChainMap, Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from lastword.compaction.order.source_epochs import NewSnapshot, SourceEpochs, merge_snapshots
from lastword.compaction.order.source_positions import last_truncates
from lastword.compaction.order.source_states import SourceCounts, sum_counts
from lastword.compaction.producers import Verdict
from lastword.compaction.rows.validation import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lastword.compaction.log.segments import ActiveSegment
    from lastword.compaction.producers import ProducerStamp, ProducerState
    from lastword.compaction.rows.input_columns import EventPolicy
    from lastword.compaction.rows.numbering import Compression, SegmentLimits
    from lastword.compaction.rows.sequence_bounds import SequenceBounds
    from lastword.compaction.rows.validation import InputRules
    from lastword.storage.append.dead_letters import LetterOrigin
    from lastword.storage.append.key_lookup import KeyLookup
    from lastword.storage.files.data_files import DataFile, RowGroupLimits
    from lastword.storage.files.row_files import RowFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """One producer for all rows of an append: where its sequences and its transaction stand in every partition."""

    stamp: ProducerStamp
    next_sequences: Sequence[int]
    first_offsets: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPlan:
    """What the writing of one append needs to know, from one snapshot of the log.

    `letters` says whose dead letters refused rows become; without it they are an error. Rows that are in the log already are no dead
    letters: those of a producer, and, if `is_mirror`, those below the log end.
    """

    location: str
    storage_options: Mapping[str, str]
    codec: str
    rules: InputRules
    actives: Sequence[ActiveSegment]
    limits: SegmentLimits
    compression: Compression
    row_groups: RowGroupLimits
    states: Sequence[ProducerState] = ()
    stamped: Stamped | None = None
    is_mirror: bool = False
    letters: LetterOrigin | None = None
    #: By partition, for rows with source sequences.
    sequences: Sequence[SequenceBounds] = ()
    lookups: Sequence[KeyLookup] = ()
    #: The snapshots of sources that the log has seen.
    epochs: SourceEpochs = field(default_factory=SourceEpochs)
    #: Where the snapshots begin, by scope and Kafka's partition, that replace what they lack once they are complete.
    open_snapshots: Mapping[tuple[str, str], str] = field(default_factory=dict)
    #: For change events.
    policy: EventPolicy | None = None

    @property
    def duplicate_reasons(self) -> frozenset[str]:
        """The reasons of rows that are in the log already."""
        of_mirror = [Reason.BELOW_LOG_END.value] if self.is_mirror else []
        return frozenset({Verdict.DUPLICATE.value, Reason.KNOWN_EVENT.value, *of_mirror})


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was written and is in no commit yet: data files, dead letters, and what was refused, by reason with an example."""

    files: tuple[DataFile, ...] = ()
    letters: tuple[RowFile, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    #: How many bytes the rows take in memory, if Spark's tasks wrote them; else 0.
    row_bytes: int = 0
    duplicates: int = 0
    late: int = 0
    #: What the rows have of each source, by scope.
    sources: Mapping[str, SourceCounts] = field(default_factory=dict)
    #: Events that were no rows, by what they were.
    skipped: Mapping[str, int] = field(default_factory=dict)
    #: The positions of TRUNCATEs that were among the events, the highest of each table.
    truncated: tuple[str, ...] = ()
    #: Snapshots of sources that the log has not seen.
    snapshots: tuple[NewSnapshot, ...] = ()
    #: The places of `AppendPlan.open_snapshots` that have a change behind their snapshot.
    complete_snapshots: frozenset[tuple[str, str]] = frozenset()
    #: The last offset of each partition of the source that is among the events.
    source_offsets: Mapping[int, int] = field(default_factory=dict)
    #: The columns that the newest schema of the events names, as DDL, after the source sequence of its event.
    columns: tuple[str, str] | None = None

    @staticmethod
    def together(parts: Iterable[Written]) -> Written:
        """Return what several tasks wrote as one."""
        listed = list(parts)

        def chain_of(name: str) -> Iterator[Any]:
            return chain.from_iterable(getattr(part, name) for part in listed)

        def sum_of(name: str) -> dict[str, int]:
            return dict(sum((Counter(getattr(part, name)) for part in listed), Counter()))

        return Written(
            files=tuple(chain_of("files")),
            letters=tuple(chain_of("letters")),
            refused=sum_of("refused"),
            examples=dict(ChainMap(*(dict(part.examples) for part in listed))),
            row_bytes=sum(part.row_bytes for part in listed),
            duplicates=sum(part.duplicates for part in listed),
            late=sum(part.late for part in listed),
            sources=sum_counts(part.sources for part in listed),
            skipped=sum_of("skipped"),
            truncated=last_truncates(chain_of("truncated")),
            snapshots=merge_snapshots(chain_of("snapshots")),
            complete_snapshots=frozenset(chain_of("complete_snapshots")),
            source_offsets=_highest(part.source_offsets for part in listed),
            columns=max((part.columns for part in listed if part.columns is not None), default=None),
        )


def _highest(offsets: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the highest offset of each partition."""
    highest: dict[int, int] = {}
    for ends in offsets:
        for partition, offset in ends.items():
            highest[partition] = max(offset, highest.get(partition, -1))
    return highest
