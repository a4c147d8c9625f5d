"""The cache of hashes of the keys of clean files: what it knows, and what it lets go."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

from lastword.storage.cleaning.key_hashes import KeyHashCache, hash_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FILE_BYTES = 400
_NO_LIMIT = 2**40


def _hashes(*keys: str | None) -> NDArray[np.uint64]:
    return np.sort(hash_keys(pl.Series([None if key is None else key.encode() for key in keys], dtype=pl.Binary)))


@pytest.mark.parametrize(
    ("held", "wanted", "lacks"),
    [
        (["a", "b", "c"], ["d"], True),
        (["a", "b", "c"], ["d", "b"], False),
        (["a"], ["d", "e", "f", "a"], False),
        (["a"], ["d", "e", "f"], True),
        ([], ["a"], True),
        (["a"], [], True),
        ([None, "b"], ["a"], True),
        (["a" * 12, "a" * 13], ["a" * 14], True),
        (["a" * 12, "a" * 13], ["a" * 13], False),
    ],
)
def test_a_file_is_known_to_lack_keys(held: Sequence[str | None], wanted: Sequence[str], *, lacks: bool) -> None:
    """And an unknown file is not, nor one that was dropped."""
    cache = KeyHashCache()
    assert not cache.lacks("file", _hashes(*wanted))
    cache.put("file", hash_keys(pl.Series([key and key.encode() for key in held], dtype=pl.Binary)), max_bytes=_NO_LIMIT)
    assert cache.lacks("file", _hashes(*wanted)) == lacks
    cache.drop("file")
    cache.drop("another one")
    assert not cache.lacks("file", _hashes(*wanted))


def test_what_is_held_stays_while_it_is_asked_for() -> None:
    """Room for two files: the third is not taken until one of them was not asked for in more than ten minutes.

    ```
     minute   0       1       5       10        10.5      11.5      30
              put a   put b   ask a   put c     put c     put c     put d
     held     a       a b     a b     a b       a b       a c       c d
    ```
    """
    minutes = [0.0]
    cache, size = KeyHashCache(now=lambda: minutes[0] * 60), 2 * (_FILE_BYTES + 8)
    steps = ((0, "a", "a"), (1, "b", "ab"), (5, "", "ab"), (10, "c", "ab"), (10.5, "c", "ab"), (11.5, "c", "ac"), (30, "d", "cd"))
    for minute, put, held in steps:
        minutes[0] = minute
        if put:
            cache.put(put, _hashes(put), max_bytes=size)
        else:
            cache.lacks("a", _hashes("z"))
        assert "".join(sorted(cache._files)) == held, f"minute {minute}"  # noqa: SLF001  to ask would count as a use


def test_a_file_that_is_larger_than_all_of_the_room_is_not_held() -> None:
    """And the room of one that was put twice or dropped is free again."""
    cache, size = KeyHashCache(), _FILE_BYTES + 16
    cache.put("large", _hashes("a", "b", "c"), max_bytes=size)
    assert not cache.lacks("large", _hashes("z"))
    for _ in range(3):
        cache.put("file", _hashes("a", "b"), max_bytes=size)
    assert cache.lacks("file", _hashes("z"))
    cache.drop("file")
    cache.put("another", _hashes("a", "b"), max_bytes=size)
    assert cache.lacks("another", _hashes("z"))


def test_random_files_are_never_said_to_lack_a_key_that_they_hold() -> None:
    """Of keys of all lengths, one, a few and thousands, whatever side is larger."""
    chance, cache = random.Random(17), KeyHashCache()
    keys = [chance.randbytes(chance.choice((0, 1, 8, 12, 13, 40))) for _ in range(5_000)]
    for number in range(200):
        held, wanted = (chance.choices(keys, k=chance.choice((1, 5, 3_000))) for _ in range(2))
        cache.put(str(number), hash_keys(pl.Series(held, dtype=pl.Binary)), max_bytes=_NO_LIMIT)
        lacks = cache.lacks(str(number), np.sort(hash_keys(pl.Series(wanted, dtype=pl.Binary))))
        assert lacks == set(held).isdisjoint(wanted)
