"""What the time is for a test: `at(moment_ms, topic).clean()` cleans as the topic would at that moment."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, TypeVar

from lastword import LogDir, Topic, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=LogDir | Topic | Transaction)


def at(moment_ms: int | Callable[[], int], thing: T) -> T:
    """Return a log.dir or a topic with a clock that stands at a moment, or a transaction, whose clock is moved there for good.

    A function instead of a moment is the clock itself.
    """
    if isinstance(thing, LogDir):
        _ = thing.cleaner  # one for both
    found = thing if isinstance(thing, Transaction) else copy.copy(thing)
    setattr(found, "clock" if isinstance(found, LogDir) else "_clock", moment_ms if callable(moment_ms) else lambda: moment_ms)
    if isinstance(found, LogDir):
        found.__dict__["topic"] = getattr(thing, "topic")  # noqa: B009   # what it makes goes by the clock of the log.dir that was given
    return found
