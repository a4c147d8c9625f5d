"""Hashes of whole columns against one key at a time; tests/storage/append/test_partitioners.py compares them with Spark and Kafka."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from lastword.compaction.rows.partitioners import murmur2, partitions_of, xxhash64

_MASK = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _xxhash64(key: bytes, seed: int = 42) -> int:
    """Return the hash of one key, as its specification says it."""
    rest = key
    if len(key) >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while len(rest) >= 32:
            lanes = [_round(lane, int.from_bytes(rest[8 * at : 8 * at + 8], "little")) for at, lane in enumerate(lanes)]
            rest = rest[32:]
        found = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = seed + _P5
    found = (found + len(key)) & _MASK
    while len(rest) >= 8:
        found, rest = (_rotated(found ^ _round(0, int.from_bytes(rest[:8], "little")), 27) * _P1 + _P4) & _MASK, rest[8:]
    if len(rest) >= 4:
        found, rest = (_rotated(found ^ int.from_bytes(rest[:4], "little") * _P1 & _MASK, 23) * _P2 + _P3) & _MASK, rest[4:]
    for byte in rest:
        found = _rotated(found ^ byte * _P5 & _MASK, 11) * _P1 & _MASK
    found = (found ^ found >> 33) * _P2 & _MASK
    found = (found ^ found >> 29) * _P3 & _MASK
    return found ^ found >> 32


def _keys(longest: int) -> list[bytes | None]:
    chance = random.Random(1)
    keys: list[bytes | None] = [chance.randbytes(length) for length in range(longest) for _ in range(3)]
    keys += [None, b""]
    chance.shuffle(keys)
    return keys


@pytest.mark.parametrize("longest", [0, 4, 8, 33, 140])
def test_xxhash64_of_a_column_is_that_of_each_key(longest: int) -> None:
    """Keys of every length beside each other, null (the seed), and a part of a column."""
    keys = _keys(longest)
    expected = [42 if key is None else _xxhash64(key) for key in keys]
    column = pa.array(keys, pa.binary())
    assert xxhash64(column).tolist() == expected
    assert xxhash64(column[1:]).tolist() == expected[1:]
    assert murmur2(column[1:]).tolist() == murmur2(column).tolist()[1:]


def test_many_keys_are_hashed_block_by_block() -> None:
    """Each as alone."""
    column = pa.array([b"key %d" % number for number in range(20_000)])
    found = xxhash64(column)
    assert found[[0, 8_191, 8_192, 19_999]].tolist() == [_xxhash64(b"key %d" % number) for number in (0, 8_191, 8_192, 19_999)]
    assert len(found) == 20_000


def test_no_keys_have_no_hashes() -> None:
    """An empty batch, with buffers and without, and nulls alone."""
    for column in (pa.array([], pa.binary()), pa.array([b"a"], pa.binary())[1:]):
        assert xxhash64(column).tolist() == murmur2(column).tolist() == []
    assert xxhash64(pa.nulls(2, pa.binary())).tolist() == [42, 42]


def test_murmur2_of_known_keys() -> None:
    """The values of Kafka's own test (UtilsTest)."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert murmur2(pa.array(list(known), pa.binary())).view(np.int32).tolist() == list(known.values())


@pytest.mark.parametrize("partitioner", ["lastword", "kafka"])
def test_a_record_without_a_key_goes_by_its_value(partitioner: str) -> None:
    """A record with a key goes by the key, whatever its value is. With one partition there is nothing to compute."""
    keys, values = pa.array([b"a", None, b"a", None], pa.binary()), pa.array([b"x", b"a", b"y", None], pa.binary())
    found = partitions_of(keys, values, partitions=7, partitioner=partitioner).tolist()
    assert found[0] == found[2] == partitions_of(keys[:1], values[:1], partitions=7, partitioner=partitioner)[0]
    assert found[1] == partitions_of(pa.array([b"a"], pa.binary()), values[:1], partitions=7, partitioner="lastword")[0]
    assert found[3] == 42 % 7
    assert partitions_of(keys, values, partitions=1, partitioner=partitioner).tolist() == [0, 0, 0, 0]
