"""Where a path or URI leads: to one place for every engine, or to one error before anything is made. No JVM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lastword import LogDir, UserError
from lastword.storage.files.locations import local_path, location_of, spark_location
from lastword.storage.files.source_files import find_files
from lastword.storage.log.topic_log import open_log
from pyspark_lastword.options import SourceOptions
from pyspark_lastword.readers import TopicBatchReader
from tests.pictures import latest, rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("/var/lib/x/", "/var/lib/x"),
        ("/a b/50%/ü/#1?/[x]{y}*", "/a b/50%/ü/#1?/[x]{y}*"),
        ("/2026-01-01T10:00:00", "/2026-01-01T10:00:00"),
        ("file:/a b", "/a b"),
        ("file:///a%20b/", "/a b"),
        ("file://localhost/a", "/a"),
        ("file:/%C3%BC/50%25", "/ü/50%"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a b/ü//", "s3a://bucket/a b/ü"),
        ("abfss://logs@account.dfs.core.windows.net/x/", "abfss://logs@account.dfs.core.windows.net/x"),
        ("gs://bucket/x", "gs://bucket/x"),
    ],
)
def test_a_location_is_one_place(given: str, found: str) -> None:
    """A path as it is written, a file: URI decoded, a store's without a slash at its end; again it is the same."""
    assert location_of(given) == location_of(found) == found
    assert str(local_path(given) or found) == found
    assert spark_location(found) == (f"file://{found}" if found.startswith("/") else found)


def test_relative_paths_and_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the working directory when it is opened, and by HOME; a folder that is called so is written with ./ in front."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/srv/ann")
    for given in ("data", "./data", "data/", "./data//"):
        assert location_of(given) == f"{tmp_path}/data"
    assert [location_of(given) for given in ("~", "~/data", "./~")] == ["/srv/ann", "/srv/ann/data", f"{tmp_path}/~"]
    assert location_of("./dbfs:/x") == f"{tmp_path}/dbfs:/x"
    logs = LogDir("data")
    logs.create_topic("fruit").append(rows("lime=1"))
    os.chdir("/")
    assert latest(logs.topic("fruit")) == {"lime": "1"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "it is empty"),
        (" ", "it is empty"),
        ("a\0b", "null character"),
        ("dbfs:/mnt/x", r"no way to commit to dbfs:; for a local folder of this name write \./dbfs:/mnt/x"),
        ("hdfs://name:8020/x", "no way to commit to hdfs:"),
        ("http://host/x", "no way to commit to http:"),
        ("memory://x", "no way to commit to memory:"),
        ("S3://bucket/x", "no way to commit to S3:"),
        ("file:data", "a file: URI names an absolute path"),
        ("file://host/x", "a file: URI names an absolute path"),
        ("s3:/bucket/x", "it names no bucket"),
        ("s3:///x", "it names no bucket"),
        ("s3://b/a%20b", "do not agree what % means"),
        ("s3://b/a?b", r"do not agree what \? means"),
        ("abfss://c@a/x#y", "do not agree what # means"),
        ("gs://b/a\\b", r"do not agree what \\ means"),
        ("s3://ann:hunter2@b/x", "credentials are options of the store"),
        ("/a%20b", "delta-rs reads %20 in a path as another character"),
        ("file:///a%255Cb", "delta-rs reads %5C in a path as another character"),
        ("/a\\b", r"delta-rs reads \\ in a path as another character"),
        ("~nobody-of-this-name/x", "home directory"),
    ],
)
def test_another_location_is_one_error_that_says_what_is_allowed(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each door: a log.dir, a topic of the source `lastword`, the files of a source. Nothing is made."""
    monkeypatch.chdir(tmp_path)
    for door in (LogDir, open_log):
        with pytest.raises(UserError, match=rf"{said}.*Allowed are a path, a file: URI, and URIs of s3:, s3a:") as found:
            door(given)
        assert "hunter2" not in str(found.value)
    with pytest.raises(UserError, match=said):
        TopicBatchReader(SourceOptions(path=given), ["key"]).view()
    if "means" not in said and "reads" not in said:
        with pytest.raises(UserError, match=said):
            find_files(given, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "50%", "größe 🍋", "[x]{a,b}*?", "a#b", 'it\'s "x"', "c:x", "k=v", "~"])
def test_a_topic_lives_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    """Appended, cleaned, read, and read by delta-rs alone; by its path and by its URI."""
    logs = LogDir(tmp_path / name)
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    topic.append(rows("lime=1 kiwi=1"))
    topic.append(rows("lime=2"))
    topic.roll()
    topic.clean()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    by_uri = LogDir((tmp_path / name).as_uri()).topic("fruit")
    assert latest(topic) == latest(by_uri) == {"lime": "2", "kiwi": "1"}
    assert by_uri.scan_latest().collect().height == 2
    assert topic.verify().ok
    assert len(DeltaTable(topic.log.paths.log).file_uris()) == 1
    logs.delete_topic("fruit")
    assert LogDir(tmp_path / name).topics() == []
