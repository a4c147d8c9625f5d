"""When the rows of a history hold: each from the timestamp of its record, but not from before the row before it, to that of the next one.

```
 timestamps of a key   10:00          9:00            11:00           no period begins before the one before it
 holds                 [10:00, 10:00) [10:00, 11:00)  [11:00, …)
```

A tombstone ends the period of the row before it, and begins none. One that follows another tombstone, or that no row is before, says
nothing: the table does not keep it, so the periods do not depend on where a step ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from lastword.compaction.rows.input_columns import TIMESTAMP

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


def periods_of(
    keys: NDArray[np.int64], timestamps: pa.Array, *, tombstones: NDArray[np.bool_], floors: pa.Array, open_rows: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Return when each of some records begins to hold and when it ends, null for one that holds still.

    `keys` are numbers, the same for records of one key, in the order of the log; `floors` say for each record where the last period of its
    key in the table begins or ends, whichever is later, null for none; `open_rows` whether that row holds still.
    """
    columns = {
        "key": keys,
        "timestamp": pl.Series(timestamps),
        "tombstone": tombstones,
        "floor": pl.Series(floors),
        "open": pl.Series(open_rows),
    }
    ends_nothing = pl.col("tombstone") & pl.col("tombstone").shift(1).over("key").fill_null(~pl.col("open"))
    moments = pl.DataFrame(columns).with_columns(timestamp=pl.when(~ends_nothing).then("timestamp"))
    begun = moments.with_columns(begin=pl.max_horizontal("floor", pl.col("timestamp").cum_max().over("key")))
    ended = begun.select("begin", end=pl.col("begin").shift(-1).over("key"))
    return ended["begin"].to_arrow().cast(TIMESTAMP), ended["end"].to_arrow().cast(TIMESTAMP)
