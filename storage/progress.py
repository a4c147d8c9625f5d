"""The progress of long work, for a listener that shows it, as a bar on a terminal; without one nothing is counted.

```
 with work("verify orders", total=12, unit="files") as advance:    a listener makes a Meter
     advance(1)                                                    Meter.advance(1), from any thread
                                                                   Meter.close(), also behind an error
```
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Meter(Protocol):
    """Displays the progress of a piece of work."""

    def advance(self, amount: float) -> None:
        """Add an amount to the work that is done; called from any thread."""

    def close(self) -> None:
        """End the display of the work."""


class _Listeners:
    """The listener of this process."""

    make_meter: Callable[[str, int | None, str], Meter] | None = None


def listen(make_meter: Callable[[str, int | None, str], Meter] | None) -> None:
    """Call `make_meter(what, total, unit)` for each piece of work from now on; None: no call."""
    _Listeners.make_meter = make_meter


@contextmanager
def work(what: str, *, total: int | None, unit: str) -> Iterator[Callable[[float], None]]:
    """Report a piece of work while the block runs, and yield the function that advances it.

    Args:
        what: What is done, and to which topic: "verify orders".
        total: How many units there are; None if that is not known.
        unit: What is counted: "files", "rows", or "B" for bytes.
    """
    make_meter = _Listeners.make_meter
    if make_meter is None:
        yield _ignore
        return
    meter = make_meter(what, total, unit)
    try:
        yield meter.advance
    finally:
        meter.close()


def _ignore(_amount: float) -> None:
    pass
