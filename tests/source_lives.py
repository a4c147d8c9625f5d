"""Random lives of a source, for tests: a server, its connector, Kafka and appends; in the end the log has the rows of the server.

```
 server       transactions that write in one order and commit in another one, deletions, TRUNCATE; another server after a failover
 connector    a snapshot, then changes in the order of commits; it begins again anywhere, also in the middle of a transaction
 Kafka        two partitions by key, read in any way; a TRUNCATE is in one of them
 appends      any cuts, cleanings in between, a clock that moves
```

Positions are those of each connector. A row says which transaction wrote it, so that a table that goes back is seen.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

KEYS: Final = "abcdef"
#: The kind of an envelope, and its `delete_tombstone_handling_mode`.
Form = tuple[Literal["debezium", "debezium-flat"], Literal["", "rewrite-with-tombstone"]]


@dataclass(frozen=True)
class Change:
    """One change of a transaction: of a key, to a row or to none; a TRUNCATE has no key. `number` is its place in the history."""

    key: str | None
    is_row: bool
    lsn: int
    number: int


@dataclass(frozen=True)
class Transaction:
    """The changes of one transaction, in the order in which they were written, and where its commit stands in the WAL."""

    commit: int
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Event:
    """What a connector sends of a change or of a row of a snapshot, and the transaction that it is of."""

    partition: int
    key: str | None
    value: str | None
    transaction: int
    headers: tuple[tuple[str, str], ...] = ()

    def drawn(self) -> str:
        """Return it as one line of a picture."""
        said = {**(json.loads(self.value) if self.value else {}), **dict(self.headers)}
        source = {name: one for name, one in said.get("source", said).items() if one is not None and name not in {"connector", "name", "n"}}
        return f"p{self.partition} {self.key or '-':12} {said.get('op', said.get('__op', '∅')):2} t{self.transaction:<3} {source}"


@dataclass
class Server:
    """The history of one table: its transactions in the order of their commits, and the rows after each."""

    chance: random.Random
    #: Whether an INSERT may be written before the DELETE that it waited for.
    has_races: bool
    #: `never`, `alone` in their transaction, or `with rows`.
    truncates: str
    begin: int
    transactions: list[Transaction] = field(default_factory=list)
    tables: list[dict[str, int]] = field(default_factory=list)
    #: Where the last TRUNCATE committed: it waits for all who write into the table, and they for it.
    truncated: int = 0

    def live(self, count: int, table: dict[str, int], number: int) -> None:
        """Commit some transactions, from a table on; `number` is that of the next change."""
        commit, table = self.begin, dict(table)
        self.tables.append(dict(table))
        #: Where the last transaction of a key committed, and where its last change stands.
        committed, written = dict.fromkeys(KEYS, commit), dict[str, int]()
        for _ in range(count):
            commit += self.chance.randint(8, 30)
            changes = list[Change]()
            if self.truncates != "never" and self.chance.random() < 0.08:
                lsn = commit - self.chance.randint(4, 6)  # it locks the table, so all before it have committed
                changes.append(Change(None, is_row=False, lsn=lsn, number=number))
                table.clear()
                committed = dict.fromkeys(KEYS, lsn)
            if not changes or self.truncates == "with rows":
                for key in self.chance.choices(KEYS, k=self.chance.randint(0 if changes else 1, 3)):
                    change = self._change(key, commit, committed[key], written.get(key), changes, is_there=key in table)
                    if change is not None:
                        changes.append(replace(change, number=number + len(changes)))
                        table = {**table, key: changes[-1].number} if change.is_row else {k: v for k, v in table.items() if k != key}
            number += len(changes)
            if any(one.key is None for one in changes):  # what waits for the lock is written after this commit
                committed, written, self.truncated = dict.fromkeys(KEYS, commit), {}, commit
            else:
                committed |= dict.fromkeys([one.key or "" for one in changes], commit)
                written |= {one.key: one.lsn for one in changes if one.key is not None}
            if changes:
                self.transactions.append(Transaction(commit, tuple(changes)))
                self.tables.append(dict(table))

    def _change(
        self, key: str, commit: int, committed: int, written: int | None, changes: list[Change], *, is_there: bool
    ) -> Change | None:
        """Return a change of a key in a transaction that commits somewhere; None where there is no room for it."""
        after = max((one.lsn for one in changes), default=0) + 1
        low = max(committed + 1, after)
        if self.has_races and not is_there and written is not None and not changes and self.chance.random() < 0.4:
            low = max(after, written - 8, self.truncated + 1)
        if low >= commit:
            return None
        return Change(key, not is_there or self.chance.random() < 0.65, self.chance.randint(low, min(commit - 1, low + 5)), 0)


@dataclass(frozen=True)
class Kind:
    """A connector and its settings, by what its events say of their positions."""

    name: str
    #: The block `source` of a change: of a server, the number of its transaction, the change, and the commit before it, if that is known.
    source: Callable[[Server, int, Change, int | None], dict[str, Any]]
    #: That of a row of a snapshot that was taken at a position, before the transaction of a number.
    snapshot: Callable[[Server, int, int], dict[str, Any]]
    is_flat: bool = False
    #: What the deletions of a flat connector are: `rows`, `null`, or `both`, one behind the other (rewrite-with-tombstone).
    deletions: str = "rows"
    #: Whether the fields of a flat connector are in headers of the records, so that null has a position, too.
    has_headers: bool = False
    #: Whether each event has a position, so that a key never goes back over a transaction.
    has_positions: bool = True
    #: How often the connector may begin again. In its first transaction it names another commit before it each time (docs/limits.md).
    restarts: int = 2
    has_races: bool = True
    truncates: str = "never"
    has_failovers: bool = True

    @property
    def form(self) -> Form:
        """How the events are to be read: the kind of the envelope, and what ExtractNewRecordState makes of deletions, if that matters."""
        return "debezium-flat" if self.is_flat else "debezium", "rewrite-with-tombstone" if self.deletions == "both" else ""


def _postgresql(server: Server, number: int, change: Change, before: int | None) -> dict[str, Any]:
    del server, number
    sequence = json.dumps([None if before is None else str(before), str(change.lsn)])
    return {"connector": "postgresql", "name": "s", "sequence": sequence, "lsn": change.lsn}


def _postgresql_snapshot(server: Server, number: int, position: int) -> dict[str, Any]:
    del server, number
    return {"connector": "postgresql", "name": "s", "sequence": json.dumps([None, str(position)]), "lsn": position}


def _lsn(server: Server, number: int, change: Change, before: int | None) -> dict[str, Any]:
    del server, number, before
    return {"lsn": change.lsn}


def _binlog(server: Server, number: int, change: Change | None = None, before: int | None = None) -> dict[str, Any]:
    del before
    commit = server.transactions[number].commit if 0 <= number < len(server.transactions) else server.transactions[-1].commit + number
    row = 0 if change is None else 9 - change.number % 10
    return {"connector": "mysql", "name": "s", "file": f"bin.{commit // 40:06}", "pos": commit % 40 * 100 + 50, "row": row}


def _binlog_snapshot(server: Server, number: int, position: int) -> dict[str, Any]:
    del position
    source = _binlog(server, number)
    return {**source, "pos": source["pos"] - 1}


def _sqlserver(server: Server, number: int, change: Change, before: int | None) -> dict[str, Any]:
    del before
    lsn = {
        "commit_lsn": f"{server.begin:08x}:{number + 1:08x}:0001",
        "change_lsn": f"{server.begin:08x}:{99 - change.number % 90:08x}:0002",
    }
    return {"connector": "sqlserver", "name": "s", "db": "d", **lsn, "event_serial_no": 1}


def _oracle(server: Server, number: int, change: Change, before: int | None) -> dict[str, Any]:
    del before
    return {"connector": "oracle", "name": "s", "scn": str(change.lsn), "commit_scn": str(server.transactions[number].commit)}


def _mongodb(server: Server, number: int, change: Change, before: int | None) -> dict[str, Any]:
    del before
    return {"connector": "mongodb", "name": "s", "ts_ms": (server.begin + number) * 1000, "ord": change.number + 1}


KINDS: Final = (
    Kind("postgresql", _postgresql, _postgresql_snapshot, truncates="with rows"),
    Kind("postgresql, flat", _postgresql, _postgresql_snapshot, is_flat=True),
    Kind(
        "postgresql, flat, null tombstones",
        _postgresql,
        _postgresql_snapshot,
        is_flat=True,
        deletions="null",
        has_positions=False,
    ),
    Kind(
        "postgresql, flat, by lsn",
        _lsn,
        lambda _server, _number, position: {"lsn": position},
        is_flat=True,
        deletions="null",
        has_positions=False,
        has_races=False,
    ),
    Kind("postgresql, flat, headers", _postgresql, _postgresql_snapshot, is_flat=True, deletions="null", has_headers=True),
    Kind("postgresql, flat, rows and tombstones", _postgresql, _postgresql_snapshot, is_flat=True, deletions="both"),
    Kind("mysql", _binlog, _binlog_snapshot, truncates="alone"),
    Kind(
        "sqlserver",
        _sqlserver,
        lambda server, number, _position: {
            "connector": "sqlserver",
            "name": "s",
            "db": "d",
            "commit_lsn": f"{server.begin:08x}:{number:08x}:0001",
        },
    ),
    Kind(
        "oracle",
        _oracle,
        lambda _server, _number, position: {"connector": "oracle", "name": "s", "scn": str(position)},
    ),
    Kind(
        "mongodb",
        _mongodb,
        lambda server, _number, _position: {"connector": "mongodb", "name": "s", "ts_ms": server.begin, "ord": 1},
        has_positions=False,
        has_failovers=False,
    ),
    Kind(
        "another connector",
        lambda _server, number, _change, _before: {"connector": "vitess", "name": "s", "vgtid": str(number)},
        lambda _server, _number, _position: {"connector": "vitess", "name": "s"},
        has_positions=False,
    ),
)


@dataclass
class SourceLife:
    """One life: what arrives, in the order of arrival, and the rows of the server in the end."""

    chance: random.Random
    kind: Kind
    #: What its server and its keys are called by, where several lives share a topic.
    name: str = ""
    #: The table that its events name, if they do.
    table_name: str = ""
    #: Kafka's partitions, 1 or 2.
    partitions: int = 2
    queues: tuple[list[Event], list[Event]] = field(default_factory=lambda: ([], []))
    table: dict[str, int] = field(default_factory=dict)
    #: The change that each number is, as the number of its transaction.
    transaction_of: dict[int, int] = field(default_factory=dict)

    def play(self) -> None:
        """Play the servers and the connector."""
        begin, number = (1000, 0) if self.kind.has_failovers and self.chance.random() < 0.3 else (100, 0)
        server = self._server(begin, {}, number)
        self._deliver(server, self.chance.randint(0, len(server.transactions) - 1))
        there = {self._partition_of(key) for key in self.table}
        if begin > 100 and len(there) == self.partitions:  # a partition without a row does not see the new snapshot
            server = self._server(100, self.table, 1000)
            self._deliver(server, 0)

    def _server(self, begin: int, table: dict[str, int], number: int) -> Server:
        server = Server(self.chance, self.kind.has_races, self.kind.truncates, begin)
        while not server.transactions:
            server.tables.clear()
            server.live(self.chance.randint(1, 7), table, number)
        for at, one in enumerate(server.transactions):
            self.transaction_of |= {change.number: number + at for change in one.changes}
        self.table = server.tables[-1]
        return server

    def _deliver(self, server: Server, first: int) -> None:
        """Send a snapshot from before a transaction, then all changes from there on; now and then again from somewhere."""
        before = server.transactions[first - 1].commit if first else server.begin
        position = min(before + self.chance.randint(1, 3), server.transactions[first].commit - 1)
        # A TRUNCATE holds the lock of the table until it commits: a snapshot that has rows from before was taken before it.
        position = min(position, *(change.lsn for change in server.transactions[first].changes if change.key is None), position)
        rows = list(server.tables[first].items())
        if self.chance.random() < 0.2:  # it was interrupted and begins again
            for key, number in rows[: self.chance.randint(0, len(rows))]:
                self._send("r", key, number, self.kind.snapshot(server, first, position))
        for key, number in rows:
            self._send("r", key, number, self.kind.snapshot(server, first, position))
        changes = [(at, change) for at in range(first, len(server.transactions)) for change in server.transactions[at].changes]
        begin, is_restarted = 0, False
        for end in [*(self.chance.randint(1, len(changes)) for _ in range(self.chance.randint(0, self.kind.restarts))), len(changes)]:
            if end <= begin:
                continue
            for at, change in changes[begin:end]:
                # After a restart the connector takes where it was for the commit before the first transaction.
                known = server.transactions[at - 1].commit if at > first else changes[begin][1].lsn if is_restarted else None
                source = self.kind.source(server, at, change, known)
                op = "t" if change.key is None else "u" if change.is_row else "d"
                self._send(op, change.key, change.number, source)
            begin, is_restarted = self.chance.randint(0, end - 1), True

    def _send(self, op: str, key: str | None, number: int, source: dict[str, Any]) -> None:
        identifier = key if key is None or not self.name else f"{self.name}.{key}"
        row = {"id": identifier, "n": number}
        source = {**source, **({"name": self.name} if self.name else {}), **({"table": self.table_name} if self.table_name else {})}
        headers: tuple[tuple[str, str], ...] = ()
        own_key = None if key is None else json.dumps({"id": identifier})
        value: str | None = json.dumps({"op": op, "before": None, "after": row if op in "ru" else None, "source": source})
        if self.kind.is_flat:
            fields = {"__op": op, **{f"__source_{name}": one for name, one in source.items()}}
            headers = tuple((name, str(one)) for name, one in fields.items()) if self.kind.has_headers else ()
            value = json.dumps({**row, "__deleted": str(op == "d").lower(), **({} if headers else fields)})
            if op == "d" and self.kind.deletions == "null":
                value = None
        elif self.kind.name == "mongodb" and op in "ru":
            value = json.dumps({"op": op, "before": None, "after": json.dumps(row), "source": source})
        partition = 0 if key is None else self._partition_of(key)
        self.queues[partition].append(Event(partition, own_key, value, self.transaction_of.get(number, -1), headers))
        if op == "d" and self.kind.deletions == "both":
            self.queues[partition].append(Event(partition, own_key, None, self.transaction_of.get(number, -1)))

    def _partition_of(self, key: str) -> int:
        """Return Kafka's partition of a key."""
        return zlib.crc32(key.encode()) % self.partitions

    def arrivals(self) -> list[list[Event]]:
        """Return the events in the order of arrival, cut into appends."""
        queues, stretch, found = [list(queue) for queue in self.queues], self.chance.choice((1, 4, 1000)), list[Event]()
        while any(queues):
            queue = self.chance.choice([one for one in queues if one])
            size = self.chance.randint(1, stretch)
            found += queue[:size]
            del queue[:size]
        cuts = sorted(self.chance.sample(range(1, len(found)), min(len(found) - 1, self.chance.choice((0, 1, 3))))) if found else []
        return [found[start:end] for start, end in pairwise([0, *cuts, len(found)])]


def life_of(chance: random.Random, kind: Kind, *, name: str = "", table_name: str = "", partitions: int = 2) -> SourceLife:
    """Return a life of a kind of connector; by `name` its server and its keys differ from those of other lives in one topic."""
    life = SourceLife(chance, kind, name, table_name, partitions)
    life.play()
    return life


def picture(batches: list[list[Event]]) -> str:
    """Return what arrived, append by append."""
    lines = [line for number, batch in enumerate(batches) for line in (f"append {number}", *(f"   {one.drawn()}" for one in batch))]
    return "\n".join(lines)
