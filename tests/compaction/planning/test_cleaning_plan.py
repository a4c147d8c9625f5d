"""What a plan says of a topic as a whole: where it stands in line, and what its readers have not read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lastword.compaction.config.keys import LONG_MAX
from lastword.compaction.planning.planner import LEAST_URGENT, CleaningPlan, plan_cleaning
from tests.compaction.logs import HOUR_MS, drawn

if TYPE_CHECKING:
    from lastword.compaction.planning.bounds import PartitionLog

_DIRTY = "0:10 | 100:90 200:1* 210"
_HALF = "0:45 | 100:55 200:1* 210"
_CLEAN = "0:90 | 100:10 200:1* 210"


def _plan(*logs: PartitionLog, now_ms: int = 0) -> CleaningPlan:
    return plan_cleaning(logs, now_ms=now_ms, entries=10**9)


def test_topics_stand_in_line_as_their_first_partitions_would() -> None:
    """Overdue before dirty, dirtier before less dirty, and with nothing to clean last, whatever the names."""
    late = drawn("0:90@1 | 100:10@5000 200:1* 210", {"max.compaction.lag.ms": "1h", "segment.ms": "1h"})
    overdue = _plan(late, drawn(_DIRTY, partition=1), now_ms=6_000 + HOUR_MS)
    line = [_plan(drawn(_CLEAN)), _plan(drawn(_HALF)), _plan(drawn(_CLEAN), drawn(_DIRTY, partition=1)), overdue]
    assert [one.urgency for one in sorted(line, key=lambda one: one.urgency)] == [one.urgency for one in reversed(line)]
    assert len({one.urgency for one in line}) == 4
    assert line[0].urgency == LEAST_URGENT


@pytest.mark.parametrize(("unread", "expected"), [(None, LONG_MAX), (0, 0), (150, 150)])
def test_tombstones_stay_from_where_a_registered_reader_has_not_read(unread: int | None, expected: int) -> None:
    """Without a reader, and in a partition that is not cleaned, none has to."""
    plan = _plan(replace(drawn(_DIRTY), unread_offset=unread), replace(drawn(_CLEAN, partition=1), unread_offset=5))
    assert plan.unread_offsets(3) == [expected, LONG_MAX, LONG_MAX]
