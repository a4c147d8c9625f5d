"""Which partitions each task of a cleaning takes."""

from __future__ import annotations

import pytest

from lastword.storage.cleaning.lanes import MOST_LANES, ONE_LANE_BYTES, lanes, spread

_MIB = 2**20


@pytest.mark.parametrize(
    ("mib", "tasks", "expected"),
    [
        pytest.param([40, 30, 20, 10], 2, [{0, 3}, {1, 2}], id="the largest first, each to the task with the least to do"),
        pytest.param([30, 30, 30], 2, [{0, 2}, {1}], id="60 of 90 is not much longer than 45"),
        pytest.param([80, 10], 2, None, id="80 of 90 is: one task would wait for the other"),
        pytest.param([80, 10], 1, [{0, 1}], id="one task takes everything"),
        pytest.param([4, 3, 1], 2, [{0, 1, 2}], id="little is done by one task sooner than it is divided"),
        pytest.param([100], 2, None, id="a single partition can only be shared"),
        pytest.param([10] * 64, MOST_LANES + 1, None, id="so many lanes make a long plan"),
        pytest.param([30, 30], 4, None, id="more tasks than partitions share them"),
    ],
)
def test_partitions_are_divided_between_tasks(mib: list[int], tasks: int, expected: list[set[int]] | None) -> None:
    """No partition is in two lanes, and no lane is much longer than the others."""
    found = lanes({at: one * _MIB for at, one in enumerate(mib)}, tasks)
    assert (None if found is None else [set(one) for one in found]) == expected


def test_nothing_to_read_is_one_lane() -> None:
    """A partition of which only metadata is left has no bytes."""
    assert lanes({3: 0}, 2) == [frozenset({3})]
    assert lanes({3: ONE_LANE_BYTES}, 2) == [frozenset({3})]


def test_spread_names_a_task_for_each_thing() -> None:
    """In the order in which the things were given."""
    assert spread([1, 5, 4], 2) == [1, 0, 1]
