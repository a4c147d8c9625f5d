"""Lives of sources in a log, for tests: one alone in a topic, or many in one topic, whose appends bring the next events of each.

```
 life 12, postgresql      e1 e2 e3 ‖ e2 e3 …          append 0    e1 of 12, f1 of 47, f2 of 47, e2 of 12 …
 life 47, sqlserver       f1 f2 ‖ f1 f2 f3 …          append 1    flat events of others
                                                      cleaning, an hour or two days pass, append 2 …
```

An append and a cleaning have a price of their own, which lives that share a topic pay once; and no source may disturb another one. What a
life alone is checked for holds for each of them. In addition, a table may not change while no event of it comes.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lastword import Envelope, LogDir
from lastword.compaction.rows.input_columns import HEADERS
from tests.clocks import at
from tests.pictures import DAY_MS, HOUR_MS, T0
from tests.source_lives import KINDS, life_of, picture

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from lastword import ArrowTopic
    from tests.source_lives import Event, Form, Kind, SourceLife

_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1d"}


def live_alone(seed: int, kind: Kind, folder: Path) -> None:
    """Live one life in a topic of its own; a failure says the seed and shows what arrived."""
    chance = random.Random(seed)
    life = life_of(chance, kind)
    topic = LogDir(folder).create_topic("t", partitions=chance.randint(1, 2), config=_CONFIG)
    batches, now_ms, shown = life.arrivals(), T0, dict[str, int]()
    for number, batch in enumerate(batches):
        result = at(now_ms, topic).append(_rows(batch), envelope=_envelope(kind.form))
        assert not result.refused
        key = _key_that_goes_back(life, _table(topic), shown)
        assert key is None, f"{key} goes back: seed {seed}, {kind.name}, append {number}\n{picture(batches[: number + 1])}"
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


def live_together(seed: int, count: int, folder: Path) -> None:
    """Live lives of the seeds from `seed` on in one topic; a failure shows each life that goes wrong, and whether it does so alone."""
    wrong = _wrong_lives(seed, count, folder, range(count))
    reports = []
    for number, text in wrong.items():
        is_wrong_alone = number in _wrong_lives(seed, count, folder, {number})
        alone = "wrong without the others, too" if is_wrong_alone else "wrong only beside the others: a source disturbs another one"
        reports.append(f"seed {seed + number}, number {number} of {count} lives from seed {seed} on, {alone}: {text}")
    assert not reports, "\n\n".join(reports)


@dataclass
class _Member:
    """A life that shares a topic with others: the batches that are still to come of it, and those that have come."""

    number: int
    life: SourceLife
    batches: list[list[Event]]
    arrived: list[list[Event]] = field(default_factory=list)
    #: The highest transaction that each of its keys showed.
    shown: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(seed: int, number: int, partitions: int) -> _Member:
        """Return the life of a number among those from a seed on; half of those of each kind name their table."""
        kind, name = KINDS[number % len(KINDS)], f"s{number}"
        table_name = f"of {name}" if number // len(KINDS) % 2 else ""
        life = life_of(random.Random(seed + number), kind, name=name, table_name=table_name, partitions=partitions)
        return _Member(number, life, life.arrivals())

    @property
    def form(self) -> Form:
        """What its events look like: only events of one form are in one append."""
        return self.life.kind.form

    def take(self) -> list[Event]:
        """Return the next batch, which arrives now."""
        self.arrived.append(self.batches.pop(0))
        return self.arrived[-1]


def _wrong_lives(seed: int, count: int, folder: Path, numbers: Collection[int]) -> dict[int, str]:
    """Return those of some lives that go wrong, and a picture of each; the appends and the clock are those of all `count` lives."""
    shutil.rmtree(folder, ignore_errors=True)
    chance = random.Random(f"together {seed}")
    # A partition of Kafka that lags by more than delete.retention.ms is refused (A.53), so where days pass there is one alone.
    partitions, longest_pause_ms = chance.choice(((2, HOUR_MS // 2), (2, 0), (1, 2 * DAY_MS)))
    members = [_Member.of(seed, number, partitions) for number in range(count)]
    if (
        longest_pause_ms > DAY_MS
    ):  # a replay that pauses so long may lose a row of a source whose tombstones have no position (docs/limits.md)
        members = [member for member in members if member.life.kind.has_positions or member.life.kind.deletions != "null"]
    topic = _SharedTopic(folder, chance.randint(1, 2), [member for member in members if member.number in numbers])
    while waiting := [member for member in members if member.batches]:
        form = chance.choice(sorted({member.form for member in waiting}))
        arrivals = _next_arrivals(chance, [member for member in waiting if member.form == form])
        topic.append(form, [(number, event) for number, event in arrivals if number in numbers])
        topic.now_ms += chance.choice((0, 1000, longest_pause_ms))
        if chance.random() < 0.3:
            topic.clean()
    topic.end()
    shutil.rmtree(folder)
    return topic.wrong


def _next_arrivals(chance: random.Random, members: Sequence[_Member]) -> list[tuple[int, Event]]:
    """Return events of the next batches of some members and the members' numbers: one batch behind the other, or mixed in any way."""
    share, is_mixed = chance.choice((0.3, 0.8, 1)), chance.random() < 0.5
    batches = {member.number: member.take() for member in members if chance.random() < share}
    order = [number for number, batch in batches.items() for _ in batch]
    if is_mixed:
        chance.shuffle(order)
    rest = {number: iter(batch) for number, batch in batches.items()}
    return [(number, next(rest[number])) for number in order]


class _SharedTopic:
    """A topic of several lives, and those of them that have gone wrong."""

    def __init__(self, folder: Path, partitions: int, members: Iterable[_Member]) -> None:
        """Create the topic."""
        self.topic = LogDir(folder).create_topic("t", partitions=partitions, config=_CONFIG)
        self.members = {member.number: member for member in members}
        self.now_ms, self.wrong = T0, dict[int, str]()
        self._values: dict[bytes, bytes] = {}

    def append(self, form: Form, arrivals: Sequence[tuple[int, Event]]) -> None:
        """Append events of one form. No key may go back, and no table may change of which there is no event."""
        if not arrivals:
            return
        rows, envelope = _rows([event for _, event in arrivals]), _envelope(form)
        result = at(self.now_ms, self.topic).append(rows, envelope=envelope, on_invalid="dead-letter")
        for letter in self.topic.dead_letters().to_pylist() if result.refused else ():
            self._add_issue(_place_of(letter["key"])[0], f"{letter['reason']}: {letter['detail']}")
        self._compare({number for number, _ in arrivals})

    def clean(self) -> None:
        """Clean all that is there; no table may change."""
        self.topic.roll()
        at(self.now_ms, self.topic).clean()
        self._compare(set())

    def end(self) -> None:
        """Compare each table with that of its server, also when all tombstones are gone."""
        for is_cleaned in (False, True):
            tables: dict[int, dict[str, int]] = {number: {} for number in self.members}
            for key, value in self._values.items():
                number, name = _place_of(key)
                tables[number][name] = json.loads(value)["n"]
            for number, member in self.members.items():
                if tables[number] != member.life.table:
                    self._add_issue(number, f"the table is {tables[number]}, the server's {member.life.table}")
            for _ in range(0 if is_cleaned else 2):
                self.now_ms += 2 * DAY_MS
                self.clean()

    def _compare(self, arrived: Collection[int]) -> None:
        """Look at the keys that have changed since the last look; events have arrived of some lives."""
        before, self._values = self._values, _newest_values(self.topic)
        for key in {key for key, _ in before.items() ^ self._values.items()}:
            number, name = _place_of(key)
            member = self.members[number]
            if number not in arrived:
                self._add_issue(number, f"key {name} changes without an event of its source")
            elif key in self._values:
                row = {name: json.loads(self._values[key])["n"]}
                if _key_that_goes_back(member.life, row, member.shown) is not None:
                    self._add_issue(number, f"key {name} goes back")

    def _add_issue(self, number: int, issue: str) -> None:
        """Keep what is wrong first of a life, and what has arrived of it so far."""
        member = self.members[number]
        self.wrong.setdefault(number, f"{member.life.kind.name}, {issue}\n{picture(member.arrived)}")


def _key_that_goes_back(life: SourceLife, table: dict[str, int], shown: dict[str, int]) -> str | None:
    """Return a key that shows an older transaction than it has shown, None if there is none; remember what each shows.

    Without positions a key may go back while the connector sends events again (docs/limits.md): then there is never any.
    """
    for key, number in table.items() if life.kind.has_positions else ():
        transaction = life.transaction_of.get(number, -1)
        if transaction < shown.get(key, -1):
            return key
        shown[key] = transaction
    return None


def _envelope(form: Form) -> Envelope:
    kind, mode = form
    return Envelope(kind=kind, delete_tombstone_handling_mode=mode)


def _rows(batch: Sequence[Event]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([event.key for event in batch], pa.string()),
            "value": pa.array([event.value for event in batch], pa.string()),
            "partition": pa.array([event.partition for event in batch], pa.int32()),
            "headers": pa.array([[{"key": name, "value": text} for name, text in event.headers] for event in batch], HEADERS),
        }
    )


def _newest_values(topic: ArrowTopic) -> dict[bytes, bytes]:
    """Return the newest value of each key."""
    newest = topic.latest(columns=["key", "value"])
    return dict(zip(newest["key"].to_pylist(), newest["value"].to_pylist(), strict=True))


def _table(topic: ArrowTopic) -> dict[str, int]:
    return {_place_of(key)[1]: json.loads(value)["n"] for key, value in _newest_values(topic).items()}


def _place_of(key: bytes) -> tuple[int, str]:
    """Return the number of the life that a key is of, 0 for one that is alone, and the key in its table."""
    number, _, name = json.loads(key)["id"].rpartition(".")
    return int(number.removeprefix("s") or 0), name
