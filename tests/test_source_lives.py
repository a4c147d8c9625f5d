"""Random lives of sources through a log: when all has been delivered, the table is the server's, and no key goes back on the way.

The lives are those of `tests.source_lives`. A life that fails is printed as a picture of what arrived.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lastword import Envelope, LogDir
from lastword.compaction.rows.input_columns import HEADERS
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0
from tests.source_lives import KINDS, life_of, picture
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic
    from tests.source_lives import Event, Kind, SourceLife

_CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1d"}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_table_is_right_in_the_end(kind: Kind, tmp_path: Path) -> None:
    """However the events come, and however they are cut."""
    first = seed_of_this_run()
    for number in range(91):  # a thousand of all kinds
        live(first + number, kind, tmp_path / str(number))


@pytest.mark.torture
@pytest.mark.timeout(14_400)
def test_many_tables_are_right_in_the_end(tmp_path: Path) -> None:
    """The same, many times."""
    first = seed_of_this_run()
    for number in range(50_000):
        live(first + 1000 + number, KINDS[number % len(KINDS)], tmp_path / str(number))


def live(seed: int, kind: Kind, folder: Path) -> None:
    """Live one life; a failure says the seed and shows what arrived."""
    chance = random.Random(seed)
    life = life_of(chance, kind)
    topic = LogDir(folder).create_topic("t", partitions=chance.randint(1, 2), config=_CONFIG)
    envelope = Envelope(
        kind="debezium-flat" if kind.is_flat else "debezium",
        delete_tombstone_handling_mode="rewrite-with-tombstone" if kind.deletions == "both" else "",
    )
    batches, now_ms, shown = life.arrivals(), T0, dict[str, int]()
    for number, batch in enumerate(batches):
        done = at(now_ms, topic).append(_rows(batch), envelope=envelope)
        assert not done.refused
        table = _table(topic)
        if kind.has_positions:
            _check_not_back(life, table, shown, f"seed {seed}, {kind.name}, append {number}\n{picture(batches[: number + 1])}")
        now_ms += chance.choice((0, 1000, HOUR_MS))
        if chance.random() < 0.3:
            topic.roll()
            at(now_ms, topic).clean()
    assert _table(topic) == life.table, f"seed {seed}, {kind.name}\n{picture(batches)}"
    topic.roll()
    for _ in range(2):
        now_ms += 2 * DAY_MS
        at(now_ms, topic).clean()
    assert _table(topic) == life.table


def _check_not_back(life: SourceLife, table: dict[str, int], shown: dict[str, int], message: str) -> None:
    for key, number in table.items():
        transaction = life.transaction_of.get(number, -1)
        assert transaction >= shown.get(key, -1), f"{key} goes back: {message}"
        shown[key] = transaction


def _rows(batch: list[Event]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([one.key for one in batch], pa.string()),
            "value": pa.array([one.value for one in batch], pa.string()),
            "partition": pa.array([one.partition for one in batch], pa.int32()),
            "headers": pa.array([[{"key": name, "value": text} for name, text in one.headers] for one in batch], HEADERS),
        }
    )


def _table(topic: ArrowTopic) -> dict[str, int]:
    return {json.loads(row["key"])["id"]: json.loads(row["value"])["n"] for row in topic.latest().to_pylist()}
