"""Commands that commit: done here, or asked of the process that holds the log.dir."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lastword import clock
from lastword.cli.options import QUIET, notes
from lastword.compaction.errors import LastwordError, LogDirLocked, UserError
from lastword.log_dir import LogDir
from lastword.service import requests

if TYPE_CHECKING:
    from lastword.service.requests import Request


def carried_out(request: Request, log_dir: str, timeout_s: float) -> Any:
    """Do what a request says and return its result: here, or in the process that holds the log.dir.

    The lock comes before everything, Spark included: beside a service there is nothing to start one for.
    """
    logs = LogDir(None, log_dir, session_settings=QUIET)
    logs.topic(request.topic)  # the mistake in a name needs neither
    try:
        logs.hold_lock()
    except LogDirLocked as locked:
        return _asked(request, logs.location, timeout_s, locked)
    return request.carry_out(logs, clock.now_ms)


def _asked(request: Request, location: str, timeout_s: float, locked: LogDirLocked) -> Any:
    """Have the process that holds the log.dir carry out a request."""
    try:
        with notes.status(f"another process holds {location}: asked it for {request.verb}, waiting up to {timeout_s:g} s"):
            answer = requests.ask(location, request, timeout_s)
    except requests.NoAnswer as error:
        message = f"{error}\n{locked}"
        raise LogDirLocked(message) from error
    if answer.ok:
        return answer.result
    if answer.mistake:
        raise UserError(answer.message)
    message = f"the process that holds {location} could not carry out {request.verb}: {answer.error}: {answer.message}"
    raise LastwordError(message)
