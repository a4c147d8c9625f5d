"""Keys that refused rows leave stale, by the other rows of the batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lastword.compaction.rows.stale import stale_keys_of


@pytest.mark.parametrize(
    ("rows", "stale"),
    [
        ("a", "-"),
        ("a!", "a"),
        ("a a!", "- a"),
        ("a! a", "- -"),
        ("a! b", "a -"),
        ("a! a a!", "- - a"),
        ("-! a", "- -"),
        ("a!9 a4", "a -"),
        ("a!4 a9", "- -"),
        ("a!5 a5", "- -"),
        ("a5 a!5", "- a"),
        ("a9 a!5", "- a"),  # the log, which has both sequences, tells that it is not stale
        ("a! a4", "- -"),
        ("a!9 a", "- -"),
        ("a!9 a4 a9", "- - -"),
    ],
)
def test_a_later_row_of_the_key_that_is_no_older_keeps_it_from_being_stale(rows: str, stale: str) -> None:
    """A row is its key, `!` if it is refused, and its sequence; `-` is no key."""
    words = rows.split()
    keys = pa.array([None if word[0] == "-" else word[0].encode() for word in words], pa.binary())
    refused = np.array(["!" in word for word in words])
    sequences = pa.array([word[1:].replace("!", "") or None for word in words], pa.string())
    found = stale_keys_of(keys, sequences, refused, ~refused).to_pylist()
    assert ["-" if key is None else key.decode() for key in found] == stale.split()
    if not any(sequences.to_pylist()):
        assert stale_keys_of(keys, None, refused, ~refused).to_pylist() == found
