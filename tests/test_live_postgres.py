"""The real thing: PostgreSQL, Debezium's engine, and concurrent clients; each round ends with the rows of the database, in log and table.

A round (`tests.live_rounds`) is played once, as it takes seconds, and its events are delivered several times: by other partitions, cut into
other appends, with cleanings in between. LASTWORD_SEED fixes what is drawn; what the clients' transactions do to each other is the server's
affair, so the events of a round that failed are kept in the test's folder. A failure shows the events of the keys that differ.

It needs the programs of PostgreSQL (Debian: `apt install postgresql`); Debezium's jars are downloaded once.
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow as pa
import pytest

from lastword import Envelope, LogDir
from lastword.compaction.errors import UserError
from lastword.spark.jars import resolve
from tests.clocks import at
from tests.debezium_engine import PREFIX
from tests.live_postgres import Postgres, programs
from tests.live_rounds import Round
from tests.pictures import DAY_MS, HOUR_MS, T0
from tests.source_clients import TABLES
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lastword import ArrowTopic
    from tests.debezium_engine import Sent

_PROGRAMS: Final = programs()
_ROUNDS: Final = 12
_DELIVERIES: Final = 10
#: TRUNCATE empties a table also for a snapshot from before it. Of a row that was there, updates come up to the TRUNCATE, and what they left
#: out is nowhere. Nor is what a changed key left out, if its old key is in another partition.
_MAY_BE_REFUSED: Final = frozenset({"unresolved_column"})
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: The columns of both tables.
_DDL: Final = "id int, n bigint, note string, body string, moved boolean"
_COLUMNS: Final = ("id", "n", "note", "body", "moved")
_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "65536", "delete.retention.ms": "1d"}

pytestmark = [
    pytest.mark.torture,
    pytest.mark.jvm,
    pytest.mark.timeout(14_400),
    pytest.mark.skipif(_PROGRAMS is None, reason="no PostgreSQL that can be started here (Debian: apt install postgresql)"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One server for all rounds; without Debezium's jars there are none."""
    try:
        resolve(("debezium",))
    except UserError as error:
        pytest.skip(str(error))
    assert _PROGRAMS is not None
    with Postgres(_PROGRAMS) as running:
        yield running


def test_each_round_ends_with_the_rows_of_the_database(server: Postgres, tmp_path: Path) -> None:
    """After each round of clients, faults and restarts of the connector."""
    first = seed_of_this_run()
    for number in range(_ROUNDS):
        play(first + number, server, tmp_path / str(number))


def play(seed: int, server: Postgres, folder: Path) -> None:
    """Play a round, and deliver its events."""
    one = Round(seed, server, folder)
    sent, tables = one.play()
    sys.stdout.write(f"seed {seed}: {len(sent)} events; {'; '.join(one.happened)}\n")
    (folder / "sent.json").write_text(json.dumps({"sent": sent, "tables": tables}), encoding="utf-8")
    for name in TABLES:
        mine = [event for event in sent if event.topic == f"{PREFIX}.public.{name}"]
        for number in range(_DELIVERIES):
            chance = random.Random(f"{seed} {name} {number}")
            deliver(mine, tables[name], chance, folder / f"{name}-{number}", f"seed {seed}, table {name}, delivery {number}")


@dataclass(frozen=True)
class Record:
    """An event in Kafka; its `number` is its place among those that the connector sent."""

    number: int
    partition: int
    offset: int
    sent: Sent

    def drawn(self) -> str:
        """Return it as a line of a picture."""
        said: dict[str, Any] = json.loads(self.sent.value) if self.sent.value else {"op": "∅"}
        source, row = said.get("source") or {}, said.get("after") or said.get("before") or {}
        place = " ".join(f"{name}={source.get(name)}" for name in ("sequence", "lsn", "txId", "snapshot"))
        body = str(row.get("body"))[:12]
        headers = self.sent.headers or ""
        return f"#{self.number} p{self.partition}@{self.offset} {self.sent.key} {said['op']} n={row.get('n')} {body=} {place} {headers}"


@dataclass
class Delivery:
    """A way in which Kafka and the appends hand over what was sent."""

    chance: random.Random
    sent: list[Sent]
    batches: list[list[Record]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Send it to partitions by key, and read those in any way."""
        queues: list[list[Record]] = [[] for _ in range(self.chance.randint(1, 3))]
        for number, event in enumerate(self.sent):
            partition = self.chance.randrange(len(queues)) if event.key is None else zlib.crc32(event.key.encode()) % len(queues)
            queues[partition].append(Record(number, partition, len(queues[partition]), event))
        largest = self.chance.choice((5, 30, 200, 5_000))
        while any(queues):
            batch = list[Record]()
            for queue in self.chance.sample(queues, len(queues)):
                size = self.chance.randint(0, largest)
                batch += queue[:size]
                del queue[:size]
            self.batches += [batch] if batch else []


def deliver(sent: list[Sent], table: dict[int, dict[str, Any]], chance: random.Random, folder: Path, name: str) -> None:
    """Deliver the events of a table in one random way, and compare its rows."""
    delivery = Delivery(chance, sent)
    topic, now_ms = LogDir(folder).create_topic("t", partitions=chance.randint(1, 3), config=_CONFIG), T0
    has_offsets, kept = chance.random() < 0.5, str(folder / "typed")
    for number, batch in enumerate(delivery.batches):
        done = at(now_ms, topic).append(_rows(batch, has_offsets=has_offsets), envelope=Envelope(), on_invalid="dead-letter")
        assert set(done.refused) <= _MAY_BE_REFUSED, f"{name}, append {number}: {done.refused}"
        if chance.random() < 0.3:
            at(now_ms, topic).materialize(kept, schema=_DDL)
        if chance.random() < 0.2:
            now_ms += chance.choice((1000, HOUR_MS))
            topic.roll()
            at(now_ms, topic).clean()
    stale = {json.loads(one.key)["id"] for one in topic.stale_keys()}
    moved = {key for key, row in table.items() if row["moved"]}
    assert stale <= moved, f"{name}: {topic.stale_keys()}"
    table = {key: row for key, row in table.items() if key not in stale}
    _compare(_table(topic, stale), table, delivery, name)
    topic.roll()
    for _ in range(2):
        now_ms += 2 * DAY_MS
        at(now_ms, topic).clean()
    _compare(_table(topic, stale), table, delivery, f"{name}, cleaned")
    at(now_ms, topic).materialize(kept, schema=_DDL)
    typed = {row["id"]: {column: row[column] for column in _COLUMNS} for row in pl.read_delta(kept).to_dicts() if row["id"] not in stale}
    _compare(typed, table, delivery, f"{name}, as a typed table")


def _compare(found: dict[int, dict[str, Any]], table: dict[int, dict[str, Any]], delivery: Delivery, name: str) -> None:
    different = sorted(key for key in {*found, *table} if found.get(key) != table.get(key))
    if different:
        pytest.fail("\n".join([name, *(_picture(key, found.get(key), table.get(key), delivery) for key in different)]))


def _picture(key: int, found: dict[str, Any] | None, row: dict[str, Any] | None, delivery: Delivery) -> str:
    lines = [f"key {key}: the database has {_short(row)}, the log {_short(found)}"]
    records = [(number, one) for number, batch in enumerate(delivery.batches) for one in batch]
    mine = [(number, one) for number, one in records if one.sent.key is None or json.loads(one.sent.key) == {"id": key}]
    if row is not None and not any(one.sent.value and f'"n":{row["n"]},' in one.sent.value for _, one in mine):
        lines.append("(the connector never sent this row)")
    return "\n".join([*lines, *(f"   append {number} {one.drawn()}" for number, one in mine)])


def _short(row: dict[str, Any] | None) -> str:
    return "no row" if row is None else json.dumps({name: str(value)[:20] for name, value in row.items()})


def _rows(batch: list[Record], *, has_offsets: bool) -> pa.Table:
    columns = {
        "key": pa.array([one.sent.key for one in batch], pa.string()),
        "value": pa.array([one.sent.value for one in batch], pa.string()),
        "headers": pa.array([[{"key": key, "value": value.encode()} for key, value in one.sent.headers] for one in batch], _HEADERS),
        "partition": pa.array([one.partition for one in batch], pa.int32()),
    }
    if has_offsets:
        columns["offset"] = pa.array([one.offset for one in batch], pa.int64())
    return pa.table(columns)


def _table(topic: ArrowTopic, stale: set[int]) -> dict[int, dict[str, Any]]:
    rows = {json.loads(row["key"])["id"]: json.loads(row["value"]) for row in topic.latest().to_pylist()}
    return {key: row for key, row in rows.items() if key not in stale}
