"""Waiting for what a service does by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long a service is waited for; a machine may be busy.
PATIENCE_SECONDS: Final = 150


def until(holds: Callable[[], object], what: str = "the service did not do it") -> None:
    """Wait until something holds; fail with `what` when it never does."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)
