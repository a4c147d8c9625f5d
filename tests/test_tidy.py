"""Style that no linter knows, enforced by a test (after TigerBeetle's tidy)."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lastword", "pyspark_lastword", "streaming", "storage", "change_data", "checkpoints", "compaction")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MOST_LINES = 500

#: Where packages come from is the environment's business: an index or a mirror named in the repository would override it.
#: Joined from pieces, so that this file does not name them either.
REGISTRY_HOSTS = tuple(
    ".".join(pieces)
    for pieces in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("maven", "org"),
        ("maven2", "org"),
        ("apache", "org/repos"),
        ("repos", "spark-packages", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
    )
)
#: Paths that exist on one machine only. A container's (`/home/spark`) are written with a user's name that everybody has.
MACHINE_PATHS = re.compile("|".join((r"/home/(?!spark\b)\w+/", "/Use" + r"rs/\w+/", "/ro" + "ot/", "/wo" + "rk/", r"\b[A-Z]:\\Us" + "ers")))

#: Made by tools, or by nobody: not what the repository holds.
FOREIGN = {
    ".git",
    ".venv",
    ".against",
    ".bootstrap",
    ".jars",
    ".demo",
    ".demo-cdc",
    "__pycache__",
    "build",
    "dist",
    "site",
    "spark-warehouse",
    "metastore_db",
    "artifacts",
}
CACHES = re.compile(r"\.\w+_cache|\.hypothesis|\.coverage.*|.*\.egg-info")


def text_files(folder: Path) -> list[Path]:
    """Return the files of the checkout that are text, without what tools made."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name in FOREIGN or CACHES.fullmatch(path.name) or path.is_symlink():
            continue
        if path.is_dir():
            found += text_files(path)
        elif b"\0" not in path.read_bytes()[:8192]:
            found.append(path)
    return found


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    """Return `file:line: text` for every line of the checkout that the pattern is found in."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in text_files(ROOT)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_the_top_of_the_checkout_has_what_it_is_known_to_have() -> None:
    """A folder that a test or a try left behind is not committed by mistake."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S607  the machine's
    folders = {path.split("/")[0] for path in listed if "/" in path}

    assert folders == {".ci", "benchmarks", "conf", "docs", "examples", "tests", "tools", *PACKAGES}


def test_make_s3_runs_every_test_that_needs_a_real_s3_server() -> None:
    """A file with the mark `s3` is named by the target, as no other target runs these tests."""
    listed = re.search(r"^ON_S3 = ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed
    mark = "mark." + "s3"
    marked = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py") if mark in file.read_text(encoding="utf-8")}
    assert {name for name in marked if name not in listed[1]} == set()


def test_no_file_names_the_host_of_a_registry() -> None:
    """Not even in a lock file: packages come from wherever the environment says."""
    hosts = re.compile("|".join(rf"(?<![\w-]){re.escape(host)}" for host in REGISTRY_HOSTS))

    assert lines_with(hosts) == []


def test_no_file_holds_a_path_of_somebodys_machine() -> None:
    """A path that works on one machine only is a bug on every other."""
    assert lines_with(MACHINE_PATHS) == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_and_says_what_it_is(module: Path) -> None:
    """One concept a file, at most 500 lines; the docstring states the theory first."""
    source = module.read_text(encoding="utf-8")

    assert ast.get_docstring(ast.parse(source)), f"{module.name} has no docstring"
    assert len(source.splitlines()) <= MOST_LINES, f"{module.name} is longer than {MOST_LINES} lines"


def test_only_the_clock_module_reads_the_wall_clock() -> None:
    """Everything else takes the time as an argument, or measures durations with a monotonic clock."""
    wall = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\bdate\.today\(")
    found = [module for module in MODULES if wall.search(module.read_text(encoding="utf-8"))]

    assert [str(module.relative_to(ROOT)) for module in found] == [
        "lastword/clock.py",
        "storage/delta/commit_text.py",  # when a file left the table, for VACUUM
    ]


def test_one_module_opens_delta_tables() -> None:
    """It tells damage from a storage that fails (Spark's `DeltaTable` is another class, and has another name here)."""
    opening = re.compile(r"(?<!\w)DeltaTable(\.create)?\(")
    found = [module for module in MODULES if opening.search(module.read_text(encoding="utf-8"))]

    assert [str(module.relative_to(ROOT)) for module in found] == ["storage/delta/tables.py"]


def test_one_function_puts_commits() -> None:
    """delta-rs makes those of VACUUM, and of tables that are none of a topic's."""
    callers = [module for module in MODULES if re.search(r"\bput_if_absent\(", module.read_text(encoding="utf-8"))]
    theirs = [module for module in MODULES if "create_write_transaction" in module.read_text(encoding="utf-8")]

    assert [str(module.relative_to(ROOT)) for module in callers] == [
        "storage/delta/commit.py",
        "storage/delta/put.py",
        "storage/delta/tables.py",  # the first commit of a table
    ]
    assert theirs == []
