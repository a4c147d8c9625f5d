"""The page of guarantees: each promise names tests that are there, and the README promises nothing that the page does not."""

from __future__ import annotations

import ast
import re
from typing import Final

from tests.docs.blocks import DOCS, ROOT

_TEXT: Final = (DOCS / "guarantees.md").read_text(encoding="utf-8")
_README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
_TEST: Final = re.compile(r"`(?P<file>tests/[\w/.]+\.py)(?:::(?P<name>\w+))?`")


def _rows(text: str) -> list[tuple[str, str]]:
    """Return the lines of all tables with the head `guarantee | test`."""
    tables = re.findall(r"^\| guarantee \| test \|\n\|---\|---\|\n((?:^\|.*\|\n)+)", text, re.MULTILINE)
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for table in tables for line in table.splitlines()]
    return [(guarantee, tests) for guarantee, tests in lines]


def _tests_of(file: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_each_guarantee_names_tests_that_are_there() -> None:
    """A test that gets another name or another file takes the page along."""
    rows = _rows(_TEXT)
    named = [match for _, tests in rows for match in _TEST.finditer(tests)]

    assert all(_TEST.search(tests) for _, tests in rows)
    assert [match["file"] for match in named if not (ROOT / match["file"]).is_file()] == []
    assert [match[0] for match in named if match["name"] and match["name"] not in _tests_of(match["file"])] == []
    assert len(_TEXT.split("`tests/")) - 1 == len(named), "a test that is written in another way than `file` or `file::name`"


def test_the_readme_promises_what_the_page_does() -> None:
    """Word for word, and by files that the page names too."""
    rows = dict(_rows(_TEXT))
    promised = dict(_rows(_README))

    assert sorted(set(promised) - set(rows)) == []
    for guarantee, tests in promised.items():
        assert set(re.findall(r"\(([\w/.]+)\)", tests)) <= {match["file"] for match in _TEST.finditer(rows[guarantee])}, guarantee
