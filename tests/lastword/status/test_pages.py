"""The HTTP side over made standings: what a page says, that it escapes everything, that health tells the truth."""

from __future__ import annotations

import errno
from datetime import datetime, timezone
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from starlette.testclient import TestClient

from lastword import LogDir
from lastword.compaction.config.topic_config import describe_topic_config, parse_topic_config
from lastword.compaction.errors import UserError
from lastword.status.drawing import draw_topic
from lastword.status.server import StatusApp, StatusServer, display_text
from lastword.status.standing import AppendCounts, Backlog, QueryStanding, SectionKind, Standing, TableStanding, TopicStanding
from lastword.status.topic_settings import describe_settings
from lastword.status.troubles import troubles
from lastword.status.watcher import Watcher
from lastword.streaming import metrics
from tests.lastword.status.standings import NOW_MS, partition, reader, receipt, standing, topic, transaction
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.status.samples import Sample
    from lastword.storage.log.topic_log import TopicLog

_MINUTE_MS = 60_000
_SVG = "{http://www.w3.org/2000/svg}"
_HOSTILE = ["<script>alert(1)</script>", "\x1b[31mred\x00\x07", "\u202egnp.exe", "k" * 10_000, "\"'><img src=x onerror=alert(1)>"]


class _Fixed:
    """A watcher that looks at nothing: a request that read storage would have nowhere to read it from."""

    def __init__(self, of: Standing) -> None:
        self.standing = of

    def history(self, _topic: str) -> tuple[Sample, ...]:
        return ()


def client(of: Standing, *, now_ms: int = NOW_MS, heartbeat_ms: int = NOW_MS, host: str = "127.0.0.1") -> TestClient:
    """Return a client of the application over a standing."""
    watcher: Any = _Fixed(of)
    app = StatusApp(watcher=watcher, now_ms=lambda: now_ms, heartbeat_ms=lambda: heartbeat_ms)
    return TestClient(app.asgi(), base_url=f"http://{host}")


def test_a_partition_is_drawn_in_sections_to_scale_with_its_offsets() -> None:
    """Clean, cleanable, uncleanable (a transaction holds the rest back) and active; readers and the last stable offset beside them."""
    found = topic(logs=[partition(stable=310)], readers=(reader("cache", 120),))
    cut = [(one.kind.value, one.begin, one.end) for one in found.partitions[0].sections]
    assert cut == [("clean", 0, 200), ("cleanable", 200, 300), ("uncleanable", 300, 400), ("active", 400, 450)]
    picture = ET.fromstring(draw_topic(found))  # noqa: S314  our own
    bars = {
        one.get("class"): float(one.get("width", "0")) for one in picture.iter("{http://www.w3.org/2000/svg}rect") if one.get("y") == "16"
    }
    assert bars["clean"] == pytest.approx(2 * bars["cleanable"], rel=0.01)
    assert bars["active"] == pytest.approx(bars["cleanable"] / 2, rel=0.01)
    text = "".join(picture.itertext())
    assert "reader cache at 120" in text
    assert all(str(offset) in text for offset in (0, 200, 300, 400, 450))


def test_a_topic_without_compact_and_an_empty_one_have_no_clean_section() -> None:
    """What is not compacted is never dirty."""
    found = topic(logs=[partition(settings={"cleanup.policy": "delete"}), partition("0", partition=1)])
    kinds = [[one.kind for one in each.sections] for each in found.partitions]
    assert kinds == [[SectionKind.UNCLEANABLE, SectionKind.ACTIVE], []]
    assert [one.compaction_lag_ms for one in found.partitions] == [0, 0]
    assert "empty" in draw_topic(found)


def test_the_pages_say_what_holds_and_since_when() -> None:
    """Overview and topic: producer, partition, offset and moment of a transaction that holds back cleaning, by name."""
    held = topic(
        logs=[partition(stable=310)],
        transactions=(transaction(NOW_MS - 20 * _MINUTE_MS),),
        readers=(reader("cache", 120),),
        receipts=(receipt(),),
    )
    pages = client(standing(held, topic("pears", logs=[partition("0:1 10")])))
    for path in ("/", "/topics/fruit"):
        page = pages.get(path)
        assert page.status_code == 200
        assert "open transaction of producer 7 (loader) since 2027-01-15" in page.text, path
        assert "lastword transactions abort fruit 7" in page.text
        assert 'class="critical"' in page.text, "it has been open for longer than its timeout"
    assert "superseded 90, aborted 10" in pages.get("/topics/fruit").text
    assert "cache" in pages.get("/topics/fruit").text
    assert "No issues" in pages.get("/topics/pears").text
    assert [pages.get(f"/topics/plums{end}").status_code for end in ("", "/log.svg")] == [404, 404]
    assert pages.post("/").status_code == 405
    assert "default-src 'none'" in pages.get("/").headers["content-security-policy"]
    assert client(standing(), host="evil.example").get("/").status_code == 400, "another name that leads to loopback"


@pytest.mark.parametrize("key", [*_HOSTILE, b"\xff\xfe\x00bad", b"\xe2\x82"], ids=lambda key: repr(key[:12]))
def test_a_hostile_key_is_shown_harmlessly(key: Any) -> None:
    """In the dead letters, which are the only place of the page with text from outside; and as the name of a reader."""
    letter = {"refused_at": datetime.now(timezone.utc), "source": "s", "reason": "no key", "detail": str(key), "partition": 0, "offset": 1}
    name = key if isinstance(key, str) else "reader"
    of = standing(topic(dead_letters=[{**letter, "key": key if isinstance(key, bytes) else key.encode()}], readers=(reader(name, 1),)))
    pages = client(of)
    page = pages.get("/topics/fruit").text
    for raw in ("<script>alert", "<img src=x", "\x1b", "\x00", "\u202e", "k" * 1000):
        assert raw not in page
    assert ("&lt;script&gt;" in page) == (key == _HOSTILE[0])
    for path in ("/status.json", "/topics/fruit/log.svg", "/metrics"):
        assert pages.get(path).status_code == 200
    ET.fromstring(pages.get("/topics/fruit/log.svg").text)  # noqa: S314  our own


def test_bytes_that_are_no_text_are_shown_as_base64() -> None:
    """A cut in the middle of a character is not bytes that are no text."""
    assert display_text(b"\xff\x00") == "base64:/wA="
    assert display_text(None) == "–"
    assert display_text(("é" * 1000).encode()).startswith("ééé")
    assert display_text(("a" + "é" * 1000).encode()).startswith("aééé"), "a cut inside of a character"


def test_health_tells_the_truth() -> None:
    """Alive while the loop turns and the log.dir is there; ready when everything was looked at and every query runs."""

    def codes(of: Standing, **times: Any) -> tuple[int, int]:
        pages = client(of, **times)
        return pages.get("/healthz").status_code, pages.get("/readyz").status_code

    query = QueryStanding(name="files", topic="fruit", active=True)
    assert codes(standing(topic(), queries=(query,))) == (200, 200)
    assert codes(standing(loading=("fruit",), loaded=False)) == (200, 503)
    assert codes(standing(topic(), offline="OSError: gone")) == (503, 503)
    assert codes(standing(topic(error="OSError: gone"))) == (200, 503)
    assert codes(standing(queries=(QueryStanding(name="files", topic="fruit", active=False),))) == (200, 503)
    assert codes(standing(cleaner_dead=True, dead_cleaners=2)) == (200, 503)
    assert codes(standing(), now_ms=NOW_MS + 61_000, heartbeat_ms=NOW_MS + 61_000) == (200, 503), "nobody has looked for a minute"
    assert codes(standing(), heartbeat_ms=NOW_MS - 61_000) == (503, 503)
    reasons = client(standing(topic(error="OSError: gone"), cleaner_dead=True)).get("/readyz").json()["reasons"]
    assert reasons == ["topic fruit cannot be read: OSError: gone", "the cleaner query failed and is about to restart"]


def test_open_issues_are_listed_critical_ones_first() -> None:
    """One line for each kind of issue."""
    future = NOW_MS + 5 * 3_600_000
    of = standing(
        topic(
            "a",
            logs=[partition(settings={"max.compaction.lag.ms": _MINUTE_MS}), partition(f"0:1@{future} 10", partition=1)],
            uncleanable={1: "AnalysisException: boom"},
            failing={0: "OSError: no answer"},
            readers=(reader("old", 0, seen_ms=1),),
        ),
        topic("b", error="LedgerUnreadable: x"),
        offline="OSError: gone",
        cleaner_dead=True,
        dead_cleaners=1,
        queries=(QueryStanding(name="files", topic="b", active=False, message="boom"),),
    )
    found = [(one.critical, one.topic, one.partition, one.text.split(":")[0][:40]) for one in troubles(of, NOW_MS)]
    assert found == [
        (True, "", None, "the log.dir cannot be read"),
        (True, "", None, "the cleaner query failed (1 failure) and"),
        (True, "a", 1, "uncleanable"),
        (True, "b", None, "append query files is not running"),
        (True, "b", None, "topic cannot be read"),
        (False, "a", None, "reader old was last seen 20833.3 d ago a"),
        (False, "a", 0, "cleaning failed 2 in a row"),
        (False, "a", 0, "cleaning is overdue by 1.0 h (max.compac"),
        (False, "a", 1, "a record timestamp is 5.0 h in the futur"),
    ]


def test_an_address_that_is_taken_is_a_clear_error() -> None:
    """The server says so at the start, and gives its port back at the end."""
    watcher: Any = _Fixed(standing())
    first = StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), "127.0.0.1:0")
    with pytest.raises(UserError, match=r"http.listen = .*Address already in use; choose another"):
        StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), f"127.0.0.1:{first.port}")
    first.start()
    first.stop()
    again = StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), f"127.0.0.1:{first.port}")
    again.stop()  # before it was started
    StatusServer(StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS), f"127.0.0.1:{first.port}").stop()


def test_a_topic_that_is_deleted_while_its_page_is_made_is_said_to_be_gone() -> None:
    """Between two looks at the standing."""
    looks = chain([standing(topic())], repeat(standing()))

    class Deleting:
        @property
        def standing(self) -> Standing:
            return next(looks)

    watcher: Any = Deleting()
    app = StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS)
    page = TestClient(app.asgi(), base_url="http://127.0.0.1").get("/topics/fruit")
    assert "This topic was deleted" in page.text


def _letters(count: int, *, age_ms: int) -> dict[str, Any]:
    """Return the dead letters of a topic, the newest of which is so old."""
    refused_at = datetime.fromtimestamp((NOW_MS - age_ms) / 1000, tz=timezone.utc)
    letter = {"refused_at": refused_at, "source": "files", "reason": "malformed", "detail": "no JSON", "key": None}
    return {"dead_letters": [letter] * count}


def _issues(*topics: TopicStanding, **fields: Any) -> list[tuple[bool, str]]:
    """Return whether each issue of these topics is critical, and its text."""
    return [(issue.critical, issue.text) for issue in troubles(standing(*topics, **fields), NOW_MS)]


def test_dead_letters_are_an_issue_for_a_day() -> None:
    """Three of them: counted, with the reason of the newest and the command that shows them."""
    text = "3 dead letters, the newest 5.0 min ago (malformed); to see them: lastword dead-letters fruit"
    assert _issues(topic(**_letters(3, age_ms=5 * _MINUTE_MS))) == [(False, text)]
    assert _issues(topic(**_letters(1, age_ms=0))) == [(False, text.replace("3 dead letters", "1 dead letter").replace("5.0 min", "0 s"))]
    assert _issues(topic(**_letters(3, age_ms=24 * 60 * _MINUTE_MS))) == []
    assert _issues(topic()) == []


@pytest.mark.parametrize(
    ("late", "appended", "is_issue"), [(558, 1_442, True), (10, 990, True), (10, 991, False), (9, 0, False), (10, 0, True), (0, 0, False)]
)
def test_late_rows_are_an_issue_from_ten_and_one_percent_of_the_last_hour_on(late: int, appended: int, *, is_issue: bool) -> None:
    """Those of before the last hour are counted on the page, and no issue any more."""
    counts = AppendCounts(late=late + 1_000, appended=appended, recent_late=late, recent_appended=appended)
    text = f"{late:,} of {late + appended:,} rows of the last hour were late and left out: the log has rows of their keys with a higher"
    assert _issues(topic(appends=counts)) == ([(False, f"{text} source sequence")] if is_issue else [])


def test_dead_letters_and_late_rows_are_counted_on_the_pages() -> None:
    """On the table of topics and on the page of the topic."""
    of = standing(topic(appends=AppendCounts(late=1_558, appended=2_442, recent_late=5, recent_appended=7), **_letters(3, age_ms=0)))
    overview, page = client(of).get("/").text, client(of).get("/topics/fruit").text
    assert '<th scope="col" class="n"><a href="/?sort=late">late rows</a></th>' in overview
    assert '<td class="n">1,558</td>' in overview
    assert '<td class="n">3</td>' in overview
    assert "1,558 rows were left out since the start of the service" in page
    assert "2,442 records were appended. In the last hour: 5 and 7." in page
    assert "None since the start of the service." in client(standing(topic())).get("/topics/fruit").text


def test_a_source_that_cannot_be_read_is_an_issue_everywhere() -> None:
    """On the page, in the list of issues and in /readyz, although its query runs; the process itself is alive."""
    query = QueryStanding(name="files", topic="fruit", active=True, issue="its files cannot be listed: there is no folder incoming")
    of = standing(topic(), queries=(query,))
    text = "waits for its source: its files cannot be listed: there is no folder incoming"
    assert _issues(topic(), queries=(query,)) == [(True, f"append query files {text}")]
    ready = client(of).get("/readyz")
    assert (ready.status_code, ready.json()["reasons"]) == (503, [f"append query files of topic fruit {text}"])
    assert client(of).get("/healthz").status_code == 200
    assert '<span class="bad">waiting</span> its files cannot be listed' in client(of).get("/").text


def test_the_watcher_counts_late_rows_of_the_last_hour(tmp_path: Path) -> None:
    """From what the counters said an hour ago; a service that is younger counts from its start."""
    log_dir = LogDir(str(tmp_path))
    log = log_dir.create_topic("fruit").log
    now_ms, counts = NOW_MS, {"fruit": (100, 20)}
    watcher = Watcher(
        log_dir=str(tmp_path), topics=lambda: [log], cleaner=log_dir.cleaner, clock_ms=lambda: now_ms, append_counts=lambda: counts
    )
    assert watcher.look().topics[0].appends == AppendCounts(appended=100, late=20, recent_appended=100, recent_late=20)
    now_ms, counts = NOW_MS + 59 * _MINUTE_MS, {"fruit": (150, 20)}
    assert watcher.look().topics[0].appends == AppendCounts(appended=150, late=20, recent_appended=150, recent_late=20)
    now_ms, counts = NOW_MS + 60 * _MINUTE_MS, {"fruit": (150, 25)}
    assert watcher.look().topics[0].appends == AppendCounts(appended=150, late=25, recent_appended=50, recent_late=5)
    counts = {}
    assert watcher.look().topics[0].appends.recent_late == 0


def test_a_transaction_that_is_open_for_less_than_a_minute_is_no_issue() -> None:
    """A second later it is one, although its timeout is longer."""
    young, old = (transaction(NOW_MS - age_ms) for age_ms in (_MINUTE_MS - 1, _MINUTE_MS))
    assert _issues(topic(transactions=(young,))) == []
    assert [critical for critical, _ in _issues(topic(transactions=(young, old)))] == [False]


def _watching(log_dir: LogDir[ArrowTopic], topics: Callable[[], Sequence[TopicLog]], **settings: Any) -> Watcher:
    return Watcher(log_dir=log_dir.location, topics=topics, cleaner=log_dir.cleaner, clock_ms=lambda: NOW_MS, **settings)


def test_a_log_dir_that_cannot_be_listed_keeps_its_topics_on_the_page(tmp_path: Path) -> None:
    """With the error beside them, until it can be listed again."""
    log_dir, answers = LogDir(str(tmp_path)), list[Any]()
    logs = [log_dir.create_topic("fruit").log]

    def topics() -> Sequence[TopicLog]:
        if not answers.pop(0):
            raise OSError(errno.EIO, "no answer")
        return logs

    watcher = _watching(log_dir, topics)
    answers += [True, False, True]
    assert watcher.look().offline is None
    failed = watcher.look()
    assert ([one.name for one in failed.topics], failed.loaded) == (["fruit"], True)
    assert "no answer" in str(failed.offline)
    assert watcher.look().offline is None


def test_a_topic_that_is_deleted_while_the_watcher_looks_is_left_out(tmp_path: Path) -> None:
    """It was listed before; the topics behind it are looked at."""
    log_dir = LogDir(str(tmp_path))
    logs = [log_dir.create_topic(name).log for name in ("fig", "kiwi")]
    watcher = _watching(log_dir, lambda: logs)
    assert [one.name for one in watcher.look().topics] == ["fig", "kiwi"]
    LogDir(str(tmp_path)).delete_topic("fig")
    found = watcher.look()
    assert ([one.name for one in found.topics], found.loading, found.loaded) == (["kiwi"], (), True)


def test_the_watcher_outlives_what_it_cannot_explain(tmp_path: Path) -> None:
    """It looks again after its interval; a watcher that was never started is stopped as one that was."""
    log_dir, looks = LogDir(str(tmp_path)), list[int]()

    def counts() -> dict[str, tuple[int, int]]:
        looks.append(len(looks))
        if len(looks) == 1:
            message = "something that nobody has thought of"
            raise RuntimeError(message)
        return {}

    watcher = _watching(log_dir, tuple, append_counts=counts, interval_seconds=0.01)
    watcher.stop()
    watcher = _watching(log_dir, tuple, append_counts=counts, interval_seconds=0.01)
    watcher.start()
    try:
        until(lambda: watcher.standing.loaded)
    finally:
        watcher.stop()
    assert len(looks) > 1


def test_the_counters_of_the_queries_are_read_by_topic() -> None:
    """Records and late rows; a topic that is forgotten has none."""
    metrics.count_append("late-fruit", seconds=0.1, records=7, refused=1, duplicates=0, late=3)
    assert metrics.append_counts()["late-fruit"] == (7, 3)
    metrics.forget_topic("late-fruit")
    assert "late-fruit" not in metrics.append_counts()


def test_a_text_below_a_bar_is_wrapped_and_not_cut() -> None:
    """A long reason has lines of its own, within the drawing, and the partitions below it move down."""
    reason = "SparkException: " + " ".join(f"word{number}" for number in range(55))
    found = topic(logs=[partition(), partition(partition=1)], uncleanable={0: reason})
    picture = ET.fromstring(draw_topic(found))  # noqa: S314  our own
    first, second = picture.findall(f"{_SVG}g")
    lines = [str(text.text) for text in first.findall(f"{_SVG}text") if float(text.get("y", "0")) >= 74]
    assert (" ".join(lines), len(lines)) == (f"uncleanable: {reason}", 4)
    assert max(len(line) for line in lines) * 7.23 + 48 <= 960, "the width of a character of 12 pixels, and of the drawing"
    plain = ET.fromstring(draw_topic(topic(logs=[partition(), partition(partition=1)])))  # noqa: S314
    assert second.get("transform") == "translate(0 167)"
    assert plain.findall(f"{_SVG}g")[1].get("transform") == "translate(0 122)"
    endless = ET.fromstring(draw_topic(topic(uncleanable={0: "x " * 400})))  # noqa: S314
    assert "…" in "".join(endless.itertext())


def test_the_settings_of_a_topic_say_who_set_them() -> None:
    """The topic's own first, then those of the service, then defaults; values with a unit where they have one."""
    config = describe_topic_config(parse_topic_config({"segment.bytes": "1MiB"}, defaults={"retention.ms": "1h"}))
    rows = describe_settings(config, {"segment.bytes": "1048576"})
    assert [(row.name, row.value, row.readable, row.origin, row.default) for row in rows[:3]] == [
        ("segment.bytes", "1048576", "1.0 MiB", "topic", "1073741824"),
        ("retention.ms", "3600000", "1.0 h", "service", "604800000"),
        ("cleanup.policy", "delete", "", "default", "delete"),
    ]
    readable = {row.name: row.readable for row in rows}
    assert (readable["retention.bytes"], readable["max.compaction.lag.ms"]) == ("no limit", "no limit")
    assert describe_settings({}, {}) == []
    page = client(standing(topic(overrides={"min.compaction.lag.ms": "60000"}))).get("/topics/fruit").text
    row = page[page.index(">min.compaction.lag.ms</th>") :].split("</tr>")[0]
    assert all(text in row for text in ("60000", "(1.0 min)", "<b>this topic</b>", ">0</td>"))


def test_lag_is_called_compaction_lag_or_consumer_lag() -> None:
    """On the overview and the page of a topic; readers that have expired hold nobody up."""
    readers = (reader("cache", 120), reader("old", 0, seen_ms=1))
    of = standing(topic(readers=readers), tables=(TableStanding(topic="fruit", path="t", lag_offsets=7, lag_ms=4_000),))
    pages = [client(of).get(path).text for path in ("/", "/topics/fruit")]
    for page in pages:
        assert "compaction lag</th>" in page.replace("</a></th>", "</th>")
        assert "consumer lag, offsets</th>" in page
        assert ">lag</th>" not in page.replace("</a></th>", "</th>")
        assert ">lag in offsets</th>" not in page
        assert '<td class="n">7</td><td class="n">4 s</td>' in page
    assert '<td class="n">330</td>' in pages[0]
    assert topic().consumer_lag == 0


@pytest.mark.parametrize(
    ("backlog", "text"),
    [(Backlog(count=12_345, unit="offsets"), "12,345 offsets"), (Backlog(count=0, unit="files"), "0 files"), (None, "–")],
)
def test_the_backlog_of_a_source_is_shown(backlog: Backlog | None, text: str) -> None:
    """Zero is known, and a dash is not."""
    query = QueryStanding(name="files", topic="fruit", active=True, progressed_ms=NOW_MS, backlog=backlog)
    pages = client(standing(topic(), queries=(query,)))
    for path in ("/", "/topics/fruit"):
        assert f'<td class="n">{text}</td>' in pages.get(path).text
