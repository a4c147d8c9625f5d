"""Copying a topic: the way to another number of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.errors import InvalidRecords, UserError
from lastword.compaction.rows.validation import ORDER_PREFIX

if TYPE_CHECKING:
    from lastword.log_dir import LogDir
    from lastword.storage.append.append import AppendResult


def copy_topic(logs: LogDir, source: str, target: str, *, partitions: int, now_ms: int | None = None) -> AppendResult:
    """Create `target` with the configuration of `source` and append all its data records, hashed anew, in one commit.

    Records keep key, value, headers and timestamp; offsets begin at 0. A key had one partition in `source`, so its records keep their
    order. Tombstones come along; what was aborted does not. Raises `UserError` while a transaction is open, whose records nobody can
    judge yet, `TopicExists` when there is a topic `target`, and `InvalidRecords` when the log holds records that today's configuration
    refuses (keyless ones from before the policy was compact, say); there is no topic `target` then.
    """
    origin = logs.topic(source)
    undecided = ", ".join(
        f"producer {one.producer_id} ({one.transactional_id or 'no transactional.id'})" for one in origin.open_transactions()
    )
    if undecided:
        message = f"topic {source}: open transactions of {undecided}: commit or abort them first (lastword transactions list {source})"
        raise UserError(message)
    copy = logs.create_topic(target, partitions=partitions, config=origin.log.decisions().overrides, now_ms=now_ms)
    order = [f"partition AS `{ORDER_PREFIX}1_partition`", f"offset AS `{ORDER_PREFIX}2_offset`"]
    rows = origin.records(isolation="read_committed").selectExpr("key", "value", "headers", "timestamp", *order)
    try:
        return copy.append(rows, now_ms=now_ms)
    except InvalidRecords:
        logs.delete_topic(target, now_ms=now_ms)
        raise
