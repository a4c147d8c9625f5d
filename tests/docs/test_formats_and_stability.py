"""The page on formats and stability: its tables are the code's, and the files that it names hold what it says."""

from __future__ import annotations

import re
from typing import Final

import lastword
from lastword.storage.ledger.decisions import Kind
from tests.docs.blocks import DOCS, ROOT
from tests.stability.test_tables_and_formats import FORMATS

_TEXT: Final = (DOCS / "formats-and-stability.md").read_text(encoding="utf-8")


def _table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    section = _TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = re.search(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_kind_of_the_ledger_is_there_in_the_order_of_the_code() -> None:
    """With a sentence, and the version that it came with."""
    table = _table("Rows of the ledger")

    assert [kind for kind, *_ in table] == [f"`{kind.value}`" for kind in Kind]
    assert all(sentence.endswith(".") for _, sentence, _ in table)
    assert {since.split(",")[0] for *_, since in table} == {"0.1.0"}


def test_every_versioned_format_is_there_with_its_version() -> None:
    """And what a reader of another version does with it."""
    found = {name.strip("`"): (int(version), does.split()[0].strip(".:")) for name, _, version, does in _table("Versioned formats")}

    assert {name: version for name, (version, _) in found.items()} == {name: version for name, (_, version) in FORMATS.items()}
    assert {does for _, does in found.values()} <= {"refused", "ignored"}


def test_it_is_of_the_installed_version() -> None:
    """The page names the version, so whoever raises the version reads the page again."""
    assert f"lastword is at version {lastword.__version__}." in _TEXT


def test_every_golden_folder_is_named() -> None:
    """What is kept is promised."""
    goldens = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "goldens").iterdir()}

    assert goldens == set(re.findall(r"`(tests/goldens/[\w.]+)`", _TEXT))
