"""A real PostgreSQL database of eight tables, its connector, a Kafka broker and the service as a process: what a user of typed tables runs.

```
 clients ─► PostgreSQL ─► Debezium's engine ─► Kafka, two partitions a table ─► lastword run ─► tables/… (vectors), history/… (rewritten)
```

The tables have a column of each common type, keys of one and of two columns, a key that may change, values that PostgreSQL keeps apart
(TOAST), and one table has REPLICA IDENTITY FULL. The topics know their columns by the schemas of the events.
"""

# ruff: noqa: S608  the statements are for a database of our own

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import zlib
from dataclasses import dataclass, field
from datetime import datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from tests.debezium_engine import PREFIX
from tests.kafka_broker import Record
from tests.processes import ROOT

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.debezium_engine import DebeziumEngine
    from tests.kafka_broker import KafkaBroker

PARTITIONS: Final = 2
_KEYS: Final = 200
#: The columns of a table, the names of its key, and whether its key may change.
_TABLES: Final[dict[str, tuple[dict[str, str], tuple[str, ...], bool]]] = {
    "customers": ({"id": "int", "name": "text", "email": "varchar(80)", "vip": "boolean"}, ("id",), True),
    "orders": ({"id": "bigint", "total": "numeric(12,2)", "ordered": "timestamptz", "local": "timestamp", "day": "date"}, ("id",), True),
    "order_lines": ({"id": "int", "line": "smallint", "qty": "int", "price": "numeric(18,4)"}, ("id", "line"), True),
    "accounts": ({"id": "uuid", "balance": "numeric", "since": "timestamptz"}, ("id",), True),
    "documents": ({"id": "text", "body": "text", "data": "jsonb"}, ("id",), False),
    "readings": ({"id": "int", "taken": "timestamp", "value": "float8", "raw": "float4", "frame": "bytea"}, ("id", "taken"), True),
    "switches": ({"id": "smallint", "on": "boolean", "t": "time", "days": "int[]"}, ("id",), True),
    "strict": ({"id": "int", "note": "text", "body": "text"}, ("id",), True),
}
NAMES: Final = tuple(_TABLES)
_CONFIG: Final = """\
log.dir = "{folder}/data"
log.cleaner.backoff.ms = "1s"
log.initial.task.delay.ms = 0

[http]
listen = ""

[spark]
"spark.master" = "local[2]"
"spark.driver.memory" = "1g"
"spark.log.level" = "ERROR"

[[table]]
topics.pattern = ".*"
path = "{folder}/tables/{{topic}}"
every = 1

[[table]]
topics.pattern = ".*"
path = "{folder}/history/{{topic}}"
every = 1
history = true
deletion.vectors = false
"""
_SOURCE: Final = """
[[source]]
name = "{name}"
topic = "{name}"
format = "kafka"
bootstrap.servers = "{servers}"
subscribe = "{prefix}.public.{name}"
envelope = "debezium"
trigger = "1 second"

[topic.{name}]
partitions = {partitions}
cleanup.policy = "compact"
min.cleanable.dirty.ratio = 0.1
segment.bytes = "256KiB"
"""


def ddl() -> str:
    """Return the statements that make the tables, and the row of marks by which the end of what was sent is known."""
    lines = ["CREATE TABLE signals (id text PRIMARY KEY, type text, data text);", "CREATE TABLE marks (id int PRIMARY KEY);"]
    for name, (columns, key, _) in _TABLES.items():
        typed = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
        deferrable = " DEFERRABLE INITIALLY DEFERRED" if name == "strict" else ""
        lines.append(f"CREATE TABLE {name} ({typed}, PRIMARY KEY ({', '.join(key)}){deferrable});")
    lines += ["ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;", "ALTER TABLE strict ALTER body SET STORAGE EXTERNAL;"]
    return "\n".join([*lines, "ALTER TABLE strict REPLICA IDENTITY FULL;", "CREATE PUBLICATION everything FOR ALL TABLES;"])


@dataclass
class Workload:
    """Random statements over the tables."""

    chance: random.Random
    #: Columns that were added, by table.
    added: dict[str, str] = field(default_factory=dict)

    def script(self, count: int) -> str:
        """Return about so many statements, as a script of transactions; one that fails is rolled back by the server."""
        lines, statements = ["SET lock_timeout = '300ms';"], 0
        while statements < count:
            size = self.chance.choice((1, 1, 2, 5, 20))
            statements += size
            end = "ROLLBACK;" if self.chance.random() < 0.05 else "COMMIT;"
            lines += ["BEGIN;", *(self._statement() for _ in range(size)), end]
        return "\n".join(lines) + "\n"

    def column(self) -> str:
        """Return the statement that adds a column to a table."""
        name = self.chance.choice([name for name in NAMES if name not in self.added])
        self.added[name] = "added"
        return f"ALTER TABLE {name} ADD COLUMN added text;"

    def _statement(self) -> str:
        name = self.chance.choice(NAMES)
        columns, key, may_move = _TABLES[name]
        columns = {**columns, **({"added": "text"} if name in self.added else {})}
        row = {column: self._value(kind, is_key=column in key, column=column) for column, kind in columns.items()}
        where = " AND ".join(f'"{column}" = {row[column]}' for column in key)
        others = [column for column in columns if column not in key]
        drawn = self.chance.random()
        if drawn < 0.45:
            values = f"({', '.join(map(_quoted, row))}) VALUES ({', '.join(row.values())})"
            if name == "strict":  # a deferrable key takes no ON CONFLICT
                return f"DELETE FROM {name} WHERE {where}; INSERT INTO {name} {values};"
            sets = ", ".join(f"{_quoted(column)} = excluded.{_quoted(column)}" for column in others)
            return f"INSERT INTO {name} {values} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets};"
        if drawn < 0.8:
            changed = self.chance.sample(others, self.chance.randint(1, len(others)))
            return f"UPDATE {name} SET {', '.join(f'{_quoted(column)} = {row[column]}' for column in changed)} WHERE {where};"
        if drawn < 0.85 and may_move:
            moved = self._value(columns[key[0]], is_key=True, column=key[0])
            taken = f"SELECT FROM {name} AS other WHERE other.{key[0]} = {moved}"
            return f"UPDATE {name} SET {key[0]} = {moved} WHERE {where} AND NOT EXISTS ({taken});"
        if drawn < 0.997:
            return f"DELETE FROM {name} WHERE {where};"
        return f"TRUNCATE {name};"

    def _value(self, kind: str, *, is_key: bool, column: str) -> str:
        """Return a literal of a type; those of keys are drawn from few, so that keys come again."""
        draw, number = self.chance, self.chance.randrange(_KEYS)
        if is_key:
            keys = {
                "uuid": f"'00000000-0000-4000-8000-{number:012}'",
                "text": f"'ключ {number} ''{number % 7}'",
                "timestamp": f"'2026-01-0{1 + number % 3} 12:00:00.00000{number % 2}'",
            }
            return keys.get(kind, str(number % 4) if column == "line" else str(number))
        if draw.random() < 0.1:
            return "NULL"
        day = f"20{draw.randrange(10, 60)}-0{draw.randint(1, 9)}-{draw.randint(10, 28)}"
        moment = f"{day} 0{draw.randrange(10)}:30:59.{draw.randrange(10**6):06}"
        literals = {
            "int": str(draw.randrange(-(2**31), 2**31)),
            "bigint": str(draw.randrange(-(2**63), 2**63)),
            "boolean": draw.choice(("true", "false")),
            "numeric(12,2)": f"{draw.randrange(-(10**11), 10**11)}e-2",
            "numeric(18,4)": f"{draw.randrange(-(10**17), 10**17)}e-4",
            "numeric": draw.choice((f"{draw.randrange(10**30)}.{draw.randrange(10**6)}", "0.10", "-7", "1e20")),
            "timestamptz": f"'{moment}+0{draw.randrange(10)}:30'",
            "timestamp": f"'{moment}'",
            "date": draw.choice((f"'{day}'", "'1582-10-04'", "'1500-02-28'", "'0001-01-01'", "'9999-12-31'")),
            "time": f"'{moment[11:]}'",
            "float8": draw.choice((repr(draw.uniform(-1e300, 1e300)), "1e-300", "-0.0", str(draw.randrange(100)))),
            "float4": draw.choice((repr(draw.uniform(-1, 1)), "1e-30", str(draw.randrange(100)))),
            "bytea": f"'\\x{draw.randbytes(draw.randrange(9)).hex()}'",
            "jsonb": f"""'{json.dumps({"a": draw.randrange(9), "b": [None, "é", 1.50], "c": {}})}'""",
            "int[]": draw.choice(("'{}'", f"'{{{draw.randrange(99)},NULL,-1}}'")),
        }
        if kind in literals:
            return literals[kind]
        if column == "body":
            return f"repeat('{draw.randrange(10**6):06} ', {draw.choice((1, 700))})"
        return draw.choice(("''", f"'note {draw.randrange(10**6)}'", "'ß \U0001f34f \"quoted\" \\ ''x'''", "E'two\\nlines'"))


def of_database(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `row_to_json`, its numbers as `Decimal`, as it is compared."""
    kinds = _TABLES[name][0]
    return {column: None if value is None else _OF_JSON.get(kinds.get(column, ""), _same)(value) for column, value in row.items()}


def of_table(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the Delta table as it is compared: what is text there, but not in the database, is parsed."""
    kinds = _TABLES[name][0]
    return {column: None if value is None else _OF_TEXT.get(kinds.get(column, ""), _same)(value) for column, value in row.items()}


def _quoted(column: str) -> str:
    return f'"{column}"'


def _same(value: Any) -> Any:
    return value


def _number(text: str) -> str:
    """Return a number without a scale of its own: the connector leaves out the zeros at its end."""
    plain = format(Decimal(text), "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _float32(value: Any) -> float:
    import numpy as np  # noqa: PLC0415

    return float(np.float32(float(value)))


_OF_JSON: Final[dict[str, Any]] = {
    "int": int,
    "bigint": int,
    "smallint": int,
    "numeric(12,2)": Decimal,
    "numeric(18,4)": Decimal,
    "numeric": lambda number: _number(str(number)),
    "timestamptz": lambda text: datetime.fromisoformat(text).timestamp(),
    "timestamp": datetime.fromisoformat,
    "date": str,
    "time": time.fromisoformat,
    "float8": float,
    "float4": _float32,
    "bytea": lambda text: bytes.fromhex(text.removeprefix("\\x")),
    "jsonb": lambda value: json.dumps(value, default=float, sort_keys=True),
    "int[]": lambda values: [None if one is None else int(one) for one in values],
}
_OF_TEXT: Final[dict[str, Any]] = {
    "numeric": _number,
    "timestamptz": lambda moment: moment.timestamp(),
    "date": str,
    "time": time.fromisoformat,
    "jsonb": lambda text: json.dumps(json.loads(text), sort_keys=True),
}


class Bridge:
    """What Kafka Connect does behind the connector: it sends each event to the partition of its key, in order."""

    def __init__(self, engine: DebeziumEngine, broker: KafkaBroker) -> None:
        """Make the topics and start the thread."""
        self._engine, self._broker, self._ending = engine, broker, threading.Event()
        self.ends = {name: [0] * PARTITIONS for name in NAMES}
        self.marks = set[int]()
        self.error: BaseException | None = None
        for name in NAMES:
            broker.create_topic(f"{PREFIX}.public.{name}", partitions=PARTITIONS)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        done = 0
        try:
            while not self._ending.wait(0.1):
                events = list(self._engine.events())
                for name in NAMES:
                    mine = [one for one in events[done:] if one.topic == f"{PREFIX}.public.{name}"]
                    records = [
                        Record(
                            0 if one.key is None else zlib.crc32(one.key.encode()) % PARTITIONS,
                            None if one.key is None else one.key.encode(),
                            None if one.value is None else one.value.encode(),
                            [(key, value.encode()) for key, value in one.headers],
                        )
                        for one in mine
                    ]
                    if records:
                        self._broker.produce(f"{PREFIX}.public.{name}", records)
                    for record in records:
                        self.ends[name][record.partition] += 1
                new = [json.loads(one.value)["payload"] for one in events[done:] if one.topic == f"{PREFIX}.public.marks" and one.value]
                done = len(events)
                self.marks |= {one["after"]["id"] for one in new if one["op"] == "c"}
        except BaseException as error:  # noqa: BLE001  said by the test
            self.error = error


class ServiceProcess:
    """`lastword run` as a process that is killed and started again."""

    def __init__(self, folder: Path, bootstrap_servers: str) -> None:
        """Write its configuration; nothing runs yet."""
        sources = (_SOURCE.format(name=name, servers=bootstrap_servers, prefix=PREFIX, partitions=PARTITIONS) for name in NAMES)
        self._file, self._log = folder / "lastword.toml", folder / "service.log"
        self._file.write_text(_CONFIG.format(folder=folder) + "".join(sources), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "lastword", "run", "-c", str(self._file)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)  # noqa: S603

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the process and its JVM, or let it end."""
        if self._process is not None:
            if how is signal.SIGKILL:
                os.killpg(self._process.pid, how)
            else:
                self._process.send_signal(how)
            self._process.wait(120)
            self._process = None

    def has_ended(self) -> bool:
        """Return whether it has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def log_tail(self) -> str:
        """Return the end of what it has printed."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-60:])
