"""Prometheus metrics of a standing. The counters of the queries are in streaming/metrics.py.

Names are `lastword_`, followed by Kafka's group and attribute where Kafka has them (docs/semantics.md#12). The number of series is
bounded: at most 2000 partitions (those that are furthest behind), 100 open transactions and 100 readers per topic have series.
`lastword_metrics_omitted` counts those without series.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lastword.compaction.planning.planner import Obstacle
from lastword.storage.files.row_files import installed_version
from lastword.streaming.metrics import COUNTED, REGISTRY, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lastword.status.standing import PartitionStanding, Standing, TopicStanding


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesLimits:
    """Maximum number of what has series of its own."""

    max_partitions: int = 2000
    #: Open transactions, partitions of each of them, readers and sources of each topic.
    max_named: int = 100


_LIMITS: Final = SeriesLimits()
_PARTITION: Final = ("topic", "partition")
_TABLE: Final = ("topic", "table")
_SECOND_MS: Final = 1000
_BARRED: Final = {Obstacle.NOT_COMPACTED.value, Obstacle.PAUSED.value, Obstacle.IN_PROGRESS.value, Obstacle.UNCLEANABLE.value}


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name=f"lastword_{name}", kind="gauge", labels=labels, help=text)


_STANDING: Final = (
    _gauge("info", ("version", "log_dir"), "Always 1; the labels are the version of lastword and the log.dir that it serves."),
    _gauge("ready", (), "1 if /readyz reports ready: every topic was read, every query runs, and the log.dir can be read."),
    _gauge("log_dir_offline", (), "1 if the log.dir cannot be read."),
    _gauge("topics", (), "Number of topics in the log.dir."),
    _gauge("topics_loading", (), "Number of topics that have not been read since the start of the service."),
    _gauge("topic_unreadable", ("topic",), "1 if a topic cannot be read; its other metrics are then those of the last success."),
    _gauge("standing_time_secs", (), "Time at which the metrics of topics and partitions were collected, in Unix seconds."),
    _gauge("metrics_omitted", ("what",), "Number of partitions, open transactions or readers without series."),
    _gauge("log_cleaner_dead_thread_count", (), "1 from a failure of the cleaner query until its restart (Kafka: DeadThreadCount)."),
    _gauge(
        "log_cleaner_max_compaction_delay_secs",
        (),
        "Longest time by which a partition exceeds max.compaction.lag.ms (Kafka: max-compaction-delay-secs).",
    ),
    _gauge(
        "log_cleaner_manager_max_dirty_percent",
        (),
        "Highest dirty ratio of all candidates for cleaning, in percent (Kafka: max-dirty-percent).",
    ),
    _gauge(
        "log_cleaner_manager_time_since_last_run_ms",
        (),
        "Time since the newest tick of the cleaner (Kafka: time-since-last-run-ms); absent before the first tick.",
    ),
    _gauge(
        "log_cleaner_manager_uncleanable_partitions_count", (), "Number of uncleanable partitions (Kafka: uncleanable-partitions-count)."
    ),
    _gauge("log_cleaner_manager_uncleanable_bytes", (), "Bytes of uncleanable partitions (Kafka: uncleanable-bytes)."),
    _gauge("log_start_offset", _PARTITION, "Log start offset."),
    _gauge("log_end_offset", _PARTITION, "Log end offset: the offset of the next record."),
    _gauge("log_last_stable_offset", _PARTITION, "Last stable offset: read_committed readers stop there."),
    _gauge("log_first_dirty_offset", _PARTITION, "First dirty offset: the first offset that has not been cleaned."),
    _gauge("log_first_uncleanable_offset", _PARTITION, "First offset that cannot be cleaned now."),
    _gauge("log_segments", _PARTITION, "Number of segments."),
    _gauge("log_size_bytes", _PARTITION, "Size on storage (compressed) in bytes."),
    _gauge("log_records", _PARTITION, "Number of records, including control rows."),
    _gauge("log_cleanable_bytes", _PARTITION, "Bytes of the dirty section that can be cleaned now."),
    _gauge("log_dirty_percent", _PARTITION, "Dirty ratio in percent: cleanable bytes divided by clean and cleanable bytes."),
    _gauge("log_min_cleanable_dirty_percent", _PARTITION, "min.cleanable.dirty.ratio in percent."),
    _gauge("log_compaction_lag_secs", _PARTITION, "Age of the oldest record that has not been cleaned; 0 if there is none."),
    _gauge("log_compaction_delay_secs", _PARTITION, "Time by which max.compaction.lag.ms is exceeded; 0 if it is not exceeded."),
    _gauge("log_uncleanable", _PARTITION, "1 if the partition is uncleanable."),
    _gauge(
        "log_future_timestamp_secs", _PARTITION, "Distance of the newest record timestamp into the future; 0 if it is not in the future."
    ),
    _gauge(
        "log_last_cleaned_time_secs",
        _PARTITION,
        "Time of the newest cleaning of the partition, in Unix seconds; absent before the first cleaning.",
    ),
    _gauge("transactions_open", ("topic",), "Number of open transactions."),
    _gauge(
        "transaction_start_time_secs",
        ("topic", "partition", "producer_id", "transactional_id"),
        "Start of an open transaction, in Unix seconds: one series per partition that it holds back.",
    ),
    _gauge(
        "transaction_timeout_secs",
        ("topic", "partition", "producer_id", "transactional_id"),
        "Timeout after which the service ends an open transaction.",
    ),
    _gauge(
        "reader_lag", ("topic", "reader"), "Consumer lag of a registered reader: offsets up to the log end, summed over the partitions."
    ),
    _gauge("reader_last_seen_time_secs", ("topic", "reader"), "Time at which a registered reader was last seen, in Unix seconds."),
    _gauge(
        "reader_expiration_time_secs",
        ("topic", "reader"),
        "Time at which a registered reader expires, in Unix seconds; afterwards nothing is kept for it.",
    ),
    _gauge("dead_letters", ("topic",), "Number of stored dead letters."),
    _gauge("stale_keys", ("topic",), "Number of keys whose last record is older than a dead letter of theirs."),
    _gauge("source_epoch", ("topic", "source"), "Epoch of a source of change events: it counts failovers to lower positions, from 1 on."),
    _gauge("source_needs_epoch", ("topic", "source"), "1 if a source sends younger events at lower positions, which are left out as late."),
    _gauge("source_retired", ("topic", "source"), "1 if a source is retired: its events are left out."),
    _gauge("source_rows_not_in_snapshot", ("topic", "source"), "Rows of a source that its newest complete snapshot lacks."),
    _gauge("query_active", ("topic", "query"), "1 if the append query is running."),
    _gauge("query_failures", ("topic", "query"), "Failures in a row of an append query, which is restarted with backoff; 0 once it works."),
    _gauge("query_batch_id", ("topic", "query"), "Batch id of the newest micro-batch of an append query."),
    _gauge("query_input_rows_per_second", ("topic", "query"), "Input rows per second of the newest micro-batch of an append query."),
    _gauge(
        "query_processed_rows_per_second", ("topic", "query"), "Processed rows per second of the newest micro-batch of an append query."
    ),
    _gauge("query_batch_duration_secs", ("topic", "query"), "Duration of the newest micro-batch of an append query."),
    _gauge(
        "query_backlog",
        ("topic", "query", "unit"),
        "What waits in the source of an append query: offsets of Kafka (its consumer lag) or files; absent if it is not known.",
    ),
    _gauge(
        "query_progress_time_secs",
        ("topic", "query"),
        "Time of the newest progress of an append query, in Unix seconds; an idle query reports progress every 10 s.",
    ),
    _gauge("table_active", _TABLE, "1 if a typed table of the service takes its steps; 0 if it failed or is paused."),
    _gauge("table_paused", _TABLE, "1 if a typed table is paused."),
    _gauge("table_failures", _TABLE, "Failures in a row of a typed table, which is tried again with backoff; 0 once it works."),
    _gauge("table_lag", _TABLE, "Offsets that a typed table has not read, summed over the partitions."),
    _gauge("table_lag_secs", _TABLE, "Time since a typed table was in step with its topic; 0 if it is."),
    _gauge("table_step_duration_secs", _TABLE, "Duration of the newest look of a typed table at its topic, with all steps and upkeep."),
    _gauge("table_written_rows", _TABLE, "Rows that were written to a typed table since the start of the service."),
    _gauge("table_deleted_rows", _TABLE, "Rows that were deleted from a typed table since the start of the service."),
    _gauge("table_misfit_rows", _TABLE, "Records with a value that did not fit its column of a typed table: null there, or a dead letter."),
)

#: Every metric: the gauges of a standing and the counters of the queries.
METRICS: Final = (*_STANDING, *COUNTED)
_BY_NAME: Final = {gauge.name: gauge for gauge in _STANDING}


class StandingCollector(Collector):
    """Collects the metrics of the current standing; a scrape reads no storage and runs no job."""

    def __init__(
        self, standing: Callable[[], Standing], ready: Callable[[], bool], now_ms: Callable[[], int], *, limits: SeriesLimits = _LIMITS
    ) -> None:
        """Call `standing` and `ready` at each scrape."""
        self._limits = limits
        self._standing = standing
        self._ready = ready
        self._now_ms = now_ms

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the families without samples, so that their names are reserved."""
        return [GaugeMetricFamily(family.name, family.help, labels=family.labels) for family in _STANDING]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Return every family that has samples."""
        families = _Families()
        standing = self._standing()
        _service(families, standing, ready=self._ready(), now_ms=self._now_ms())
        _tables(families, standing)
        for topic in standing.topics:
            _topic(families, topic)
            _sources(families, topic, self._limits.max_named)
        chosen, omitted = _furthest_behind(standing, self._limits.max_partitions)
        families.put("metrics_omitted", omitted, "partitions")
        for topic, partition in chosen:
            _partition(families, topic, partition)
        _transactions(families, standing, self._limits.max_named)
        _readers(families, standing, self._limits.max_named)
        yield from families.found.values()


class _Families:
    def __init__(self) -> None:
        self.found: dict[str, GaugeMetricFamily] = {}

    def put(self, name: str, value: float, *labels: str) -> None:
        metric = _BY_NAME[f"lastword_{name}"]
        if metric.name not in self.found:
            self.found[metric.name] = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        self.found[metric.name].add_metric(labels, value)


def registry_of(
    standing: Callable[[], Standing], ready: Callable[[], bool], now_ms: Callable[[], int], *, limits: SeriesLimits = _LIMITS
) -> CollectorRegistry:
    """Return the registry of /metrics: the standing, the counters of the queries, and the process."""
    registry = CollectorRegistry()
    registry.register(StandingCollector(standing, ready, now_ms, limits=limits))
    registry.register(_Counted())
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class _Counted(Collector):
    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        return REGISTRY.collect()  # type: ignore[return-value]


def _service(families: _Families, standing: Standing, *, ready: bool, now_ms: int) -> None:
    put = families.put
    put("info", 1, installed_version() or "unknown", standing.log_dir)
    put("ready", ready)
    put("log_dir_offline", standing.offline is not None)
    put("topics", len(standing.topics) + len(standing.loading))
    put("topics_loading", len(standing.loading))
    put("standing_time_secs", standing.taken_ms / _SECOND_MS)
    put("log_cleaner_dead_thread_count", standing.cleaner_dead)
    put("log_cleaner_max_compaction_delay_secs", standing.max_compaction_delay_ms // _SECOND_MS)
    ratios = [partition.report.ratio for partition in standing.partitions if partition.report.obstacle not in _BARRED]
    put("log_cleaner_manager_max_dirty_percent", int(100 * max(ratios, default=0.0)))
    if standing.cleaner_ran_ms is not None:
        put("log_cleaner_manager_time_since_last_run_ms", max(0, now_ms - standing.cleaner_ran_ms))
    uncleanable = [partition for topic in standing.topics for partition in topic.uncleanable]
    put("log_cleaner_manager_uncleanable_partitions_count", len(uncleanable))
    put("log_cleaner_manager_uncleanable_bytes", sum(partition.size_bytes for partition in uncleanable))
    for query in standing.queries:
        put("query_active", query.active, query.topic, query.name)
        put("query_failures", query.failures, query.topic, query.name)
        put("query_batch_id", query.batch_id, query.topic, query.name)
        put("query_input_rows_per_second", query.input_rows_per_second, query.topic, query.name)
        put("query_processed_rows_per_second", query.processed_rows_per_second, query.topic, query.name)
        put("query_batch_duration_secs", query.batch_duration_ms / _SECOND_MS, query.topic, query.name)
        if query.backlog is not None:
            put("query_backlog", query.backlog.count, query.topic, query.name, query.backlog.unit)
        if query.progressed_ms is not None:
            put("query_progress_time_secs", query.progressed_ms / _SECOND_MS, query.topic, query.name)


def _tables(families: _Families, standing: Standing) -> None:
    for table in standing.tables:
        place = table.topic, table.path
        families.put("table_active", not table.message and not table.paused, *place)
        families.put("table_paused", table.paused, *place)
        families.put("table_failures", table.failures, *place)
        families.put("table_lag", table.lag_offsets, *place)
        families.put("table_lag_secs", table.lag_ms / _SECOND_MS, *place)
        families.put("table_step_duration_secs", table.step_ms / _SECOND_MS, *place)
        families.put("table_written_rows", table.written_rows, *place)
        families.put("table_deleted_rows", table.deleted_rows, *place)
        families.put("table_misfit_rows", table.misfit_rows, *place)


def _topic(families: _Families, topic: TopicStanding) -> None:
    families.put("topic_unreadable", topic.error is not None, topic.name)
    families.put("transactions_open", len(topic.transactions), topic.name)
    if topic.dead_letters is not None:
        families.put("dead_letters", topic.dead_letters.count, topic.name)
    if topic.stale_keys is not None:
        families.put("stale_keys", topic.stale_keys, topic.name)


def _sources(families: _Families, topic: TopicStanding, max_named: int) -> None:
    for source in topic.sources[:max_named]:
        families.put("source_epoch", source.epoch, topic.name, source.name)
        families.put("source_needs_epoch", bool(source.lower_positions), topic.name, source.name)
        families.put("source_retired", source.retired, topic.name, source.name)
        families.put("source_rows_not_in_snapshot", source.rows_not_in_snapshot, topic.name, source.name)


def _furthest_behind(standing: Standing, max_partitions: int) -> tuple[list[tuple[TopicStanding, PartitionStanding]], int]:
    """Return the partitions with series, those that are furthest behind first if there are too many, and the number without."""
    every = [(topic, partition) for topic in standing.topics for partition in topic.partitions]
    if len(every) <= max_partitions:
        return every, 0
    every.sort(
        key=lambda pair: (
            pair[1].report.uncleanable_reason is None,
            -pair[1].report.overdue_ms,
            -pair[1].report.ratio,
            -pair[1].compaction_lag_ms,
            pair[0].name,
            pair[1].partition,
        )
    )
    return every[:max_partitions], len(every) - max_partitions


def _partition(families: _Families, topic: TopicStanding, partition: PartitionStanding) -> None:
    report, place = partition.report, (topic.name, str(partition.partition))
    figures = {
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "log_last_stable_offset": report.last_stable_offset,
        "log_first_dirty_offset": report.first_dirty_offset,
        "log_first_uncleanable_offset": report.first_uncleanable_offset,
        "log_segments": len(partition.segments),
        "log_size_bytes": partition.size_bytes,
        "log_records": partition.record_count,
        "log_cleanable_bytes": report.cleanable_bytes,
        "log_dirty_percent": 100 * report.ratio,
        "log_min_cleanable_dirty_percent": 100 * report.threshold,
        "log_compaction_lag_secs": partition.compaction_lag_ms / _SECOND_MS,
        "log_compaction_delay_secs": report.overdue_ms / _SECOND_MS,
        "log_uncleanable": report.uncleanable_reason is not None,
        "log_future_timestamp_secs": partition.future_ms / _SECOND_MS,
    }
    for name, value in figures.items():
        families.put(name, value, *place)
    if partition.last_cleaning is not None:
        families.put("log_last_cleaned_time_secs", partition.last_cleaning.now_ms / _SECOND_MS, *place)


def _transactions(families: _Families, standing: Standing, max_named: int) -> None:
    every = sorted(
        ((topic.name, transaction) for topic in standing.topics for transaction in topic.transactions),
        key=lambda pair: (pair[1].since_ms, pair[0]),
    )
    for topic, transaction in every[:max_named]:
        for partition in sorted(transaction.first_offsets)[:max_named]:
            labels = (topic, str(partition), str(transaction.producer_id), transaction.transactional_id or "")
            families.put("transaction_start_time_secs", transaction.since_ms / _SECOND_MS, *labels)
            families.put("transaction_timeout_secs", transaction.timeout_ms / _SECOND_MS, *labels)
    families.put("metrics_omitted", max(0, len(every) - max_named), "transactions")


def _readers(families: _Families, standing: Standing, max_named: int) -> None:
    by_topic = {topic.name: sorted(topic.readers, key=lambda reader: -reader.lag) for topic in standing.topics}
    for topic, readers in by_topic.items():
        for reader in readers[:max_named]:
            families.put("reader_lag", reader.lag, topic, reader.name)
            families.put("reader_last_seen_time_secs", reader.seen_ms / _SECOND_MS, topic, reader.name)
            families.put("reader_expiration_time_secs", reader.expires_ms / _SECOND_MS, topic, reader.name)
    families.put("metrics_omitted", sum(max(0, len(readers) - max_named) for readers in by_topic.values()), "readers")
