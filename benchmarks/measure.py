"""Two things timed in one run, turn by turn, so that a noisy machine is noisy for both; and what was measured, as tables.

```
 headline("append 20,000 records", "a plain Delta append", theirs, ours, goal=0.7)
                                   │
 | append 20,000 records | a plain Delta append | 1.69× [1.52–1.88] | 11 | ≥ 0.7 |      times faster: median [min–max] over n turns
```
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

T = TypeVar("T")
console = Console()
#: Markdown of what was measured since the last `taken`: the headlines, and all tables.
_HEADLINES: Final[list[str]] = []
_TABLES: Final[list[str]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a benchmark is: whole for its figures, small to see that it runs and that its counts are right."""

    divisor: int = 1
    most_turns: int | None = None

    def rows(self, count: int, least: int = 1) -> int:
        """Return how many rows, keys or files stand for `count` of them in the whole benchmark, `least` at least."""
        return count if self.divisor == 1 else max(least, count // self.divisor)

    def sizes(self, sizes: Sequence[T]) -> Sequence[T]:
        """Return the sizes at which a thing is measured: all, or in a small benchmark the first alone, as one runs the code of all."""
        return sizes if self.most_turns is None else sizes[: self.most_turns]

    def turns(self, count: int) -> int:
        """Return how often a thing is measured that is measured `count` times in the whole benchmark."""
        return count if self.most_turns is None else min(count, self.most_turns)

    def warm_up(self, count: int) -> int:
        """Return how often it runs before; a small benchmark is never warm."""
        return count if self.most_turns is None else 0


WHOLE: Final = Scale()
SMALL: Final = Scale(divisor=200, most_turns=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The seconds of every turn of one thing."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)


def in_turns(things: dict[str, Callable[[], object]], *, warm_up: int, rounds: int) -> dict[str, Timing]:
    """Run every thing `warm_up` times, then `rounds` times in turns, and return their timings."""
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for number in range(warm_up + rounds):
        for name, thing in things.items():
            gc.collect()
            begun = time.perf_counter()
            thing()
            if number >= warm_up:
                seconds[name].append(time.perf_counter() - begun)
    return {name: Timing(name=name, seconds=tuple(times)) for name, times in seconds.items()}


def in_a_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of the benchmarks in a process of its own, and return the JSON that it prints last."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  our own interpreter
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def timed(spark: SparkSession, thing: Callable[[], object]) -> tuple[float, float]:
    """Run a thing once; return its seconds, and the processor seconds of Spark's JVM and this process: its cost on a busy machine."""
    gc.collect()
    spent, begun = _processor_seconds(spark) + time.process_time(), time.perf_counter()
    thing()
    return time.perf_counter() - begun, _processor_seconds(spark) + time.process_time() - spent


def _processor_seconds(spark: SparkSession) -> float:
    process = spark.sparkContext._jvm.java.lang.ProcessHandle.current()  # type: ignore[union-attr]  # noqa: SLF001
    return float(process.info().totalCpuDuration().get().toMillis()) / 1000


def headline(what: str, against: str, theirs: Sequence[float], ours: Sequence[float], *, goal: float) -> None:
    """Record how many times faster `ours` is than `theirs`, turn by turn; below `goal` it is marked as missed."""
    ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
    median = statistics.median(ratios)
    missed = "" if median >= goal else ", **missed**"
    line = f"| {what} | {against} | {median:.2f}× [{min(ratios):.2f}–{max(ratios):.2f}] | {len(ratios)} | ≥ {goal:g}{missed} |"
    _HEADLINES.append(line)
    console.print(line)


def taken() -> str:
    """Return the Markdown of what was measured since the last call."""
    parts = []
    if _HEADLINES:
        parts.append(
            "\n".join(["| what | against | times faster: median [min–max] | turns | goal |", "|---|---|---|---|---|", *_HEADLINES])
        )
    parts += _TABLES
    _HEADLINES.clear()
    _TABLES.clear()
    return "\n\n".join(parts)


def report(title: str, rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    """Print a table, and record it."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
    _TABLES.append("\n".join([f"{title}:", "", *lines]))
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
