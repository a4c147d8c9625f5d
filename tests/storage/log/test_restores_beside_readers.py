"""A RESTORE that one thread writes into the ledger while others read: no reader sees a cleaning that was taken back."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lastword import LogDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ROUNDS = 25


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads take turns 50 times as often as they do by themselves."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


def test_no_reader_believes_a_cleaning_that_a_restore_took_back(tmp_path: Path, quick_switches: None) -> None:
    """It would show superseded records: the dirty section is thought to begin behind them."""
    topic = LogDir(tmp_path).create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for key, value in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4")):
        topic.append([{"key": key, "value": value}])
    topic.roll()
    topic.append([{"key": "c", "value": "5"}])
    log, version = topic.log, topic.log.snapshot().version
    for _ in range(_ROUNDS):
        topic.clean()
        DeltaTable(log.paths.log).restore(version)
        ends, seen = threading.Event(), list[list[bytes]]()

        def read(ends: threading.Event, seen: list[list[bytes]]) -> None:
            while not ends.is_set():
                seen.append(topic.latest().column("value").to_pylist())

        readers = [threading.Thread(target=read, args=(ends, seen)) for _ in range(2)]
        for reader in readers:
            reader.start()
        time.sleep(0.004)
        log.sync_ledger_with_history()
        time.sleep(0.01)
        ends.set()
        for reader in readers:
            reader.join()
        version = log.snapshot().version
        assert all(values == [b"3", b"4", b"5"] for values in seen)
