"""Random lives of sources through a log: when all has been delivered, the table is the server's, and no key goes back on the way.

The lives are those of `tests.source_lives`, lived by `tests.log_lives`: some of them alone in a topic, most of them together with others. A
life that fails is printed by its seed, as a picture of what arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.log_lives import live_alone, live_together
from tests.source_lives import KINDS
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.source_lives import Kind

#: How many lives share a topic: fewer take longer, each, as an append and a cleaning take time by themselves.
_TOGETHER: Final = 600 * len(KINDS)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_is_right_in_the_end(kind: Kind, tmp_path: Path) -> None:
    """However the events come, and however they are cut; each source has a topic of its own."""
    first = seed_of_this_run()
    for number in range(30):
        live_alone(first + number, kind, tmp_path / str(number))


def test_a_key_without_positions_may_go_back_and_is_right_in_the_end(tmp_path: Path) -> None:
    """This source restarts twice, and an append ends where an older row of a key comes again: only the end is guaranteed."""
    without_positions = next(kind for kind in KINDS if kind.name == "another connector")
    live_alone(3054847318, without_positions, tmp_path)


@pytest.mark.long
def test_tables_of_one_topic_are_right_in_the_end(tmp_path: Path) -> None:
    """Seven hundred sources of all kinds share a topic, and do not disturb each other."""
    live_together(seed_of_this_run(), 700, tmp_path / "logs")


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_many_tables_are_right_in_the_end(tmp_path: Path) -> None:
    """As the test above, many times; each source has a topic of its own."""
    first = seed_of_this_run()
    for number in range(2_000):
        live_alone(first + number, KINDS[number % len(KINDS)], tmp_path / str(number))


@pytest.mark.torture
@pytest.mark.timeout(43_200)
def test_a_million_tables_are_right_in_the_end(tmp_path: Path) -> None:
    """Hundreds of topics, each of which thousands of sources share."""
    first = seed_of_this_run()
    for begin in range(0, 1_000_000, _TOGETHER):
        live_together(first + begin, min(_TOGETHER, 1_000_000 - begin), tmp_path / "logs")
