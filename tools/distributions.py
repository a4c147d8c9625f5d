"""What is released: an sdist and a wheel in dist/, built twice and compared byte by byte, and checked on each Python that is supported.

```
 checkout ─► copy in another folder, with other times ─► sdist ─► wheel ─┐
 checkout ──────────────────────────────────────────► sdist ─► wheel ─┴─ equal? ─► dist/ ─► Python 3.10 … 3.13, fresh: CHECK
```

`python -m tools.distributions` is `make dist`. It ends with 1 and one line if the builds differ, if the check fails on a Python, or if a
Python is not there and cannot be downloaded.
"""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: The releases of Python that pyproject.toml supports and that are checked.
PYTHONS: Final = ("3.10", "3.11", "3.12", "3.13")
#: Folders at the top of the checkout; `lastword/storage` and its like are links to them.
ROOMS: Final = ("streaming", "storage", "change_data", "checkpoints", "compaction")
#: A program that appends to a log, cleans and reads it, and keeps a table of it, with an installed lastword and without Spark.
CHECK: Final = """
import tempfile
import lastword, polars
from lastword import LogDir
logs = LogDir(tempfile.mkdtemp())
topic = logs.create_topic("t", partitions=2, config={"cleanup.policy": "compact"})
topic.append([{"key": "a", "value": '{"n":1}'}, {"key": "b", "value": '{"n":2}'}])
topic.append(polars.DataFrame({"key": ["a"], "value": ['{"n":3}']}))
topic.roll()
topic.clean()
topic.materialize(logs.location + "/table", schema="n int")
print(sorted(polars.read_delta(logs.location + "/table")["n"]), topic.verify().problems, len(logs.sql("select * from t")))
"""
#: What `CHECK` prints.
CHECKED: Final = "[2, 3] () 2"
#: A program that imports every module.
_IMPORT_ALL: Final = """
import importlib, pkgutil
import lastword, pyspark_lastword
for package in (lastword, pyspark_lastword):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
#: Names that `copy_checkout` leaves out: what builds, tests and tools leave in a checkout.
_MADE: Final = shutil.ignore_patterns(".git", ".[!g]*", "__pycache__", "dist", "build", "site", "spark-warehouse")


def run(*command: str, cwd: Path) -> str:
    """Run a command line and return its standard output. Raises `SystemExit` with all of its output if it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(command, cwd=cwd, env=kept, capture_output=True, text=True, check=False)  # noqa: S603  ours
    if done.returncode:
        message = f"{' '.join(command[:6])} …\n{done.stdout}{done.stderr}"
        raise SystemExit(message)
    return done.stdout


def build(source: Path, folder: Path) -> list[Path]:
    """Build an sdist of a source tree, and a wheel from it, into a folder; return both. Nothing is downloaded."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source), cwd=folder)
    return sorted(path for path in folder.iterdir() if path.name.startswith("lastword-"))


def copy_checkout(source: Path, folder: Path) -> Path:
    """Copy a source tree as a clone elsewhere would have it: in another folder, with other times and permissions."""
    copy = folder / "a clone with spaces"
    shutil.copytree(source, copy, symlinks=True, ignore=_MADE)
    for path in copy.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.utime(path, (1_000_000_000, 1_000_000_000))
    return copy


def check(wheel: Path, python: str, folder: Path) -> str:
    """Install a wheel with Spark in a fresh environment of a release of Python, run the checks there, and return the Python's version."""
    uv, home = str(ROOT / ".bootstrap" / "uv"), folder / python
    run(uv, "venv", "--quiet", "--python", python, str(home), cwd=ROOT)
    interpreter = str(home / "bin" / "python")
    locked = ("--constraint", str(ROOT / "requirements-service.lock"))
    run(uv, "pip", "install", "--quiet", "--python", interpreter, *locked, f"{wheel}[spark]", cwd=ROOT)
    run(interpreter, "-c", _IMPORT_ALL, cwd=folder)
    printed = run(interpreter, "-c", CHECK, cwd=folder).strip()
    if printed != CHECKED:
        message = f"Python {python}: the check printed {printed!r} instead of {CHECKED!r}"
        raise SystemExit(message)
    return run(interpreter, "-c", "import platform; print(platform.python_version())", cwd=folder).strip()


def main() -> None:
    """Build, compare and check; what is in the checkout and in no commit is named, as it is built too."""
    changed = run("git", "status", "--porcelain", "--", "lastword", "pyspark_lastword", *ROOMS, cwd=ROOT)
    if changed:
        print(f"not committed, and built all the same:\n{changed}", end="")  # noqa: T201
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("here", "there", "environments")]
        for folder in folders:
            folder.mkdir()
        built, again = build(ROOT, folders[0]), build(copy_checkout(ROOT, Path(scratch)), folders[1])
        for path, rebuilt in zip(built, again, strict=True):
            if not filecmp.cmp(path, rebuilt, shallow=False):
                message = f"{path.name} is not the same when it is built from a copy of the checkout"
                raise SystemExit(message)
        wheel = next(path for path in built if path.suffix == ".whl")
        for python in PYTHONS:
            print(f"Python {check(wheel, python, folders[2])}: installed, appended, cleaned and read")  # noqa: T201
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        dist.mkdir()
        for path in built:
            print(f"{shutil.copy(path, dist)}: the same, built twice")  # noqa: T201


if __name__ == "__main__":
    main()
