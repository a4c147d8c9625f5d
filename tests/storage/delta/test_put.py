"""A commit on a local or a network file system gets its name once, whatever the file system says of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lastword.compaction.errors import CommitStateUnknown
from lastword.storage.delta.local_commit import put_text

if TYPE_CHECKING:
    from collections.abc import Callable


def _link(monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any], *, done: bool) -> None:
    """Let link do what it does, or nothing, and then something else."""
    real = os.link

    def link(source: Path, target: Path) -> None:
        if done:
            real(source, target)
        then()

    monkeypatch.setattr(os, "link", link)


def _raising(error: Exception) -> Callable[[], Any]:
    def raises() -> None:
        raise error

    return raises


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EEXIST])
@pytest.mark.parametrize("done", [True, False])
def test_a_name_that_was_given_is_found_whatever_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, done: bool
) -> None:
    """NFS may answer a repeated request with EEXIST, or not at all."""
    _link(monkeypatch, _raising(OSError(number, os.strerror(number))), done=done)
    if done:
        assert put_text(tmp_path, "1.json", b"{}")
        assert (tmp_path / "1.json").read_bytes() == b"{}"
    elif number == errno.EEXIST:
        assert not put_text(tmp_path, "1.json", b"{}")
    else:
        with pytest.raises(OSError, match=os.strerror(number)):
            put_text(tmp_path, "1.json", b"{}")
    assert [one.name for one in tmp_path.iterdir()] == ["1.json"] * done


def test_nobody_knows_where_it_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the append says so, and is not repeated by itself."""
    _link(monkeypatch, _raising(OSError(errno.EIO, "no answer")), done=True)
    monkeypatch.setattr(Path, "samefile", lambda *_: _raising(OSError(errno.EIO, "still none"))())
    with pytest.raises(CommitStateUnknown, match="cannot be found out"):
        put_text(tmp_path, "1.json", b"{}")


def test_a_temporary_file_that_stays_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit has its name by then."""
    monkeypatch.setattr(Path, "unlink", lambda *_: _raising(OSError(errno.EIO, "no"))())
    assert put_text(tmp_path, "1.json", b"{}")
