"""Alert rules and dashboard: every query parses and knows its metrics; every alert fires on a made situation, and only then.

Situations are standings; what /metrics shows of them goes through Prometheus' own rule engine (`promtool test rules`), if it is there.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lastword.status.metrics import METRICS
from lastword.status.standing import QueryStanding, Standing, TableStanding
from lastword.streaming import metrics
from tests.lastword.status.standings import NOW_MS, partition, reader, receipt, source, standing, topic, transaction
from tests.lastword.status.test_metrics import scraped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CONF = Path(__file__).parents[3] / "conf"
_PROMTOOL = shutil.which("promtool") or ""
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
#: What the exporters of others, and Prometheus itself, name.
_OTHERS = {"up", "process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total"}
#: What Prometheus and a rule add to the labels of a metric.
_ADDED = {"__name__", "alertstate", "severity", "job", "instance"}
_KNOWN = {one.name: one for one in METRICS}


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((_CONF / "prometheus-alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _selectors(expression: Any) -> Iterator[Any]:
    """Return the vector selectors of a parsed query, wherever they stand."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs"):
        if (inner := getattr(expression, name, None)) is not None:
            yield from _selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from _selectors(inner)


def check_query(query: str) -> None:
    """Parse a query, and look up its metrics and labels."""
    found = list(_selectors(promql_parser.parse(query)))
    assert found or query.startswith("vector"), query
    for one in found:
        name = re.sub(r"_bucket$", "", one.name)
        assert name in _KNOWN or name in _OTHERS, f"{name} of {query} is no metric"
        if name in _KNOWN:
            labels = {matcher.name for matcher in one.matchers.matchers} - {"__name__", "job", "instance"}
            assert labels <= set(_KNOWN[name].labels), query


def test_every_alert_parses_knows_its_metrics_and_names_its_runbook() -> None:
    """And every runbook is there."""
    runbooks = (_CONF.parent / "docs" / "runbooks.md").read_text().lower()
    for rule in _rules():
        check_query(rule["expr"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert f"## {rule['alert']}".lower() in runbooks, rule["alert"]


def test_every_query_of_the_dashboard_parses_and_knows_its_metrics() -> None:
    """Panels have their own numbers and places; each has a query."""
    dashboard = json.loads((_CONF / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    shown = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert not cells & taken
        taken |= cells
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$topic", ".*")
            check_query(query)
            shown |= {one.name for one in _selectors(promql_parser.parse(query))}
        assert panel["type"] == "row" or panel["targets"]
    label_values = re.fullmatch(r"label_values\((\w+), topic\)", dashboard["templating"]["list"][1]["query"]["query"])
    assert label_values is not None
    assert label_values[1] in _KNOWN
    assert len(shown & set(_KNOWN)) > 30


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Read into the model that Grafana publishes and written again, nothing of it is lost or changed."""
    model = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="Python 3.11 or later")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder").JSONEncoder
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()  # queries and panels of each kind

    def lost() -> list[str]:
        return _lost(ours, json.loads(encoder().encode(model.Dashboard.from_json(ours))))

    ours = json.loads((_CONF / "grafana-dashboard.json").read_text())
    assert lost() == []
    at = next(number for number, panel in enumerate(ours["panels"]) if panel["type"] == "timeseries")
    panel = ours["panels"][at]
    for place in (panel, panel["targets"][0], panel["options"], panel["fieldConfig"]["defaults"]):
        place["colour"] = 1
    assert set(lost()) == {f".panels[{at}]{one}.colour" for one in ("", ".targets[0]", ".options", ".fieldConfig.defaults")}


def _lost(ours: object, theirs: object, at: str = "") -> list[str]:
    """Return the places where `theirs` says something else than `ours`, or nothing; what it adds are defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [place for key, value in ours.items() for place in _lost(value, theirs.get(key, ...), f"{at}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [place for number, pair in enumerate(zip(ours, theirs, strict=True)) for place in _lost(*pair, f"{at}[{number}]")]
    return [] if ours == theirs else [at]


def _calm() -> Standing:
    """A busy, healthy service: nothing of this is an alert."""
    return standing(
        topic(
            logs=[partition(settings={"min.cleanable.dirty.ratio": 0.9}), partition("0:1 | 10", partition=1)],
            transactions=(transaction(NOW_MS - _MINUTE_MS),),
            readers=(reader("cache", 120),),
            receipts=(receipt(),),
        ),
        queries=(QueryStanding(name="files", topic="fruit", active=True, progressed_ms=NOW_MS),),
    )


def _topic(**options: Any) -> Standing:
    return dataclasses.replace(_calm(), topics=(topic(**options),))


#: Alert → a standing in which it fires, and nothing else does.
_SITUATIONS: dict[str, Standing] = {
    "LastwordCompactionLagHigh": _topic(logs=[partition(settings={"min.cleanable.dirty.ratio": 0.3})]),
    "LastwordCompactionOverdue": _topic(logs=[partition(settings={"max.compaction.lag.ms": _HOUR_MS, "min.cleanable.dirty.ratio": 0.9})]),
    "LastwordCleanerDead": dataclasses.replace(_calm(), cleaner_dead=True, dead_cleaners=1),
    "LastwordCleanerNotRunning": dataclasses.replace(_calm(), cleaner_ran_ms=NOW_MS - _HOUR_MS),
    "LastwordPartitionUncleanable": _topic(
        logs=[partition(settings={"min.cleanable.dirty.ratio": 0.9})], uncleanable={0: "AnalysisException: boom"}
    ),
    "LastwordTransactionHanging": _topic(logs=[], transactions=(transaction(NOW_MS - 20 * _MINUTE_MS),)),
    "LastwordReaderBehind": _topic(logs=[], readers=(reader("cache", 120, seen_ms=NOW_MS - 31 * _MINUTE_MS),)),
    "LastwordSourceNeedsEpoch": _topic(logs=[], sources=(source(lower_positions="0007.1"),)),
    "LastwordTimestampsInTheFuture": _topic(logs=[partition(f"0:1@{NOW_MS + 5 * _HOUR_MS} 10")]),
    "LastwordQueryStalled": dataclasses.replace(
        _calm(), queries=(QueryStanding(name="files", topic="fruit", active=True, progressed_ms=NOW_MS - _HOUR_MS),)
    ),
    "LastwordTableStalled": dataclasses.replace(
        _calm(), tables=(TableStanding(topic="fruit", path="tables/fruit", lag_offsets=7, lag_ms=_HOUR_MS),)
    ),
    "LastwordLogDirOffline": dataclasses.replace(_calm(), offline="OSError: gone"),
}


def _series(of: Standing, *, ready: float = 1, extra: dict[str, str] | None = None) -> list[dict[str, str]]:
    """Return what /metrics shows of a standing as series that hold for an hour; times become relative to the clock of promtool."""
    samples: dict[str, str] = {'up{job="lastword",instance="a"}': "1x90", 'process_start_time_seconds{job="lastword",instance="a"}': "0x90"}
    for (name, labels), value in scraped(of).items():
        if name.startswith("lastword_") and not name.endswith("_created"):
            series, values = _promtool_series(name, labels, ready if name == "lastword_ready" else value, NOW_MS)
            samples[series] = values
    samples.update(extra or {})
    return [{"series": name, "values": values} for name, values in samples.items()]


def alerts_firing(scraped_text: str, *, at_ms: int, folder: Path) -> dict[str, list[dict[str, str]]] | None:
    """Return the alerts that fire when a service shows for an hour what it showed once; None without promtool.

    The labels are the metric's own; ages at the moment of the scrape stay what they were.
    """
    if not _PROMTOOL:
        return None
    series: dict[str, str] = {'up{job="lastword",instance="a"}': "1x90", 'process_start_time_seconds{job="lastword",instance="a"}': "0x90"}
    for family in text_string_to_metric_families(scraped_text):
        for sample in family.samples:
            if sample.name.startswith("lastword_") and not sample.name.endswith("_created"):
                name, values = _promtool_series(sample.name, tuple(sample.labels.items()), sample.value, at_ms)
                series[name] = values
    expected = [{"expr": 'ALERTS{alertstate="firing"}', "eval_time": "60m", "exp_samples": [{"labels": '{none="x"}', "value": 1}]}]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    done = _promtool(folder, [{"interval": "1m", "input_series": inputs, "promql_expr_test": expected}])
    got = re.search(r"got:(.*)", done.stdout + done.stderr)
    assert got is not None, done.stdout + done.stderr
    found: dict[str, list[dict[str, str]]] = {}
    for one in re.findall(r"\{([^}]*)\} 1E\+00", got[1]):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', one))
        found.setdefault(labels.pop("alertname"), []).append({key: value for key, value in labels.items() if key not in _ADDED})
    return found


def _promtool_series(name: str, labels: Iterable[tuple[str, str]], value: float, now_ms: int) -> tuple[str, str]:
    """Return a sample as a series that holds for an hour; its clock begins at 0, and what was a minute ago stays a minute ago."""
    moving = name.endswith("_time_secs")
    text = ",".join(f'{key}="{one}"' for key, one in (*labels, ("job", "lastword"), ("instance", "a")))
    return f"{name}{{{text}}}", f"{value - now_ms / 1000 if moving else value}{'+60' if moving else '+0'}x90"


def _promtool(folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Let Prometheus' rule engine run its unit tests over our rules."""
    shutil.copy(_CONF / "prometheus-alerts.yml", folder)
    document = {"rule_files": ["prometheus-alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    checked = subprocess.run(  # noqa: S603  found by its name
        [_PROMTOOL, "check", "rules", "prometheus-alerts.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return subprocess.run(  # noqa: S603
        [_PROMTOOL, "test", "rules", "tests.yml"], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.long
@pytest.mark.skipif(not _PROMTOOL, reason="promtool is not here: it comes with Prometheus (Debian: apt install prometheus)")
def test_every_alert_fires_on_a_made_situation_and_only_then(tmp_path: Path) -> None:
    """One run of Prometheus' rule engine over all situations: after an hour of each, exactly its alert fires."""
    metrics.MAX_BUFFER_UTILIZATION.set(50)
    job = '{topic="fruit",job="lastword",instance="a"}'
    situations = {name: _series(of) for name, of in _SITUATIONS.items()}
    situations["LastwordTargetDown"] = _series(_calm(), ready=0)
    situations["LastwordDeadLetters"] = _series(_calm(), extra={f"lastword_dead_letters{job}": "0+0x55 3+0x35"})
    situations["LastwordCleanerBufferFull"] = _series(
        _calm(), extra={'lastword_log_cleaner_max_buffer_utilization_percent{job="lastword",instance="a"}': "90x90"}
    )
    situations["calm"] = _series(_calm())
    down = {'up{job="lastword",instance="a"}': "0x90"}
    died = {'lastword_log_cleaner_deaths_total{job="lastword",instance="a"}': "0+1x90"}
    again = {
        "LastwordTargetDown": _series(_calm(), extra=down),
        "LastwordCleanerDead": _series(_calm(), extra=died),
        "LastwordCleanerNotRunning": _series(dataclasses.replace(_calm(), cleaner_ran_ms=None)),
    }
    names = {rule["alert"] for rule in _rules()}
    assert set(situations) - {"calm"} == names
    tests = [
        {
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "60m",
                    "exp_samples": [] if name == "calm" else [{"labels": f'{{alertname="{name}"}}', "value": 1}],
                }
            ],
        }
        for name, series in (*situations.items(), *again.items())
    ]
    done = _promtool(tmp_path, tests)
    assert done.returncode == 0, done.stdout + done.stderr
