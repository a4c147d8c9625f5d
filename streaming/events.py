"""Events for operators: structured, through the standard library's logging, so that the application decides where they go.

An event is a sentence and its figures: `micro-batch appended topic=fruit-prices batch_id=4 records=200`. Nothing is printed by default.
No secret is in an event.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import structlog

from lastword.compaction.secrets import HIDDEN, is_secret, without_secrets

if TYPE_CHECKING:
    from structlog.typing import EventDict


def _without_secrets(_logger: object, _method: str, event: EventDict) -> EventDict:
    return {key: HIDDEN if is_secret(key) else without_secrets(value) if isinstance(value, str) else value for key, value in event.items()}


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger `lastword.NAME`."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"lastword.{name}"),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[structlog.stdlib.filter_by_level, _without_secrets, structlog.processors.LogfmtRenderer(key_order=["event"])],
    )
    return bound
