"""Random lives of a table that is kept in step with a topic, and a model of both that knows no files, vectors or commits.

```
 now 3   append      0:4 {"id":1} {"id":1,"n":7}   1:2 {"id":2} ∅
 now 3   clean
 now 4   step        position (3, 1) → (5, 3)                             compared with the model after each step
```

The model keeps what was appended, and applies it to the rows of the table by Python alone: the last record of each (partition, key), or
with `history` a row for each record, which holds from its timestamp, but not from before the row before it, to that of the next record.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable

from lastword import LogDir
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.compaction.errors import CommitStateUnknown, ReaderBehind
from lastword.compaction.rows.input_columns import HEADERS
from lastword.storage.delta.crash_points import CrashPoint, hook
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_options import TableLimits, TableOptions
from lastword.storage.tables.table_rows import TableLayout
from lastword.storage.tables.upkeep import MergeLimits
from tests.clocks import at
from tests.pictures import DAY_MS, T0
from tests.storage.tables.readers import READERS
from tests.storage.tables.strangers import actions_of, commit_a_transaction, forget_old_commits, versions

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from lastword import ArrowTopic, Transaction

_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1d"}
_MS: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXTS: Final = ("a", "b", "", "é", 'q"uote', "back\\slash", "tab\t", "\u2028", "x" * 40, "\U0001f600", "\x7f")
#: The columns that a table may have beside those of the key, and values of them as JSON has them.
_VALUES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "n": lambda chance: chance.choice((0, 1, -7, 12, None)),
    "text": lambda chance: chance.choice((*_TEXTS, None)),
    "price": lambda chance: chance.choice(("1.50", "-0.01", "7", "99999.99", None)),
    "day": lambda chance: chance.choice(("2024-02-29", "0001-01-01", "9999-12-31", None)),
    "at": lambda chance: chance.choice(("2024-02-29T10:00:00.000001Z", "1969-12-31T23:59:59.000000Z", None)),
    "good": lambda chance: chance.choice((True, False, None)),
}
_TYPES: Final = {
    "n": ("bigint", "int", "double"),
    "text": ("string",),
    "price": ("decimal(10,2)", "decimal(12,2)"),
    "day": ("date",),
    "at": ("timestamp", "timestamp_ntz"),
    "good": ("boolean",),
}
_CRASHES: Final = (
    CrashPoint.STEP_PLANNED,
    CrashPoint.STEP_TAKEN,
    CrashPoint.TARGET_PLANNED,
    CrashPoint.TARGET_MADE,
    CrashPoint.TABLE_COMMIT_PUT,
)


class Killed(BaseException):
    """What a process sees that is killed: nothing of it runs on."""


@dataclass(frozen=True)
class Form:
    """What keys are: `ddl` are their columns, `in_value` tells whether the value has them too."""

    ddl: str
    key: Callable[[random.Random], tuple[bytes, dict[str, Any]]]
    is_text: bool = False
    in_value: bool = True


def _object_key(chance: random.Random, columns: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Return a key of some columns, mostly canonical: in order, without spaces."""
    if chance.random() < 0.75:
        return json.dumps(columns, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(), columns
    turned = dict(reversed(list(columns.items())))
    form = chance.choice(((", ", ": "), (",", ": "), (",", ":")))
    more = {"other": 1} if chance.random() < 0.3 else {}
    return json.dumps({**turned, **more}, separators=form, ensure_ascii=chance.random() < 0.5).encode(), columns


def _text_key(chance: random.Random) -> tuple[bytes, dict[str, Any]]:
    text = chance.choice(_TEXTS[:7])
    return text.encode(), {"id": text}


def _json_key(chance: random.Random) -> tuple[bytes, dict[str, Any]]:
    number = chance.randrange(4)
    return f"{' ' if chance.random() < 0.2 else ''}{number}".encode(), {"id": number}


def _bytes_key(chance: random.Random) -> tuple[bytes, dict[str, Any]]:
    key = chance.choice((b"", b"\0", b"\xff\xfe", b"a", b"1"))
    return key, {"id": key}


FORMS: Final = {
    "number": Form("id bigint", lambda chance: _object_key(chance, {"id": chance.randrange(5)})),
    "number of the key alone": Form("id bigint", lambda chance: _object_key(chance, {"id": chance.randrange(5)}), in_value=False),
    "two columns": Form("id int, s string", lambda chance: _object_key(chance, {"id": chance.randrange(2), "s": chance.choice(_TEXTS)})),
    "two of the key alone": Form(
        "s string, id int", lambda chance: _object_key(chance, {"id": chance.randrange(2), "s": chance.choice(_TEXTS)}), in_value=False
    ),
    "a decimal": Form("id decimal(10,2)", lambda chance: _object_key(chance, {"id": chance.choice(("1", "1.5", "1.50", "0", "-0.10"))})),
    "a date and a truth": Form(
        "id date, b boolean", lambda chance: _object_key(chance, {"b": chance.choice((True, False)), "id": "2024-02-29"})
    ),
    "a double": Form("id double", lambda chance: _object_key(chance, {"id": chance.choice((0, 1, 2.5))})),
    "a text": Form("id string", _text_key, is_text=True, in_value=False),
    "a text that the value has too": Form("id string", _text_key, is_text=True),
    "JSON": Form("id bigint", _json_key, is_text=True, in_value=False),
    "bytes": Form("id binary", _bytes_key, is_text=True, in_value=False),
    "a date of the key alone": Form(
        "id date", lambda chance: _object_key(chance, {"id": chance.choice(("2024-02-29", "0001-01-01"))}), in_value=False
    ),
}


@dataclass(frozen=True)
class Appended:
    """A record as it was appended; `transaction` is the number of its transaction."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    time: datetime
    headers: Any
    transaction: int | None = None


@dataclass
class Row:
    """A row of the table: its cells, and since when and until when it holds."""

    cells: dict[str, Any]
    begin: datetime
    end: datetime | None = None


@dataclass
class TableLife:
    """One life; `live` goes on, `picture` shows what happened."""

    chance: random.Random
    folder: Path
    history: bool = False
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Choose the topic and the table."""
        chance = self.chance
        self.partitions = chance.randint(1, 3)
        self.form = FORMS[chance.choice(list(FORMS))]
        self.columns = {name: kinds[0] for name, kinds in _TYPES.items() if chance.random() < 0.5} or {"n": "bigint"}
        self.record_columns = tuple(name for name in ("_offset", "_timestamp", "_headers") if chance.random() < 0.3)
        self.mode = chance.choice(("FAILFAST", "FAILFAST", "PERMISSIVE", "DROPMALFORMED"))
        able = [
            "_partition",
            *(name for name in ("day", "good", "text") if name in self.columns and (name, self.mode) != ("text", "FAILFAST")),
        ]
        self.partition_by = tuple(chance.sample(able, chance.randint(1, len(able)))) if chance.random() < 0.3 else ()
        self.vectors = chance.random() < 0.7
        self.isolation = chance.choice(("read_committed", "read_committed", "read_committed", "read_uncommitted"))
        self.options = TableOptions(
            isolation=self.isolation,
            mode=self.mode,
            partition_by=self.partition_by,
            deletion_vectors=self.vectors,
            max_offsets_per_step=chance.choice((None, None, 1, 3, 7)),
            limits=TableLimits(
                chunk_rows=chance.choice((1, 3, 250_000)),
                chunk_bytes=chance.choice((1, 300, 2**27)),
                index_bytes=chance.choice((0, 100, 2**27)),
            ),
            upkeep=MergeLimits(
                min_files=chance.choice((2, 4)),
                small_rows=chance.choice((1, 3, 100)),
                deleted_share=chance.choice((0.0, 0.3)),
                max_rows=chance.choice((1, 4, 100)),
                checkpoint_commits=chance.choice((1, 5)),
            ),
        )
        self.now_ms = T0
        #: A topic that is not compacted yet takes records without a key.
        self.takes_keyless = chance.random() < 0.2
        self.policy = chance.choice(("compact", "compact,delete"))
        config = _CONFIG | {"cleanup.policy": "delete" if self.takes_keyless else self.policy, "retention.ms": "-1"}
        self.topic: ArrowTopic = LogDir(self.folder / "log").create_topic("t", partitions=self.partitions, config=config)
        self.location = str(self.folder / "table")
        self.records: list[Appended] = []
        self.seen = [0] * self.partitions
        self.open: dict[str, tuple[int, Transaction]] = {}
        self.aborted: set[int] = set()
        self.starts = [0] * self.partitions
        self.transactions = 0
        self.position: tuple[int, ...] | None = None
        self.rows: dict[tuple[int, bytes], list[Row]] = {}
        #: The last version of the table that was looked at.
        self.version = -1
        self.engines = [self._engine(), self._engine()]
        self.lines.append(
            f"{self.partitions} partitions, key {self.form}, columns {self.columns}, history {self.history}, {self.options}, "
            f"{self.record_columns}"
        )

    def picture(self) -> str:
        """Return what happened."""
        return "\n".join(self.lines)

    def live(self, actions: int) -> None:
        """Do some things; the rows of the table are compared after each step."""
        weights = {
            self._append: 8,
            self._transact: 3,
            self._clean: 2,
            self._change_columns: 1,
            self._step: 8,
            self._die: 2,
            self._fail: 2,
            self._race: 2,
            self._rebuild: 1,
            self._restart: 1,
            self._let_others_write: 2,
            self._keep_up: 2,
            self._erase: 1,
            self._delete_records: 0.5,
        }
        for _ in range(actions):
            self.now_ms += self.chance.choice((0, 1, 1000))
            (act,) = self.chance.choices(list(weights), list(weights.values()))
            act()
        for _ in range(1000):
            before = self.position
            self._stepped(self.engines[0], "at the end")
            if self.position == before:
                break

    # --- the topic ----------------------------------------------------------------------------------------------------------------------

    def _layout(self) -> TableLayout:
        value = ", ".join([*([self.form.ddl] if self.form.in_value else []), *(f"{name} {kind}" for name, kind in self.columns.items())])
        columns = TableColumns(key=columns_of_ddl(self.form.ddl), is_key_text=self.form.is_text, value=columns_of_ddl(value))
        return TableLayout(columns=columns, record_columns=self.record_columns, history=self.history)

    def _engine(self) -> MaterializedTable:
        options = replace(self.options, deletion_vectors=self.vectors is not (self.chance.random() < 0.1))
        return MaterializedTable(self.topic.log, self.location, self._layout, options, {})

    def _drawn(self, count: int) -> pa.Table:
        drawn: dict[str, list[Any]] = {"key": [], "value": [], "partition": [], "timestamp": [], "headers": []}
        for _ in range(count):
            key, columns = self.form.key(self.chance)
            drawn["key"].append(None if self.takes_keyless and self.chance.random() < 0.2 else key)
            drawn["value"].append(None if self.chance.random() < 0.25 else self._value(columns))
            drawn["partition"].append(self.chance.randrange(self.partitions))
            drawn["timestamp"].append(self.now_ms + self.chance.choice((0, 0, 1, -1000, 1000, -100_000)))
            drawn["headers"].append(self.chance.choice(([], [{"key": "h", "value": b"1"}])))
        types = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32(), "timestamp": pa.int64(), "headers": HEADERS}
        return pa.table({name: pa.array(values, types[name]) for name, values in drawn.items()})

    def _value(self, key: dict[str, Any]) -> bytes:
        chance = self.chance
        row = {name: draw(chance) for name, draw in _VALUES.items() if chance.random() < 0.8}
        if self.form.in_value and chance.random() < 0.9:
            row |= self.form.key(chance)[1] if chance.random() < 0.1 else key
        if self.mode != "FAILFAST" and chance.random() < 0.1:
            row["n"] = "bad"
        return json.dumps(row, ensure_ascii=chance.random() < 0.5).encode()

    def _append(self) -> None:
        rows = self._drawn(self.chance.randint(1, 8))
        at(self.now_ms, self.topic).append(rows)
        self._remember("append", None)
        if self.chance.random() < 0.2:
            self.topic.roll()

    def _transact(self) -> None:
        name = self.chance.choice(("x", "y"))
        if name not in self.open:
            self.transactions += 1
            self.open[name] = self.transactions, at(self.now_ms, self.topic).transaction(name)
        number, transaction = self.open[name]
        at(self.now_ms, transaction).append(self._drawn(self.chance.randint(1, 4)))
        self._remember(f"transaction {number}", number)
        if self.chance.random() < 0.6:
            del self.open[name]
            if self.chance.random() < 0.6:
                transaction.commit()
                self.lines.append(f"commit {number}")
            else:
                transaction.abort()
                self.aborted.add(number)
                self.lines.append(f"abort {number}")

    def _remember(self, what: str, transaction: int | None) -> None:
        columns = ["partition", "offset", "key", "value", "timestamp", "headers"]
        new = self.topic.records(from_offsets=dict(enumerate(self.seen)), columns=columns).to_pylist()
        for row in new:
            self.seen[row["partition"]] = row["offset"] + 1
            self.records.append(
                Appended(row["partition"], row["offset"], row["key"], row["value"], row["timestamp"], row["headers"], transaction)
            )
        shown = " ".join(
            f"{row['partition']}:{row['offset']} {row['key']!r}@{(row['timestamp'] - _EPOCH) // _MS - T0} {row['value']!r}" for row in new
        )
        self.lines.append(f"{what}  {shown}")

    def _clean(self) -> None:
        if self.takes_keyless:
            self.takes_keyless = False
            self.topic.alter_config({"cleanup.policy": self.policy})
        self.topic.roll()
        if self.chance.random() < 0.3:
            self.now_ms += 2 * DAY_MS
        at(self.now_ms, self.topic).clean()
        self.lines.append(f"clean at {self.now_ms - T0}")

    def _delete_records(self) -> None:
        if self.policy == "compact":
            return
        partition = self.chance.randrange(self.partitions)
        start = self.chance.randint(self.starts[partition], max(self.starts[partition], self.seen[partition]))
        self.topic.delete_records({partition: start})
        self.starts[partition] = start
        self.lines.append(f"the log of {partition} starts at {start}")

    def _change_columns(self) -> None:
        name = self.chance.choice(list(_TYPES))
        if name in self.partition_by:  # a table that is written anew must have it
            return
        if name in self.columns and len(self.columns) > 1 and self.chance.random() < 0.4:
            del self.columns[name]
        else:
            self.columns[name] = self.chance.choice(_TYPES[name])
        self.lines.append(f"columns {self.columns}")

    # --- the table ----------------------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self._stepped(self.chance.choice(self.engines), "step")

    def _restart(self) -> None:
        self.engines[self.chance.randrange(2)] = self._engine()
        self.lines.append("restart")

    def _rebuild(self) -> None:
        self._stepped(self.chance.choice(self.engines), "rebuild", rebuild=True)

    def _die(self) -> None:
        """Step, and die at a moment."""
        number, point = self.chance.randrange(2), self.chance.choice(_CRASHES)

        def kill(reached: CrashPoint) -> None:
            if reached is point:
                raise Killed

        with hook(kill):
            self._stepped(self.engines[number], f"killed at {point.name}", rebuild=self.chance.random() < 0.2)
        self.engines[number] = self._engine()

    def _fail(self) -> None:
        """Step while the n-th flush or link fails, done or not; the same engine goes on."""
        what = self.chance.choice(("os.fsync", "os.link"))
        with failing(what, self.chance.randint(1, 4) if what == "os.fsync" else 1, done=self.chance.random() < 0.5):
            self._stepped(self.chance.choice(self.engines), f"failing {what}", rebuild=self.chance.random() < 0.2)

    def _race(self) -> None:
        """Step; the other engine steps in between."""
        point = self.chance.choice((CrashPoint.STEP_PLANNED, CrashPoint.TABLE_COMMIT_PUT))
        first, second = self.chance.sample(self.engines, 2)
        left = [1]

        def step(reached: CrashPoint) -> None:
            if reached is point and left.pop() if left else False:
                with hook(lambda _: None):
                    self._append()
                    self._stepped(second, "the other one")
                    if self.chance.random() < 0.5:
                        DeltaTable(self.location).create_checkpoint()

        with hook(step):
            self._stepped(first, f"raced at {point.name}")

    def _keep_up(self) -> None:
        """Merge files, write checkpoints, and delete what nobody needs, now or in two days."""
        if self.position is None:
            return
        done = self.chance.choice(self.engines).upkeep(now_ms=int(time.time() * 1000) + self.chance.choice((0, 2 * DAY_MS)))
        self.lines.append(str(done))
        self._catch_up(set())
        self._check("upkeep")

    def _erase(self) -> None:
        """Erase a key that the log may still have: a later rebuild brings it back."""
        keys = sorted({key for _, key in self.rows})
        if not keys:
            return
        key = self.chance.choice(keys)
        done = self.chance.choice(self.engines).erase(key, kept={})
        assert not done.left
        self.lines.append(f"erase {key!r}: {done}")
        self._catch_up(set())
        for partition in range(self.partitions):
            self.rows.pop((partition, key), None)
        self._check("erase")

    def _let_others_write(self) -> None:
        if self.position is None:
            return
        what = self.chance.choice(("compact", "z_order", "transaction", "checkpoint", "clean log", "vacuum"))
        self.lines.append(what)
        if what == "compact":
            DeltaTable(self.location).optimize.compact()
        elif what == "z_order":
            DeltaTable(self.location).optimize.z_order(["_key"])
        elif what == "transaction":
            commit_a_transaction(self.location)
        elif what == "vacuum":
            DeltaTable(self.location).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        else:
            DeltaTable(self.location).create_checkpoint()
            if what == "clean log":
                forget_old_commits(self.location)
        self._check(what)

    def _stepped(self, engine: MaterializedTable, what: str, *, rebuild: bool = False) -> None:
        """Step or rebuild with an engine, whatever becomes of it; then the table is what the model says at its position."""
        position = self.position
        try:
            done = engine.rebuild() if rebuild else engine.step()
            said = "nothing new" if done is None else f"{done.kind} {done.position.offsets}"
        except (Killed, OSError, CommitStateUnknown) as error:
            said = repr(error)
        except ReaderBehind:
            self._check_behind(position)
            self.lines.append(f"{what}: behind")
            self._stepped(engine, "rebuild, as it is behind", rebuild=True)
            return
        self.lines.append(f"{what}: {said}")
        self._catch_up(self._offsets_there() if self.history or self.isolation != "read_committed" else set())
        self._check(f"{what}: {said}")

    def _check_behind(self, position: tuple[int, ...] | None) -> None:
        assert position is not None
        assert self._lost_tombstones(position), "nothing was lost"

    def _offsets_there(self) -> set[tuple[int, int]]:
        found = self.topic.records(columns=["partition", "offset"])
        return set(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))

    def _lost_tombstones(self, position: tuple[int, ...]) -> bool:
        there = self._offsets_there()
        return any(at < start for at, start in zip(position, self.starts, strict=True)) or any(
            one.value is None and one.offset >= position[one.partition] and (one.partition, one.offset) not in there for one in self.records
        )

    # --- the model ----------------------------------------------------------------------------------------------------------------------

    def _catch_up(self, there: set[tuple[int, int]]) -> None:
        """Do what each commit of ours says that it did; `there` are the records that the log still had."""
        if not Path(self.location, "_delta_log").is_dir():
            return
        topic_id = self.topic.log.decisions().topic_id
        for version in versions(self.location):
            if version <= self.version:
                continue
            self.version = version
            actions = actions_of(self.location, version)
            (info,) = (one["commitInfo"] for one in actions if "commitInfo" in one)
            kind = json.loads(info["userMetadata"])["kind"] if "userMetadata" in info else ""
            if kind in {"table-bootstrap", "table-rebuild", "table-step"}:
                offsets = {one["txn"]["appId"]: one["txn"]["version"] for one in actions if "txn" in one}
                names = [f"lastword-table/{topic_id}/{partition}" for partition in range(self.partitions)]
                self._advance(tuple(offsets[name] for name in names), is_new=kind != "table-step", there=there)

    def _advance(self, after: tuple[int, ...], *, is_new: bool, there: set[tuple[int, int]]) -> None:
        if is_new:
            self.rows = {}
            newest = {(one.partition, one.key): one for one in self._committed(tuple(self.starts), after, there)}
            take = sorted(newest.values(), key=lambda one: (one.partition, one.offset))
        else:
            assert self.position is not None
            assert all(new >= old for new, old in zip(after, self.position, strict=True))
            new = self._committed(self.position, after, there)
            take = [one for one in new if not self.history or (one.partition, one.offset) in there]
        self.position = after
        for one in take:
            self._apply(one)

    def _committed(self, begin: tuple[int, ...], end: tuple[int, ...], there: set[tuple[int, int]]) -> list[Appended]:
        """Return the records in a range that a reader sees; who reads what was aborted sees it until cleaning takes it."""
        found = [one for one in self.records if begin[one.partition] <= one.offset < end[one.partition] and one.key is not None]
        if self.isolation == "read_committed":
            return [one for one in found if one.transaction not in self.aborted]
        return [one for one in found if one.transaction is None or (one.partition, one.offset) in there]

    def _apply(self, one: Appended) -> None:
        assert one.key is not None
        mine = self.rows.setdefault((one.partition, one.key), [])
        if not self.history:
            mine.clear()
        begin = one.time
        if mine:
            last = mine[-1]
            if last.end is None:
                last.end = max(one.time, last.begin)
            begin = max(begin, last.end)
        if one.value is not None and not self._is_dropped(one.value):
            mine.append(Row(self._cells(one), begin))

    def _is_dropped(self, value: bytes) -> bool:
        """Tell whether a record is a dead letter: a column of it does not fit, or is an empty text that the table is partitioned by."""
        row = json.loads(value)
        is_misfit = ("n" in self.columns and row.get("n") == "bad") or ("text" in self.partition_by and row.get("text") == "")
        return self.mode == "DROPMALFORMED" and is_misfit

    def _cells(self, one: Appended) -> dict[str, Any]:
        cells: dict[str, Any] = {"_partition": one.partition}
        record = {"_offset": one.offset, "_timestamp": one.time, "_headers": one.headers}
        cells |= {name: record[name] for name in (*self.record_columns, *(("_offset",) if self.history else ()))}
        value, key = json.loads(one.value or b"{}"), dict(self.key_cells(one.key or b""))
        types = dict(part.strip().split(" ", 1) for part in self._ddl_parts())
        given = {**({} if self.form.in_value else key), **{name: value.get(name) for name in value}}
        names = [*types, *self.columns]
        if "text" in self.partition_by and given.get("text") == "":
            given["text"] = None
        return {**{name: decoded(given.get(name), {**types, **self.columns}[name]) for name in names}, **cells}

    def _ddl_parts(self) -> list[str]:
        return self.form.ddl.replace("(10,2)", "(10;2)").split(",")

    def key_cells(self, key: bytes) -> dict[str, Any]:
        """Return what a key says of its columns."""
        if self.form.is_text:
            return {"id": json.loads(key) if "bigint" in self.form.ddl else key if "binary" in self.form.ddl else key.decode()}
        found: dict[str, Any] = json.loads(key)
        return found

    # --- what the table has -------------------------------------------------------------------------------------------------------------

    def _check(self, what: str) -> None:
        if self.position is None:
            return
        name = self.chance.choice(("polars", "polars", "polars", "duckdb", "delta-rs"))
        found = [self._identified(row) for row in READERS[name](self.location).to_pylist()]
        wanted = []
        for (_, key), rows in self.rows.items():
            for row in rows:
                cells = dict(row.cells)
                if self.history:
                    cells |= {"_valid_from": row.begin, "_valid_to": row.end, "_is_current": row.end is None}
                wanted.append((key, cells))
        names = {name for _, cells in found for name in cells}
        complete = [(key, {**dict.fromkeys(names), **cells}) for key, cells in wanted]
        shown = sorted(map(_line, found)), sorted(map(_line, complete))
        assert shown[0] == shown[1], f"{what}, read by {name}:\n  table {_list(shown[0])}\n  model {_list(shown[1])}\n{self.picture()}"

    def _identified(self, row: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        key = row.pop("_key")
        return (self._canonical(row) if key is None else key), row

    def _canonical(self, row: dict[str, Any]) -> bytes:
        """Return the key that the columns of a row stand for."""
        types = dict(part.strip().split(" ", 1) for part in self._ddl_parts())
        cells = {name: _as_key(row[name], is_text=self.form.is_text) for name in types}
        if self.form.is_text:
            alone: bytes = cells["id"]
            return alone
        text = json.dumps({name: cells[name] for name in sorted(cells)}, separators=(",", ":"), ensure_ascii=False)
        return text.encode()


def decoded(value: Any, kind: str) -> Any:
    """Return a value in JSON as a column of a type has it; one that does not fit is null."""
    if value is None or (kind in {"bigint", "int", "double"} and isinstance(value, str)):
        return None
    if kind.startswith("decimal"):
        return Decimal(str(value)).quantize(Decimal("0.01"))
    if kind == "date":
        return date.fromisoformat(value)
    if kind.startswith("timestamp"):
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return moment if kind == "timestamp" else moment.replace(tzinfo=None)
    return float(value) if kind == "double" else value


def _as_key(value: Any, *, is_text: bool) -> Any:
    if isinstance(value, Decimal):
        text = f"{value:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, date):
        return value.isoformat()
    if is_text:
        return value if isinstance(value, bytes) else str(value).encode()
    return value


def _line(row: tuple[bytes, dict[str, Any]]) -> str:
    key, cells = row
    return f"{key!r} {' '.join(f'{name}={_shown(cells[name])}' for name in sorted(cells))}"


def _shown(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return str(value.astimezone(timezone.utc))
    return repr(value)


def _list(lines: list[str]) -> str:
    return "".join(f"\n    {line}" for line in lines)


@contextmanager
def failing(what: str, nth: int, *, done: bool) -> Iterator[None]:
    """Let the n-th call of a function of `os` fail, after it was done or instead of it."""
    import os  # noqa: PLC0415

    name = what.removeprefix("os.")
    real, calls = getattr(os, name), [0]

    def call(*args: Any, **given: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth and not done:
            raise OSError(5, "Input/output error")
        answer = real(*args, **given)
        if calls[0] == nth:
            raise OSError(5, "Input/output error")
        return answer

    with ExitStack() as stack:
        stack.enter_context(mock.patch(what, call))
        yield
