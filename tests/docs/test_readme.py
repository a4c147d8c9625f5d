"""The README: its Python prints what stands below it, its numbers are those of RESULTS.md, its versions are the installed ones."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs import blocks
from tests.docs.blocks import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_TEXT: Final = (ROOT / "README.md").read_text(encoding="utf-8")
_RESULTS: Final = ROOT / "benchmarks" / "RESULTS.md"
_MOST_NUMBERS: Final = 5


def test_its_python_prints_what_stands_below_it(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The snippet runs as it is, but in the session of the tests and in another folder."""
    found = blocks.blocks(_TEXT)
    number = next(number for number, block in enumerate(found) if block.language == "python")
    code, output = found[number], found[number + 1]
    assert output.language == "text"
    exec(code.text.replace('"data"', f'"{tmp_path}/data"'), {})  # noqa: S102  our own README

    assert capsys.readouterr().out.rstrip("\n") == output.text.rstrip("\n")


def test_its_numbers_are_lines_of_the_results() -> None:
    """Each figure is a line of RESULTS.md, which has date, commit and machine; `make bench` may change it."""
    rows = re.findall(r"^\| .* \| [\d.]+× \[[\d.]+–[\d.]+\] \| \d+ \| .*\|$", _TEXT, re.MULTILINE)

    assert len(rows) == _MOST_NUMBERS
    assert [row for row in rows if row not in _RESULTS.read_text(encoding="utf-8").splitlines()] == []


@pytest.mark.parametrize(
    ("text", "distribution"), [("version {}", "lastword"), ("Spark {}", "pyspark"), ("Delta Lake {}", "delta-spark")], ids=str
)
def test_its_versions_are_the_installed_ones(text: str, distribution: str) -> None:
    """A version that is raised is raised here too."""
    assert text.format(version(distribution)) in _TEXT


def test_its_lines_wrap() -> None:
    """At 100 characters, but for tables and pictures."""
    prose = re.sub(r"```.*?```", "", _TEXT, flags=re.DOTALL)

    assert [line for line in prose.splitlines() if len(line) > 100 and not line.startswith("|")] == []
