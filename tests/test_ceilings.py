"""Numbers of the code that may only fall: each is counted, and compared with a table.

A number above its ceiling is a step back. One below it lowers the ceiling, in the same commit, so that nobody can climb back.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

from tests.test_tidy import MODULES, PACKAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What was counted when the table was written, or since.
CEILINGS: Final = {
    "names: one": 34,
    "names: found, told, said": 47,
    "functions named by a participle": 34,
    "phrases that say nothing": 8,
    "functions over 60 lines": 0,
    "functions over 15 branches": 0,
    "class names with two meanings": 0,
    "noqa": 134,
    "type: ignore": 19,
    "monkeypatch.setattr in tests": 34,
}
#: Lines of the product by room.
ROOMS: Final = {
    "lastword": 12717,
    "pyspark_lastword": 576,
    "streaming": 5903,
    "storage": 17143,
    "change_data": 7446,
    "checkpoints": 215,
    "compaction": 6518,
}
_MOST_LINES, _MOST_BRANCHES = 60, 15
_BRANCHES: Final = (ast.If, ast.For, ast.While, ast.AsyncFor, ast.IfExp, ast.ExceptHandler, ast.BoolOp, ast.comprehension, ast.match_case)
_PARTICIPLE: Final = re.compile(
    r"_*(\w+ed|known|told|said|made|given|taken|begun|found|seen|held|kept|left|lost|learnt|written|spoilt|shown)_*"
)
_PHRASES: Final = re.compile(r"\bof which nothing\b|\bwhoever\b|\bnobody\b|\bthat is none\b|\bwhat there is\b", re.IGNORECASE)


def _trees() -> Iterator[ast.Module]:
    for module in MODULES:
        yield ast.parse(module.read_text(encoding="utf-8"))


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module binds: variables, arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _branches(function: ast.AST) -> int:
    return sum(isinstance(node, _BRANCHES) for node in ast.walk(function))


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (first.end_lineno or 0) - first.lineno + 1 if is_docstring else 0


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id.endswith("property") for one in function.decorator_list)


@cache
def _counted() -> dict[str, int]:
    found: Counter[str] = Counter(dict.fromkeys(CEILINGS, 0))
    classes: Counter[str] = Counter()
    for tree in _trees():
        names = Counter(_names(tree))
        found["names: one"] += names["one"]
        found["names: found, told, said"] += names["found"] + names["told"] + names["said"]
        for function in _functions(tree):
            lines = (function.end_lineno or 0) - function.lineno + 1 - _docstring_lines(function)
            found["functions over 60 lines"] += lines > _MOST_LINES
            found["functions over 15 branches"] += _branches(function) > _MOST_BRANCHES
            found["functions named by a participle"] += not _is_property(function) and bool(_PARTICIPLE.fullmatch(function.name))
        classes.update({node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)})
    found["class names with two meanings"] = sum(count > 1 for count in classes.values())
    texts = [module.read_text(encoding="utf-8") for module in MODULES]
    found["phrases that say nothing"] = sum(len(_PHRASES.findall(text)) for text in texts)
    found["noqa"] = sum(text.count("# noqa") for text in texts)
    found["type: ignore"] = sum(text.count("# type: ignore") for text in texts)
    tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_ceilings.py")
    found["monkeypatch.setattr in tests"] = sum(text.count("monkeypatch.setattr") for text in tests)
    return dict(found)


@pytest.mark.parametrize("what", CEILINGS)
def test_a_number_is_what_the_table_says(what: str) -> None:
    """Above it, the change made something worse; below it, the table is to be lowered."""
    assert _counted()[what] == CEILINGS[what]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_does_not_grow(room: str) -> None:
    """Lines of code, docstrings and comments; what is added has to leave elsewhere, or the table says by how much it grew."""
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES if path.relative_to(ROOT).parts[0] == room)
    assert lines <= ROOMS[room]


def _packages() -> list[Path]:
    return sorted({module.parent for module in MODULES if (module.parent / "__init__.py").exists()})


@pytest.mark.parametrize("package", _packages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_is_on_the_map_of_its_room(package: Path) -> None:
    """A picture in the docstring of `__init__`, or where it has none its text, names every module and every folder in it."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    pictures = [block for block in re.split(r"^```", docstring, flags=re.MULTILINE)[1::2] if block.startswith("\n")]
    text = "".join(pictures) or docstring
    modules = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.name for path in package.iterdir() if (path / "__init__.py").exists() and not path.is_symlink()}
    assert [name for name in sorted(modules | folders) if not re.search(rf"\b{name}\b", text)] == []


def test_every_room_has_a_ceiling() -> None:
    """A new one, too."""
    assert set(ROOMS) == set(PACKAGES)
