"""What keeps the source of a running query from being read: set by the reader, shown with the query.

A folder that is moved away and a cluster that does not answer end no query: it waits for them. To tell it from a query that has
nothing to do, the reader of the source keeps the issue here until the source can be read again.
"""

from __future__ import annotations

from typing import Final

#: The issue of a source by the folder of its topic and its name.
_ISSUES: Final[dict[tuple[str, str], str]] = {}


def set_source_issue(topic_folder: str, source: str, issue: str) -> None:
    """Keep what is wrong with a source now; an empty text ends the issue."""
    if issue:
        _ISSUES[topic_folder, source] = issue
    else:
        _ISSUES.pop((topic_folder, source), None)


def source_issue(topic_folder: str, source: str) -> str:
    """Return what is wrong with a source now, "" if nothing is."""
    return _ISSUES.get((topic_folder, source), "")
