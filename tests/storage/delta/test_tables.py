"""Opening a Delta table: damage is told from a storage that fails, and no commit that is there is left out."""

from __future__ import annotations

import errno
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

from lastword.compaction.errors import CorruptLog
from lastword.storage.delta import tables
from lastword.storage.delta.tables import create_table, make_table, open_table, refresh_table, txn_version, write_checkpoint
from lastword.storage.files.schema import PLACE_COLUMNS, log_properties, log_schema
from tests.compaction.logs import rows
from tests.storage.logs import DiskLog

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def log(tmp_path: Path) -> DiskLog:
    """A log with two appends: versions 1 and 2."""
    log = DiskLog.create(tmp_path / "log")
    for offset in (0, 1):
        log.append([log.written(rows(f"{offset}:a=1"), segment=0)])
    return log


def _first(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | Callable[[], Any]) -> list[int]:
    """Let delta-rs open a table with these outcomes one after the other, and then as it does; return the list of its calls."""
    left, calls = list(outcomes), list[int]()

    def opened(location: str, **options: Any) -> Any:
        calls.append(1)
        outcome = left.pop(0) if left else lambda: deltalake.DeltaTable(location, **options)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome()

    monkeypatch.setattr(tables, "DeltaTable", opened)
    return calls


@pytest.mark.parametrize(
    "error",
    [
        OSError("Kernel error -> Generic LocalFileSystem error"),
        DeltaError("Kernel error: Generic delta kernel error: Expected contiguous commit files, but found gap"),
        DeltaError('Kernel error: Invalid table location: Path does not exist: "/log"'),
        TableNotFoundError("Generic delta kernel error: No files in log segment"),
        OSError(errno.ESTALE, "Stale file handle"),
    ],
    ids=lambda error: str(error)[-20:],
)
def test_an_error_that_a_second_look_does_not_find_is_none(log: DiskLog, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """If the table can be opened at the second attempt, the first error is not raised."""
    calls = _first(monkeypatch, error)
    assert open_table(log.location, {}).version() == 2
    assert len(calls) == 2


@pytest.mark.parametrize(
    "error",
    [
        OSError("Kernel error -> Generic S3 error"),
        DeltaError("Kernel error: Arrow error: External: Generic LocalFileSystem error: Unable to open file x: Input/output error"),
        DeltaError("Generic S3 error: Error performing GET: Client error with status 503 Service Unavailable: SlowDown"),
        DeltaError("The operation lacked the necessary privileges to complete for path x"),
    ],
    ids=lambda error: str(error)[-20:],
)
def test_a_storage_that_goes_on_failing_has_a_number_and_is_no_damage(
    log: DiskLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The location is named."""
    _first(monkeypatch, *[error] * 9)
    with pytest.raises(OSError, match=log.location) as caught:
        open_table(log.location, {})
    assert caught.value.errno == errno.EIO


def test_damage_is_found_each_time(log: DiskLog, tmp_path: Path) -> None:
    """A commit that is gone from the middle, and one that is no JSON; no table at all is neither."""
    whole = tmp_path / "whole"
    shutil.copytree(log.location, whole)
    Path(log.location, "_delta_log", f"{1:020}.json").unlink()
    with pytest.raises(CorruptLog, match="the Delta log cannot be read"):
        open_table(log.location, {})
    (whole / "_delta_log" / f"{2:020}.json").write_text("{", encoding="utf-8")
    with pytest.raises(CorruptLog, match="the Delta log cannot be read"):
        open_table(str(whole), {})
    with pytest.raises(TableNotFoundError):
        open_table(str(tmp_path / "none"), {})


def test_a_commit_that_delta_rs_leaves_out_is_looked_for_again(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so where it cannot look at the newest commit of a local disk; one that stays away is an error, and no older version."""
    old = deltalake.DeltaTable(log.location, version=1)
    _first(monkeypatch, lambda: old)
    assert open_table(log.location, {}).version() == 2

    class Stuck:
        table_uri, _storage_options = log.location, None

        def version(self) -> int:
            return 1

        def update_incremental(self) -> None:
            pass

    stuck: Any = Stuck()
    with pytest.raises(OSError, match="version 2 is there, and cannot be looked at"):
        refresh_table(stuck)
    assert refresh_table(deltalake.DeltaTable(log.location, version=0)).version() == 2


def test_the_version_of_an_application_id_is_looked_for_again(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from the Delta log when it is asked for."""
    table, errors = open_table(log.location, {}), [OSError("Kernel error -> Generic LocalFileSystem error")]

    class Failing:
        table_uri, _storage_options = log.location, None

        def transaction_version(self, app_id: str) -> int | None:
            if errors:
                raise errors.pop()
            return table.transaction_version(app_id)

    failing: Any = Failing()
    assert txn_version(failing, "lastword-append") == 1
    assert txn_version(table, "nobody") == -1


def _actions(location: Path) -> dict[str, Any]:
    """Return the first commit of a table, an action a kind."""
    text = Path(location, "_delta_log", f"{0:020}.json").read_text(encoding="utf-8")
    return {kind: body for line in text.splitlines() for kind, body in json.loads(line).items()}


def test_a_table_is_made_once_and_as_delta_rs_makes_it(tmp_path: Path) -> None:
    """Protocol, schema, partitions and properties; a table that is there stays as it is, and one that is damaged says so."""
    create_table(str(tmp_path / "ours"), log_schema(), log_properties(), {}, partition_by=PLACE_COLUMNS)
    ours, theirs = _actions(tmp_path / "ours"), _actions(Path(DiskLog.create(tmp_path / "theirs").location))
    assert ours["protocol"] == theirs["protocol"]
    for name in ("format", "partitionColumns", "configuration"):
        assert ours["metaData"][name] == theirs["metaData"][name]
    assert json.loads(ours["metaData"]["schemaString"]) == json.loads(theirs["metaData"]["schemaString"])

    create_table(str(tmp_path / "theirs"), log_schema(), log_properties(), {}, partition_by=PLACE_COLUMNS)
    assert _actions(tmp_path / "theirs") == theirs
    with pytest.raises(FileExistsError, match="there is a table"):
        make_table(str(tmp_path / "theirs"), {}, log_schema(), log_properties())
    Path(tmp_path, "theirs", "_delta_log", f"{0:020}.json").write_text("{}")
    with pytest.raises(CorruptLog, match="the Delta log cannot be read"):
        create_table(str(tmp_path / "theirs"), log_schema(), log_properties(), {})


def test_of_two_who_make_a_table_one_does(tmp_path: Path) -> None:
    """The other finds it made; what is in the folder besides is no table."""
    log = tmp_path / "log" / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_1.json.tmp").touch()
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: create_table(str(tmp_path / "log"), log_schema(), log_properties(), {}), range(8)):
            pass
    assert open_table(str(tmp_path / "log"), {}).version() == 0


def test_a_checkpoint_that_cannot_be_written_says_so_unless_the_table_is_damaged(log: DiskLog) -> None:
    """An error of delta-rs that is none of the storage may be either."""

    class Failing:
        table_uri = log.location

        def create_checkpoint(self) -> None:
            message = "Arrow error: the actions do not fit"
            raise DeltaError(message)

    failing: Any = Failing()
    with pytest.raises(OSError, match=r"no checkpoint could be written: .*the actions do not fit") as caught:
        write_checkpoint(failing, {})
    assert caught.value.errno == errno.EIO
    Path(log.location, "_delta_log", f"{1:020}.json").unlink()
    with pytest.raises(CorruptLog, match="the Delta log cannot be read"):
        write_checkpoint(failing, {})
