"""`--version`, and the exit codes of docs/formats-and-stability.md#exit-codes. No JVM."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

import pytest

import lastword
from lastword import LogDir
from lastword.cli.app import main
from tests.docs.blocks import DOCS

if TYPE_CHECKING:
    from pathlib import Path

_DONE, _FAILED, _USAGE, _FINDING = 0, 1, 2, 3
_CASES: Final = {
    "topics list": _DONE,
    "clean fruit": _DONE,
    "records frut": _FAILED,
    "transactions abort fruit 7": _FAILED,
    "latest fruit --as-of nonsense": _FAILED,
    "record fruit": _USAGE,
    "records fruit --limit 0": _USAGE,
    "records fruit --decode yaml": _USAGE,
    "changes fruit --from nonsense --to latest": _FAILED,
    "topics alter fruit": _USAGE,
    "topics create new --config cleanup.policy": _USAGE,
    "purge fruit --yes": _USAGE,
    "purge fruit --key-base64 ? --yes": _USAGE,
    "delete-records fruit 0 --yes": _USAGE,
    "plot fruit --json": _USAGE,
    "append fruit": _USAGE,
    "purge fruit --key fig --yes": _FINDING,
}


def _run(*words: str) -> int:
    """Run the command line in this process and return its exit code."""
    before, sys.argv = sys.argv, ["lastword", *words]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    return ended.value.code if isinstance(ended.value.code, int) else 0


def test_the_version_is_printed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a log.dir and without a command."""
    assert _run("--version") == _DONE
    assert capsys.readouterr().out == f"lastword {lastword.__version__}\n"


@pytest.mark.parametrize("words", _CASES)
def test_a_command_ends_with_the_code_of_the_page(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is one line that names the value, or typer's own box; nothing of it stands on standard output."""
    LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact"}).append([{"key": "lime", "value": "1"}])
    capsys.readouterr()
    code = _CASES[words]
    assert _run(*words.split(), "--log-dir", str(tmp_path)) == code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    if code in {_FAILED, _USAGE}:
        assert printed.out == ""
        assert re.fullmatch(r"error: .+\n", printed.err) or "Usage: " in printed.err


def test_every_code_is_on_the_page() -> None:
    """And none besides."""
    section = (DOCS / "formats-and-stability.md").read_text(encoding="utf-8").split("\n## Exit codes\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == [str(code) for code in (_DONE, _FAILED, _USAGE, _FINDING)]
