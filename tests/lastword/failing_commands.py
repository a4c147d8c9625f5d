"""Runs command lines that fail, for tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from lastword.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Sequence


def message_of(words: Sequence[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, code: int = 1) -> str:
    """Run `lastword` with some words, which must end with an exit code and without output; return what standard error has."""
    monkeypatch.setattr(sys, "argv", ["lastword", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (code, "")
    return shown.err
