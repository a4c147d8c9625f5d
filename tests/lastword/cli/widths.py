"""The width of the terminal that commands print for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from lastword.cli.options import out

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def terminal_of(columns: int) -> Iterator[None]:
    """Let the tables of commands have a width, as in a terminal of so many columns."""
    before = vars(out)["_width"]
    out.width = columns
    try:
        yield
    finally:
        vars(out)["_width"] = before
