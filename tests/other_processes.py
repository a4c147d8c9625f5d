"""A topic as another process has it open, in this one: no append of its waits for one of ours, and ours for none of its."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from lastword import ArrowTopic, LogDir, SparkTopic, Topic
from lastword.log_dir import producer_snapshots
from lastword.storage.log.append_locks import AppendLocks
from lastword.storage.log.topic_log import TopicLog

if TYPE_CHECKING:
    from collections.abc import Callable

TopicT = TypeVar("TopicT", bound=Topic)


def in_another_process(logs: LogDir[TopicT], name: str, *, kind: Callable[..., TopicLog] = TopicLog) -> TopicT:
    """Open a topic that exists as another process does; its log is of a class, which may be one that does something at a moment."""
    ours = logs.log(name)
    log = kind(
        name,
        ours.paths,
        defaults=logs._defaults,  # noqa: SLF001
        storage_options=logs.storage_options,
        producer_cache=producer_snapshots(ours.paths.root, logs.storage_options, lambda: log.decisions().topic_id),
        append_locks=AppendLocks(),
    )
    return cast("TopicT", ArrowTopic(logs, log) if logs.session is None else SparkTopic(logs, log, logs.session))
