"""The documentation as a site: it builds without a warning and without the network, and its reference is the code's, both ways."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final

import pytest
import typer

import lastword
from lastword.cli.app import app
from lastword.compaction.config.keys import REFUSED_KEYS, SERVICE_KEYS, TOPIC_KEYS
from lastword.service.settings import Settings
from lastword.service.table_settings import TableSettings
from lastword.status.metrics import METRICS
from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource
from tests.docs import blocks
from tests.docs.blocks import PAGES, ROOT
from tools import mkdocs_hooks, reference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SOURCES: Final = (FileSource, KafkaSource, RateSource, TableSettings)
_SYNONYMS: Final = {one.name for key in TOPIC_KEYS.values() for one in key.synonyms}
_SOURCE_SETTINGS: Final = {field.alias or name for model in _SOURCES for name, field in model.model_fields.items()}

#: A word of ours that nobody else has: a metric; and what looks like a setting of Kafka's.
_METRIC: Final = re.compile(r"\blastword_[a-z_]+\b")
_SETTING: Final = re.compile(
    r"`((?:log|segment|retention|min|max|delete|file|cleanup|compression|transaction|producer|dead)(?:\.[a-z]+)+)`"
)
_LINK: Final = re.compile(r"\]\((?!https?://)([^)#\s]*)(#[^)\s]*)?\)")
_PARTS_OF_A_RUNBOOK: Final = ("What it means.", "How to look.", "What to do.", "When it clears.")


class Page(HTMLParser):
    """What a rendered page loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        """Read the page."""
        super().__init__()
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        if tag in {"script", "img", "iframe"} and found.get("src"):
            self.loaded.append(str(found["src"]))
        if tag == "link" and found.get("href") and found.get("rel") != "canonical":
            self.loaded.append(str(found["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, with every warning an error, and with proxies that lead nowhere."""
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(  # noqa: S603  our own interpreter
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def _page(site: Path, name: str) -> Page:
    return Page((site / name).read_text(encoding="utf-8"))


@pytest.mark.long
def test_every_page_is_in_the_site_and_its_code_is_code(site: Path) -> None:
    """Those that somebody wrote, those that are made, and the decision records; a block that is not closed would show its fence."""
    written = {page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    made = {name.removesuffix(".md") + ".html" for name in mkdocs_hooks.generated_pages()}
    built = {page.relative_to(site).as_posix(): page for page in site.rglob("*.html")}

    assert set(built) == written | made | {"404.html"}
    assert [name for name, page in built.items() if "```" in page.read_text(encoding="utf-8")] == []


@pytest.mark.long
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    """No font, no script, no picture: it can be read where there is no network."""
    remote = re.compile(r"^(https?:)?//")
    for page in site.rglob("*.html"):
        assert [one for one in _page(site, page.relative_to(site).as_posix()).loaded if remote.match(one)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import\s|url\([\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


@pytest.mark.long
def test_every_link_of_the_readme_leads_somewhere(site: Path) -> None:
    """To a file, and to a heading in it; those of the site are checked when it is built."""
    for target, anchor in _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        assert not target or (ROOT / target).exists(), target
        if anchor and target.startswith("docs/"):
            assert anchor[1:] in _page(site, target.removeprefix("docs/").replace(".md", ".html")).anchors, target + anchor


@pytest.mark.parametrize("name", reference.reference_pages())
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    """`python -m tools.reference` writes it anew."""
    assert (reference.PAGES / name).read_text(encoding="utf-8") == f"{reference.reference_pages()[name].rstrip()}\n"


@pytest.mark.long
def test_every_setting_is_in_the_reference_and_nothing_else(site: Path) -> None:
    """Settings of topics and of the service are headings; those of sources, and refused ones, are rows."""
    page = _page(site, "reference/settings.html")
    text = reference.settings_page()

    headings = re.findall(r"^### `([a-z.]+)`$", text, re.MULTILINE)
    assert sorted(headings) == sorted([*TOPIC_KEYS, *SERVICE_KEYS])
    assert set(headings) <= page.anchors
    rows = set(re.findall(r"^\| `([a-z0-9._]+)` \|", text, re.MULTILINE))
    http = set(Settings.model_fields["http"].annotation.model_fields)  # type: ignore[union-attr]
    assert rows == _SOURCE_SETTINGS - {"format"} | set(REFUSED_KEYS) | {"log.dir"} | http
    assert set(re.findall(r"service-wide: (.*)$", text, re.MULTILINE)) == {
        ", then ".join(f"`{one.name}`" for one in key.synonyms) for key in TOPIC_KEYS.values() if key.synonyms
    }


def _walk(command: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in getattr(command, "commands", {}).items():
        yield from _walk(one, f"{words} {name}")
    if not hasattr(command, "commands"):
        yield words.strip(), command


@pytest.mark.long
def test_every_command_is_in_the_reference_with_every_option_and_nothing_else() -> None:
    """One heading a command, and below it what it takes."""
    sections = re.split(r"^## ", reference.commands_page(), flags=re.MULTILINE)[1:]
    found = {str(re.match(r"`lastword ([^`]+)`", one)[1]): one for one in sections}  # type: ignore[index]
    known = dict(_walk(typer.main.get_command(app)))

    assert set(found) == set(known)
    for words, command in known.items():
        options = {name for one in command.params if one.param_type_name == "option" for name in (*one.opts, *one.secondary_opts)}
        shown = re.findall(r"^\| ((?:`-[^`]+`(?:, )?)+) \|", found[words], re.MULTILINE)
        assert {name.strip("`") for one in shown for name in one.split(", ")} == options, words


def test_every_example_in_the_help_of_a_command_is_a_command_line_that_it_takes() -> None:
    """Also those that nobody runs here."""
    for command in reference.commands():
        assert command.examples, f"lastword {command.words} has no example"
        assert command.text, command.words
        for example in command.examples:
            (line,) = blocks.command_lines(blocks.Block("sh", frozenset(), example, 1))
            blocks.parse(line.words)


@pytest.mark.long
def test_every_public_name_is_in_the_reference_with_every_method(site: Path) -> None:
    """By the docstrings and signatures of the code."""
    anchors = _page(site, "reference/api.html").anchors
    for name in set(lastword.__all__) - {"__version__"}:
        one = getattr(lastword, name)
        place = f"{one.__module__}.{name}"
        methods = {f"{place}.{each}" for each, found in vars(one).items() if inspect.isfunction(found) and not each.startswith("_")}
        assert {place, *(methods if isinstance(one, type) and not issubclass(one, Exception) else ())} <= anchors, name


@pytest.mark.long
def test_every_metric_is_in_the_reference_and_nothing_else(site: Path) -> None:
    """One heading a metric."""
    assert {one for one in _page(site, "reference/metrics.html").anchors if one.startswith("lastword_")} == {one.name for one in METRICS}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_every_metric_and_setting_that_a_page_names_is_there(page: Path) -> None:
    """A misspelt one would send somebody looking for it."""
    text = page.read_text(encoding="utf-8")
    settings = {*TOPIC_KEYS, *SERVICE_KEYS, *_SYNONYMS, *REFUSED_KEYS, *_SOURCE_SETTINGS, "log.dir", "log.dirs"}

    assert set(_METRIC.findall(text)) - {one.name for one in METRICS} == set()
    assert set(_SETTING.findall(text)) - settings == set()


@pytest.mark.long
def test_every_alert_has_a_runbook_and_every_runbook_an_alert(site: Path) -> None:
    """Each says what it means, how to look, what to do and when it clears."""
    rules = (ROOT / "conf" / "prometheus-alerts.yml").read_text(encoding="utf-8")
    alerts = dict(re.findall(r"- alert: (\w+)$.*?runbook_url: (\S+)$", rules, re.MULTILINE | re.DOTALL))
    text = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    runbooks = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))

    assert set(runbooks) == set(alerts)
    assert [f"docs/runbooks.md#{name.lower()}" for name in alerts] == list(alerts.values())
    assert {name.lower() for name in alerts} <= _page(site, "runbooks.html").anchors
    for name, runbook in runbooks.items():
        assert [part for part in _PARTS_OF_A_RUNBOOK if f"**{part}**" not in runbook] == [], name


def test_a_metric_without_a_help_text_is_refused() -> None:
    """Rather than a page with a hole in it."""
    with pytest.raises(reference.ReferenceBroken, match="has no METRICS"):
        reference.metrics("lastword.status.health")
