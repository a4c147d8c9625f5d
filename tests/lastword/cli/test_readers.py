"""The verbs of readers on the command line."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import polars as pl
import pytest
from deltalake import DeltaTable

from lastword import LogDir
from lastword.compaction.errors import UserError
from tests.lastword.cli.test_cli import Shell

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic


@pytest.fixture
def log_dir(tmp_path: Path) -> LogDir[ArrowTopic]:
    """Return an empty log.dir."""
    return LogDir(tmp_path / "data")


@pytest.fixture
def lastword(log_dir: LogDir[ArrowTopic]) -> Shell:
    """Return its command line."""
    return Shell(log_dir)


_SCHEMA = ("--schema", "price bigint")


def test_a_table_is_kept_in_step_and_the_past_can_be_asked(log_dir: LogDir[ArrowTopic], lastword: Shell, tmp_path: Path) -> None:
    """Materialize, look at the reader's lag, catch up, ask as of offsets, and what changed."""
    topic = log_dir.create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append(_prices(grape=1, lime=1))
    table = str(tmp_path / "table")
    assert f"{table} is up to date with fruit: 2 rows written, 0 deleted" in lastword("materialize", "fruit", table, "--once", *_SCHEMA)
    topic.append(_prices(grape=2, lime=None, kiwi=1))
    [reader] = lastword.json("readers", "list", "fruit")
    assert (reader["name"], reader["offsets"], reader["lag"], reader["expired"]) == (f"table:{table}", [2], 3, False)
    assert "table:" in lastword("readers", "list", "fruit")

    [done] = lastword.json("materialize", "fruit", table, "--once", *_SCHEMA)
    assert {name: done[name] for name in ("in_step", "did", "written_rows", "deleted_rows", "table_version", "offsets")} == {
        "in_step": True,
        "did": "step",
        "written_rows": 2,
        "deleted_rows": 2,
        "table_version": 1,
        "offsets": {"0": 5},
    }
    assert sorted(pl.read_delta(table)["price"]) == [1, 2]
    assert lastword.json("materialize", "fruit", table, "--once", *_SCHEMA)[0]["did"] == "nothing"
    assert [one["lag"] for one in lastword.json("readers", "list", "fruit")] == [0]
    lastword("readers", "drop", "fruit", f"table:{table}")
    assert "no registered readers" in lastword("readers", "list", "fruit")

    past = lastword.json("latest", "fruit", "--as-of", '{"0": 2}', "--key", "lime")
    assert [(one["key"], one["offset"]) for one in past] == [("lime", 1)]
    told = lastword.json("changes", "fruit", "--from", '{"0": 2}', "--to", '{"0": 5}')
    assert [(one["offset"], one["key"], one["change_type"]) for one in told if one["key"] != "grape"] == [
        (3, "lime", "delete"),
        (4, "kiwi", "insert"),
    ]
    told_wrong = lastword.error(UserError, "changes", "fruit", "--from", "yesterday", "--to", '{"0": 5}')
    assert told_wrong.startswith("topic fruit: begin = 'yesterday': allowed is earliest, latest, a time")


def test_materialize_says_what_is_wrong_and_how_to_go_on(log_dir: LogDir[ArrowTopic], lastword: Shell, tmp_path: Path) -> None:
    """A value that does not fit, rows that somebody deleted: one error each; then the way on."""
    topic = log_dir.create_topic("fruit", config={"cleanup.policy": "compact"})
    topic.append([{"key": "fig", "value": '{"price": "oops"}'}])
    table = str(tmp_path / "table")
    command = ("materialize", "fruit", table, "--once", *_SCHEMA)
    assert 'partition 0, offset 0, key fig: column price = "oops": allowed is bigint' in lastword.error(UserError, *command)
    lastword(*command, "--mode", "PERMISSIVE")
    topic.append([{"key": "fig", "value": '{"price": 1}'}])
    DeltaTable(table).delete()
    assert "was changed by somebody else: DELETE at version 1. rebuild=True (--rebuild)" in lastword.error(UserError, *command)
    assert "is up to date with fruit" in lastword(*command, "--rebuild")
    assert "no source of the topic says which columns its rows have" in lastword.error(UserError, *command[:-2])
    assert "on_type_change = 'ask': allowed is rebuild or fail" in lastword.error(UserError, *command, "--on-type-change", "ask")


def test_materialize_follows_until_it_is_stopped(log_dir: LogDir[ArrowTopic], lastword: Shell, tmp_path: Path) -> None:
    """A signal ends it after the commit in hand."""
    log_dir.create_topic("fruit", config={"cleanup.policy": "compact"}).append(_prices(grape=1))
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    told = lastword("materialize", "fruit", str(tmp_path / "table"), "--every", "0.1", *_SCHEMA)
    assert "stopped; the next run resumes from the stored position: 1 rows written, 0 deleted" in told


def _prices(**prices: int | None) -> list[dict[str, str | None]]:
    return [{"key": key, "value": None if price is None else f'{{"price":{price}}}'} for key, price in prices.items()]
