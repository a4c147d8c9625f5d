"""Random clients of a PostgreSQL database, as scripts of psql: they write the same few rows of two tables at the same time.

```
 plain     columns that an update leaves alone are left out of its event, if they are large (unchanged TOAST)
 strict    its key is deferrable: a row may be inserted before the other transaction's deletion that it waits for; REPLICA IDENTITY FULL
```

A transaction has some statements and pauses; it commits, rolls back, or is prepared and ends later, behind others. One that waits too long,
is in a deadlock or breaks a constraint fails, as clients' transactions do. Each write takes a number of its own, so that an event and a
row tell which write they are of.

What docs/limits.md names is left out: keys that are shifted under a deferrable constraint within a transaction, and rows that change their
key twice with columns left out.
"""

# ruff: noqa: S608  the statements are for a database of our own

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

TABLES: Final = ("plain", "strict")
KEYS: Final = range(1, 8)
SCHEMA: Final = """\
CREATE SEQUENCE numbers;
CREATE TABLE plain (id int PRIMARY KEY, n bigint NOT NULL, note text, body text, moved boolean NOT NULL);
CREATE TABLE strict (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n bigint NOT NULL, note text, body text, moved boolean NOT NULL);
ALTER TABLE plain ALTER body SET STORAGE EXTERNAL;
ALTER TABLE strict ALTER body SET STORAGE EXTERNAL;
ALTER TABLE strict REPLICA IDENTITY FULL;
CREATE TABLE signals (id text PRIMARY KEY, type text, data text);
CREATE TABLE marks (id int PRIMARY KEY);
CREATE PUBLICATION everything FOR ALL TABLES;
INSERT INTO plain VALUES (1, nextval('numbers'), 'first', repeat('plain', 900), false), (2, nextval('numbers'), NULL, NULL, false);
INSERT INTO strict VALUES (1, nextval('numbers'), 'first', repeat('strict', 900), false), (3, nextval('numbers'), NULL, NULL, false);
"""
_NEXT: Final = "nextval('numbers')"


@dataclass
class Client:
    """One client; `name` tells its prepared transactions from those of others. `may_delete` says whether keys may go away."""

    chance: random.Random
    name: str
    may_delete: bool = True
    _prepared: int = field(default=0, init=False)

    def script(self, count: int, *, signals: bool) -> str:
        """Return the script of some transactions, now and then with the signal for an ad-hoc snapshot between them."""
        lines, open_ones = ["SET lock_timeout = '300ms';"], list[str]()
        for _ in range(count):
            lines += self._transaction(open_ones)
            if open_ones and self.chance.random() < 0.5:
                lines.append(self._end_of(open_ones.pop(0)))
            if signals and self.chance.random() < 0.06:
                lines.append(self._signal())
        lines += [self._end_of(one) for one in open_ones]
        return "\n".join(lines) + "\n"

    def _transaction(self, open_ones: list[str]) -> list[str]:
        lines = ["BEGIN;"]
        for number in range(self.chance.choice((1, 1, 2, 3, 5))):
            statements = self._statements(self.chance.choice(TABLES))
            if self.chance.random() < 0.1:
                end = f"ROLLBACK TO s{number};" if self.chance.random() < 0.5 else f"RELEASE s{number};"
                statements = [f"SAVEPOINT s{number};", *statements, end]
            lines += statements
            if self.chance.random() < 0.5:
                lines.append(f"SELECT FROM pg_sleep({self.chance.choice((0.001, 0.02, 0.1))});")
        drawn = self.chance.random()
        if drawn < 0.1:
            return [*lines, "ROLLBACK;"]
        if drawn < 0.2:
            self._prepared += 1
            open_ones.append(f"{self.name} {self._prepared}")
            return [*lines, f"PREPARE TRANSACTION '{open_ones[-1]}';"]
        return [*lines, "COMMIT;"]

    def _end_of(self, prepared: str) -> str:
        return f"{'ROLLBACK' if self.chance.random() < 0.2 else 'COMMIT'} PREPARED '{prepared}';"

    def _signal(self) -> str:
        tables = self.chance.choice(('"public.plain", "public.strict"', '"public.plain"', '"public.strict"'))
        data = f'{{"data-collections": [{tables}], "type": "{self.chance.choice(("incremental", "incremental", "blocking"))}"}}'
        return f"INSERT INTO signals VALUES (gen_random_uuid()::text, 'execute-snapshot', '{data}');"

    def _statements(self, table: str) -> list[str]:
        """Return one thing that a client does to a table."""
        key = self.chance.choice(KEYS)
        does: dict[str, list[str]] = {
            "note": [f"UPDATE {table} SET n = {_NEXT}, note = '{self._note()}' WHERE id = {key};"],
            "body": [f"UPDATE {table} SET n = {_NEXT}, body = {self._body()} WHERE id = {key};"],
            "insert": [self._insert(table, key)],
            "replace": [f"DELETE FROM {table} WHERE id = {key};", self._insert(table, key)],
            "delete": [f"DELETE FROM {table} WHERE id = {key};"],
            "move": [self._move(table, key)],
            "copy": [f"DELETE FROM {table} WHERE id IN ({key}, {key + 100});", self._copy(table, (key, key + 100))],
            "truncate": [f"TRUNCATE {', '.join(self.chance.choice((TABLES, (table,))))};"],
        }
        weights = (25, 10, 20, 5, 20, 10, 7, 3) if self.may_delete else (25, 10, 25, 0, 0, 0, 0, 0)
        return does[self.chance.choices(list(does), weights)[0]]

    def _insert(self, table: str, key: int) -> str:
        values = f"({key}, {_NEXT}, '{self._note()}', {self._body()}, false)"
        # A deferrable key takes no ON CONFLICT; if the row is still there when this commits, the transaction fails.
        does = " ON CONFLICT (id) DO UPDATE SET n = excluded.n, note = excluded.note" if table == "plain" else ""
        return f"INSERT INTO {table} VALUES {values}{does};"

    def _copy(self, table: str, keys: tuple[int, ...]) -> str:
        """Return a COPY of some rows; their numbers cannot be taken from the sequence."""
        lines = [rf"{key},{self.chance.randrange(10**6, 10**12)},copied {self._note()},,false\n" for key in keys]
        return f"COPY {table} FROM PROGRAM 'printf \"{''.join(lines)}\"' CSV;"

    def _move(self, table: str, key: int) -> str:
        target, only = self.chance.choice([one for one in KEYS if one != key]), ""
        body = f"body = {self._body()}, "
        if table == "plain" and self.chance.random() < 0.5:
            body, only = "", " AND NOT moved"
        return f"UPDATE {table} SET id = {target}, n = {_NEXT}, {body}moved = true WHERE id = {key}{only};"

    def _note(self) -> str:
        return f"note {self.chance.randrange(10**6)}"

    def _body(self) -> str:
        drawn = self.chance.random()
        if drawn < 0.1:
            return "NULL"
        return f"repeat('{self.chance.randrange(10**6):06} ', {3 if drawn < 0.3 else 600})"
