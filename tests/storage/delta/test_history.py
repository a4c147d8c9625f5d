"""The commits of the log: whose they are, which version each one has, and how far a RESTORE went back."""

from __future__ import annotations

import errno
import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from lastword.storage.delta.history import CommitMetadata, _version_of_same_files, commit_actions, commits_since
from lastword.storage.files.paths import filesystem_of
from tests.clocks import at
from tests.pictures import T0, delete_records, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir, SparkTopic

_ROWS = pa.table({"number": [1]})
_SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
_RECEIPTS = st.lists(st.dictionaries(st.text(), _SCALARS | st.lists(_SCALARS, max_size=3), max_size=4), max_size=3)
_METADATA = st.builds(
    CommitMetadata,
    token=st.text(),
    kind=st.text(),
    receipts=_RECEIPTS.map(tuple),
)


@given(_METADATA)
def test_commit_metadata_comes_back_from_its_json(metadata: CommitMetadata) -> None:
    """Any token and receipts are written as one line of JSON and read back equal."""
    text = metadata.to_json()
    assert CommitMetadata.from_json(text) == metadata
    assert "\n" not in text


_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.none() | st.text() | _JSON.map(json.dumps))
def test_a_commit_that_is_not_ours_has_no_metadata_of_ours(text: str | None) -> None:
    """No text, no JSON, JSON of somebody else."""
    assert CommitMetadata.from_json(text) is None


def _commit(path: Path, metadata: CommitMetadata | None = None, text: str | None = None) -> None:
    """Append to a throwaway table as one of ours does, or as somebody else."""
    written = metadata.to_json() if metadata else text
    properties = CommitProperties(custom_metadata={"userMetadata": written} if written is not None else {})
    write_deltalake(path, _ROWS, mode="append", commit_properties=properties)


@pytest.mark.parametrize(("gone", "newer"), [(0, 0), (0, 3), (2, 0), (2, 3), (1, 3)])
def test_commits_have_their_versions_whatever_came_since_and_whatever_is_gone(tmp_path: Path, gone: int, newer: int) -> None:
    """delta-rs numbers what came after the loaded version as if it had not come; the oldest commits leave the Delta log in the end.

    ```
     version     0 1 2 3 4 5   6 7 8
     token       a b c d e f   g h i
                 gone          newer
    ```
    """
    tokens = "abcdefghi"
    for token in tokens[:6]:
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    for version in range(gone):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    for token in tokens[6 : 6 + newer]:
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
    for since in range(-1, 6):
        found = [(one.version, one.metadata.token if one.metadata else None) for one in commits_since(table, since)]
        assert found == [(version, tokens[version]) for version in range(5, max(since, gone - 1), -1)]


def _restored(table: DeltaTable, since: int) -> list[int]:
    table.update_incremental()
    return [one.restored_version for one in commits_since(table, since) if one.restored_version is not None]


@pytest.mark.long
def test_a_restore_to_a_moment_went_back_to_the_newest_version_with_the_same_files(tmp_path: Path) -> None:
    """Its commit names no version; those from before it need not be asked for. Nothing is known where the Delta log ends before.

    ```
     version   0    1    2    3    4 (to 1)   5    6 (to 4)   7 (to 2)
     files     a    ab   abc  abcd ab         abe  ab         abc
    ```
    """
    for token in "abcd":
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
        time.sleep(0.3)  # the commit's file is younger than what it says, more so on a busy machine
    table = DeltaTable(tmp_path)
    moments = {one.version: one.time_ms for one in commits_since(table, -1)}

    def restore(version: int) -> None:
        table.restore(datetime.fromtimestamp((moments[version] + 150) / 1000, timezone.utc))
        time.sleep(0.3)

    restore(1)
    assert _restored(table, 3) == [1]
    for token in "e":
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
        time.sleep(0.3)
    table.update_incremental()
    moments |= {one.version: one.time_ms for one in commits_since(table, 3)}
    restore(4)
    restore(2)
    assert _restored(table, 6) == [2]
    assert _restored(table, 5) == [2, 4]
    assert _restored(table, -1) == [2, 4, 1]
    table.create_checkpoint()
    (tmp_path / "_delta_log" / f"{3:020}.json").unlink()
    assert _restored(table, 6) == [-1]


def test_delete_records_outlives_a_restore_to_a_later_moment(spark: SparkSession, logs: LogDir[SparkTopic]) -> None:
    """The log start holds, as the version that it went back to holds it; commits from before that were not read again."""
    topic = logs.create_topic("fruit", config={"cleanup.policy": "delete", "retention.ms": -1})
    at(T0, topic).append(rows("grape=1 lime=1 kiwi=1"))
    delete_records(at(T0, topic), {0: 1})
    kept = at(T0, topic).append(rows("fig=1")).table_version
    then = Path(topic.log.paths.log, "_delta_log", f"{kept:020}.json").stat().st_mtime
    at(T0, topic).append(rows("plum=1"))
    topic.log.sync_ledger_with_history()
    moment = datetime.fromtimestamp(then, timezone.utc) + timedelta(milliseconds=2)  # Delta goes by its file's
    spark.sql(f"RESTORE delta.`{topic.log.paths.log}` TO TIMESTAMP AS OF '{moment.isoformat(timespec='milliseconds')}'")
    topic.log.sync_ledger_with_history()
    assert [one.restored_version for one in topic.log.decisions().restores] == [kept]
    assert [row["offset"] for row in topic.records().orderBy("offset").collect()] == [1, 2, 3]
    assert topic.verify().ok


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no answer"), TimeoutError("late"), PermissionError(errno.EACCES, "no")])
def test_a_history_that_cannot_be_read_now_does_not_end_there(error: OSError) -> None:
    """What a RESTORE took back goes to the ledger for good: it is not guessed from a part of the history."""

    class Failing:
        def open_input_stream(self, _path: str) -> None:
            raise error

    failing: Any = Failing()
    with pytest.raises(type(error)):
        _version_of_same_files(failing, 3)


def test_a_restore_that_left_files_of_no_version_went_back_to_none(tmp_path: Path) -> None:
    """Somebody else's commit that says RESTORE and brings a file of its own; all commits are there."""
    for token in "ab":
        _commit(tmp_path, CommitMetadata(token=token, kind="append"))
    [added] = [action for action in commit_actions(filesystem_of(str(tmp_path), {}), 1) if "add" in action]
    added["add"]["path"] = "part-of-somebody-else.parquet"
    info = {"commitInfo": {"operation": "RESTORE", "operationParameters": {}, "timestamp": 0}}
    text = "\n".join(map(json.dumps, (info, added)))
    (tmp_path / "_delta_log" / f"{2:020}.json").write_text(text, encoding="utf-8")
    assert _restored(DeltaTable(tmp_path), 1) == [-1]
