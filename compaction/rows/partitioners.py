"""The partition of a record whose row does not name one.

`lastword`: xxHash64 of the key with seed 42, which is Spark's `xxhash64`. `kafka`: the Java client's murmur2, so that a topic that is
filled here and one that a Kafka producer fills agree on every key. A record without a key (topics that are not compacted) goes by the
xxHash64 of its value: each replay gives the same partition, which a random choice would not.

All keys of a batch are hashed together: step n takes the n-th word of every key that is long enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPARK_SEED: Final = np.uint64(42)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)
)
#: So many keys are hashed at a time: what is computed of them stays in the processor's cache.
_BLOCK_ROWS: Final = 2**13
_STRIPE: Final = 32
_WORD: Final = 8
_MURMUR_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)


def partitions_of(keys: pa.Array, values: pa.Array, *, partitions: int, partitioner: str) -> NDArray[np.int32]:
    """Return the partition of each record, 0 to `partitions` - 1; `keys` and `values` are binary columns, `partitioner` a topic setting."""
    if partitions == 1:
        return np.zeros(len(keys), dtype=np.int32)
    keyless = keys.is_null().to_numpy(zero_copy_only=False) if keys.null_count else None
    if partitioner == "kafka":
        chosen = (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    else:
        chosen = xxhash64(keys).view(np.int64) % partitions
    if keyless is not None:
        chosen[keyless] = xxhash64(values.filter(pa.array(keyless))).view(np.int64) % partitions
    return chosen.astype(np.int32)


def xxhash64(column: pa.Array) -> NDArray[np.uint64]:
    """Return the xxHash64 of each value of a binary column with Spark's seed 42; null hashes to the seed, as in Spark."""
    if len(column) > _BLOCK_ROWS:
        return np.concatenate([xxhash64(column.slice(start, _BLOCK_ROWS)) for start in range(0, len(column), _BLOCK_ROWS)])
    data, starts, lengths = _flat(column, padding=_WORD)
    words = np.ndarray(shape=(len(data) - _WORD + 1,), dtype="<u8", buffer=data, strides=(1,))  # a word at each byte
    with np.errstate(over="ignore"):
        hashes = np.full(len(lengths), _SPARK_SEED + _P5)
        at = starts.copy()
        long = np.flatnonzero(lengths >= _STRIPE)
        if len(long):
            hashes[long] = _stripes(words, starts[long], lengths[long])
            at[long] += lengths[long] // _STRIPE * _STRIPE
        hashes += lengths.astype(np.uint64)
        ends = starts + lengths
        for _ in range((_STRIPE - 1) // _WORD):
            some = np.flatnonzero(ends - at >= _WORD)
            hashes[some] = _rotate(hashes[some] ^ _round(np.uint64(0), words[at[some]]), 27) * _P1 + _P4
            at[some] += _WORD
        some = np.flatnonzero(ends - at >= _WORD // 2)
        half = words[at[some]] & np.uint64(0xFFFFFFFF)
        hashes[some] = _rotate(hashes[some] ^ half * _P1, 23) * _P2 + _P3
        at[some] += _WORD // 2
        for _ in range(_WORD // 2 - 1):
            some = np.flatnonzero(ends > at)
            hashes[some] = _rotate(hashes[some] ^ data[at[some]].astype(np.uint64) * _P5, 11) * _P1
            at[some] += 1
        hashes = (hashes ^ hashes >> np.uint64(33)) * _P2
        hashes = (hashes ^ hashes >> np.uint64(29)) * _P3
        hashes ^= hashes >> np.uint64(32)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _SPARK_SEED
    return hashes


def _stripes(words: NDArray[np.uint64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return what the whole stripes of 32 bytes make of keys that have one at least."""
    lanes = [np.full(len(starts), seed) for seed in (_SPARK_SEED + _P1 + _P2, _SPARK_SEED + _P2, _SPARK_SEED, _SPARK_SEED - _P1)]
    count = lengths // _STRIPE
    for stripe in range(int(count.max())):
        alive = np.flatnonzero(count > stripe)
        at = starts[alive] + stripe * _STRIPE
        for number, lane in enumerate(lanes):
            lane[alive] = _round(lane[alive], words[at + number * _WORD])
    hashes: NDArray[np.uint64] = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
    for lane in lanes:
        hashes = (hashes ^ _round(np.uint64(0), lane)) * _P1 + _P4
    return hashes


def _round(accumulated: NDArray[np.uint64] | np.uint64, word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return _rotate(accumulated + word * _P2, 31) * _P1


def _rotate(values: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    turned: NDArray[np.uint64] = values << np.uint64(bits) | values >> np.uint64(64 - bits)
    return turned


def murmur2(column: pa.Array) -> NDArray[np.uint32]:
    """Return the 32-bit murmur2 hash of each value of a binary column, as Kafka's Java client computes it; of null that of no bytes."""
    data, starts, lengths = _flat(column, padding=4)
    quads = np.ndarray(shape=(len(data) - 3,), dtype="<u4", buffer=data, strides=(1,))  # four bytes at each byte
    with np.errstate(over="ignore"):
        hashes = _MURMUR_SEED ^ lengths.astype(np.uint32)
        words = lengths // 4
        for word in range(int(words.max(initial=0))):
            alive = np.flatnonzero(words > word)
            k = quads[starts[alive] + 4 * word] * _M
            k = (k ^ k >> np.uint32(24)) * _M
            hashes[alive] = hashes[alive] * _M ^ k
        rest, at = lengths % 4, starts + words * 4
        for byte in (2, 1):
            some = np.flatnonzero(rest > byte)
            hashes[some] ^= data[at[some] + byte].astype(np.uint32) << np.uint32(8 * byte)
        some = np.flatnonzero(rest > 0)
        hashes[some] = (hashes[some] ^ data[at[some]].astype(np.uint32)) * _M
        hashes = (hashes ^ hashes >> np.uint32(13)) * _M
        return hashes ^ hashes >> np.uint32(15)


def _flat(column: pa.Array, *, padding: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of a binary column with some zeros behind, and where each value starts and how long it is; null has no bytes."""
    _, bounds, content = column.buffers()
    offsets = np.frombuffer(bounds, dtype=np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64) if bounds else None
    if offsets is None or not len(column):
        nothing = np.zeros(len(column), dtype=np.int64)
        return np.zeros(padding, dtype=np.uint8), nothing, nothing
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + padding, dtype=np.uint8)
    data[: last - first] = np.frombuffer(b"" if content is None else content, dtype=np.uint8)[first:last]
    lengths = np.diff(offsets)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return data, offsets[:-1] - first, lengths
