"""Source sequences as texts: they order as the values do."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.order.sequences import highest, is_orderable, sequence_text, sequence_texts

_NUMBERS = st.one_of(
    st.integers(-(10**20) + 1, 10**20 - 1).map(Decimal),
    st.decimals(min_value=-(10**12), max_value=10**12, places=6),
    st.floats(min_value=-1e15, max_value=1e15, allow_nan=False, allow_infinity=False),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27330312, "00000000000027330312"),
        (0, "00000000000000000000"),
        (-1, "-99999999999999999998~"),
        (Decimal("1.50"), "00000000000000000001.5"),
        (1.5, "00000000000000000001.5"),
        ("0000002c:00001f40:0003", "0000002c:00001f40:0003"),
        (date(2026, 3, 1), "2026-03-01"),
        (datetime(2026, 3, 1, 6, 30, 0, 123456, timezone.utc), "2026-03-01T06:30:00.123456Z"),
        ({"file": "mysql-bin.000003", "pos": 154, "row": 2}, "mysql-bin.000003 00000000000000000154 00000000000000000002"),
        ({"a": "x y", "b": "x y"}, "x!Py x y"),
        (True, "00000000000000000001"),
        (b"\x00\xff", "00ff"),
    ],
)
def test_a_sequence_is_a_text_that_people_and_delta_readers_can_compare(value: Any, text: str) -> None:
    """A sequence is a text that people and delta readers can compare."""
    assert sequence_texts(pa.array([value])).to_pylist() == [text]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal(10) ** 20, {"a": 1, "b": None}, None])
def test_what_has_no_order_has_no_text(value: Any) -> None:
    """What has no order has no text."""
    found = sequence_texts(pa.array([value], pa.decimal128(38) if isinstance(value, Decimal) else pa.int64() if value is None else None))
    assert found.to_pylist() == [None]


def test_a_year_of_five_digits_has_no_text() -> None:
    """A year of five digits has no text."""
    assert sequence_texts(pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC"))).to_pylist() == [None]


@given(st.lists(_NUMBERS, min_size=2, max_size=2))
def test_numbers_of_all_types_order_by_value(numbers: list[Any]) -> None:
    """Numbers of all types order by value."""
    one, other = (sequence_text([Decimal(repr(number)) if isinstance(number, float) else number]) for number in numbers)
    first, second = (Decimal(repr(number)) if isinstance(number, float) else number for number in numbers)
    assert (one < other, one == other) == (first < second, first == second)


@given(st.lists(st.tuples(st.text(alphabet=st.characters(codec="utf-8"), max_size=4), st.integers(-5, 5)), min_size=2, max_size=2))
def test_several_parts_are_compared_from_left_to_right(pairs: list[tuple[str, int]]) -> None:
    """Several parts are compared from left to right."""
    texts = [text.encode() for text in sequence_texts(pa.array([{"a": text, "b": number} for text, number in pairs])).to_pylist()]
    values = [(text.encode(), number) for text, number in pairs]
    assert (texts[0] < texts[1], texts[0] == texts[1]) == (values[0] < values[1], values[0] == values[1])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_whole_numbers_order_by_value_whatever_else_is_in_their_batch(numbers: list[int]) -> None:
    """Whole numbers order by value whatever else is in their batch."""
    texts = sequence_texts(pa.array(numbers, pa.int64())).to_pylist()
    assert [number for _, number in sorted(zip(texts, numbers, strict=True))] == sorted(numbers)
    assert highest(pa.array(texts)) == max(texts)


def test_none_is_the_lowest_of_all() -> None:
    """A sequence of null is lower than any other."""
    assert highest(pa.array([None, None], pa.string())) == "" == highest(pa.array([], pa.string()))


def test_types_without_an_order_are_known() -> None:
    """Types without an order are known."""
    assert not is_orderable(pa.list_(pa.int64()))
    assert not is_orderable(pa.struct([("a", pa.struct([("b", pa.int64())]))]))
    assert not is_orderable(pa.struct([]))
    assert is_orderable(pa.struct([("a", pa.int64()), ("b", pa.string())]))


def test_parts_of_a_sequence_may_be_numbers_of_two_kinds() -> None:
    """Each is compared by its value."""
    assert sequence_text([Decimal("1.5"), 3]) == f"{1:020}.5 {3:020}"
