"""`benchmarks/RESULTS.md`: a section per benchmark, with the date, the commit and the machine of its last run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
_HEAD: Final = """# Results

What `make bench` measured. It rewrites the section of each benchmark that it runs; nobody edits the sections by hand.
*Times faster* is the time of the other thing divided by ours, turn by turn in one run: above 1 lastword is faster.
A goal that is missed is marked. Machines are noisy: compare ratios, not seconds.
"""


def write(name: str, measured: str) -> None:
    """Replace the section of a benchmark by what was measured now."""
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", old, re.MULTILINE | re.DOTALL))
    sections[name] = f"\n{_conditions()}\n\n{measured}\n\n"
    text = _HEAD + "".join(f"\n## {one}\n{body.rstrip()}\n" for one, body in sections.items())
    RESULTS.write_text(text, encoding="utf-8")


def _conditions() -> str:
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{one} {version(one)}" for one in ("pyspark", "delta-spark", "deltalake", "pyarrow", "polars"))
    return (
        f"{today}, commit {_commit()}, {os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}."
    )


def _commit() -> str:
    """Return the short hash of the commit that was measured; `-dirty` when files differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", ":(exclude)benchmarks/RESULTS.md")
    return f"{head}{'-dirty' if changed else ''}" if head else "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=RESULTS.parents[1], capture_output=True, text=True, check=False)  # noqa: S603, S607  of the machine
    return done.stdout.strip()
