"""What is told of the progress of work, for tests."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.storage.progress import listen

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Shown:
    """A piece of work as it was told."""

    what: str
    total: int | None
    unit: str
    done: float = 0
    is_closed: bool = False

    def advance(self, amount: float) -> None:
        """Add it up."""
        assert not self.is_closed
        self.done += amount

    def close(self) -> None:
        """Once."""
        assert not self.is_closed
        self.is_closed = True


@contextmanager
def shown_work() -> Iterator[list[Shown]]:
    """Yield a list that gets each piece of work of the block."""
    works = list[Shown]()

    def begin(what: str, total: int | None, unit: str) -> Shown:
        works.append(Shown(what, total, unit))
        return works[-1]

    listen(begin)
    try:
        yield works
    finally:
        listen(None)
