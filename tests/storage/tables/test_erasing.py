"""An erasure beside a step of another process: what the step has written and not committed yet may hold a record that stays."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

from lastword.storage.delta.crash_points import CrashPoint, hook
from tests.storage.tables.kept import Kept

if TYPE_CHECKING:
    from pathlib import Path


def test_the_files_of_a_step_under_way_are_not_deleted(tmp_path: Path) -> None:
    """The key was appended again after what is erased: its new record stays."""
    kept = Kept(tmp_path)
    kept.fill(3)
    kept.append((1, 7))
    written, swept, other = threading.Event(), threading.Event(), kept.engine()
    thread, link = threading.Thread(target=other.step), os.link

    def put(*given: Any) -> None:
        if threading.current_thread() is thread:
            written.set()
            swept.wait(30)
        link(*given)

    def step(point: CrashPoint) -> None:
        if point is CrashPoint.TABLE_COMMIT_PUT and threading.current_thread() is not thread:
            thread.start()
            written.wait(30)

    with mock.patch("os.link", put), hook(step):
        done = kept.table.erase(b'{"id":1}', kept={0: 3})
        swept.set()
        thread.join(30)
    assert kept.rows() == [(0, 0), (1, 7), (2, 0)]
    assert len(done.left) == 1
    assert "erase again" in done.left[0]
    assert not kept.table.erase(b'{"id":1}', kept={0: 3}).left
    assert kept.rows() == [(0, 0), (1, 7), (2, 0)]
