"""Events for operators: structured, through the standard library's logging, so that the application decides where they go.

An event is a sentence and its figures: `micro-batch appended topic=fruit-prices batch_id=4 records=200`. Nothing is printed by default.
"""

from __future__ import annotations

import logging
from typing import Final

import structlog

_CALL_FAILED: Final = "An error occurred while calling "
_MOST_CHARACTERS: Final = 500


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger `lastword.NAME`."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"lastword.{name}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, structlog.processors.LogfmtRenderer(key_order=["event"])],
    )
    return bound


def first_line(error: BaseException) -> str:
    """Return an error in one line: Spark's messages carry the whole stack of the JVM.

    The first line of py4j's says only which of its objects was called; what went wrong stands in the second.
    """
    lines = str(error).splitlines()
    if len(lines) > 1 and lines[0].startswith(_CALL_FAILED):
        return lines[1].removeprefix(": ")[:_MOST_CHARACTERS]
    return f"{type(error).__name__}: {next(iter(lines), '')}"[:_MOST_CHARACTERS]
