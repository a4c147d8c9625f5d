"""Log starts that are decided without retention: by DeleteRecords, or by the source of a mirror. Rows of the ledger, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.storage.cleaning.retention import removed_positions
from lastword.storage.ledger.decisions import Decision, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.storage.ledger.decisions import Decisions
    from lastword.storage.log.topic_log import TopicLog


def raise_log_starts(log: TopicLog, wanted: Mapping[int, int], *, why: str, now_ms: int) -> bool:
    """Raise the log starts of some partitions to offsets that they have, for the reason `why`; tell whether one rose."""
    state = log.at()

    def raise_today(today: Decisions) -> tuple[list[Decision], bool]:
        higher = {partition: offset for partition, offset in wanted.items() if offset > today.log_start_offset(partition)}
        rows = [
            Decision(
                kind=Kind.START,
                time_ms=now_ms,
                partition=partition,
                offset=offset,
                table_version=state.version,
                details={"why": why, "removed_positions": removed_positions(replace(state, decisions=today), partition, offset)},
            )
            for partition, offset in higher.items()
        ]
        return rows, bool(higher)

    return log.ledger.decide(raise_today)
