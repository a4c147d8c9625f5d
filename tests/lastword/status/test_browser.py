"""The status page in a real browser: live updates, keyboard, phone, dark mode, hostile keys. Needs a Chromium that is installed.

LASTWORD_SCREENSHOTS names a folder to write the pictures of the documentation to.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

from lastword import LogDir
from lastword.status.records import RecordLooks
from lastword.status.samples import Sample
from lastword.status.server import StatusApp, StatusServer
from lastword.status.standing import Backlog, QueryStanding, Standing, TableStanding
from tests.lastword.status.standings import NOW_MS, partition, reader, receipt, standing, topic, transaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_MINUTE_MS = 60_000
_HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
_RECORDS = "/topics/fruit-prices/records?look=newest"

pytestmark = [pytest.mark.long, pytest.mark.skipif(_CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")]


class _Watched:
    """A watcher whose standing a test changes."""

    def __init__(self, of: Standing) -> None:
        self.standing = of

    def history(self, _topic: str) -> tuple[Sample, ...]:
        """Return three hours and a half, with half an hour in which no service ran."""
        return tuple(
            Sample(
                time_ms=NOW_MS - (210 - number) * _MINUTE_MS,
                size_bytes=int(2e8 + 3e5 * number - 5e7 * (number % 50 > 40)),
                record_count=number,
                cleanable_bytes=int(4e7 * (1 + math.sin(number / 8))),
                end_offsets=int(700_000 * number + 5e5 * math.sin(number / 9)),
                compaction_lag_ms=(number % 50) * 2 * _MINUTE_MS,
                dirty_percent=number % 50,
                reader_lag=int(30_000 * (1 + math.cos(number / 11))),
                late=number // 20,
                dead_letters=number // 70,
                cleaning_ms=number // 50 * 21_000,
            )
            for number in range(210)
            if not 60 <= number < 90
        )


def _incident() -> Standing:
    letter = {
        "refused_at": datetime.fromtimestamp(NOW_MS / 1000, timezone.utc),
        "source": "airports-files",
        "reason": "key is missing",
        "detail": _HOSTILE,
        "partition": None,
        "offset": None,
        "key": _HOSTILE.encode(),
    }
    removed = [{"superseded": 4000 + 700 * (n % 7), "aborted": 90 * (n % 3), "expired_tombstone": 40 * n} for n in range(40)]
    return standing(
        topic(
            "fruit-prices",
            logs=[
                partition(stable=310),
                partition(partition=1),
                partition(f"0:90@{NOW_MS - 9 * 3_600_000} | 300:20@{NOW_MS - _MINUTE_MS} 420:3@{NOW_MS}* 440", partition=2),
            ],
            uncleanable={1: "SparkException: the file of slice 200 is damaged"},
            transactions=(transaction(NOW_MS - 20 * _MINUTE_MS),),
            readers=(reader("orders-cache", 120), reader("search-index", 445)),
            overrides={"cleanup.policy": "compact", "min.compaction.lag.ms": "60000"},
            receipts=tuple(receipt(removed=one, now_ms=NOW_MS - (40 - n) * _MINUTE_MS) for n, one in enumerate(removed)),
            dead_letters=[letter],
        ),
        *(topic(f"airports-{number}", logs=[partition(partition=one) for one in range(3)]) for number in range(3)),
        queries=(
            QueryStanding(
                name="airports-files",
                topic="fruit-prices",
                active=True,
                batch_id=41,
                input_rows_per_second=1200.0,
                progressed_ms=NOW_MS,
                backlog=Backlog(count=17, unit="files"),
            ),
            QueryStanding(name="rates", topic="airports-0", active=False, message="SourceFailed: the cluster does not answer"),
        ),
        tables=(TableStanding(topic="fruit-prices", path="tables/fruit-prices", lag_offsets=1_200, lag_ms=4_000, steps=88, step_ms=310),),
    )


@pytest.fixture(scope="module")
def watched() -> _Watched:
    """What the server of this module shows."""
    return _Watched(_incident())


def make_app(watched: _Watched, folder: Path) -> StatusApp:
    """Return the pages over `watched`; the records are those of a log.dir in a folder."""
    topic_with_records = LogDir(folder).create_topic("fruit-prices", partitions=2)
    texts = [("grape", '{"price": 3.5, "currency": "EUR"}'), ("lime", "x" * 3_000), (_HOSTILE, _HOSTILE), ("fig", None)]
    topic_with_records.append([{"key": key, "value": value, "timestamp": NOW_MS - 1000} for key, value in texts])
    topic_with_records.append([{"key": b"\xff\x00", "value": b"\xfe", "timestamp": NOW_MS}])
    watcher: Any = watched
    looks = RecordLooks(log_of=lambda name: topic_with_records.log if name == "fruit-prices" else None)
    return StatusApp(watcher=watcher, now_ms=lambda: NOW_MS, heartbeat_ms=lambda: NOW_MS, looks=looks)


@pytest.fixture(scope="module")
def url(watched: _Watched, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server over `watched`."""
    server = StatusServer(make_app(watched, tmp_path_factory.mktemp("records")), "127.0.0.1:0")
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def _open(browser: Browser, address: str, **context: Any) -> Page:
    page = browser.new_context(**context).new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    assert [problem for problem in problems if "status of 400" not in problem] == []
    return page


def _picture(page: Page, name: str) -> None:
    if folder := os.environ.get("LASTWORD_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


def test_the_page_updates_itself_and_keeps_the_focus(browser: Browser, url: str, watched: _Watched) -> None:
    """What is new is there after a few seconds; the link that had the focus still has it; without `live` nothing moves."""
    page = _open(browser, url, viewport={"width": 1280, "height": 800})
    _picture(page, "overview")
    page.get_by_role("link", name="airports-1").focus()
    watched.standing = standing(*_incident().topics, topic("plums"))
    page.get_by_role("link", name="plums").wait_for(timeout=10_000)
    assert page.evaluate("document.activeElement.textContent") == "airports-1"
    page.get_by_label("live").uncheck()
    watched.standing = _incident()
    page.wait_for_timeout(5_500)
    assert page.get_by_role("link", name="plums").count() == 1


def test_a_topic_is_read_by_keyboard_and_a_hostile_key_does_nothing(browser: Browser, url: str) -> None:
    """From the skip link by tab to the scrollable regions; the key stands there as text."""
    page = _open(browser, f"{url}/topics/fruit-prices", viewport={"width": 1280, "height": 900})
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"))
    assert {"Drawing of the log", "Partitions", "Dead letters"} <= reached
    assert page.title().startswith("fruit-prices")
    assert page.locator("td.key").first.inner_text() == _HOSTILE
    assert "open transaction of producer 7 (loader)" in page.locator(".troubles").inner_text()
    _picture(page, "topic")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_the_page_sideways(browser: Browser, url: str, scheme: Any) -> None:
    """Wide things scroll inside; text has contrast in both schemes."""
    for path in ("/", "/topics/fruit-prices", _RECORDS, f"{_RECORDS}&limit=nine"):
        page = _open(browser, url + path, viewport={"width": 390, "height": 800}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        assert _contrast(page, "body") >= 7
        assert _contrast(page, ".soft") >= 4.5
        if path == "/topics/fruit-prices":
            _picture(page, f"phone-{scheme}")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the script of axe-core, the checker of accessibility, from the registry that npm is configured for."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here, which brings axe-core (Debian: apt install npm)")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "pack", "--silent", "axe-core@4"]
    packed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  as written here
    if packed.returncode != 0:
        pytest.skip(f"npm cannot bring axe-core: {packed.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(folder / packed.stdout.strip()) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode("utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/", "/topics/fruit-prices", _RECORDS])
def test_axe_finds_nothing_serious(browser: Browser, url: str, axe: str, path: str, scheme: Any) -> None:
    """Names of fields and regions, contrast, order, keyboard: no finding that axe-core calls serious or critical, at both widths."""
    for width in (1400, 390):
        page = _open(browser, url + path, viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [violation for violation in found["violations"] if violation["impact"] in {"serious", "critical"}]
        assert [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in serious] == [], width
        page.close()


def test_axe_is_heard(browser: Browser, url: str, axe: str) -> None:
    """A field without a name, put into the page, is a critical finding: the test above can fail."""
    page = _open(browser, url)
    page.evaluate("document.getElementById('main').append(document.createElement('input'))")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert ("label", "critical") in {(violation["id"], violation["impact"]) for violation in found["violations"]}


def test_records_are_asked_for_by_keyboard_alone(browser: Browser, url: str) -> None:
    """A form without a script: the policy of the page lets it be sent to the service. What a key holds stays text."""
    page = _open(browser, f"{url}/topics/fruit-prices/records", viewport={"width": 1280, "height": 900})
    page.get_by_role("group", name="By key").get_by_label("key").focus()
    page.keyboard.type("grape")
    page.keyboard.press("Enter")
    page.wait_for_url("**look=key**")
    assert "Key grape: 1 record in partition" in page.get_by_role("heading", level=2).inner_text()
    assert '"price": 3.5' in page.get_by_role("region", name="Records").inner_text()
    page.goto(f"{url}{_RECORDS}")
    assert page.locator("td.key .raw", has_text=_HOSTILE).count() == 2
    assert page.title().startswith("fruit-prices: records")


def _contrast(page: Page, selector: str) -> float:
    """Return the contrast of an element's text against the page (WCAG 2.1)."""
    script = "s => [getComputedStyle(document.querySelector(s)).color, getComputedStyle(document.body).backgroundColor]"
    lightness = []
    for colour in page.evaluate(script, selector):
        channels = [int(one) / 255 for one in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in channels)
        lightness.append(0.2126 * red + 0.7152 * green + 0.0722 * blue)
    return (max(lightness) + 0.05) / (min(lightness) + 0.05)
