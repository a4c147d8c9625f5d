"""Settings of rows with columns: what a user gives, what it means, and which message names what is not allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lastword.change_data.frames.row_words import RowWords, check_named_once, row_words, truncate_alert


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key": "id"}, RowWords(key=("id",))),
        ({"key": ["a", "b"]}, RowWords(key=("a", "b"))),
        ({"key": (name for name in "ab")}, RowWords(key=("a", "b"))),
        ({"key": "id", "drop": "", "columns": [], "tombstone": "", "sequence": None}, RowWords(key=("id",))),
        ({"key": "id", "value": "v", "timestamp": "at"}, RowWords(key=("id",), value="v", timestamp="at")),
        ({"key": "id", "columns": "v"}, RowWords(key=("id",), columns=("v",))),
        ({"key": "id", "drop": ["op"], "tombstone": "op = 'd'"}, RowWords(key=("id",), drop=("op",), tombstone="op = 'd'")),
        ({"key": "id", "sequence": "n", "sequence_as": "number"}, RowWords(key=("id",), sequence=("n",), sequence_as="number")),
        ({"key": "id", "sequence": "n", "truncate": "op = 't'"}, RowWords(key=("id",), sequence=("n",), truncate="op = 't'")),
        ({"key": "id", "sequence": "n", "on_null": "keep"}, RowWords(key=("id",), sequence=("n",), on_null="keep")),
    ],
)
def test_settings_are_read(given: dict[str, Any], words: RowWords) -> None:
    """A text is a list of one name; None, an empty text and an empty list are the default."""
    assert row_words(given) == words


@pytest.mark.parametrize("given", [{}, {"key": ""}, {"key": [], "value": "", "on_null": "null"}, {"sequence_as": "text"}])
def test_without_a_key_rows_are_records(given: dict[str, Any]) -> None:
    """With the columns key and value; `sequence_as` is then that of their source_sequence."""
    assert row_words(given) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": 5}, "key = 5: allowed are texts: names of columns"),
        ({"key": True}, "key = True: allowed are texts: names of columns"),
        ({"key": ["id", 5]}, "key = ['id', 5]: allowed are texts: names of columns"),
        ({"key": b"id"}, "key = b'id': allowed are texts: names of columns"),
        ({"key": {"id": 1}}, "key = {'id': 1}: allowed are texts: names of columns"),
        ({"key": {"id"}}, "key = {'id'}: allowed are texts: names of columns"),
        ({"key": "id", "columns": 5}, "columns = 5: allowed are texts: names of columns"),
        ({"key": "id", "drop": False}, "drop = False: allowed are texts: names of columns"),
        ({"key": "id", "sequence": 1.5}, "sequence = 1.5: allowed are texts: SQL expressions"),
        ({"key": "id", "value": 5}, "value = 5: allowed is a text"),
        ({"key": "id", "tombstone": True}, "tombstone = True: allowed is a text"),
        ({"key": "id", "truncate": ["a"]}, "truncate = ['a']: allowed is a text"),
        ({"key": "id", "timestamp": 5}, "timestamp = 5: allowed is a text"),
        ({"key": "id", "sequence_as": 1}, "sequence_as = 1: allowed is a text"),
        ({"key": "id", "on_null": False}, "on_null = False: allowed is a text"),
        ({"key": "id", "sequence_as": "int"}, "sequence_as = 'int': allowed are text, number, time"),
        ({"key": "id", "on_null": "drop"}, "on_null = 'drop': allowed are null, keep"),
        ({"key": ["a", "b", "a"]}, "key = ['a', 'b', 'a']: 'a': each name is allowed once, and not empty"),
        ({"key": "id", "drop": ["x", ""]}, "drop = ['x', '']: '': each name is allowed once, and not empty"),
        ({"kee": "id", "keys": "id"}, "kee, keys: there is no such setting; allowed are key, value, columns, drop, tombstone, sequence, "),
        (
            {"tombstone": "op = 'd'", "drop": "op"},
            "drop, tombstone: without key, which names the columns of the key, rows have the columns key and value; give key",
        ),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(given: dict[str, Any], message: str) -> None:
    """With its value, and what is allowed; no message is Python's own."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        row_words(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"truncate": "op = 't'"}, "truncate deletes every key before it, so it needs a sequence, which says what came before"),
        ({"on_null": "keep"}, "on.null = keep looks up the newest row of a key, so it needs a sequence, which says which that is"),
        ({"columns": "a", "drop": "b"}, "columns and drop exclude each other: give the columns of the value, or those that are left out"),
        (
            {"value": "a", "columns": "b"},
            "value takes one column as it is, so columns, drop and on.null = keep say nothing; leave them out",
        ),
        ({"value": "a", "drop": "b"}, "value takes one column as it is, so columns, drop and on.null = keep say nothing; leave them out"),
        ({"value": "a", "on_null": "keep"}, "value takes one column as it is, so columns, drop and on.null = keep say nothing; leave "),
        ({"sequence_as": "text"}, "sequence.as = 'text': it says what a text of sequence is compared as; give sequence, or leave it out"),
    ],
)
def test_settings_that_exclude_or_need_each_other_are_named(given: dict[str, Any], message: str) -> None:
    """Combinations that are not allowed are refused before any row is read."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        row_words({"key": "id", **given})


def test_a_name_is_allowed_once() -> None:
    """Each that is not is named, once."""
    check_named_once(["a", "b"])
    with pytest.raises(ValueError, match=r"^'', 'a': each name is allowed once, and not empty$"):
        check_named_once(["a", "", "a", "a"])


def test_expressions_have_the_names_that_messages_give_them() -> None:
    """The parts of the sequence are numbered; conditions that are not given are left out."""
    words = RowWords(key=("id",), sequence=("a", "b"), truncate="c")
    assert words.expressions == {"sequence 0": "a", "sequence 1": "b", "truncate": "c"}
    assert RowWords(key=("id",), tombstone="d").expressions == {"tombstone": "d"}


def test_a_truncate_without_a_sequence_names_its_columns() -> None:
    """One, or several."""
    rest = "is a value that has an order; which rows came before it is unknown, so none was deleted"
    assert truncate_alert(["n"]) == f"TRUNCATE without a sequence: allowed in n {rest}"
    assert truncate_alert(["ts", "n"]) == f"TRUNCATE without a sequence: allowed in each of ts, n {rest}"
