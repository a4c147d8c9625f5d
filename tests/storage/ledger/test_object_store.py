"""An S3 store, spoken to over HTTP: what the control plane does there without Spark. Spark's side needs 600 MB of jars and is not run."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lastword import LogDir
from lastword.cli.app import app
from lastword.compaction.errors import CommitConflict, TopicExists, UnknownTopic, UserError
from lastword.status.standing import Looker
from lastword.storage.files.file_format import FileFormat
from lastword.storage.files.file_listing import FileListing
from lastword.storage.files.json_files import read_json_file, write_json_file
from lastword.storage.files.paths import LogDirFiles, filesystem_of
from lastword.storage.files.source_files import find_files, is_away, read_texts
from tests.compaction.logs import rows
from tests.object_store import IS_AZURE, URI, running_store, storage_options_of
from tests.storage.logs import DiskLog
from tests.storage.storm import storm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_S3A = "spark.hadoop.fs.s3a."


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """A store with an empty bucket, and what reaches it."""
    with running_store() as endpoint:
        yield storage_options_of(endpoint)


@pytest.mark.long
def test_topics_are_made_described_altered_and_deleted_on_an_object_store(options: dict[str, str]) -> None:
    """Ledger, explain, standing and arrow too; two at once are one, by a conditional put."""
    logs = LogDir(f"{URI}/topics", storage_options=options)
    assert logs.topics() == []
    topic = logs.create_topic("fruit", partitions=2, config={"cleanup.policy": "compact"})
    with pytest.raises(TopicExists):
        logs.create_topic("fruit")
    topic.alter_config({"segment.bytes": "4MiB"})
    again = LogDir(f"{URI}/topics", storage_options=options)
    assert again.topics() == ["fruit"]
    assert again.topic("fruit").describe().overrides == {"cleanup.policy": "compact", "segment.bytes": "4194304"}
    assert [one.obstacle for one in again.topic("fruit").explain()] == ["nothing cleanable"] * 2
    standing = Looker(topic.log, logs.cleaner).look(now_ms=1)
    assert (standing.error, len(standing.partitions)) == (None, 2)
    assert again.topic("fruit").latest().num_rows == 0
    logs.delete_topic("fruit")
    with pytest.raises(UnknownTopic):
        again.topic("fruit")


@pytest.mark.long
@pytest.mark.parametrize("told_by", ["options", "configuration"])
def test_the_commands_work_on_an_object_store_without_a_jvm(told_by: str, options: dict[str, str], tmp_path: Path) -> None:
    """The store is told by options before the command, or by the configuration of the service, with its log.dir."""
    if IS_AZURE and told_by == "configuration":
        pytest.skip("Hadoop's settings of Azure name no endpoint of a server of one's own")
    log_dir = f"{URI}/{uuid.uuid4().hex}"
    if told_by == "options":
        place = ["--log-dir", log_dir]
        before = [word for key, value in options.items() for word in ("--storage-option", f"{key}={value}")]
    else:
        settings = {"access.key": "key", "secret.key": "secret", "endpoint": options["AWS_ENDPOINT_URL"], "path.style.access": "true"}
        lines = [f'"{_S3A}{key}" = "{value}"' for key, value in {**settings, "endpoint.region": "us-east-1"}.items()]
        (tmp_path / "lastword.toml").write_text("\n".join([f'log.dir = "{log_dir}"', "[spark]", *lines]), encoding="utf-8")
        place, before = [], ["--config", str(tmp_path / "lastword.toml")]
    pq.write_table(pa.table({"key": ["lime", "lime"], "value": ["1", "2"]}), tmp_path / "monday.parquet")

    def answers(*words: str) -> str:
        found = CliRunner().invoke(app, [*before, *words, *place])
        assert found.exit_code == 0, found.output
        return found.stdout

    answers("topics", "create", "fruit", "--config", "cleanup.policy=compact")
    assert "appended 2 records" in answers("append", "fruit", str(tmp_path / "monday.parquet"))
    assert json.loads(answers("latest", "fruit", "--json"))["value"] == "2"
    assert len(answers("records", "fruit", "--json").splitlines()) == 2
    answers("roll", "fruit")
    assert json.loads(answers("clean", "fruit", "--force", "--json"))["removed"] == {"superseded": 1}
    assert json.loads(answers("topics", "describe", "fruit", "--json"))["partitions"][0]["log_end_offset"] == 2
    assert json.loads(answers("verify", "fruit", "--json"))["problems"] == []
    answers("topics", "delete", "fruit", "--yes")
    assert "fruit" not in answers("topics", "list")


def test_small_files_are_written_and_read_on_an_object_store(options: dict[str, str]) -> None:
    """What the caches do: a folder, a file, a rename, a listing."""
    files = filesystem_of(f"{URI}/caches", options)
    files.create_dir("producers", recursive=True)
    with files.open_output_stream("producers/state.json.new") as stream:
        stream.write(b"{}")
    files.move("producers/state.json.new", "producers/state.json")
    with files.open_input_file("producers/state.json") as stream:
        assert stream.read() == b"{}"


def test_files_of_a_source_are_found_and_listed_on_an_object_store(options: dict[str, str]) -> None:
    """By a folder, a pattern, a name and the whole bucket; a listing is there again for the next start, with old entries gone."""
    folder = f"{URI}/{uuid.uuid4().hex}"
    files = filesystem_of(folder, options)
    for name in ("a.json", "b.csv", "deep/c.json", "_unfinished/d.json"):
        with files.open_output_stream(name) as stream:
            stream.write(b'{"k":1}\n')
    for path, names in (
        ("", ["a.json", "b.csv", "deep/c.json"]),
        ("/*.json", ["a.json"]),
        ("/**/c.json", ["deep/c.json"]),
        ("/b.csv", ["b.csv"]),
    ):
        found = find_files(f"{folder}{path}", options)
        assert sorted(file.path for file in found) == [f"{folder}/{name}" for name in names]
    assert [row.text for rows in read_texts(f"{folder}/a.json", FileFormat(name="json"), options) for row in rows] == [b'{"k":1}']
    for whole in (URI, f"{URI}/*"):
        assert {file.path for file in find_files(whole, options)} >= {f"{folder}/a.json"}
    for path in (f"{folder}/plums.json", f"{folder}/plums/*.json"):
        with pytest.raises(FileNotFoundError, match="there is no f"):
            find_files(path, options)
    assert not is_away(folder, f"{folder}/a.json"), "each object is there or gone by itself"
    listing, many = FileListing(f"{folder}/query", options), find_files(f"{folder}/*", options)
    assert [listing.add(many[:1]) for _ in range(73)][-1] == 73
    again = FileListing(f"{folder}/query", options)
    assert (again.last, again.known, again.files(73)) == (73, {many[0].path: many[0]}, many[:1])
    assert not files.get_file_info("query/files/0000000055.json").is_file


def test_a_small_file_is_replaced_in_one_step_on_an_object_store(options: dict[str, str]) -> None:
    """What the next one reads is whole: settings of the service, and what caches keep."""
    folder = f"{URI}/{uuid.uuid4().hex}"
    places = LogDirFiles(folder, options)
    assert places.read_settings() == {}
    for settings in ({"log.dir": folder}, {"log.dir": folder, "segment.bytes": 5}):
        places.write_settings(settings)
        assert LogDirFiles(folder, options).read_settings() == settings
    places.check_reachable()
    files = filesystem_of(folder, options)
    for number in (1, 2):
        write_json_file(files, "cache/a.json", {"number": number}, unfinished="cache/a.json")
        assert read_json_file(files, "cache/a.json")["number"] == number


@pytest.mark.long
def test_several_processes_commit_to_a_log_on_an_object_store(options: dict[str, str]) -> None:
    """A conditional put is what keeps them apart."""
    storm(DiskLog.create(f"{URI}/storm-{uuid.uuid4().hex}", options), writers=2, commits=3)


@pytest.mark.parametrize(
    "setting",
    [
        {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"},
        {"AWS_S3_LOCKING_PROVIDER": "dynamodb"},
        {"aws_copy_if_not_exists": "header: x-absent: true"},
        {"AWS_CONDITIONAL_PUT": "etag"},
        {},
    ],
    ids=lambda setting: next(iter(setting), "none given"),
)
def test_no_setting_of_a_store_lets_two_writers_make_one_version(options: dict[str, str], setting: dict[str, str]) -> None:
    """With any option of delta-rs, the later of two commits that were planned at one version is refused."""
    if IS_AZURE and setting:
        pytest.skip("an option of S3")
    given = {**{name: value for name, value in options.items() if name != "aws_conditional_put"}, **setting}
    log = DiskLog.create(f"{URI}/{uuid.uuid4().hex}", given)
    planned, files = log.snapshot(), [log.written(rows(f"0:{key}=1"), segment=0) for key in "ab"]
    log.append(files[:1], planned)
    with pytest.raises(CommitConflict, match="another commit of lastword-append came"):
        log.append(files[1:], planned)
    assert [one.row.key for one in log.rows()] == [b"a"]


@pytest.mark.parametrize("name", ["aws_conditional_put", "AWS_CONDITIONAL_PUT", "conditional_put"])
@pytest.mark.parametrize("value", ["disabled", "dynamo:locks", "ETag-"])
def test_a_store_that_may_overwrite_is_refused_by_name(name: str, value: str) -> None:
    """Before anything is asked of it."""
    for open_log_dir in (LogDir, partial(LogDir, settings={})):
        with pytest.raises(UserError, match=rf"{name} = {value}: allowed is etag"):
            open_log_dir("s3://bucket/topics", storage_options={name: value})


@pytest.mark.torture
def test_seven_processes_commit_to_a_log_on_an_object_store(options: dict[str, str]) -> None:
    """The same, for longer."""
    storm(DiskLog.create(f"{URI}/storm-{uuid.uuid4().hex}", options), writers=7, commits=20)


def test_a_topic_that_was_deleted_is_noticed_on_an_object_store_too(options: dict[str, str]) -> None:
    """Whether another one took its name or not; nothing is decided for the new one."""
    logs = LogDir(f"{URI}/{uuid.uuid4().hex}", storage_options=options)
    old = logs.create_topic("fruit")
    old.alter_config({"segment.bytes": "4MiB"})
    logs.delete_topic("fruit")
    with pytest.raises(UnknownTopic, match="does not exist"):
        old.log.decisions()
    new = logs.create_topic("fruit")
    with pytest.raises(UnknownTopic, match="another one created under its name"):
        old.alter_config({"segment.bytes": "8MiB"})
    assert new.log.decisions().overrides == {}
