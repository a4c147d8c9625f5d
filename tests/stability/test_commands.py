"""What each command prints with `--json`: names, types and order of members, which scripts and `jq` go by."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lastword import LogDir, Position
from lastword.cli import app as cli
from lastword.compaction.readers import EXPIRATION_MS, Reader
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming import metrics
from tests.change_events import append, change
from tests.golden import files, frozen_clock
from tests.pictures import DAY_MS, HOUR_MS, T0, rows
from tests.stability.lives import order, source
from tools import reference

if TYPE_CHECKING:
    from pathlib import Path

    from tests.golden import Clock, Golden

#: The commands take some seconds together; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

#: Every command that has `--json`.
COMMANDS: Final = [one.words for one in reference.commands() if any("--json" in option.opts for option in one.options)]


class _Shell:
    """Runs commands in this process against one log.dir, and keeps what they print with `--json`."""

    def __init__(self, folder: Path) -> None:
        """Take the log.dir."""
        self._folder = folder
        self.printed: dict[str, list[Any]] = {}

    def __call__(self, words: str, *arguments: str, code: int = 0) -> None:
        """Run a command; `code` is what it must exit with."""
        environment = {"LASTWORD_LOG_DIR": str(self._folder), "LASTWORD_URL": "http://127.0.0.1:1"}
        done = CliRunner(env=environment).invoke(cli.app, [*words.split(), *arguments, "--json"])
        assert done.exit_code == code, f"{words}: {done.output}{done.exception!r}"
        self.printed.setdefault(words, []).extend(json.loads(line) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Run each command at least once, in an order in which it has something to say."""
    folder = tmp_path_factory.mktemp("commands", numbered=False)
    shell, log_dir = _Shell(folder / "data"), folder / "data"
    for topic in ("fruit", "fruit-4", "days", "orders"):  # other tests of this process may have counted their appends
        metrics.forget_topic(topic)
    with frozen_clock(T0) as clock:
        _records(shell, folder)
        _cleaning(shell, log_dir, clock)
        _readers_and_queries(shell, log_dir)
        _transactions(shell, log_dir)
        _sources(shell, folder, clock)
        _status(shell, folder)
        _deletions(shell)
    return shell.printed


def _records(shell: _Shell, folder: Path) -> None:
    shell("topics create", "fruit", "--partitions", "2", "--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.0")
    table = rows("lime=1 kiwi=1 lime=2 kiwi=∅ fig=7", partition=0, timestamp_ms=T0)
    bad = table.slice(0, 1).set_column(0, "key", [[None]])
    for name, content in (("good", table), ("bad", bad)):
        pq.write_table(content, folder / f"{name}.parquet")
    shell("append", "fruit", str(folder / "good.parquet"))
    shell("append", "fruit", str(folder / "bad.parquet"), "--on-invalid", "dead-letter", code=1)
    shell("dead-letters", "fruit")
    shell("records", "fruit", "--control")
    shell("latest", "fruit")
    shell("get", "fruit", "lime")
    shell("sql", "select partition, key, value from fruit order by key")
    shell("changes", "fruit", "--from", '{"0": 1, "1": 0}', "--to", '{"0": 4, "1": 0}')
    shell("topics list")


def _cleaning(shell: _Shell, log_dir: Path, clock: Clock) -> None:
    shell("roll", "fruit", "--partition", "0")
    shell("explain", "fruit")
    shell("clean", "fruit", "--dry-run")
    shell("pause", "fruit", "--partition", "0")
    shell("resume", "fruit", "--partition", "0")
    shell("clean", "fruit")
    shell("receipts", "fruit")
    shell("verify", "fruit")
    shell("topics describe", "fruit")
    shell("topics alter", "fruit", "--config", "segment.bytes=64MiB")
    shell("topics copy", "fruit", "fruit-4", "--partitions", "4")
    days = LogDir(log_dir).create_topic("days", config={"cleanup.policy": "delete", "retention.ms": "1d"})
    days.append(rows("mon=1 tue=2 wed=3", timestamp_ms=T0))
    days.roll()
    shell("delete-records", "days", "0:1", "--yes")
    clock.now_ms = T0 + 2 * DAY_MS
    shell("retention", "days")
    clock.now_ms = T0


def _readers_and_queries(shell: _Shell, log_dir: Path) -> None:
    log = LogDir(log_dir).topic("fruit").log
    position = Position(offsets=(2, 0), table_version=1, since_version=1)
    reader = Reader(name="orders-cache", position=position, seen_ms=T0, expiration_ms=EXPIRATION_MS)
    log.reader_positions.write(reader, log.ledger)
    log.ledger.append([Decision(kind=Kind.QUERY, time_ms=T0, name="files", details={"query_id": "0" * 32})])
    shell("readers list", "fruit")
    shell("readers drop", "fruit", "orders-cache")
    shell("queries list", "fruit")
    shell("queries forget", "fruit", "files")


def _transactions(shell: _Shell, log_dir: Path) -> None:
    transaction = LogDir(log_dir).topic("fruit").transaction("prices-loader", timeout_ms=60_000)
    transaction.append(rows("plum=1", partition=1, timestamp_ms=T0))
    shell("transactions list", "fruit")
    shell("transactions describe", "fruit", str(transaction.producer_id))
    shell("transactions abort", "fruit", str(transaction.producer_id))


def _sources(shell: _Shell, folder: Path, clock: Clock) -> None:
    topic = LogDir(folder / "data").create_topic("orders", config={"cleanup.policy": "compact"})
    append(topic, *(change("c", number, source(1, 100 + number), order(number)) for number in (1, 2, 3)))
    clock.now_ms = T0 + HOUR_MS
    append(topic, *(change("r", number, source(2, 50, snapshot="true"), order(number)) for number in (2, 3)))
    append(topic, change("u", 3, source(2, 60), order(3)), change("u", 3, source(1, 95, ts_ms=T0 + HOUR_MS), order(3)))
    clock.now_ms = T0
    columns = ("--schema", "id bigint, price decimal(10,2)")
    shell("table", "orders", *columns)
    shell("materialize", "orders", str(folder / "orders"), "--once", *columns)
    shell("tables list", "orders")
    shell("tables describe", "orders", str(folder / "orders"))
    shell("tables pause", "orders", str(folder / "orders"))
    shell("tables resume", "orders", str(folder / "orders"))
    shell("tables rebuild", "orders", str(folder / "orders"))
    shell("tables drop", "orders", str(folder / "orders"))
    shell("sources list", "orders")
    shell("sources sweep", "orders", "mysql.shop", "--yes")
    shell("sources new-epoch", "orders", "mysql.shop", "--yes")
    shell("sources retire", "orders", "mysql.shop", "--yes")


def _status(shell: _Shell, folder: Path) -> None:
    shell("plot", "fruit", "--output", str(folder / "log.svg"))
    shell("top", code=3)


def _deletions(shell: _Shell) -> None:
    shell("purge", "fruit", "--key", "fig", "--yes")
    shell("purge", "fruit", "--key", "fig", "--yes", code=3)
    shell("topics delete", "fruit-4", "--yes")


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_prints_what_it_printed(printed: dict[str, list[Any]], golden: Golden, words: str) -> None:
    """A new member may come to an object; none changes its name, type or meaning."""
    golden.check(f"commands/{words.replace(' ', '-')}.json", printed[words])


def test_every_command_with_json_has_a_golden() -> None:
    """And none that is not there."""
    assert files("commands") == {words.replace(" ", "-") for words in COMMANDS}
