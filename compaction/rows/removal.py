"""Why a cleaning removes a row: the reasons that receipts count by."""

from __future__ import annotations

from enum import Enum


class Removal(str, Enum):
    """Why a row goes; the values stand in receipts."""

    SUPERSEDED = "superseded"
    ABORTED = "aborted"
    KEYLESS = "keyless"
    EXPIRED_TOMBSTONE = "expired_tombstone"
    PURGED_TOMBSTONE = "purged_tombstone"
    EXPIRED_MARKER = "expired_marker"
    EMPTY = "empty"
