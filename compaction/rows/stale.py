"""Keys that a refused row leaves stale: the log keeps an older record of the key, unless the same rows bring a newer one.

```
 rows              a 1      a 2 refused      b 1 refused      b 2
 stale             –        a                –                –       b 2 comes later, and is no older by its sequence
```
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray


def stale_keys_of(keys: pa.Array, sequences: pa.Array | None, refused: NDArray[np.bool_], accepted: NDArray[np.bool_]) -> pa.Array:
    """Return the key of each row that leaves it stale, null for all other rows.

    Args:
        keys: The keys of rows in their order, binary; null for none.
        sequences: Their source sequences, if they have some.
        refused: Which rows are refused.
        accepted: Which rows become records, or are compared with the log.
    """
    at = np.flatnonzero(refused)
    if not len(at):
        return pa.nulls(len(keys), pa.binary())
    texts = [""] * len(keys) if sequences is None else pc.fill_null(sequences, "").to_pylist()
    wanted = keys.take(pa.array(at))
    is_wanted = pc.is_in(keys, wanted.drop_null()).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(accepted & is_wanted)
    newer = defaultdict[bytes, list[int]](list)
    for row, key in zip(others.tolist(), keys.take(pa.array(others)).to_pylist(), strict=True):
        newer[key].append(row)
    stale = list[bytes | None]([None] * len(keys))
    for row, key in zip(at.tolist(), wanted.to_pylist(), strict=True):
        is_mended = any(other > row and not (texts[other] and texts[other] < texts[row]) for other in newer.get(key, ()))
        stale[row] = None if is_mended else key
    return pa.array(stale, pa.binary())
