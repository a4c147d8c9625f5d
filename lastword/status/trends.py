"""Trends of a topic over hours, computed from its samples: the values of the charts, with their units.

```
 samples   end offsets 100 … 160, a minute apart   ─►   throughput   1 record/s
           a gap of half an hour, when no service ran   ─►   the line is broken
```
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from lastword.compaction.config.keys import DAY_MS, HOUR_MS, KIB, MINUTE_MS, SECOND_MS
from lastword.status.troubles import duration
from lastword.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword.status.samples import Sample

#: Samples that lie further apart are not joined by a line: nothing is known of the time between them.
GAP_MS: Final = 25 * MINUTE_MS
#: From here on a value is written without decimals.
_TWO_DIGITS: Final = 10
_STEPS: Final = (1, 2, 5, 10)


class Unit(Enum):
    """The unit of the values of a trend; it says how they are written at the axis."""

    COUNT = "count"
    PER_SECOND = "records/s"
    PER_MINUTE = "rows/min"
    OFFSETS = "offsets"
    PERCENT = "%"
    BYTES = "bytes"
    DURATION = "duration"
    SECONDS = "s"

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return (
            f"{self.axis_text(value)} {self.value}" if self in {Unit.PER_SECOND, Unit.PER_MINUTE, Unit.OFFSETS} else self.axis_text(value)
        )

    def axis_text(self, value: float) -> str:
        """Return a value for an axis: without a unit that the title of the chart names."""
        if self is Unit.BYTES:
            return size(value).replace(".0 ", " ")
        if self is Unit.DURATION:
            return duration(value).replace(".0 ", " ")
        if self in {Unit.PERCENT, Unit.SECONDS}:
            return f"{_short(value)} {self.value}"
        return _short(value)

    def ceiling(self, value: float) -> float:
        """Return a round value that is at least `value`, for the top of an axis."""
        if self is Unit.PERCENT:
            return 100.0
        unit = 1.0
        if self is Unit.BYTES:
            while value / unit >= KIB:
                unit *= KIB
        elif self is Unit.DURATION:
            unit = next((float(length) for length in (DAY_MS, HOUR_MS, MINUTE_MS) if value > length), float(SECOND_MS))
        magnitude = 10.0 ** (len(f"{max(1.0, value / unit):.0f}") - 1)
        return next(step * magnitude * unit for step in _STEPS if step * magnitude * unit >= value or step == _STEPS[-1])


#: The time of a value, and the value.
Point = tuple[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart: its name, its style, and its points, in pieces without a gap."""

    name: str
    style: str
    pieces: tuple[tuple[Point, ...], ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all pieces."""
        return tuple(point for piece in self.pieces for point in piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One chart: title, unit and lines."""

    title: str
    unit: Unit
    lines: tuple[Line, ...]

    @property
    def summary(self) -> str:
        """The chart in words: the newest and the highest value of each line."""
        return "; ".join(f"{self.title if len(self.lines) == 1 else line.name}: {self._describe(line)}" for line in self.lines)

    def _describe(self, line: Line) -> str:
        if not line.points:
            return "not enough samples yet"
        highest = max(value for _, value in line.points)
        return f"now {self.unit.text(line.points[-1][1])}, highest {self.unit.text(highest)}"


def compute_trends(samples: Sequence[Sample]) -> tuple[Trend, ...]:
    """Return the trends of a topic, or of all topics together, from samples in the order of their times."""

    def make_trend(title: str, unit: Unit, pieces: tuple[tuple[Point, ...], ...]) -> Trend:
        return Trend(title=title, unit=unit, lines=(Line(name=title, style="line", pieces=pieces),))

    sizes = Line(name="size", style="line", pieces=_levels(samples, lambda sample: sample.size_bytes))
    cleanable = Line(name="cleanable", style="line cleanable", pieces=_levels(samples, lambda sample: sample.cleanable_bytes))
    return (
        throughput(samples),
        make_trend("Compaction lag of the worst partition", Unit.DURATION, _levels(samples, lambda sample: sample.compaction_lag_ms)),
        make_trend("Consumer lag of the slowest reader, offsets", Unit.OFFSETS, _levels(samples, lambda sample: sample.reader_lag)),
        make_trend("Dirty ratio of the worst partition", Unit.PERCENT, _levels(samples, lambda sample: sample.dirty_percent)),
        Trend(title="Size (blue) and cleanable bytes (orange)", unit=Unit.BYTES, lines=(sizes, cleanable)),
        make_trend("Late rows, left out in each minute", Unit.PER_MINUTE, _rates(samples, lambda sample: sample.late, MINUTE_MS)),
        make_trend("Dead letters, stored", Unit.COUNT, _levels(samples, lambda sample: sample.dead_letters)),
        make_trend("Cleaning time in each minute", Unit.SECONDS, _rates(samples, lambda sample: sample.cleaning_ms / SECOND_MS, MINUTE_MS)),
    )


def throughput(samples: Sequence[Sample]) -> Trend:
    """Return how many records a second were appended, by whatever program: the growth of the log end offsets."""
    pieces = _rates(samples, lambda sample: sample.end_offsets, SECOND_MS)
    return Trend(
        title="Throughput, records appended per second", unit=Unit.PER_SECOND, lines=(Line(name="throughput", style="line", pieces=pieces),)
    )


def _levels(samples: Sequence[Sample], value: Callable[[Sample], float]) -> tuple[tuple[Point, ...], ...]:
    """Return the values of samples, in pieces without a gap."""
    pieces = list[list[Point]]()
    for number, sample in enumerate(samples):
        if number == 0 or sample.time_ms - samples[number - 1].time_ms > GAP_MS:
            pieces.append([])
        pieces[-1].append((sample.time_ms, value(sample)))
    return tuple(map(tuple, pieces))


def _rates(samples: Sequence[Sample], value: Callable[[Sample], float], per_ms: int) -> tuple[tuple[Point, ...], ...]:
    """Return the growth of a count between two samples for each `per_ms`; a count that fell has begun again, and has not grown."""
    pieces = [list[Point]()]
    for before, sample in pairwise(samples):
        length_ms = sample.time_ms - before.time_ms
        if length_ms > GAP_MS:
            pieces.append([])
        elif length_ms > 0:
            pieces[-1].append((sample.time_ms, max(0.0, value(sample) - value(before)) * per_ms / length_ms))
    return tuple(tuple(piece) for piece in pieces if piece)


def _short(value: float) -> str:
    """Return a number with at most four characters before its letter: `12.5 k`, `3 M`."""
    for magnitude, letter in ((10**9, " G"), (10**6, " M"), (10**4, " k")):
        if value >= magnitude:
            return f"{value / (magnitude if magnitude > 10**4 else 10**3):.1f}".removesuffix(".0") + letter
    return f"{value:,.0f}" if value >= _TWO_DIGITS or value == int(value) else f"{value:.1f}"
