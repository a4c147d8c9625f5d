"""Every snippet of the documentation runs, in order, against a topic that is prepared for its page.

```
 ```python            run in one namespace a page: spark, logs (the log.dir "data"), topic ("fruit-prices"), in an empty working folder
 ```sql               run by Spark and by DuckDB, with the topic's log table as the view `log`; both must say the same
 ```python no-run     shown, not run; ```sql spark or ```sql duckdb: by one of the two
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest
from deltalake import DeltaTable

from lastword import LogDir, arrow
from storage import lock
from tests.pictures import T0, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lastword import Topic

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
_BLOCK: Final = re.compile(r"^```(?P<language>python|sql)(?P<how>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

#: Spark's JVM does not follow Python into another folder.
_RELATIVE: Final = re.compile(r"(?<=[\"'`])data/")


@dataclass(frozen=True)
class Snippet:
    """A block of a page: its language, the words behind it, its text and the line where it begins."""

    language: str
    how: frozenset[str]
    text: str
    line: int


def snippets(page: Path) -> list[Snippet]:
    """Return the blocks of a page that are Python or SQL, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(found["language"], frozenset(found["how"].split()), found["text"], text.count("\n", 0, found.start()) + 2)
        for found in _BLOCK.finditer(text)
    ]


@pytest.fixture
def namespace(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return what a page finds: a topic of two partitions with updates, a deleted key, a cleaning and an open transaction."""
    monkeypatch.chdir(tmp_path)
    logs = LogDir(spark, str(tmp_path / "data"))
    topic = logs.create_topic("fruit-prices", partitions=2, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01})
    topic.append(rows(spark, "lime=1 grape=1 kiwi=1 lime=2 fig=1", timestamp_ms=T0), now_ms=T0)
    topic.roll(now_ms=T0)
    topic.append(rows(spark, "grape=3 fig=∅ plum=1", timestamp_ms=T0 + 1), now_ms=T0 + 1)
    topic.clean(T0 + 2, force=True)
    topic.transaction("loader", now_ms=T0 + 3).__enter__().append(rows(spark, "lime=9"), now_ms=T0 + 3)
    yield {"spark": spark, "logs": logs, "topic": topic, "__name__": "snippets", "_folder": str(tmp_path)}
    for query in spark.streams.active:
        query.stop()
    lock.release_all()


def run(snippet: Snippet, page: Path, namespace: dict[str, Any]) -> None:
    """Run one snippet; a failure names the page and line."""
    if "no-run" in snippet.how:
        return
    if snippet.language == "sql":
        run_sql(snippet, namespace["spark"], namespace["topic"])
        return
    text = _RELATIVE.sub(rf"{namespace['_folder']}/data/", snippet.text)
    code = compile("\n" * (snippet.line - 1) + text, str(page.relative_to(ROOT)), "exec")
    exec(code, namespace)  # noqa: S102  our own documentation


def run_sql(snippet: Snippet, spark: SparkSession, topic: Topic) -> None:
    """Run a query by both engines, or by the one that is named, and compare the answers."""
    answers = {}
    if "duckdb" not in snippet.how:
        spark.read.format("delta").load(topic.log.paths.log).createOrReplaceTempView("log")
        answers["spark"] = sorted(map(_plain, spark.sql(snippet.text).collect()))
    if "spark" not in snippet.how:
        with duckdb.connect() as connection:
            files = DeltaTable(topic.log.paths.log).file_uris()
            connection.execute(f"CREATE VIEW log AS SELECT * FROM read_parquet({files}, hive_partitioning = true)")  # noqa: S608  a path of ours
            answers["duckdb"] = sorted(map(_plain, connection.execute(snippet.text).fetchall()))
    assert len({str(answer) for answer in answers.values()}) == 1, f"line {snippet.line}: {answers}"


def _plain(row: Any) -> tuple[str, ...]:
    """Return a row in a form that does not depend on the engine; times are left out, engines show them in zones of their own."""
    shown = (bytes(value) if isinstance(value, bytearray) else value for value in row)
    return tuple(str(value) for value in shown if not hasattr(value, "tzinfo"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run(page: Path, namespace: dict[str, Any]) -> None:
    """In the order in which a reader meets them."""
    for snippet in snippets(page):
        run(snippet, page, namespace)


def test_the_page_shows_the_query_that_the_function_returns() -> None:
    """The documentation and `latest_sql` say the same, word for word."""
    (query,) = (one for one in snippets(ROOT / "docs" / "read-without-a-jvm.md") if one.language == "sql")

    assert query.text.strip() == arrow.latest_sql("log")
