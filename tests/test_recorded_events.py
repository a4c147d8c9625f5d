"""Recorded change events, delivered in many ways: the table is the same each time, and has the keys of the source's.

Of a changed key an event that leaves out columns may be refused by name (docs/limits.md): its key is stale then, and not compared.

```
 partition 0   e1 e2 e3 ‖ e2 e3 e4 …      the connector begins again, up to three times
 partition 1   e1 e2 ‖ e1 e2 e3 …         read in any way, cut anywhere, with cleanings in between
```
"""

from __future__ import annotations

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pytest

from lastword import Envelope, LogDir
from tests.clocks import at
from tests.pictures import HOUR_MS, T0
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from lastword import ArrowTopic

_FOLDER: Final = Path(__file__).parent / "recorded_events"
_FILES: Final = sorted(path.name.removesuffix(".jsonl.gz") for path in _FOLDER.glob("*.shop.*.jsonl.gz"))
#: Those whose events have all that happened to the table; `nokey` has no keys, and TRUNCATE is left out of b.
_COMPLETE: Final = frozenset(
    {"a.shop.bigdocs", "a.shop.docs", "a.shop.order_lines", "a.shop.sessions", "b.shop.docs", "c.shop.order_lines"}
)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "65536", "delete.retention.ms": "1d"}


def lines_of(name: str, *, parse_decimals: bool = False) -> list[dict[str, Any]]:
    """Return the lines of a recording."""
    with gzip.open(_FOLDER / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line, parse_float=Decimal if parse_decimals else float) for line in lines]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in _FILES if "nokey" not in name])
def test_any_delivery_is_the_same_table(name: str, tmp_path: Path) -> None:
    """Which has the keys of the source's table, where the recording is whole."""
    events = lines_of(name)
    expected = _delivered(tmp_path / "once", name, [events], None)
    if name in _COMPLETE:
        truth = {_identity(row) for row in lines_of(f"truth/{name.split('.')[2]}")}
        assert {_identity(row) for row in expected.rows.values()} | expected.stale_identities == truth
    chance = random.Random(f"{name} {seed_of_this_run()}")
    for number in range(2):
        deliver(name, events, expected, chance, tmp_path / str(number))


@pytest.mark.torture
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("name", [name for name in _FILES if "nokey" not in name])
def test_sixty_deliveries_are_the_same_table(name: str, tmp_path: Path) -> None:
    """Sixty random deliveries of each recording end with the table of the database."""
    events = lines_of(name)
    expected, chance = _delivered(tmp_path / "once", name, [events], None), random.Random(f"{name} {seed_of_this_run()}")
    for number in range(60):
        deliver(name, events, expected, chance, tmp_path / str(number))


@pytest.mark.parametrize("name", [name for name in _FILES if "nokey" in name])
def test_events_without_a_key_are_refused_by_name(name: str, tmp_path: Path) -> None:
    """As a compacted topic has a key in each record."""
    topic = LogDir(tmp_path).create_topic("t", config=_CONFIG)
    done = topic.append(rows_of_lines(lines_of(name)), envelope=Envelope(), on_invalid="dead-letter")
    assert set(done.refused) == {"keyless"}


class Delivered(NamedTuple):
    """The rows by key after a delivery, without those of stale keys, and these."""

    rows: dict[str, Any]
    stale: frozenset[str]

    @property
    def stale_identities(self) -> set[str]:
        """What tells the rows of the stale keys."""
        return {_identity(json.loads(key)) for key in self.stale}


def deliver(name: str, events: list[dict[str, Any]], expected: Delivered, chance: random.Random, folder: Path) -> None:
    """Deliver events in one random way, and compare the table."""
    queues = [sent_again(chance, [event for event in events if event["partition"] == number]) for number in (0, 1)]
    largest, batches = chance.choice((20, 100, 500)), list[list[dict[str, Any]]]()
    while any(queues):
        batch = list[dict[str, Any]]()
        for queue in chance.sample(queues, 2):
            size = chance.randint(0, largest)
            batch += queue[:size]
            del queue[:size]
        batches += [batch] if batch else []
    found = _delivered(folder, name, batches, chance)
    stale = found.stale | expected.stale
    assert {key: row for key, row in found.rows.items() if key not in stale} == {
        key: row for key, row in expected.rows.items() if key not in stale
    }


def sent_again(chance: random.Random, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of a partition as a connector sends them that begins again up to three times."""
    sent, begin = list[dict[str, Any]](), 0
    for _ in range(chance.randint(0, 3) if events else 0):
        end = chance.randint(begin, len(events))
        sent += events[begin:end]
        begin = chance.randint(max(0, end - 200), end)
    return sent + events[begin:]


def _delivered(folder: Path, name: str, batches: list[list[dict[str, Any]]], chance: random.Random | None) -> Delivered:
    topic, now_ms = LogDir(folder).create_topic("t", partitions=2, config=_CONFIG), T0
    envelope = Envelope(kind="debezium-flat" if name.startswith("b.") else "debezium")
    for batch in batches:
        done = at(now_ms, topic).append(rows_of_lines(batch), envelope=envelope, on_invalid="dead-letter")
        assert set(done.refused) <= ({"unresolved_column"} if "docs" in name else set())
        if chance is not None and chance.random() < 0.2:
            now_ms += chance.choice((1000, HOUR_MS))
            topic.roll()
            at(now_ms, topic).clean()
    stale = frozenset(bytes(one.key).decode() for one in topic.stale_keys())
    return Delivered({key: row for key, row in _table(topic).items() if key not in stale}, stale)


def rows_of_lines(batch: list[dict[str, Any]]) -> pa.Table:
    """Return lines of a recording as an append takes them."""
    headers = [[{"key": key, "value": None if value is None else value.encode()} for key, value in event["headers"]] for event in batch]
    return pa.table(
        {
            **{name: pa.array([event[name] for event in batch], pa.string()) for name in ("key", "value")},
            "headers": pa.array(headers, _HEADERS),
            "partition": pa.array([event["partition"] for event in batch], pa.int32()),
        }
    )


def _table(topic: ArrowTopic) -> dict[str, Any]:
    return {bytes(row["key"]).decode(): json.loads(row["value"]) for row in topic.latest().to_pylist()}


def _identity(row: dict[str, Any]) -> str:
    """Return what tells a row of these tables: its columns of whole numbers and short texts that are keys."""
    return json.dumps([row[name] for name in ("order_id", "line_no", "id") if name in row])
