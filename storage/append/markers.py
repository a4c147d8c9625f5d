"""Markers at the end of a transaction: one COMMIT or ABORT in each partition that it touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from lastword.compaction.rows.input_columns import HEADERS, TIMESTAMP
from lastword.compaction.rows.numbering import Numbering
from lastword.storage.append.writing import SliceRows, write_all
from lastword.storage.files.data_files import complete

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.producers import Control
    from lastword.storage.append.plan import AppendPlan
    from lastword.storage.files.data_files import DataFile


def write_markers(plan: AppendPlan, first_offsets: Mapping[int, int], control: Control, *, producer_id: int, epoch: int) -> list[DataFile]:
    """Write one marker into each partition in which a transaction is open; `first_offsets` are the transaction's, by partition."""
    parts: dict[int, list[SliceRows]] = {}
    for partition, first in first_offsets.items():
        numbering = Numbering(plan.actives[partition], plan.limits, plan.compression, plan.rules.topic)
        now = pa.array([plan.rules.now_ms * 1000]).cast(TIMESTAMP)
        row = pa.record_batch(
            {"timestamp": now, "key": pa.nulls(1, pa.binary()), "value": pa.nulls(1, pa.binary()), "headers": pa.nulls(1, HEADERS)}
        )
        offsets, (part,) = numbering.number(row, has_offsets=False)
        columns = {
            "offset": pa.array(offsets),
            "timestamp": now,
            "producer_id": pa.array([producer_id]),
            "producer_epoch": pa.array([epoch], pa.int32()),
            "txn_first_offset": pa.array([first]),
            "control": pa.array([control.value]),
            "appended_at": now,
        }
        parts[partition] = [SliceRows(part.segment, part.slice, complete(pa.table(columns)))]
    return write_all(plan, parts)
