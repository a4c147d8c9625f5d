"""Samples over a day: thinned, bounded, kept in a file that outlives the service; trends and charts made from them."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import astuple, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from lastword import LogDir
from lastword.compaction.config.keys import DAY_MS, HOUR_MS, MINUTE_MS
from lastword.status.charts import draw_removals, draw_sparkline, draw_trend
from lastword.status.samples import ALL_TOPICS, HistoryFile, HistoryLimits, Sample, SampleHistory, read_samples
from lastword.status.trends import GAP_MS, Trend, Unit, compute_trends, throughput
from lastword.status.watcher import Watcher
from lastword.storage.files.json_files import json_file
from tests.lastword.status.standings import NOW_MS, receipt
from tests.object_store import URI, running_store, storage_options_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lastword import ArrowTopic

_SVG = "{http://www.w3.org/2000/svg}"


def _sample(time_ms: int = NOW_MS, **fields: int) -> Sample:
    return Sample(time_ms=time_ms, **({"size_bytes": 1, "record_count": 1, "cleanable_bytes": 0} | fields))


def _filled(minutes: int, *, topics: Sequence[str] = ("fruit",), limits: HistoryLimits | None = None) -> SampleHistory:
    history = SampleHistory() if limits is None else SampleHistory(limits=limits)
    for name in topics:
        for minute in range(minutes):
            history.add(name, _sample(NOW_MS + minute * MINUTE_MS, end_offsets=minute))
    return history


def _file(folder: Path, *, host: str = "alpha", port: int = 9464, limits: HistoryLimits | None = None) -> HistoryFile:
    return HistoryFile(str(folder), {}, host=host, port=port, **({} if limits is None else {"limits": limits}))


def _loaded(file: HistoryFile, now_ms: int = NOW_MS) -> SampleHistory:
    history = SampleHistory()
    file.load(history, now_ms)
    return history


def test_a_minute_each_for_three_hours_and_ten_minutes_each_for_a_day() -> None:
    """The last sample of each ten minutes stays; what is older than a day goes; the number is bounded."""
    samples = _filled(2 * 24 * 60).of("fruit")
    newest = samples[-1].time_ms
    assert newest - samples[0].time_ms <= DAY_MS
    assert [one.time_ms for one in samples[-181:]] == [newest - minute * MINUTE_MS for minute in range(180, -1, -1)]
    old = [one.time_ms for one in samples if newest - one.time_ms > 3 * HOUR_MS]
    assert all(after - before == 10 * MINUTE_MS for before, after in pairwise(old[:-1]))
    assert 300 <= len(samples) <= 310


def test_a_sample_is_due_after_a_minute_and_a_topic_that_begins_anew_is_another_one() -> None:
    """The total of all topics may fall, because a topic was deleted."""
    history = _filled(5)
    assert (history.is_due("plums", NOW_MS), history.is_due("fruit", NOW_MS + 5 * MINUTE_MS - 1)) == (True, False)
    assert history.is_due("fruit", NOW_MS + 5 * MINUTE_MS)
    history.add("fruit", _sample(NOW_MS + 6 * MINUTE_MS, end_offsets=0))
    assert len(history.of("fruit")) == 1
    for offset in (9, 3):
        history.add(ALL_TOPICS, _sample(NOW_MS + offset, end_offsets=offset))
    assert len(history.of(ALL_TOPICS)) == 2
    history.keep([])
    assert (history.of("fruit"), len(history.of(ALL_TOPICS))) == ((), 2)


def test_the_file_outlives_the_service(tmp_path: Path) -> None:
    """What was saved is there again; samples of the future and of the day before yesterday are not."""
    history = _filled(30)
    _file(tmp_path).save(history, NOW_MS + 30 * MINUTE_MS)
    assert [path.name for path in (tmp_path / ".history").iterdir()] == ["alpha.9464.json"]
    assert _loaded(_file(tmp_path), NOW_MS + 30 * MINUTE_MS).of("fruit") == history.of("fruit")
    assert _loaded(_file(tmp_path), NOW_MS + 10 * MINUTE_MS).of("fruit") == history.of("fruit")[:11]
    assert _loaded(_file(tmp_path), NOW_MS + 2 * DAY_MS).of("fruit") == ()


def test_the_file_is_written_every_five_minutes_and_at_the_end(tmp_path: Path) -> None:
    """A clock that was set back is no reason to wait for it."""
    file, path = _file(tmp_path), tmp_path / ".history" / "alpha.9464.json"
    file.load(SampleHistory(), NOW_MS)
    for since_ms, at_once, is_written in ((5 * MINUTE_MS - 1, False, False), (5 * MINUTE_MS, False, True), (5 * MINUTE_MS, True, True)):
        path.unlink(missing_ok=True)
        file.save(_filled(1), NOW_MS + since_ms, at_once=at_once)
        assert path.exists() == is_written
    path.unlink()
    file.save(_filled(1), NOW_MS)
    assert path.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        json_file({"format": 1, "columns": [], "topics": {}}),
        json_file({"format": 2, "columns": list(Sample.__dataclass_fields__), "topics": {}}),
        json_file({"format": 1, "columns": list(Sample.__dataclass_fields__), "topics": {"fruit": [[1, 2]]}}),
        json_file({"format": 1, "columns": list(Sample.__dataclass_fields__), "topics": {"fruit": [["x"] * 12]}}),
        json_file({"format": 1, "columns": list(Sample.__dataclass_fields__), "topics": {"fruit": 7}}),
        b'{"crc32": 1, "body": {}}',
        b"[]",
        b'"text"',
        b"x" * 2_000,
    ],
)
def test_a_damaged_or_foreign_file_is_one_line_in_the_log(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """The history begins anew, and the next save replaces the file."""
    (tmp_path / ".history").mkdir()
    path = tmp_path / ".history" / "alpha.9464.json"
    path.write_bytes(content)
    file = _file(tmp_path, limits=HistoryLimits(max_file_bytes=1_000))
    assert _loaded(file).of("fruit") == ()
    ((_, level, line),) = caplog.record_tuples
    assert (level, "a history file of the status page does not count" in line) == (logging.WARNING, True)
    file.save(_filled(3), NOW_MS, at_once=True)
    assert len(_loaded(_file(tmp_path), NOW_MS + HOUR_MS).of("fruit")) == 3


def test_a_torn_file_does_not_count_wherever_it_was_torn(tmp_path: Path) -> None:
    """Each cut of what was written."""
    file = _file(tmp_path)
    file.save(_filled(2), NOW_MS, at_once=True)
    path = tmp_path / ".history" / "alpha.9464.json"
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert _loaded(_file(tmp_path), NOW_MS + HOUR_MS).of("fruit") == ()


def test_two_services_in_one_log_dir_leave_each_other_their_files(tmp_path: Path) -> None:
    """A service without a file of its own starts with the newest of the others, then writes its own."""
    first, second = _filled(3), _filled(7)
    _file(tmp_path).save(first, NOW_MS, at_once=True)
    beside = _file(tmp_path, port=9465)
    later = NOW_MS + HOUR_MS
    assert _loaded(beside, later).of("fruit") == first.of("fruit")
    beside.save(second, NOW_MS, at_once=True)
    assert _loaded(_file(tmp_path), later).of("fruit") == first.of("fruit")
    assert _loaded(_file(tmp_path, port=9465), later).of("fruit") == second.of("fruit")
    assert _file(tmp_path, host="../../etc/pass wd").name == "------etc-pass-wd.9464.json"


def test_a_service_that_starts_deletes_the_oldest_files_above_the_limit(tmp_path: Path) -> None:
    """Containers have another host name at each start; its own file always stays."""
    for number in range(5):
        _file(tmp_path, host=f"h{number}").save(_filled(1), NOW_MS, at_once=True)
        path = tmp_path / ".history" / f"h{number}.9464.json"
        path.touch()
        os.utime(path, (number, number))
    _loaded(_file(tmp_path, host="h0", limits=HistoryLimits(max_files=3)))
    assert sorted(path.name for path in (tmp_path / ".history").iterdir()) == [f"h{number}.9464.json" for number in (0, 3, 4)]


def test_the_size_of_the_file_is_bounded() -> None:
    """With many topics it has the newest samples of each; read back they are what they were."""
    body = _filled(50, topics=[f"t{number}" for number in range(20)], limits=HistoryLimits(max_saved=100)).body()
    assert {len(samples) for samples in body["topics"].values()} == {5}
    assert body["topics"]["t7"][-1] == astuple(_sample(NOW_MS + 49 * MINUTE_MS, end_offsets=49))
    many = _filled(2, topics=[f"t{number}" for number in range(200)], limits=HistoryLimits(max_saved=100)).body()
    assert sum(len(samples) for samples in many["topics"].values()) == 100
    assert read_samples(json.loads(json.dumps(body)))["t7"][0].end_offsets == 45


def test_what_the_storage_does_not_take_is_reported_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that cannot be made: the log.dir is gone, and is not made again."""
    file = _file(tmp_path / "gone")
    for minutes in (0, 5, 10):
        file.save(_filled(1), NOW_MS + minutes * MINUTE_MS, at_once=True)
    ((_, _, line),) = caplog.record_tuples
    assert "the history of the status page cannot be written" in line
    assert not (tmp_path / "gone").exists()
    (tmp_path / "gone").mkdir()
    file.save(_filled(1), NOW_MS, at_once=True)
    assert (tmp_path / "gone" / ".history" / "alpha.9464.json").exists()


@pytest.mark.long
def test_an_object_store_keeps_the_file_too(caplog: pytest.LogCaptureFixture) -> None:
    """Saved, loaded, replaced and deleted there; a store that is gone stops nothing."""
    with running_store() as endpoint:
        options = {**storage_options_of(endpoint), "max_retries": "0"}

        def file(host: str, **limits: int) -> HistoryFile:
            return HistoryFile(f"{URI}/data", options, host=host, port=9464, limits=HistoryLimits(**limits))

        assert _loaded(file("alpha")).of("fruit") == ()
        for minutes in (3, 5):
            file("alpha").save(_filled(minutes), NOW_MS, at_once=True)
            assert _loaded(file("alpha"), NOW_MS + HOUR_MS).of("fruit") == _filled(minutes).of("fruit")
        file("beta").save(_filled(1), NOW_MS, at_once=True)
        assert len(_loaded(file("alpha", max_files=1), NOW_MS + HOUR_MS).of("fruit")) == 5
        assert len(_loaded(file("beta"), NOW_MS + HOUR_MS).of("fruit")) == 5, "its file was the one above the limit"
        assert caplog.record_tuples == []
    gone = file("alpha")
    gone.save(_filled(1), NOW_MS, at_once=True)
    assert _loaded(gone).of("fruit") == ()
    assert [line.split('"')[1] for _, _, line in caplog.record_tuples] == [
        "the history of the status page cannot be written",
        "the history of the status page cannot be read, it begins anew",
    ]


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic with a record, in a log.dir."""
    made = LogDir(tmp_path / "data").create_topic("fruit", config={"cleanup.policy": "compact"})
    made.append([{"key": "a", "value": "1"}])
    return made


def _watcher(topic: ArrowTopic, folder: Path, clock: Any) -> Watcher:
    log_dir = LogDir(folder)
    watcher = Watcher(log_dir=log_dir.location, topics=lambda: [topic.log], cleaner=log_dir.cleaner, clock_ms=clock, append_counts=dict)
    watcher.keep_history(_file(folder))
    return watcher


def test_the_watcher_takes_samples_and_the_next_one_goes_on_with_them(topic: ArrowTopic, tmp_path: Path) -> None:
    """There are samples of each topic and of all together; cleaning times continue to add up after a restart."""
    now_ms = NOW_MS
    first = _watcher(topic, tmp_path / "data", lambda: now_ms)
    first.look()
    now_ms += MINUTE_MS
    topic.append([{"key": "a", "value": "2"}])
    first.look()
    first.stop()
    for name in ("fruit", ALL_TOPICS):
        assert [sample.end_offsets for sample in first.history(name)] == [1, 2]
    now_ms += MINUTE_MS
    second = _watcher(topic, tmp_path / "data", lambda: now_ms)
    assert second.history("fruit") == first.history("fruit")
    second.look()
    assert [sample.end_offsets for sample in second.history("fruit")] == [1, 2, 2]
    assert (second.log_of("fruit"), second.log_of("plums")) == (topic.log, None)


def test_late_rows_of_a_service_before_are_not_taken_from_those_of_this_one(topic: ArrowTopic, tmp_path: Path) -> None:
    """Its counts began anew: five late rows are five, although its predecessor had counted a hundred an hour ago."""
    before = SampleHistory()
    before.add("fruit", _sample(NOW_MS - 2 * HOUR_MS, late=100, appended=100))
    _file(tmp_path / "data").save(before, NOW_MS, at_once=True)
    watcher = _watcher(topic, tmp_path / "data", lambda: NOW_MS)
    watcher.append_counts = lambda: {"fruit": (7, 5)}
    counts = watcher.look().topics[0].appends
    assert (counts.recent_appended, counts.recent_late) == (7, 5)


def test_a_watcher_that_has_read_nothing_saves_nothing(topic: ArrowTopic, tmp_path: Path) -> None:
    """It would replace what is there by less."""
    _watcher(topic, tmp_path / "data", lambda: NOW_MS).stop()
    assert not (tmp_path / "data" / ".history").exists()


def _values(trend: Trend) -> list[list[float]]:
    return [[value for _, value in piece] for piece in trend.lines[0].pieces]


def test_rates_are_differences_and_a_gap_breaks_the_line() -> None:
    """A count that fell began again. Of a gap nothing is known."""
    times = [0, MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS, 3 * MINUTE_MS + GAP_MS + 1, 4 * MINUTE_MS + GAP_MS + 1]
    offsets = [0, 60, 180, 30, 1000, 1600]
    samples = [_sample(NOW_MS + time, end_offsets=offset) for time, offset in zip(times, offsets, strict=True)]
    assert _values(throughput(samples)) == [[1, 2, 0], [10]]
    joined = [*samples[:4], replace(samples[4], time_ms=NOW_MS + 3 * MINUTE_MS + GAP_MS)]
    assert len(_values(throughput(joined))) == 1
    levels = {trend.title: _values(trend) for trend in compute_trends([replace(one, dirty_percent=7) for one in samples])}
    assert levels["Dirty ratio of the worst partition"] == [[7, 7, 7, 7], [7, 7]]
    assert [trend.lines[0].pieces for trend in compute_trends([])] == [()] * 8


@pytest.mark.parametrize(
    ("unit", "value", "ceiling", "text"),
    [
        (Unit.COUNT, 0, 1, "1"),
        (Unit.COUNT, 1.2, 2, "2"),
        (Unit.PER_SECOND, 4_100, 5_000, "5,000 records/s"),
        (Unit.OFFSETS, 61_000, 100_000, "100 k offsets"),
        (Unit.OFFSETS, 2_400_000, 5_000_000, "5 M offsets"),
        (Unit.OFFSETS, 10_000, 10_000, "10 k offsets"),
        (Unit.PERCENT, 3, 100, "100 %"),
        (Unit.BYTES, 0, 1, "1 B"),
        (Unit.BYTES, 3 * 2**20, 5 * 2**20, "5 MiB"),
        (Unit.BYTES, 1023 * 2**20, 2000 * 2**20, "2 GiB"),
        (Unit.DURATION, 1_500, 2_000, "2 s"),
        (Unit.DURATION, 90 * MINUTE_MS, 2 * HOUR_MS, "2 h"),
        (Unit.DURATION, 3 * DAY_MS, 5 * DAY_MS, "5 d"),
        (Unit.SECONDS, 21, 50, "50 s"),
    ],
)
def test_the_top_of_an_axis_is_a_round_number(unit: Unit, value: float, ceiling: float, text: str) -> None:
    """At least the highest value, in the unit of the trend."""
    assert unit.ceiling(value) == ceiling
    assert unit.text(ceiling).replace("2.0 GiB", "2 GiB").replace("1.9 GiB", "2 GiB").replace("1.9", "2") == text


def _draw(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  our own


def test_a_chart_has_axes_with_units_and_says_in_words_what_it_shows() -> None:
    """Values on the left, times in UTC below; nothing lies outside of the drawing."""
    samples = [_sample(NOW_MS + minute * MINUTE_MS, end_offsets=minute * 6_000, size_bytes=minute * 2**20) for minute in range(121)]
    for trend in compute_trends(samples):
        picture = _draw(draw_trend(trend))
        assert picture.find(f"{_SVG}title").text == trend.summary  # type: ignore[union-attr]
        texts = [text.text for text in picture.iter(f"{_SVG}text")]
        assert texts[3:] in (["08:00", "09:00", "10:00 UTC"], ["08:01", "09:00", "10:00 UTC"]), trend.title
        for line in picture.iter(f"{_SVG}polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
            assert all(68 <= x <= 340 and 8 <= y <= 112 for x, y in points), trend.title
    assert throughput(samples).summary == "Throughput, records appended per second: now 100 records/s, highest 100 records/s"
    assert "not enough samples yet" in "".join(_draw(draw_trend(compute_trends([])[0])).itertext())
    assert len(list(_draw(draw_trend(compute_trends(samples[:1])[1])).iter(f"{_SVG}circle"))) == 1


def test_a_sparkline_has_a_few_dozen_points() -> None:
    """Many samples are thinned out; without samples it is a line at the bottom."""
    for minutes, most in ((0, 0), (2, 1), (50, 49), (300, 60)):
        samples = [_sample(NOW_MS + minute * MINUTE_MS, end_offsets=minute) for minute in range(minutes)]
        lines = list(_draw(draw_sparkline(throughput(samples))).iter(f"{_SVG}polyline"))
        assert sum(len(line.get("points", "").split()) for line in lines) <= most


def test_removed_records_are_bars_with_a_legend() -> None:
    """One for each cleaning that removed something, by reason."""
    picture = _draw(draw_removals([receipt(removed={"superseded": 30, "aborted": 10}), receipt(removed={"superseded": 40})]))
    assert [text.text for text in picture.iter(f"{_SVG}text")] == ["40 records", "superseded", "aborted"]
    assert len(list(picture.iter(f"{_SVG}rect"))) == 5
    assert "no records removed yet" in "".join(_draw(draw_removals([])).itertext())
