"""Metrics over made standings: every name that is documented is shown, labels are bounded, the alert rules parse and know their metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lastword.compaction.order.source_states import SourceCounts
from lastword.status.metrics import METRICS, SeriesLimits, registry_of
from lastword.status.standing import Backlog, QueryStanding, Standing, TableStanding
from lastword.streaming import metrics
from tests.lastword.status.standings import NOW_MS, partition, reader, receipt, source, standing, topic, transaction


def scraped(of: Standing, *, limits: SeriesLimits | None = None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what /metrics shows of a standing: name and labels → value."""
    text = generate_latest(registry_of(lambda: of, lambda: True, lambda: NOW_MS + 5000, limits=limits or SeriesLimits())).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def full_standing() -> Standing:
    """Return a standing in which everything occurs."""
    return standing(
        topic(
            logs=[partition(stable=310), partition(partition=1)],
            uncleanable={1: "boom"},
            transactions=(transaction(NOW_MS - 60_000),),
            readers=(reader("cache", 120),),
            receipts=(receipt(),),
            dead_letters=[{"refused_at": None}],
            sources=(source(),),
        ),
        queries=(
            QueryStanding(
                name="files", topic="fruit", active=True, batch_id=4, progressed_ms=NOW_MS, backlog=Backlog(count=3, unit="files")
            ),
        ),
        tables=(TableStanding(topic="fruit", path="tables/fruit"),),
    )


def _count_everything() -> None:
    metrics.count_append("fruit", seconds=0.2, records=10, refused=1, late=0, duplicates=2)
    metrics.count_sources("fruit", {"mysql.shop": SourceCounts(rows=1)})
    metrics.count_round("fruit", [receipt()], seconds=2.0)
    for counter in (metrics.TENDING_FAILURES, metrics.HANGING_ENDED):
        counter.labels("fruit").inc()
    metrics.VACUUM_SECONDS.labels("fruit").observe(1)
    metrics.VACUUM_LAST_RUN.labels("fruit").set(1)
    metrics.RETAINED_SEGMENTS.labels("fruit", "retention.ms").inc()
    metrics.DEAD_CLEANERS.inc(0)


def test_every_documented_metric_is_shown_with_its_labels_and_no_other() -> None:
    """`METRICS` is what the reference, the dashboard and the alert rules are checked against."""
    _count_everything()
    text = generate_latest(registry_of(full_standing, lambda: True, lambda: NOW_MS)).decode()
    found = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
        if family.name.startswith("lastword_") and not family.name.endswith("_created")
    }
    documented = {one.name: one for one in METRICS}
    assert set(found) == set(documented)
    for name, family in found.items():
        assert family.type == documented[name].kind, name
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                assert set(sample.labels) - {"le"} == set(documented[name].labels), name
        assert documented[name].help.endswith("."), name
    metrics.forget_topic("fruit")
    assert b'topic="fruit"' not in generate_latest(metrics.REGISTRY)


def test_figures_are_those_of_kafkas_mbeans() -> None:
    """Percent as whole numbers, the maximum over candidates alone, quarantine by partitions and bytes."""
    found = scraped(full_standing())
    place = (("partition", "0"), ("topic", "fruit"))
    assert found["lastword_log_cleaner_manager_max_dirty_percent", ()] == 44, "40 of 90 MiB; not the one in quarantine"
    assert found["lastword_log_cleaner_manager_time_since_last_run_ms", ()] == 5000
    assert found["lastword_log_cleaner_manager_uncleanable_partitions_count", ()] == 1
    assert found["lastword_log_cleaner_manager_uncleanable_bytes", ()] == (30 + 20 + 40 + 10 + 5) * 2**20
    assert found["lastword_log_last_stable_offset", place] == 310
    assert found["lastword_log_first_dirty_offset", place] == 200
    assert found["lastword_log_compaction_lag_secs", place] == 7200
    held = (("partition", "0"), ("producer_id", "7"), ("topic", "fruit"), ("transactional_id", "loader"))
    assert found["lastword_transaction_start_time_secs", held] == NOW_MS / 1000 - 60
    assert found["lastword_reader_lag", (("reader", "cache"), ("topic", "fruit"))] == 330


def test_the_number_of_series_is_bounded() -> None:
    """The partitions furthest behind keep their series; how many were left out is said."""
    logs = [partition("0:1 10", partition=0), partition("0:1 10 | 20", partition=1), partition("0:9 | 10:1 20", partition=2)]
    shown_standing = standing(topic(logs=logs, transactions=tuple(transaction(n, producer_id=n) for n in range(150))))
    found = scraped(shown_standing, limits=SeriesLimits(max_partitions=2))
    shown = {dict(labels)["partition"] for name, labels in found if name == "lastword_log_end_offset"}
    assert shown == {"0", "2"}
    assert found["lastword_metrics_omitted", (("what", "partitions"),)] == 1
    assert found["lastword_metrics_omitted", (("what", "transactions"),)] == 50
    assert sum(name == "lastword_transaction_start_time_secs" for name, _ in found) == 100


@pytest.mark.parametrize(("limit", "omitted"), [(3, 0), (2, 1), (1, 2)])
def test_what_is_over_a_limit_is_counted_and_what_reaches_it_is_shown(limit: int, omitted: int) -> None:
    """Three partitions, three open transactions and three readers, each with the limit that is theirs."""
    logs = [partition("0:1 10", partition=number) for number in range(3)]
    open_ones = tuple(transaction(number, producer_id=number) for number in range(3))
    readers = tuple(reader(f"r{number}", number) for number in range(3))
    shown = standing(topic(logs=logs, transactions=open_ones, readers=readers))
    found = scraped(shown, limits=SeriesLimits(max_partitions=limit, max_named=limit))
    for what, series in (
        ("partitions", "lastword_log_end_offset"),
        ("transactions", "lastword_transaction_start_time_secs"),
        ("readers", "lastword_reader_lag"),
    ):
        assert found["lastword_metrics_omitted", (("what", what),)] == omitted, what
        assert sum(name == series for name, _ in found) == limit, what


def test_what_is_not_known_has_no_series() -> None:
    """Dead letters and stale keys of a table that is damaged, and the progress of a query that has made none: 0 would be a lie."""
    query = QueryStanding(name="files", topic="fruit", active=True)
    unknown = replace(topic(), dead_letters=None, stale_keys=None)
    names = {name for name, _ in scraped(standing(unknown, queries=(query, replace(query, name="more"))))}
    assert {"lastword_query_active", "lastword_topic_unreadable"} <= names
    assert not {"lastword_dead_letters", "lastword_stale_keys", "lastword_query_progress_time_secs"} & names
