"""What keeps the files of a running source from being listed is an issue until they can be listed again. No JVM."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import types as T

from lastword import LogDir
from lastword.streaming.append.file_source import FilePlanner
from lastword.streaming.append.source_issues import source_issue
from lastword.streaming.append.source_settings import FileSource

if TYPE_CHECKING:
    from pathlib import Path

    from lastword.storage.log.topic_log import TopicLog


@pytest.fixture
def log(tmp_path: Path) -> TopicLog:
    """Return the log of a topic, beside a folder with one file."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("{}\n")
    return LogDir(str(tmp_path / "data")).create_topic("fruit").log


def _planner(log: TopicLog, path: Path, *, limit: int = 0) -> Any:
    settings = {"name": "files", "topic": "fruit", "format": "json", "path": str(path), "key": ["id"], "max.files.per.trigger": limit}
    source = FileSource.model_validate(settings)
    nothing: Any = None
    return FilePlanner(nothing, source, log, nothing, T.StructType())


@pytest.mark.parametrize("path", ["in", "in/*.json", "in/a.json"])
def test_a_folder_that_is_moved_away_is_an_issue_until_it_is_back(log: TopicLog, tmp_path: Path, path: str) -> None:
    """For a folder, a glob and a file alike; when it is back, the next file is read."""
    planner = _planner(log, tmp_path / path)
    first = planner.latest(planner.first(), "q")
    assert (first, source_issue(log.paths.root, "files")) == ('{"files": 1}', "")
    (tmp_path / "in").rename(tmp_path / "away")
    assert planner.latest(first, "q") == first
    issue = source_issue(log.paths.root, "files")
    assert issue.startswith("its files cannot be listed: there is no ")
    assert str(tmp_path / "in") in issue
    assert source_issue(log.paths.root, "others") == ""
    (tmp_path / "away").rename(tmp_path / "in")
    planner.latest(first, "q")
    assert source_issue(log.paths.root, "files") == ""


def test_a_file_in_the_place_of_the_folder_is_an_issue_and_a_query_that_stops_has_none(log: TopicLog, tmp_path: Path) -> None:
    """When the query stops, its issue is gone; another process or the next start notices it again."""
    planner = _planner(log, tmp_path / "in" / "*.json")
    first = planner.latest(planner.first(), "q")
    (tmp_path / "in").rename(tmp_path / "away")
    (tmp_path / "in").write_text("")
    assert planner.latest(first, "q") == first
    assert source_issue(log.paths.root, "files") != ""
    planner.stop("q")
    assert source_issue(log.paths.root, "files") == ""


def test_the_files_that_wait_for_a_later_micro_batch_are_counted(log: TopicLog, tmp_path: Path) -> None:
    """For the progress of the query: after each listing, unless it failed; not known before the first and after the query stopped."""
    planner = _planner(log, tmp_path / "in", limit=1)
    (tmp_path / "in" / "b.json").write_text("{}\n")
    assert planner.newest() is None
    first = planner.latest(planner.first(), "q")
    assert json.loads(planner.newest()) == {"files": 1, "waiting": 1}
    (tmp_path / "in").rename(tmp_path / "away")
    planner.latest(first, "q")
    assert planner.newest() is None
    (tmp_path / "away").rename(tmp_path / "in")
    planner.latest(first, "q")
    assert json.loads(planner.newest()) == {"files": 2, "waiting": 0}
    planner.stop("q")
    assert planner.newest() is None


def test_no_files_are_no_rows(log: TopicLog, tmp_path: Path) -> None:
    """Between a source offset and itself, as Spark may ask at the start of a query."""
    planner = _planner(log, tmp_path / "in")
    planner._spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))  # noqa: SLF001
    assert planner.rows(planner.first(), planner.first()) is None
    end = planner.latest(planner.first(), "q")
    assert planner.rows(end, end) is None
