"""Which partition a record goes to when the row does not say.

`lastword`: Spark's xxhash64 of the key, in the JVM. `kafka`: the Java client's murmur2, so that a topic filled here and one filled by
a Kafka producer agree on every key; an Arrow UDF over whole columns. A keyless record (topics that are not compacted) goes by its
value: the same at every replay, which a random choice would not be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_MURMUR2: Final = "__murmur2"


def with_hash(rows: DataFrame, key: str, value: str, *, partitions: int, partitioner: str) -> tuple[DataFrame, str]:
    """Return rows and the SQL of a record's partition (int, 0 to `partitions` - 1): by its key, or by its value where the key is null.

    `key` and `value` are SQL (binary). Murmur2 is no function of Spark's: it is a column of the rows that are returned.
    """
    if partitions == 1:
        return rows, "0"
    by_key, by_value = f"pmod(xxhash64({key}), {partitions})", f"pmod(xxhash64({value}), {partitions})"
    if partitioner == "kafka":
        hashed = arrow_udf(_murmur2_column, "int")(F.expr(key))  # type: ignore[call-overload]
        rows, by_key = rows.withColumn(_MURMUR2, hashed), f"pmod({_MURMUR2} & {0x7FFFFFFF}, {partitions})"
    return rows, f"CASE WHEN {key} IS NULL THEN CAST({by_value} AS INT) ELSE CAST({by_key} AS INT) END"


def _murmur2_column(keys: pa.Array) -> pa.Array:
    lengths = pc.binary_length(keys).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    data = np.frombuffer(b"".join(key for key in keys.to_pylist() if key is not None), dtype=np.uint8)
    return pa.array(murmur2(data, lengths).view(np.int32), type=pa.int32())


_murmur2_column.__annotations__ = {"keys": pa.Array, "return": pa.Array}  # as objects: Spark reads the types at run time


def murmur2(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the 32-bit murmur2 hash of every key, as Kafka's Java client computes it.

    The keys lie one behind the other in `data`; `lengths` are theirs in bytes. All keys advance together, four bytes a step.
    """
    with np.errstate(over="ignore"):
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(lengths) else lengths
        padded = np.concatenate([data, np.zeros(4, dtype=np.uint8)]).astype(np.uint32)
        hashes = _SEED ^ lengths.astype(np.uint32)
        words = lengths // 4
        for word in range(int(words.max(initial=0))):
            alive = np.flatnonzero(words > word)
            at = starts[alive] + 4 * word
            k = padded[at] | padded[at + 1] << np.uint32(8) | padded[at + 2] << np.uint32(16) | padded[at + 3] << np.uint32(24)
            k = k * _M
            k = (k ^ k >> np.uint32(24)) * _M
            hashes[alive] = hashes[alive] * _M ^ k
        rest, at = lengths % 4, starts + words * 4
        for byte in (2, 1):
            some = np.flatnonzero(rest > byte)
            hashes[some] ^= padded[at[some] + byte] << np.uint32(8 * byte)
        some = np.flatnonzero(rest > 0)
        hashes[some] = (hashes[some] ^ padded[at[some]]) * _M
        hashes = (hashes ^ hashes >> np.uint32(13)) * _M
        result: NDArray[np.uint32] = hashes ^ hashes >> np.uint32(15)
        return result
