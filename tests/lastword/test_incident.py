"""An incident played from its first sign to its end: a hanging transaction blocks cleaning, everything names it, an abort frees it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING

import pyarrow as pa
from typer.testing import CliRunner

from lastword import clock
from lastword.cli.app import app
from lastword.service.service import Service
from lastword.service.settings import Settings
from tests.clocks import at
from tests.lastword.status.test_alerts import alerts_firing
from tests.pictures import history, rows
from tests.scraped import samples
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_MINUTE_MS = 60_000


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  loopback
        text: str = answer.read().decode()
    return text


def _has_ticked(url: str) -> bool:
    """Tell whether the cleaner has run; until then the metric is missing, or that of an earlier service in this process."""
    found = samples(url, "lastword_log_cleaner_manager_time_since_last_run_ms")
    return bool(found) and found[0][1] < 10 * _MINUTE_MS


def test_a_hanging_transaction_is_named_everywhere_and_an_abort_clears_it(spark: SparkSession, tmp_path: Path) -> None:
    """Metric, alert, explain, page, live table and command line name producer, partition and since when; then all of them are clear."""
    location = str(tmp_path / "logs")
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "transaction.timeout.ms": "15min"}
    settings = {
        "log_dir": location,
        "broker": {"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": "1h"},
        "topics": {"prices": {"partitions": 2, "config": config}},
        "http": {"listen": "127.0.0.1:0"},
    }
    service = Service(Settings.model_validate(settings))
    service.watcher.interval_seconds = 0.2
    server = service.serve()
    assert server is not None
    running = threading.Thread(target=service.run)
    running.start()
    try:
        until(lambda: json.loads(_get(f"{server.url}/healthz"))["ok"], "the service does not live")
        topic = service.logs.topic("prices")
        begun_ms = clock.now_ms() - 12 * _MINUTE_MS
        hanging = at(begun_ms, topic).transaction("loader-7")
        at(begun_ms, hanging).append(rows("a=0 b=0", partition=1))
        for value in (1, 2):
            topic.append(pa.concat_tables([rows(f"a={value} b={value}", partition=1), rows(f"c={value}", partition=0)]))
        topic.roll()
        until(lambda: history(topic, 0) == ["1 c=2"], "partition 0 is cleaned all the same")
        assert len(history(topic, 1)) == 6, "partition 1 is not"
        producer = topic.open_transactions()[0].producer_id
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(begun_ms // 1000))

        def told() -> list[tuple[dict[str, str], float]]:
            return samples(server.url, "lastword_transaction_start_time_secs")

        until(lambda: bool(told()) and _has_ticked(server.url), "the metric does not come, or the first tick does not end")
        labels = {"topic": "prices", "partition": "1", "producer_id": str(producer), "transactional_id": "loader-7"}
        assert told() == [(labels, begun_ms / 1000)]
        fired = alerts_firing(_get(f"{server.url}/metrics"), at_ms=clock.now_ms(), folder=tmp_path)
        assert fired in ({"LastwordTransactionHanging": [labels]}, None), "None: no promtool here"

        assert topic.explain()[1].bound_detail.startswith(f"open transaction of producer {producer} (loader-7), begun {since}")
        page = _get(f"{server.url}/topics/prices")
        assert f"open transaction of producer {producer} (loader-7) since {since}" in page
        shown = CliRunner().invoke(app, ["top", "--json", "--url", server.url, "--log-dir", location]).output
        trouble = json.loads(shown)["troubles"][0]
        assert (trouble["topic"], trouble["partition"]) == ("prices", 1)
        assert f"producer {producer} (loader-7) since {since}" in trouble["text"]

        abort = [sys.executable, "-m", "lastword", "transactions", "abort", "prices", str(producer), "--log-dir", location]
        done = subprocess.run(abort, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr
        until(lambda: not told(), "the metric stays")
        topic.roll()
        until(lambda: [line.split(" @")[0] for line in history(topic, 1)][:2] == ["4 a=2", "5 b=2"], "it is cleaned now")
        until(lambda: "No issues" in _get(f"{server.url}/topics/prices"), "the page clears")
        assert alerts_firing(_get(f"{server.url}/metrics"), at_ms=clock.now_ms(), folder=tmp_path) in ({}, None)
        assert CliRunner().invoke(app, ["top", "--once", "--url", server.url, "--log-dir", location]).exit_code == 0
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)
        server.stop()
    assert not running.is_alive()
