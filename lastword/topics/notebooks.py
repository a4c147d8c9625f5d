"""What a notebook shows of a topic and of a log.dir, from metadata: tables of HTML (IPython's `_repr_html_`)."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lastword.compaction.display import MOST_ROWS, html_of_results
from lastword.compaction.errors import LastwordError
from lastword.text import size
from lastword.topics.description import describe_partitions, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword.storage.log.topic_log import TopicLog


def html_of_topic(log: TopicLog, *, now_ms: int) -> str:
    """Return a topic as HTML: partitions with offsets, records and sizes, and the settings that are its own; or why it is unreadable."""
    title = f"<b>topic {escape(log.name)}</b> in {escape(log.paths.root)}"
    try:
        state = log.at()
        partitions = describe_partitions(state, now_ms=now_ms)
    except LastwordError as error:
        return f"<p>{title}: {escape(str(error))}</p>"
    records, size_bytes = sum(each.record_count for each in partitions), sum(each.size_bytes for each in partitions)
    settings = ", ".join(f"{name} = {value}" for name, value in sorted(state.decisions.overrides.items()))
    return (
        f"<p>{title}: {len(partitions)} partitions, {records:,} records, {size(size_bytes)}, table version {state.version}</p>"
        f"{html_of_results(partitions)}<p>settings: {escape(settings or 'all by default')}</p>"
    )


def html_of_topics(location: str, names: Sequence[str], open_log: Callable[[str], TopicLog]) -> str:
    """Return a log.dir as HTML: a row for each topic with partitions, records, size and newest append, or why it is unreadable.

    Only the first 60 topics are read and shown.
    """
    shown = names[:MOST_ROWS]
    note = f", the first {len(shown)}" if len(shown) < len(names) else ""
    title = f"<p><b>log.dir</b> {escape(location)}: {len(names):,} topics{note}</p>"
    return title + html_of_results([summarize(open_log(name)) for name in shown])
