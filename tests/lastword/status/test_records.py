"""A look at records over HTTP: newest, by offset, by key; within limits; off by default; a mistake is one line. No Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from lastword import LogDir
from lastword.compaction.errors import UnknownTopic
from lastword.service.settings import Settings
from lastword.status.records import InvalidRequest, LookLimits, LooksBusy, RecordLooks
from lastword.status.server import StatusApp
from lastword.storage.files.data_files import RowGroupLimits
from lastword.storage.log.limits import LogLimits
from lastword.storage.reading.record_page import PageLimits
from lastword.text import bytes_as_text
from tests.lastword.status.standings import NOW_MS, standing
from tests.pictures import HOUR_MS, T0

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.status.records import RecordLook

_HOSTILE = "<script>document.title = 'owned'</script>"


def _rows(text: str, *, timestamp_ms: int = NOW_MS) -> list[dict[str, Any]]:
    """Return the records of `key=value` texts; a value of - is a tombstone."""
    pairs = [pair.partition("=") for pair in text.split()]
    return [{"key": key, "value": None if value == "-" else value, "timestamp": timestamp_ms} for key, _, value in pairs]


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic of one partition with the keys a to j, in row groups of two records."""
    made = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact"})
    made.log.limits = LogLimits(row_groups=RowGroupLimits(max_rows=2))
    made.append(_rows("a=0 b=1 c=2 d=3 e=4 f=5"))
    made.append(_rows("g=6 h=7 a=8 b=-", timestamp_ms=NOW_MS + 1000))
    return made


def _looks(topic: ArrowTopic, **limits: Any) -> RecordLooks:
    return RecordLooks(log_of=lambda name: topic.log if name == topic.name else None, limits=LookLimits(**limits))


def _look(topic: ArrowTopic, limits: dict[str, Any] | None = None, **asked: str) -> RecordLook:
    return _looks(topic, **(limits or {})).look(topic.name, asked)


def _offsets(look: RecordLook) -> list[int]:
    return [record.offset for record in look.records]


def test_the_newest_records_are_read_from_the_end(topic: ArrowTopic) -> None:
    """The latest first; a limit above their number gives all of them, and the offsets before them are offered."""
    look = _look(topic, limit="3")
    assert (_offsets(look), look.earlier, look.note) == ([9, 8, 7], 4, "")
    assert [(record.key, record.value) for record in look.records] == [("b", None), ("a", "8"), ("h", "7")]
    assert _offsets(_look(topic, look="newest", partition="0", limit="5")) == [9, 8, 7, 6, 5]
    everything = _look(topic)
    assert (_offsets(everything), everything.earlier) == ([*range(9, -1, -1)], None)


def test_records_are_read_from_an_offset_on(topic: ArrowTopic) -> None:
    """Across row groups and files, to the end; the offsets before and after are offered."""
    look = _look(topic, look="offset", offset="3", limit="4")
    assert (_offsets(look), look.earlier, look.later) == ([3, 4, 5, 6], 0, 7)
    last = _look(topic, look="offset", partition="0", offset="8")
    assert (_offsets(last), last.later) == ([8, 9], None)
    assert _look(topic, look="offset", offset="0").earlier is None


def test_records_are_read_from_a_time_on(tmp_path: Path) -> None:
    """From the first offset whose record is not older, whatever comes behind it; a date is its midnight, and a time has UTC."""
    topic = LogDir(tmp_path).create_topic("fruit", partitions=2)
    times = [T0, T0 + HOUR_MS, T0 - HOUR_MS, T0 + 2 * HOUR_MS]
    topic.append([{"key": f"k{n}", "value": "1", "partition": 1, "timestamp": time} for n, time in enumerate(times)])

    def look(time: str) -> RecordLook:
        return _look(topic, look="time", partition="1", time=time)

    assert _offsets(look("2023-11-14T22:13:20Z")) == [0, 1, 2, 3]
    later = look("2023-11-14T22:13:20.001")
    assert (_offsets(later), later.earlier, later.later) == ([1, 2, 3], 0, None)
    assert later.summary.endswith("the first that is not older than 2023-11-14T22:13:20.001Z")
    assert _offsets(look("2023-11-15T01:00+01:00")) == [3]
    assert _offsets(look("2023-11-14")) == [0, 1, 2, 3]
    nothing = look("2023-11-16")
    assert (nothing.records, nothing.summary) == ((), "no record of partition 1 is from 2023-11-16T00:00:00.000Z or later")


def test_all_records_of_a_key_are_found_the_latest_first(topic: ArrowTopic) -> None:
    """With what each of them is; a key that is not there is no mistake."""
    look = _look(topic, look="key", key="a")
    assert [(record.offset, record.status) for record in look.records] == [(8, "latest"), (0, "superseded")]
    assert look.summary == "key a: 2 records in partition 0, the newest 2, latest first"
    assert _look(topic, look="key", key="YQ==", encoding="base64").records == look.records
    assert _look(topic, look="key", key="b", limit="1").records[0].value is None
    nothing = _look(topic, look="key", key="zebra")
    assert (nothing.records, nothing.summary) == ((), "no record of the key zebra in the topic")


def test_a_record_says_what_its_transaction_is(tmp_path: Path) -> None:
    """Committed, aborted, open, and waiting behind an open one: the page is no read_committed reader."""
    topic = LogDir(tmp_path).create_topic("fruit")
    topic.append(_rows("a=committed"))
    aborted = topic.transaction("first")
    aborted.append(_rows("b=aborted"))
    aborted.abort()
    topic.transaction("second").append(_rows("c=open"))
    topic.append(_rows("d=waiting"))
    assert {record.value: record.status for record in _look(topic).records} == {
        value: value for value in ("committed", "aborted", "open", "waiting")
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"look": "oldest"}, "look = 'oldest': allowed is newest, offset, time or key"),
        ({"partition": "1"}, "partition = '1': allowed is a whole number from 0 to 0"),
        ({"partition": "-1"}, "partition = '-1': allowed is a whole number from 0 to 0"),
        ({"limit": "ten"}, "limit = 'ten': allowed is a whole number from 1 to 100"),
        ({"limit": "0"}, "limit = '0': allowed is a whole number from 1 to 100"),
        ({"limit": "101"}, "limit = '101': allowed is a whole number from 1 to 100"),
        ({"limit": "9" * 5_000}, f"limit = '{'9' * 79}…': allowed is a whole number from 1 to 100"),
        ({"limit": "٣"}, "limit = '٣': allowed is a whole number from 1 to 100"),
        ({"offset": "3"}, "offset = '3': allowed is with look = newest the parameters look, partition, limit"),
        ({"look": "offset", "offset": "10"}, "allowed is a whole number from 0 to 9 (partition 0: log start offset to the last offset)"),
        ({"look": "offset", "offset": "1.5"}, "offset = '1.5': allowed is a whole number from 0 to 9"),
        ({"look": "offset"}, "offset = '': allowed is a whole number from 0 to 9"),
        ({"look": "time"}, "time = '': allowed is ISO 8601 such as 2026-11-29T08:00, in UTC"),
        ({"look": "time", "time": "yesterday"}, "time = 'yesterday': allowed is ISO 8601"),
        ({"look": "time", "time": "2026-11-29", "offset": "1"}, "allowed is with look = time the parameters look, partition, time, limit"),
        ({"look": "key"}, "key = '': allowed is a text, or with encoding = base64 bytes"),
        ({"look": "key", "key": "a", "encoding": "hex"}, "encoding = 'hex': allowed is text or base64"),
        ({"look": "key", "key": "%", "encoding": "base64"}, "key = '%': allowed is base64, as encoding says"),
        ({"nonsense": "\x1b[31m"}, "nonsense = '�[31m': allowed is with look = newest the parameters look, partition, limit"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(topic: ArrowTopic, asked: dict[str, str], message: str) -> None:
    """In one line, with the value."""
    with pytest.raises(InvalidRequest) as raised:
        _looks(topic).look("fruit", asked)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_several_partitions_and_an_empty_one(tmp_path: Path) -> None:
    """An offset belongs to a partition; a key that stands in two of them is two keys; nothing is found where nothing is."""
    topic = LogDir(tmp_path).create_topic("fruit", partitions=3)
    topic.append([{"key": "a", "value": str(number), "partition": number, "timestamp": NOW_MS + number} for number in range(2)])
    assert [record.partition for record in _look(topic).records] == [1, 0]
    assert (_offsets(_look(topic, partition="1")), _look(topic).earlier) == ([0], None)
    for asked, message in (
        ({"look": "offset", "offset": "0"}, "partition = '': allowed is with an offset a number from 0 to 2"),
        ({"look": "time", "time": "2026-11-29"}, "partition = '': allowed is with a time a number from 0 to 2"),
        ({"look": "time", "time": "2026-11-29", "partition": "2"}, "partition 2 of topic fruit has no records: its next offset is 0"),
        ({"look": "offset", "offset": "0", "partition": "2"}, "partition 2 of topic fruit has no records: its next offset is 0"),
        ({"look": "key", "key": "a"}, "the key stands in partitions 0, 1, which are different keys: name one partition"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            _looks(topic).look("fruit", asked)
    assert _look(topic, look="key", key="a", partition="1").records[0].value == "1"
    assert _look(topic, partition="2").records == ()
    with pytest.raises(UnknownTopic, match="topic plums does not exist"):
        _looks(topic).look("plums", {})


def _least_budgets(topic: ArrowTopic) -> Sequence[int]:
    """Return the fewest bytes, in steps, by which one row group of two records is read, and those by which two are."""

    def count(most: int) -> int:
        return len(_look(topic, {"page": PageLimits(max_bytes=most)}, limit="4").records)

    one = next(most for most in range(0, 100_000, 50) if count(most))
    return one, next(most for most in range(one, 200_000, 50) if count(most) > 2)


def test_a_look_reads_no_more_than_its_limits(topic: ArrowTopic) -> None:
    """On both sides of each limit: bytes of row groups, partitions, and files that are searched for a key."""
    one, two = _least_budgets(topic)
    assert one < two
    cut = _look(topic, {"page": PageLimits(max_bytes=one)}, limit="4")
    assert (_offsets(cut), cut.note[:18]) == ([9, 8], "More was not read:")
    assert (_offsets(_look(topic, {"page": PageLimits(max_bytes=two)}, limit="4")), cut.earlier) == ([9, 8, 7, 6], 4)
    forwards = _look(topic, {"page": PageLimits(max_bytes=one)}, look="offset", offset="0")
    assert (_offsets(forwards), bool(forwards.note), forwards.later) == ([0, 1], True, 2)
    assert _offsets(_look(topic, {"page": PageLimits(max_bytes=1)})) == []
    size = int(topic.log.snapshot().files.size_bytes.sum())
    assert _offsets(_look(topic, {"max_searched_bytes": size}, look="key", key="a")) == [8, 0]
    with pytest.raises(InvalidRequest, match=r"partition 0 of topic fruit has .*: use lastword get fruit KEY --partition 0"):
        _look(topic, {"max_searched_bytes": size - 1}, look="key", key="a")


def test_of_a_large_topic_the_partition_of_the_key_alone_is_searched(tmp_path: Path) -> None:
    """As the partitioner has it; the page says so."""
    topic = LogDir(tmp_path).create_topic("fruit", partitions=2, config={"partitioner": "kafka"})
    topic.append(_rows(" ".join(f"k{number}={number}" for number in range(20))))
    half = max(int(topic.log.snapshot().files.size_bytes[number]) for number in range(2))
    where = {record.key: record.partition for record in _look(topic).records}
    for key, partition in where.items():
        look = _look(topic, {"max_searched_bytes": half}, look="key", key=str(key))
        assert [record.partition for record in look.records] == [partition]
        assert f"Only partition {partition} was searched" in look.note
    most = _look(topic, {"page": PageLimits(max_partitions=1)})
    assert ({record.partition for record in most.records}, bool(most.note)) == ({most.records[0].partition}, True)


def test_so_many_looks_are_taken_at_once(topic: ArrowTopic) -> None:
    """One more is told to try again, and is taken afterwards."""
    entered, leave = threading.Event(), threading.Event()

    def log_of(_: str) -> Any:
        return topic.log

    class Slow(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            entered.set()
            leave.wait(20)
            return super().get(name, default)

    looks = RecordLooks(log_of=log_of, limits=LookLimits(max_at_once=1))
    thread = threading.Thread(target=looks.look, args=("fruit", Slow()))
    thread.start()
    assert entered.wait(20)
    with pytest.raises(LooksBusy, match="1 looks at records are being taken"):
        looks.look("fruit", {})
    leave.set()
    thread.join()
    assert len(looks.look("fruit", {}).records) == 10


def test_bytes_are_shown_as_text_or_base64_and_cut() -> None:
    """A cut inside of a character is no base64, whatever stands around it."""
    assert bytes_as_text(b"lime", 10) == "lime"
    assert bytes_as_text(b"\xff\x00", 10) == "base64:/w…"
    assert bytes_as_text(b"\xff\x00", 20) == "base64:/wA="
    assert bytes_as_text("é".encode() * 100, 5) == "éééé…"


def _client(looks: RecordLooks | None) -> TestClient:
    class Fixed:
        standing = standing()

    watcher: Any = Fixed()
    app = StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS, looks=looks)
    return TestClient(app.asgi(), base_url="http://127.0.0.1")


def test_records_are_off_by_default_and_the_answer_names_the_setting() -> None:
    """Nobody has asked for them to be shown: the page has no login."""
    assert Settings().http.records is False
    answer = _client(None).get("/topics/fruit/records")
    assert (answer.status_code, answer.text.count("\n"), answer.headers["content-type"]) == (403, 1, "text/plain; charset=utf-8")
    assert answer.text.startswith("records are not shown: http.records = false")


def test_the_page_of_records_escapes_them_and_answers_mistakes_with_400(topic: ArrowTopic) -> None:
    """200, 400, 404 and 500, each with the headers; only this page may send forms, and only to the service."""
    topic.append([{"key": _HOSTILE, "value": _HOSTILE + "x" * 3_000, "headers": [{"key": _HOSTILE, "value": b"\xff"}]}])
    pages = _client(_looks(topic))
    found = pages.get("/topics/fruit/records")
    assert (found.status_code, _HOSTILE in found.text, "&lt;script&gt;" in found.text) == (200, False, True)
    assert "form-action 'self'" in found.headers["content-security-policy"]
    assert "form-action 'none'" in pages.get("/topics/fruit").headers["content-security-policy"]
    wrong = pages.get("/topics/fruit/records", params={"look": "offset", "offset": "99"})
    assert (wrong.status_code, "allowed is a whole number from 0 to 10" in wrong.text) == (400, True)
    assert "No record of the key Zebra in" in pages.get("/topics/fruit/records", params={"look": "key", "key": "Zebra"}).text
    assert pages.get("/topics/plums/records").status_code == 404
    assert pages.post("/topics/fruit/records").status_code == 405


def test_a_damaged_file_is_one_line(topic: ArrowTopic, tmp_path: Path) -> None:
    """With status 500, and without a stack trace."""
    pages = _client(_looks(topic))
    for file in (tmp_path / "fruit" / "log").rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            file.write_bytes(b"PAR1 not a Parquet file PAR1")
    answer = pages.get("/topics/fruit/records")
    assert answer.status_code == 500
    assert "Traceback" not in answer.text
    assert '<p class="bad" role="alert">' in answer.text
