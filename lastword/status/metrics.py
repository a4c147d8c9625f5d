"""Metrics of a standing, in Prometheus' form; beside what the queries count themselves (streaming/metrics.py).

Names are `lastword_` and then Kafka's group and attribute where Kafka has one (SEMANTICS §12). The number of series is bounded: of more
partitions than `MOST_PARTITIONS` the ones furthest behind get series of their own, of open transactions and readers a hundred, and
`lastword_metrics_omitted` says how many were left out.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lastword.compaction.planning.planner import Obstacle
from lastword.streaming.metrics import COUNTED, REGISTRY, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lastword.status.standing import PartitionStanding, Standing, TopicStanding

#: Partitions with series of their own.
MOST_PARTITIONS: Final = 2000
_MOST_NAMED: Final = 100
_PARTITION: Final = ("topic", "partition")
_SECOND_MS: Final = 1000
_BARRED: Final = {Obstacle.NOT_COMPACTED.value, Obstacle.PAUSED.value, Obstacle.IN_PROGRESS.value, Obstacle.UNCLEANABLE.value}


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name=f"lastword_{name}", kind="gauge", labels=labels, help=text)


_STANDING: Final = (
    _gauge("info", ("version", "log_dir"), "1; which lastword serves which log.dir."),
    _gauge("ready", (), "1 when /readyz says so: every topic was looked at, every query runs, the log.dir can be read."),
    _gauge("log_dir_offline", (), "1 when the log.dir cannot be read."),
    _gauge("topics", (), "Topics of the log.dir."),
    _gauge("topics_loading", (), "Topics that were not looked at yet since the start."),
    _gauge("topic_unreadable", ("topic",), "1 when a topic could not be looked at; its other figures are of before."),
    _gauge("standing_time_secs", (), "When the figures of topics and partitions were taken, in Unix seconds."),
    _gauge("metrics_omitted", ("what",), "Partitions, open transactions and readers that have no series of their own."),
    _gauge("log_cleaner_dead_thread_count", (), "1 while a cleaner query has died and not been started again (Kafka: DeadThreadCount)."),
    _gauge("log_cleaner_max_compaction_delay_secs", (), "Longest delay over max.compaction.lag.ms (Kafka: max-compaction-delay-secs)."),
    _gauge("log_cleaner_manager_max_dirty_percent", (), "Highest dirty ratio of all candidates (Kafka: max-dirty-percent)."),
    _gauge(
        "log_cleaner_manager_time_since_last_run_ms",
        (),
        "Since the cleaner's newest tick (Kafka: time-since-last-run-ms); absent: none yet.",
    ),
    _gauge("log_cleaner_manager_uncleanable_partitions_count", (), "Partitions in quarantine (Kafka: uncleanable-partitions-count)."),
    _gauge("log_cleaner_manager_uncleanable_bytes", (), "Bytes of partitions in quarantine (Kafka: uncleanable-bytes)."),
    _gauge("log_start_offset", _PARTITION, "Log start offset."),
    _gauge("log_end_offset", _PARTITION, "Log end offset: the next offset."),
    _gauge("log_last_stable_offset", _PARTITION, "Last stable offset: read_committed readers stop below it."),
    _gauge("log_first_dirty_offset", _PARTITION, "Cleaner checkpoint: the first offset that no cleaning has looked at."),
    _gauge("log_first_uncleanable_offset", _PARTITION, "The first offset that may not be cleaned now."),
    _gauge("log_segments", _PARTITION, "Segments."),
    _gauge("log_size_bytes", _PARTITION, "Bytes on storage, compressed."),
    _gauge("log_records", _PARTITION, "Records, control rows included."),
    _gauge("log_cleanable_bytes", _PARTITION, "Bytes of the dirty section that may be cleaned now."),
    _gauge("log_dirty_percent", _PARTITION, "Cleanable bytes in percent of clean and cleanable ones."),
    _gauge("log_min_cleanable_dirty_percent", _PARTITION, "min.cleanable.dirty.ratio in percent."),
    _gauge("log_compaction_lag_secs", _PARTITION, "Age of the oldest record that no cleaning has looked at; 0 for none."),
    _gauge("log_compaction_delay_secs", _PARTITION, "How long max.compaction.lag.ms has been exceeded; 0: it is not."),
    _gauge("log_uncleanable", _PARTITION, "1 when the partition is in quarantine."),
    _gauge("log_future_timestamp_secs", _PARTITION, "How far the newest record time lies in the future; 0: it does not."),
    _gauge("log_last_cleaned_time_secs", _PARTITION, "When the newest cleaning of the partition was, in Unix seconds; absent: never."),
    _gauge("transactions_open", ("topic",), "Open transactions."),
    _gauge(
        "transaction_start_time_secs",
        ("topic", "partition", "producer_id", "transactional_id"),
        "When an open transaction began, in Unix seconds: one series for each partition that it holds back.",
    ),
    _gauge(
        "transaction_timeout_secs",
        ("topic", "partition", "producer_id", "transactional_id"),
        "After how long an open transaction is ended by the service.",
    ),
    _gauge("reader_lag", ("topic", "reader"), "Offsets that a registered reader is behind the log ends."),
    _gauge("reader_last_seen_time_secs", ("topic", "reader"), "When a registered reader was last seen, in Unix seconds."),
    _gauge("reader_expiration_time_secs", ("topic", "reader"), "When a registered reader expires and pins nothing, in Unix seconds."),
    _gauge("dead_letters", ("topic",), "Dead letters that are kept."),
    _gauge("query_active", ("topic", "query"), "1 while an append query runs."),
    _gauge("query_batch_id", ("topic", "query"), "Number of its newest micro-batch."),
    _gauge("query_input_rows_per_second", ("topic", "query"), "Rows per second that came in, in its newest micro-batch."),
    _gauge("query_processed_rows_per_second", ("topic", "query"), "Rows per second that it processed, in its newest micro-batch."),
    _gauge("query_batch_duration_secs", ("topic", "query"), "How long its newest micro-batch took."),
    _gauge("query_progress_time_secs", ("topic", "query"), "When its newest progress was, in Unix seconds; idle: each 10 s."),
)

#: Every metric of ours: what a standing shows and what the queries count.
METRICS: Final = (*_STANDING, *COUNTED)
_BY_NAME: Final = {one.name: one for one in _STANDING}


class StandingCollector(Collector):
    """Shows the standing that is known; a scrape reads no storage and runs no job."""

    def __init__(self, standing: Callable[[], Standing], ready: Callable[[], bool], now_ms: Callable[[], int]) -> None:
        """Ask `standing` and `ready` at each scrape."""
        self._standing = standing
        self._ready = ready
        self._now_ms = now_ms

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the families without samples, so that nothing else takes their names."""
        return [GaugeMetricFamily(one.name, one.help, labels=one.labels) for one in _STANDING]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Return every family with a sample."""
        families = _Families()
        standing = self._standing()
        _service(families, standing, ready=self._ready(), now_ms=self._now_ms())
        for topic in standing.topics:
            _topic(families, topic)
        chosen, omitted = _furthest_behind(standing)
        families.put("metrics_omitted", omitted, "partitions")
        for topic, partition in chosen:
            _partition(families, topic, partition)
        _transactions(families, standing)
        _readers(families, standing)
        yield from families.found.values()


class _Families:
    def __init__(self) -> None:
        self.found: dict[str, GaugeMetricFamily] = {}

    def put(self, name: str, value: float, *labels: str) -> None:
        metric = _BY_NAME[f"lastword_{name}"]
        if metric.name not in self.found:
            self.found[metric.name] = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        self.found[metric.name].add_metric(labels, value)


def registry_of(standing: Callable[[], Standing], ready: Callable[[], bool], now_ms: Callable[[], int]) -> CollectorRegistry:
    """Return everything that /metrics shows: the standing, what the queries count, and the process."""
    registry = CollectorRegistry()
    registry.register(StandingCollector(standing, ready, now_ms))
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
    put("info", 1, version("lastword"), standing.log_dir)
    put("ready", ready)
    put("log_dir_offline", standing.offline is not None)
    put("topics", len(standing.topics) + len(standing.loading))
    put("topics_loading", len(standing.loading))
    put("standing_time_secs", standing.taken_ms / _SECOND_MS)
    put("log_cleaner_dead_thread_count", standing.cleaner_dead)
    put("log_cleaner_max_compaction_delay_secs", standing.max_compaction_delay_ms // _SECOND_MS)
    ratios = [one.report.ratio for one in standing.partitions if one.report.obstacle not in _BARRED]
    put("log_cleaner_manager_max_dirty_percent", int(100 * max(ratios, default=0.0)))
    if standing.cleaner_ran_ms is not None:
        put("log_cleaner_manager_time_since_last_run_ms", max(0, now_ms - standing.cleaner_ran_ms))
    uncleanable = [one for topic in standing.topics for one in topic.uncleanable]
    put("log_cleaner_manager_uncleanable_partitions_count", len(uncleanable))
    put("log_cleaner_manager_uncleanable_bytes", sum(one.size_bytes for one in uncleanable))
    for query in standing.queries:
        put("query_active", query.active, query.topic, query.name)
        put("query_batch_id", query.batch_id, query.topic, query.name)
        put("query_input_rows_per_second", query.input_rows_per_second, query.topic, query.name)
        put("query_processed_rows_per_second", query.processed_rows_per_second, query.topic, query.name)
        put("query_batch_duration_secs", query.batch_duration_ms / _SECOND_MS, query.topic, query.name)
        if query.progressed_ms is not None:
            put("query_progress_time_secs", query.progressed_ms / _SECOND_MS, query.topic, query.name)


def _topic(families: _Families, topic: TopicStanding) -> None:
    families.put("topic_unreadable", topic.error is not None, topic.name)
    families.put("transactions_open", len(topic.transactions), topic.name)
    if topic.dead_letters is not None:
        families.put("dead_letters", topic.dead_letters.count, topic.name)


def _furthest_behind(standing: Standing) -> tuple[list[tuple[TopicStanding, PartitionStanding]], int]:
    """Return the partitions that get series, all of them where they are few enough, and how many get none."""
    every = [(topic, one) for topic in standing.topics for one in topic.partitions]
    if len(every) <= MOST_PARTITIONS:
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
    return every[:MOST_PARTITIONS], len(every) - MOST_PARTITIONS


def _partition(families: _Families, topic: TopicStanding, one: PartitionStanding) -> None:
    report, place = one.report, (topic.name, str(one.partition))
    figures = {
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "log_last_stable_offset": report.last_stable_offset,
        "log_first_dirty_offset": report.first_dirty_offset,
        "log_first_uncleanable_offset": report.first_uncleanable_offset,
        "log_segments": len(one.segments),
        "log_size_bytes": one.size_bytes,
        "log_records": one.record_count,
        "log_cleanable_bytes": report.cleanable_bytes,
        "log_dirty_percent": 100 * report.ratio,
        "log_min_cleanable_dirty_percent": 100 * report.threshold,
        "log_compaction_lag_secs": one.compaction_lag_ms / _SECOND_MS,
        "log_compaction_delay_secs": report.overdue_ms / _SECOND_MS,
        "log_uncleanable": report.uncleanable_reason is not None,
        "log_future_timestamp_secs": one.future_ms / _SECOND_MS,
    }
    for name, value in figures.items():
        families.put(name, value, *place)
    if one.last_cleaning is not None:
        families.put("log_last_cleaned_time_secs", one.last_cleaning.now_ms / _SECOND_MS, *place)


def _transactions(families: _Families, standing: Standing) -> None:
    every = sorted(
        ((topic.name, one) for topic in standing.topics for one in topic.transactions), key=lambda pair: (pair[1].since_ms, pair[0])
    )
    for topic, one in every[:_MOST_NAMED]:
        for partition in sorted(one.first_offsets)[:_MOST_NAMED]:
            labels = (topic, str(partition), str(one.producer_id), one.transactional_id or "")
            families.put("transaction_start_time_secs", one.since_ms / _SECOND_MS, *labels)
            families.put("transaction_timeout_secs", one.timeout_ms / _SECOND_MS, *labels)
    families.put("metrics_omitted", max(0, len(every) - _MOST_NAMED), "transactions")


def _readers(families: _Families, standing: Standing) -> None:
    by_topic = {topic.name: sorted(topic.readers, key=lambda one: -one.lag) for topic in standing.topics}
    for topic, readers in by_topic.items():
        for one in readers[:_MOST_NAMED]:
            families.put("reader_lag", one.lag, topic, one.name)
            families.put("reader_last_seen_time_secs", one.seen_ms / _SECOND_MS, topic, one.name)
            families.put("reader_expiration_time_secs", one.expires_ms / _SECOND_MS, topic, one.name)
    families.put("metrics_omitted", sum(max(0, len(readers) - _MOST_NAMED) for readers in by_topic.values()), "readers")
