"""Every snippet and every command line of the documentation runs, in order, against a topic that is prepared for its page.

```
 ```python            run in one namespace a page: spark, logs (the log.dir "data"), topic ("fruit-prices"), in an empty working folder
 ```sql               run by Spark and by DuckDB, with the topic's log table as the view `log`; both must say the same
 ```text answer       what the query before it says: the names of its columns, then its rows, in order
 ```text output       what the block of Python or shell before it prints, in a terminal of 80 columns; … stands for anything
 ```sh                `lastword …` by the command line in this process, with `data` as the log.dir; mkdir, printf … by the shell
 ```toml              a configuration file of the service
 ```python no-run     shown, not run; ```sql spark or ```sql duckdb: by one of the two; ```sh no-run: parsed, not run
```

Commands that wait to be stopped (`lastword run`, `lastword top` …) are parsed with all of their options, as is everything in README.md.
"""

from __future__ import annotations

import io
import re
import shutil
import signal
import subprocess
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F
from typer.testing import CliRunner

from lastword import LogDir, latest_sql
from lastword.cli import app as cli
from lastword.service.settings import load_settings
from tests.clocks import at
from tests.docs import blocks
from tests.docs.blocks import DOCS, PAGES, ROOT
from tests.lastword.cli.widths import terminal_of
from tests.pictures import HOUR_MS, T0, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.docs.blocks import Block, CommandLine

_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}

#: Begins with nothing, as a stranger does.
_FROM_NOTHING: Final = frozenset({"tutorial.md"})

#: Asks what cleaning has done.
_CLEANED_TWICE: Final = frozenset({"troubleshooting.md"})

#: Spark's JVM does not follow Python into another folder.
_RELATIVE: Final = re.compile(r"(?<=[\"'`])(?=(data|incoming|tables)/)")
_RELATIVE_WORD: Final = re.compile(r"(?=(data|incoming|tables)/|(data|incoming)$)")

#: Programs whose command lines are shown and not run.
_SHOWN: Final = frozenset({"kubectl", "python", "python3.11", "spark-submit", "venv-pack"})
#: Programs that a reader is asked to run beside lastword, in the page's folder; make is asked whether it knows the target.
_PROGRAMS: Final = frozenset({"cat", "cp", "echo", "ls", "mkdir", "printf"})


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the topic of the pages, cleaned once and cleaned twice, for each page to have a copy of."""
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("once", "twice"):
        topic = LogDir(spark, str(folder / name)).create_topic("fruit-prices", partitions=2, config=_CONFIG)
        at(T0, topic).append(rows("lime=1 grape=1 kiwi=1 lime=2 fig=1", timestamp_ms=T0))
        at(T0, topic).roll()
        at(T0 + 1, topic).append(rows("grape=3 fig=∅ plum=1", timestamp_ms=T0 + 1))
        at(T0 + 2, topic).clean(force=True)
        later = T0 + 3
        if name == "twice":
            later = T0 + 2 * HOUR_MS
            at(T0 + 3, topic).roll()
            at(T0 + HOUR_MS, topic).append(rows("lime=3 kiwi=2 kiwi=3", timestamp_ms=T0 + HOUR_MS))
            at(T0 + HOUR_MS, topic).clean(force=True)
        at(later, at(later, topic).transaction("loader").__enter__()).append(rows("lime=9", timestamp_ms=later))
    return folder


@pytest.fixture
def namespace(
    spark: SparkSession, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[dict[str, Any]]:
    """Return what a page finds: a topic of two partitions with updates, a deleted key, a cleaning and an open transaction."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LASTWORD_LOG_DIR", str(tmp_path / "data"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    found = {"spark": spark, "__name__": "snippets", "_folder": str(tmp_path)}
    page = request.node.callspec.params["page"].name
    if page not in _FROM_NOTHING:
        shutil.copytree(prepared / ("twice" if page in _CLEANED_TWICE else "once"), tmp_path / "data")
        logs = LogDir(spark, str(tmp_path / "data"))
        found |= {"logs": logs, "topic": logs.topic("fruit-prices")}
    yield found
    for query in spark.streams.active:
        query.stop()
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Runner:
    """Runs the blocks of a page one after another; a failure names the page and line."""

    def __init__(self, page: Path, namespace: dict[str, Any]) -> None:
        """Take the page and what its Python finds."""
        self._page = page
        self._names = namespace
        self._answer: list[list[str]] = []
        self._printed = ""

    def run(self, block: Block) -> None:
        """Run a block, or compare an answer with what the query before it said."""
        where = f"{self._page.name}, line {block.line}"
        if block.language == "text" and "answer" in block.how:
            assert self._answer == [line.split() for line in block.text.splitlines()], where
        elif block.language == "text" and "output" in block.how:
            assert _is_shown(block.text, self._printed), f"{where}: it prints\n{self._printed}"
        elif not block.runs:
            return
        elif block.language == "python":
            text = _RELATIVE.sub(f"{self._names['_folder']}/", block.text)
            code = compile("\n" * (block.line - 1) + text, str(self._page.relative_to(ROOT)), "exec")
            with redirect_stdout(io.StringIO()) as printed:
                exec(code, self._names)  # noqa: S102  our own documentation
            self._printed = printed.getvalue()
        elif block.language == "sql":
            self._run_sql(block, where)
        else:
            self._printed = "".join(map(self._run_command, blocks.command_lines(block)))

    def _run_sql(self, block: Block, where: str) -> None:
        """Run a query by both engines, or by the one that is named, and compare the answers."""
        spark, log = self._names["spark"], self._names["topic"].log.paths.log
        answers = {}
        if "duckdb" not in block.how:
            spark.read.format("delta").load(log).createOrReplaceTempView("log")
            frame = spark.sql(block.text)
            answers["spark"] = sorted(map(_plain, frame.collect()))
            shown = frame.select(*[F.coalesce(F.col(name).cast("string"), F.lit("NULL")) for name in frame.columns]).collect()
            self._answer = [" ".join(row).split() for row in (frame.columns, *shown)]
        if "spark" not in block.how:
            with duckdb.connect() as connection:
                files = DeltaTable(log).file_uris()
                connection.execute(f"CREATE VIEW log AS SELECT * FROM read_parquet({files}, hive_partitioning = true)")  # noqa: S608  a path of ours
                answers["duckdb"] = sorted(map(_plain, connection.execute(block.text).fetchall()))
        assert len({str(answer) for answer in answers.values()}) == 1, f"{where}: {answers}"

    def _run_command(self, line: CommandLine) -> str:
        """Run a command, and return what it prints; nothing for one that waits to be stopped."""
        where, folder = f"{self._page.name}, line {line.line}: {line.text}", self._names["_folder"]
        if line.words[0] == "lastword":
            if line.waits:
                return ""
            words = [_RELATIVE_WORD.sub(f"{folder}/", word) if _RELATIVE_WORD.match(word) else word for word in line.words[1:]]
            with terminal_of(80):
                done = CliRunner().invoke(cli.app, words)
            assert done.exit_code == 0, f"{where}: {done.output}{done.exception!r}"
            return done.stdout
        if line.words[0] in _PROGRAMS:
            subprocess.run(["/bin/sh", "-c", line.text], cwd=folder, check=True, capture_output=True)  # noqa: S603  our own documentation
        else:
            _check_other(line, where)
        return ""


def _is_shown(text: str, printed: str) -> bool:
    """Tell whether a page shows what was printed: the same lines but for spaces and empty ones, with … for anything."""
    shown, found = ([" ".join(line.split()) for line in one.splitlines() if line.strip()] for one in (text, printed))
    lines = [r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in shown]
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in found)) is not None


def _check_other(line: CommandLine, where: str) -> None:
    """Raise for a command that nobody has said what to do with, and for a target that the Makefile has not."""
    assert line.words[0] == "make", f"{where}: a program that tests/docs does not know"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(line.words[1:]) <= targets, where


def _plain(row: Any) -> tuple[str, ...]:
    """Return a row in a form that does not depend on the engine; times are left out, engines show them in zones of their own."""
    shown = (bytes(value) if isinstance(value, bytearray) else value for value in row)
    return tuple(str(value) for value in shown if not hasattr(value, "tzinfo"))


def _blocks(page: Path) -> list[Block]:
    return blocks.blocks(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", [page for page in PAGES if any(one.runs for one in _blocks(page))], ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, namespace: dict[str, Any]) -> None:
    """In the order in which a reader meets them."""
    runner = Runner(page, namespace)
    for block in _blocks(page):
        runner.run(block)


@pytest.mark.long
@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_every_command_line_is_one_that_lastword_understands(page: Path) -> None:
    """With every option and argument, whether it is run here or not; in running text at least command and options exist."""
    for block in _blocks(page):
        assert block.language, f"{page.name}, line {block.line}: a block without a language"
        assert block.language in {"sh", "text"} or not re.search(r"^\$? ?lastword ", block.text, re.MULTILINE), (
            f"{page.name}, line {block.line}"
        )
        for line in blocks.command_lines(block) if block.language == "sh" else ():
            where = f"{page.name}, line {line.line}: {line.text}"
            if line.words[0] == "lastword":
                try:
                    blocks.parse(line.words)
                except Exception as error:
                    message = f"{where}: {error}"
                    raise AssertionError(message) from error
            elif line.words[0] not in _PROGRAMS and (block.runs or line.words[0].rpartition("/")[2] not in _SHOWN):
                _check_other(line, where)
    for mention in blocks.mentions(page.read_text(encoding="utf-8")):
        blocks.check_mention(mention)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(one.language == "toml" for one in _blocks(page))], ids=lambda page: page.name
)
def test_every_configuration_that_is_shown_is_accepted(page: Path, tmp_path: Path) -> None:
    """As `lastword run` reads it."""
    for block in _blocks(page):
        if block.language == "toml":
            (tmp_path / "lastword.toml").write_text(block.text, encoding="utf-8")
            load_settings(tmp_path / "lastword.toml")


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("a  1", True),
        ("a 1\n", False),
        ("a 1\nb 2", True),
        ("a …\nb 2", True),
        ("a 1\n…\n", True),
        ("…\nc 3", True),
        ("a 1\n…\nc 3", True),
        ("a 1\n…\nc 4", False),
        ("a 1\nb 2\nd", False),
    ],
)
def test_what_a_page_shows_is_compared_with_what_is_printed(text: str, is_shown: bool) -> None:  # noqa: FBT001  a table of cases
    """Line by line; a line of … alone stands for any lines."""
    printed = "a    1\n" if text == "a  1" else "a 1\n\n b   2\n" if "c" not in text else "a 1\nb 2\nc 3\n"
    assert _is_shown(text, printed) is is_shown


@pytest.mark.parametrize("line", ["lastword sweep fruit-prices", "lastword clean fruit-prices --dry", "lastword readers drop fruit-prices"])
def test_a_command_line_that_lastword_would_refuse_is_found(line: str) -> None:
    """An unknown command, an unknown option, a missing argument: the checker of this page is no yes-man."""
    with pytest.raises(Exception, match=r"No such command|No such option|Missing parameter"):
        blocks.parse(tuple(line.split()))


def test_the_page_shows_the_query_that_the_function_returns() -> None:
    """The documentation and `latest_sql` say the same, word for word."""
    (query,) = (one for one in _blocks(DOCS / "read-without-a-jvm.md") if one.language == "sql")

    assert query.text.strip() == latest_sql("log")
