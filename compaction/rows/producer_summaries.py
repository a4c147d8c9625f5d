"""What a stretch of the log shows of each producer in it, from the rows that carry one.

```
 offset   0    1    2    3    4         producer 7: newest epoch 0, last sequence 1, open transaction from 3, a marker was seen
 row      7    7    7C   7    ·         the marker at 2 ends what was open before the stretch, and what began at 0
```

Stretches are joined by `lastword.compaction.producers.merge_states`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.producers import Control, ProducerState

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The columns that `summaries` looks at.
SUMMARY_COLUMNS: Final = ("offset", "appended_at", "producer_id", "producer_epoch", "sequence", "control", "txn_first_offset")
#: Stands for null among numbers, and for no row among places.
_NONE: Final = -1


def summaries(rows: pa.Table, partition: int) -> list[tuple[ProducerState, bool]]:
    """Return the state of each producer as rows of one partition show it, and whether one of its markers is among them.

    `rows` have `SUMMARY_COLUMNS` and ascend by offset; those without a producer are left out.
    """
    rows = rows.filter(pc.is_valid(rows.column("producer_id"))).combine_chunks()
    if not len(rows):
        return []
    rows = rows.take(pa.array(np.argsort(_numbers(rows, "producer_id"), kind="stable")))
    producer_id, offset, epoch = _numbers(rows, "producer_id"), _numbers(rows, "offset"), _numbers(rows, "producer_epoch")
    sequence, first = _numbers(rows, "sequence"), _numbers(rows, "txn_first_offset")
    appended_ms = _numbers(rows, "appended_at") // 1000
    control = rows.column("control")
    is_data, is_empty = pc.is_null(control).to_numpy(), pc.fill_null(pc.equal(control, Control.EMPTY.value), False).to_numpy()  # noqa: FBT003
    is_sequenced = sequence != _NONE
    in_transaction = is_data & (first != _NONE)
    starts = np.append(0, np.flatnonzero(np.diff(producer_id)) + 1)

    def newest(condition: NDArray[np.bool_]) -> list[int]:
        """Return for each producer the place of its last row for which a condition holds; -1 where there is none."""
        places: list[int] = np.maximum.reduceat(np.where(condition, np.arange(len(rows)), _NONE), starts).tolist()
        return places

    each = zip(
        newest(np.ones(len(rows), dtype=np.bool_)),
        # What is left of a marker is an EMPTY row as well, but has no sequence.
        newest(is_data | (is_empty & is_sequenced)),
        newest(is_sequenced),
        newest(~is_data & ~is_empty),
        newest(in_transaction),
        newest(in_transaction & (offset == first)),
        strict=True,
    )
    result = []
    for last, place, sequenced, marker, transaction, begun in each:
        is_open = transaction != _NONE and transaction > marker
        held_by_data = place != _NONE and bool(epoch[place] == epoch[last])
        known_begin = begun != _NONE and first[begun] == first[transaction]
        state = ProducerState(
            partition=partition,
            producer_id=int(producer_id[last]),
            epoch=int(epoch[last]),
            last_sequence=int(sequence[sequenced]) if sequenced != _NONE and epoch[sequenced] == epoch[last] else None,
            last_appended_ms=int(appended_ms[last]),
            open_first_offset=int(first[transaction]) if is_open else None,
            open_last_offset=int(offset[transaction]) if is_open else None,
            open_since_ms=int(appended_ms[begun if known_begin else last]) if is_open else None,
            place_offset=int(offset[place if held_by_data else last]),
            place_is_data=held_by_data,
        )
        result.append((state, marker != _NONE))
    return result


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of whole numbers or times (microseconds); -1 for null."""
    numbers: Any = rows.column(name).cast(pa.int64()).fill_null(_NONE).to_numpy()
    return numbers  # type: ignore[no-any-return]
