"""The named moments at which a crash must lose and double nothing. Tests crash at every one of them.

A test installs a hook: a function that raises, one that kills the process, or one that does what another process would do then.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CrashPoint(str, Enum):
    """A moment between two steps of a commit."""

    APPEND_PLANNED = "append: its files are written, no commit names them"
    DEAD_LETTERS_WRITTEN = "append: dead letters committed, the log not yet"
    PRODUCER_REGISTERED = "transaction: id and epoch are in the ledger, nothing in the log"
    MARKERS_PLANNED = "transaction: all rows committed, its markers not yet"
    MARKERS_COMMITTED = "transaction: markers committed, not yet reported"
    OFFSET_MAP_BUILT = "cleaning: the first pass is done, nothing written"
    CLEANING_PLANNED = "cleaning: segments to rewrite are known, nothing written"
    SWAP_COMMITTED = "cleaning: segments swapped, no receipt"
    RECEIPT_WRITTEN = "cleaning: receipt written, not yet reported"
    LOG_START_DECIDED = "retention: the log start is in the ledger, the segments are there still"
    SEGMENTS_REMOVED = "retention: segments removed, not yet reported"
    TARGET_PLANNED = "materialise: the last words are known, the target is not made"
    TARGET_MADE = "materialise: the target is made, no query runs"
    STEP_PLANNED = "materialise: a micro-batch is read, nothing applied"
    STEP_TAKEN = "materialise: applied, Spark does not know yet"
    TABLE_COMMIT_PUT = "table: the commit of a step is put, and not looked at again yet"
    PURGE_TOMBSTONE_WRITTEN = "purge: tombstones committed, not yet released"
    PURGE_DECIDED = "purge: the tombstones may go, nothing is cleaned"
    PURGE_CLEANED = "purge: the log holds no record of the key, its old files, targets and dead letters do"
    PURGE_ERASED = "purge: no table holds the key in its newest version, old files do"
    PURGE_SWEPT = "purge: the files are gone, not yet reported"
    APPEND_COMMITTED = "append: committed, Spark does not know yet"


#: The hooks that are installed; the last one is called.
_HOOKS: Final[list[Callable[[CrashPoint], object]]] = []


def reached(point: CrashPoint) -> None:
    """Call the hook with a point that a thread has reached."""
    for call in _HOOKS[-1:]:
        call(point)


@contextmanager
def hook(call: Callable[[CrashPoint], object]) -> Iterator[None]:
    """Call a function at each point that any thread reaches, instead of the hook outside, until the block ends."""
    _HOOKS.append(call)
    try:
        yield
    finally:
        _HOOKS.remove(call)
