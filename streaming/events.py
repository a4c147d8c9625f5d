"""Events for operators: structured, through the standard library's logging, so that the application decides where they go.

An event is a sentence and its figures: `micro-batch appended topic=fruit-prices batch_id=4 records=200`. Nothing is printed by default.
"""

from __future__ import annotations

import logging

import structlog


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger `lastword.NAME`."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"lastword.{name}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, structlog.processors.LogfmtRenderer(key_order=["event"])],
    )
    return bound
