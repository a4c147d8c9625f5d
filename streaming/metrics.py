"""Counters and histograms of what the queries do, for Prometheus: counted where it happens, served from `REGISTRY`.

Names are `lastword_` and then Kafka's group and attribute where Kafka has one (`kafka.log:type=LogCleaner,name=max-clean-time-secs` is
`lastword_log_cleaner_max_clean_time_secs`). Labels are topics, reasons, names of queries and of at most 100 sources a topic, all of which
an operator chose or we did: never keys, values or messages. What belongs to a deleted topic goes with it (`forget_topic`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lastword.compaction.order.source_states import SourceCounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.receipt import CleaningReceipt

#: Every metric that this process counts itself.
REGISTRY: Final = CollectorRegistry()
_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: its name as Prometheus shows it, `gauge`, `counter` or `histogram`, its labels, and what it means, with its unit."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


#: The metrics below, for documentation and checks.
COUNTED: Final[list[Metric]] = []
_BY_TOPIC: Final[list[Counter | Gauge | Histogram]] = []
#: The most sources of a topic with a label of their own; all others share the label `OTHER_SOURCES`.
MAX_SOURCES: Final = 100
OTHER_SOURCES: Final = "(others)"
#: The names of the sources that are counted, by topic.
_SOURCES: Final[dict[str, set[str]]] = {}


def _counter(name: str, labels: tuple[str, ...], text: str) -> Counter:
    COUNTED.append(Metric(name=name, kind="counter", labels=labels, help=text))
    counter = Counter(name, text, labels, registry=REGISTRY)
    _by_topic(counter, labels)
    return counter


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Gauge:
    COUNTED.append(Metric(name=name, kind="gauge", labels=labels, help=text))
    gauge = Gauge(name, text, labels, registry=REGISTRY)
    _by_topic(gauge, labels)
    return gauge


def _histogram(name: str, labels: tuple[str, ...], text: str) -> Histogram:
    COUNTED.append(Metric(name=name, kind="histogram", labels=labels, help=text))
    histogram = Histogram(name, text, labels, buckets=_SECONDS, registry=REGISTRY)
    _by_topic(histogram, labels)
    return histogram


def _by_topic(metric: Counter | Gauge | Histogram, labels: tuple[str, ...]) -> None:
    if "topic" in labels:
        _BY_TOPIC.append(metric)


APPEND_SECONDS: Final = _histogram("lastword_append_seconds", ("topic",), "Duration of the append of a micro-batch, in seconds.")
APPENDED_RECORDS: Final = _counter("lastword_append_records_total", ("topic",), "Records appended by the queries of this service.")
DUPLICATES: Final = _counter(
    "lastword_append_duplicates_total", ("topic",), "Records that were dropped because the log already contains them."
)
LATE: Final = _counter(
    "lastword_append_late_total",
    ("topic",),
    "Events that were dropped because the log contains one of their key with a higher source_sequence.",
)
_OF_SOURCE: Final = ("topic", "source")
SOURCE_ROWS: Final = _counter("lastword_source_rows_total", _OF_SOURCE, "Rows that came from a source of change events.")
SOURCE_LATE: Final = _counter(
    "lastword_source_late_total", _OF_SOURCE, "Rows of a source that were dropped because the log contains a newer one of their key."
)
SOURCE_WITHOUT_POSITION: Final = _counter(
    "lastword_source_without_position_total", _OF_SOURCE, "Rows of a source that had no position of their own: the order of arrival counts."
)
SOURCE_LOWER_POSITIONS: Final = _counter(
    "lastword_source_lower_positions_total",
    _OF_SOURCE,
    "Late rows of a source that are more than a minute younger there than the record above them: it may have begun a new epoch.",
)
LOST_OFFSETS: Final = _counter(
    "lastword_append_lost_offsets_total", ("topic",), "Offsets that Kafka deleted before they were read (on.data.loss = go-on)."
)
DEAD_LETTERS: Final = _counter("lastword_dead_letters_total", ("topic",), "Rows that were rejected and written to the dead letters.")

CLEANINGS: Final = _counter("lastword_log_cleaner_cleanings_total", ("topic",), "Cleanings of partitions: one per receipt.")
CLEAN_SECONDS: Final = _histogram("lastword_log_cleaner_clean_seconds", ("topic",), "Duration of a cleaning round, in seconds.")
READ_BYTES: Final = _counter("lastword_log_cleaner_read_bytes_total", ("topic",), "Bytes read by cleanings, in both passes.")
WRITTEN_BYTES: Final = _counter("lastword_log_cleaner_written_bytes_total", ("topic",), "Bytes written by cleanings.")
REMOVED_RECORDS: Final = _counter(
    "lastword_removed_records_total",
    ("topic", "reason"),
    "Removed records. Reasons of cleaning: superseded, aborted, expired_tombstone, purged_tombstone, expired_marker, keyless. "
    "Reasons of retention: log start offset, retention.bytes, retention.ms.",
)
REMOVED_BYTES: Final = _counter(
    "lastword_removed_bytes_total", ("topic", "reason"), "Removed bytes, by cleaning (saved by the rewrite) or by the reason of retention."
)
RETAINED_SEGMENTS: Final = _counter("lastword_retention_segments_total", ("topic", "reason"), "Segments deleted by retention.")
MAX_CLEAN_TIME: Final = _gauge(
    "lastword_log_cleaner_max_clean_time_secs", (), "Duration of the newest round, in seconds (Kafka: max-clean-time-secs)."
)
MAX_BUFFER_UTILIZATION: Final = _gauge(
    "lastword_log_cleaner_max_buffer_utilization_percent",
    (),
    "Share of the dedupe buffer that the newest round used (Kafka: max-buffer-utilization-percent). From 90 on, ranges are cut.",
)
RECOPY: Final = _gauge(
    "lastword_log_cleaner_cleaner_recopy_percent",
    (),
    "Bytes written in percent of bytes read in the newest round (Kafka: cleaner-recopy-percent).",
)
LAST_RUN: Final = _gauge("lastword_log_cleaner_last_run_time_secs", (), "End of the newest tick of the cleaner, in Unix seconds.")
DEAD_CLEANERS: Final = _counter(
    "lastword_log_cleaner_deaths_total", (), "Failures of the cleaner query, after each of which it is restarted."
)
TENDING_FAILURES: Final = _counter("lastword_log_cleaner_failures_total", ("topic",), "Failures of the maintenance of a topic.")
HANGING_ENDED: Final = _counter(
    "lastword_transactions_timed_out_total", ("topic",), "Transactions that the service ended because they exceeded their timeout."
)
VACUUM_SECONDS: Final = _histogram("lastword_vacuum_seconds", ("topic",), "Duration of VACUUM, in seconds.")
VACUUM_LAST_RUN: Final = _gauge("lastword_vacuum_last_run_time_secs", ("topic",), "End of the newest VACUUM, in Unix seconds.")


def count_append(topic: str, *, seconds: float, records: int, refused: int, duplicates: int, late: int) -> None:
    """Count one micro-batch."""
    APPEND_SECONDS.labels(topic).observe(seconds)
    APPENDED_RECORDS.labels(topic).inc(records)
    DEAD_LETTERS.labels(topic).inc(refused)
    DUPLICATES.labels(topic).inc(duplicates)
    LATE.labels(topic).inc(late)


def count_sources(topic: str, sources: Mapping[str, SourceCounts]) -> None:
    """Count what one micro-batch brought of each source; of many sources the later ones are counted as one."""
    known = _SOURCES.setdefault(topic, set())
    for source, counts in sources.items():
        if source not in known and len(known) >= MAX_SOURCES:
            source = OTHER_SOURCES  # noqa: PLW2901  of all that follow
        known.add(source)
        SOURCE_ROWS.labels(topic, source).inc(counts.rows)
        SOURCE_LATE.labels(topic, source).inc(counts.late)
        SOURCE_WITHOUT_POSITION.labels(topic, source).inc(counts.without_position)
        SOURCE_LOWER_POSITIONS.labels(topic, source).inc(counts.lower_positions)


def source_counts() -> dict[str, dict[str, SourceCounts]]:
    """Return by topic and source what the queries of this process have counted."""
    values: dict[tuple[str, str], dict[str, int]] = {}
    for counter in (SOURCE_ROWS, SOURCE_LATE, SOURCE_WITHOUT_POSITION, SOURCE_LOWER_POSITIONS):
        for sample in (sample for family in counter.collect() for sample in family.samples if sample.name.endswith("_total")):
            values.setdefault((sample.labels["topic"], sample.labels["source"]), {})[sample.name] = int(sample.value)
    counts: dict[str, dict[str, SourceCounts]] = {}
    for (topic, source), counted in values.items():
        counts.setdefault(topic, {})[source] = SourceCounts(
            rows=counted["lastword_source_rows_total"],
            late=counted["lastword_source_late_total"],
            without_position=counted["lastword_source_without_position_total"],
            lower_positions=counted["lastword_source_lower_positions_total"],
        )
    return counts


def append_counts() -> dict[str, tuple[int, int]]:
    """Return by topic how many records the queries of this process have appended, and how many late ones they have left out."""
    appended, late = (
        {sample.labels["topic"]: int(sample.value) for family in counter.collect() for sample in family.samples if sample.name == name}
        for counter, name in ((APPENDED_RECORDS, "lastword_append_records_total"), (LATE, "lastword_append_late_total"))
    )
    return {topic: (count, late.get(topic, 0)) for topic, count in appended.items()}


def count_round(topic: str, receipts: list[CleaningReceipt], *, seconds: float) -> None:
    """Count one round of cleaning over one topic."""
    if not receipts:
        return
    CLEAN_SECONDS.labels(topic).observe(seconds)
    CLEANINGS.labels(topic).inc(len(receipts))
    for receipt in receipts:
        after = receipt.bytes_after or 0
        READ_BYTES.labels(topic).inc(receipt.read_bytes)
        WRITTEN_BYTES.labels(topic).inc(after)
        REMOVED_BYTES.labels(topic, "cleaning").inc(max(0, receipt.bytes_before - after))
        for reason, count in receipt.removed.items():
            REMOVED_RECORDS.labels(topic, reason).inc(count)
    MAX_CLEAN_TIME.set(seconds)
    MAX_BUFFER_UTILIZATION.set(int(100 * max(receipt.map_utilization for receipt in receipts)))
    RECOPY.set(int(100 * sum(receipt.bytes_after or 0 for receipt in receipts) / max(1, sum(receipt.read_bytes for receipt in receipts))))


def count_deletions(topic: str, deletions: Mapping[int, Deletion]) -> None:
    """Count what retention took away."""
    for deletion in deletions.values():
        for segment, breach in deletion.segments:
            RETAINED_SEGMENTS.labels(topic, breach.value).inc()
            REMOVED_RECORDS.labels(topic, breach.value).inc(segment.record_count)
            REMOVED_BYTES.labels(topic, breach.value).inc(segment.size_bytes)


def forget_topic(topic: str) -> None:
    """Drop what was counted for a topic that is gone, so that the number of series stays bounded."""
    _SOURCES.pop(topic, None)
    for metric in _BY_TOPIC:
        metric.remove_by_labels({"topic": topic})
