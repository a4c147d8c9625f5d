"""Progress bars for work that takes longer than a second: on a terminal and in a notebook, none where standard error is a pipe or a file.

tqdm draws them; its environment variables hold here too (`TQDM_DISABLE=1` turns them off).
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any, TextIO

from lastword.storage.progress import listen


class _Choice:
    """Whether this process has decided if it shows bars."""

    is_made = False


def show_where_seen() -> None:
    """Show bars from now on if standard error is a terminal or this is a notebook; decided once in a process."""
    if not _Choice.is_made:
        _Choice.is_made = True
        if _is_notebook() or is_terminal(sys.stderr):
            show()


def never_show() -> None:
    """Show no bars in this process: its standard error is a log."""
    _Choice.is_made = True
    listen(None)


def show(*, stream: TextIO | None = None, delay_seconds: float = 1.0) -> None:
    """Show a bar for each piece of work that takes longer than `delay_seconds`, on standard error or `stream`."""
    _Choice.is_made = True
    listen(partial(_Bar, stream, delay_seconds))


class _Bar:
    """A bar of tqdm; it disappears when its work ends."""

    def __init__(self, stream: TextIO | None, delay_seconds: float, what: str, total: int | None, unit: str) -> None:
        self._bar = _bar_class(stream)(
            desc=what, total=total, unit=unit if unit == "B" else f" {unit}", unit_scale=True, unit_divisor=1024 if unit == "B" else 1000,
            file=stream, delay=delay_seconds, leave=False, dynamic_ncols=True,
        )  # fmt: skip

    def advance(self, amount: float) -> None:
        self._bar.update(amount)

    def close(self) -> None:
        self._bar.close()


def _bar_class(stream: TextIO | None) -> Any:
    """Return the class of tqdm for notebooks with ipywidgets, else the class for text, which a notebook shows as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm.auto asks for ipywidgets
        from tqdm import auto, std  # noqa: PLC0415  only where bars are shown
    return auto.tqdm if stream is None else std.tqdm


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal; standard error of a process without a console is None."""
    return stream is not None and not stream.closed and stream.isatty()


def _is_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    return kernel is not None and hasattr(kernel, "kernel")
