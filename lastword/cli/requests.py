"""Execution of the commands that commit: in this process, or in the process that holds the lock of the log.dir."""

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
    """Execute a request and return its result: in this process, or in the process that holds the lock of the log.dir.

    The lock is tried before Spark is started: if a service runs, this process needs no Spark session.
    """
    logs = LogDir(None, log_dir, session_settings=QUIET)
    logs.topic(request.topic)  # an unknown name fails without the lock and without Spark
    try:
        logs.hold_lock()
    except LogDirLocked as locked:
        return _asked(request, logs.location, timeout_s, locked)
    return request.carry_out(logs, clock.now_ms)


def _asked(request: Request, location: str, timeout_s: float, locked: LogDirLocked) -> Any:
    """Let the process that holds the lock execute a request, and return its result."""
    try:
        with notes.status(f"{request.verb}: sent to the process that holds {location}, waiting up to {timeout_s:g} s"):
            answer = requests.ask(location, request, timeout_s)
    except requests.NoAnswer as error:
        message = f"{error}\n{locked}"
        raise LogDirLocked(message) from error
    if answer.ok:
        return answer.result
    if answer.mistake:
        raise UserError(answer.message)
    message = f"the process that holds {location} failed to execute {request.verb}: {answer.error}: {answer.message}"
    raise LastwordError(message)
