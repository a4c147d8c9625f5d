"""What is done to a topic while its files fail, and what must hold then: each verb ends as if nothing had been, or says that it did not.

```
 a topic as it is      ──── verb ────────────────►  the answer, and the topic, of an uninterrupted run
      │  copied for each n
      └─ verb, n-th call fails ─► the same answer, or one error ─► the verb again ─► the same answer and topic
```
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lastword import LogDir
from lastword.compaction.errors import CommitStateUnknown, PurgeIncomplete
from lastword.storage.append.append import append_rows
from lastword.storage.append.requests import AppendStats, MicroBatch
from lastword.storage.append.writing import ArrowRows
from lastword.storage.files.data_reader import read_columns
from lastword.storage.files.schema import DATA_SCHEMA
from lastword.storage.log import upkeep
from lastword.storage.log.limits import UpkeepLimits
from tests.change_events import append, change

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from lastword import ArrowTopic

TOPIC: Final = "fruit"
#: A topic of change events.
ORDERS: Final = "orders"
#: What the time is, always.
NOW_MS: Final = 1_700_000_000_000
_PARTITIONS: Final = 2
_CONFIG: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": -1,
    "min.cleanable.dirty.ratio": 0.01,
    "segment.bytes": "1MiB",
}


def opened(location: str, options: Mapping[str, str] | None = None) -> LogDir[ArrowTopic]:
    """Return a log.dir as a new process opens it."""
    return LogDir(location, storage_options=options or {}, clock=lambda: NOW_MS)


def rows(picture: str, partition: int | None = None, **columns: Any) -> pa.Table:
    """Return rows as `key=value key=value`; `key=` is a tombstone."""
    pairs = [word.split("=") for word in picture.split()]
    found = {
        "key": pa.array([key for key, _ in pairs], pa.string()),
        "value": pa.array([value or None for _, value in pairs], pa.string()),
        "timestamp": pa.array([NOW_MS] * len(pairs), pa.int64()),
    }
    if partition is not None:
        found["partition"] = pa.array([partition] * len(pairs), pa.int32())
    return pa.table({**found, **columns})


def make_topic(location: str, options: Mapping[str, str] | None = None) -> None:
    """Make a topic that has something of everything: transactions, clean and dirty segments, a log start, dead letters, a checkpoint."""
    topic = opened(location, options).create_topic(TOPIC, partitions=_PARTITIONS, config=_CONFIG)
    for partition in range(_PARTITIONS):
        topic.append(rows("apple=1 lime=1 apple=2 plum=1 gone=1 gone=", partition))
    with topic.transaction("till") as transaction:
        transaction.append(rows("fig=1 kiwi=1"))
    topic.roll()
    topic.clean(force=True)
    topic.delete_records({1: 1})
    upkeep.checkpoint(topic.log, limits=UpkeepLimits(checkpoint_commits=1))
    topic.append(rows("lime=3 nut=1", 0))
    topic.append(rows("lime=3 nut=1", 1))
    topic.transaction("till").append(rows("fig=spoilt"))
    topic.transaction("till").abort()  # the next instance aborts what the one before has left
    topic.roll()
    topic.append(rows("apple=4 pear=1", 0))
    batch = MicroBatch(query_id="q", query_name="orders", batch_id=0)
    refused = pa.table({"key": pa.array([None, "pear"], pa.string()), "value": pa.array(["x", "2"], pa.string())})
    append_rows(topic.log, ArrowRows(refused), now_ms=NOW_MS, stats=AppendStats(), micro_batch=batch)
    orders = opened(location, options).create_topic(ORDERS, partitions=_PARTITIONS, config=_CONFIG)
    append(orders, *(change("c", one, 10 + one, {"id": one, "text": f"long {one}"}) for one in range(4)))
    orders.roll()
    append(orders, change("u", 1, 30, {"id": 1, "text": "longer"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """Something that is done with a log.dir; what it answers is compared where it is the same however often it was tried before.

    `keeps_offsets`: another try leaves no rows of its own behind. `reports` tells by the answer of a run without an error whether it left
    something undone, and said so.
    """

    run: Callable[[LogDir[ArrowTopic]], Any]
    answers: bool = True
    keeps_offsets: bool = True
    reports: Callable[[Any], bool] = lambda _: False


def _on(run: Callable[[ArrowTopic], Any], **given: Any) -> Verb:
    return Verb(run=lambda logs: run(logs.topic(TOPIC)), **given)


def _transact(topic: ArrowTopic, *, commit: bool) -> None:
    transaction = topic.transaction("till")
    transaction.append(rows("apple=5 fig=5"))
    transaction.commit() if commit else transaction.abort()


def _abort_for_another(topic: ArrowTopic) -> list[int]:
    transaction = topic.transaction("left")
    transaction.append(rows("apple=6 fig=6"))
    ended = [topic.abort_transaction(one.producer_id) for one in topic.open_transactions()]
    return [len(one.ranges) for one in ended]


def _append_events(logs: LogDir[ArrowTopic]) -> None:
    """Append a late event, one that leaves a column out, and a deletion."""
    left_out = {"id": 2, "text": "__debezium_unavailable_value"}
    events = change("u", 1, 20, {"id": 1, "text": "late"}), change("u", 2, 31, left_out), change("d", 3, 32, before={"id": 3})
    append(logs.topic(ORDERS), *events)


def _checkpoint(topic: ArrowTopic) -> None:
    upkeep.checkpoint(topic.log, limits=UpkeepLimits(checkpoint_commits=1))


def _verified(topic: ArrowTopic) -> Any:
    """Return the problems; that files cannot be read is told of a storage that fails, and an answer."""
    problems = topic.verify().problems
    for problem in problems:
        if "cannot be read" in problem:
            raise OSError(errno.EIO, problem)
    return problems


def _explained(topic: ArrowTopic) -> Any:
    """Return what holds cleaning back; that a partition cannot be read is told of a storage that fails, and an answer."""
    reports = topic.explain()
    for one in reports:
        if one.uncleanable_reason:
            raise OSError(errno.EIO, one.uncleanable_reason)
    return [(one.partition, one.obstacle) for one in reports]


def _cleaned(topic: ArrowTopic) -> ArrowTopic:
    topic.clean(force=True)
    return topic


def _is_left(topic: ArrowTopic) -> bool:
    """Tell whether partitions were not cleaned: one does not hold the others, so `explain` says it."""
    return any(one.uncleanable_reason or one.failure for one in topic.explain())


def _described(topic: ArrowTopic) -> Any:
    return [
        (one.partition, one.log_start_offset, one.last_stable_offset, one.log_end_offset, one.record_count, len(one.segments), one.active)
        for one in topic.describe().partitions
    ]


READS: Final = {
    "topics": Verb(run=lambda logs: logs.topics()),
    "latest": _on(lambda topic: topic.latest().to_pylist()),
    "latest of keys": _on(lambda topic: topic.latest(keys=["lime"], partitions=[1]).to_pylist()),
    "scan_latest": _on(lambda topic: topic.collect_latest(lambda scan: scan.sort("partition", "offset").collect().to_dicts())),
    "records": _on(lambda topic: topic.records(include_control=True).to_pylist()),
    "read_committed": _on(lambda topic: topic.records(isolation="read_committed").to_pylist()),
    "as_of": _on(lambda topic: topic.latest(as_of={0: 9, 1: 9}).to_pylist()),
    "changes": _on(lambda topic: topic.changes({0: 8, 1: 8}, {0: 12, 1: 10}).to_pylist()),
    "bootstrap": _on(lambda topic: topic.bootstrap().rows.to_pylist()),
    "dead_letters": _on(lambda topic: topic.dead_letters().drop_columns(["refused_at"]).to_pylist()),
    "describe": _on(_described),
    "explain": _on(_explained),
    "offsets": _on(lambda topic: topic.offsets()),
    "open_transactions": _on(lambda topic: topic.open_transactions()),
    "receipts": _on(lambda topic: [(one.partition, one.end_offset) for one in topic.receipts()]),
    "verify": _on(_verified),
}
WRITES: Final = {
    "create": Verb(run=lambda logs: logs.create_topic("nuts", partitions=2).name),
    "append": _on(lambda topic: topic.append(rows("apple=5 fig=5")).record_count),
    "append with a key": _on(lambda topic: topic.append(rows("apple=5 fig=5"), idempotency_key="k").replayed, answers=False),
    "commit": _on(lambda topic: _transact(topic, commit=True), keeps_offsets=False),
    "abort": _on(lambda topic: _transact(topic, commit=False), keeps_offsets=False),
    "abort for another": _on(_abort_for_another, keeps_offsets=False),
    "change events": Verb(run=_append_events, answers=False),
    "clean": _on(_cleaned, answers=False, reports=_is_left),
    "retention": _on(lambda topic: topic.apply_retention(), answers=False),
    "delete_records": _on(lambda topic: (topic.delete_records({0: 8}), topic.apply_retention())[0]),
    "purge": _on(lambda topic: topic.purge("apple").kept, keeps_offsets=False),
    "alter": _on(lambda topic: topic.alter_config({"retention.ms": "9d"}).retention_ms),
    "pause": _on(lambda topic: topic.pause()),
    "roll": _on(lambda topic: topic.roll(), answers=False),
    "vacuum": _on(lambda topic: upkeep.vacuum(topic.log, now_ms=NOW_MS, orphans=True)),
    "checkpoint": _on(_checkpoint),
    "compact_ledger": _on(
        lambda topic: upkeep.compact_ledger(topic.log, now_ms=NOW_MS, id_expiration_ms=10**12, least_files=1), answers=False
    ),
    "delete": Verb(run=lambda logs: logs.delete_topic(TOPIC)),
}
#: Verbs that double something when they are repeated although they were done, and those that are done whole or not at all.
_ONCE: Final = frozenset({"append"})
_WHOLE: Final = frozenset({"append", "append with a key", "alter", "roll", "create"})


def content(location: str, options: Mapping[str, str] | None = None, *, offsets: bool = True) -> Any:
    """Return what a log.dir holds, as far as it is the same however it came about; raises if a topic is not as it should be."""
    found: dict[str, Any] = {}
    logs = opened(location, options)
    for name in logs.topics():
        topic = logs.topic(name)
        topic.log.sync_ledger_with_history()
        report = topic.verify()
        assert report.ok, report.problems
        decisions = topic.log.decisions()
        found[name] = {
            "latest": [
                (row["partition"], row["key"], row["value"]) for row in topic.latest(columns=["partition", "key", "value"]).to_pylist()
            ],
            "overrides": dict(decisions.overrides),
            "starts": decisions.log_start_offsets(),
            "paused": dict(decisions.pauses),
            "letters": len(topic.dead_letters()),
            "open": [one.transactional_id for one in topic.open_transactions()],
        }
        if not offsets:
            found[name]["latest"].sort()
            continue
        files = topic.log.snapshot().files
        found[name] |= {
            "rows": [
                row
                for path in files.path.tolist()
                for row in read_columns(topic.log.paths.log, topic.log.storage_options, path, DATA_SCHEMA.names).to_pylist()
            ],
            "segments": [(one.partition, one.label, one.record_count) for one in topic.log.snapshot().segments()],
            "checkpoints": [decisions.cleaner_checkpoint(one) for one in range(decisions.partitions)],
            "receipts": [
                (one.partition, one.end_offset, one.removed_count)
                for one in sorted(topic.receipts(), key=lambda one: (one.table_version or 0, one.partition))
            ],
            "rolled": [decisions.closed_offset(one, 10**9) for one in range(decisions.partitions)],
        }
    return found


def fault_of(error: Exception) -> str:
    """Return what is wrong with how a fault was told; the empty text if nothing is."""
    if isinstance(error, (CommitStateUnknown, PurgeIncomplete)):
        return ""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and (type(error) is not OSError or error.errno is not None):
        return ""
    return f"told as {type(error).__name__}: {error}"


class Trials:
    """One verb, tried again and again on copies of the same log.dir."""

    def __init__(self, name: str, copied: Callable[[], str], options: Mapping[str, str] | None = None) -> None:
        """Run it uninterrupted; `copied` makes a copy of the log.dir, for a verb that writes, and returns where it lies."""
        self.name, self._copied, self._options = name, copied, options or {}
        self._writes = name in WRITES
        self._verb = {**READS, **WRITES}[name]
        self._place = copied()
        self._before = self._content()
        self._answer = self._verb.run(opened(self._place, self._options))
        self._after = self._content()

    def _content(self) -> Any:
        return content(self._place, self._options, offsets=self._verb.keeps_offsets) if self._writes else None

    def run(self, place: str) -> None:
        """Run it where nothing fails."""
        self._verb.run(opened(place, self._options))

    def faulty(self, failing: Callable[[str], AbstractContextManager[object]], options: Mapping[str, str] | None = None) -> list[str]:
        """Run it on a copy while `failing(place)` lets something fail, then without; return what is not as it should be."""
        if self._writes:
            self._place = self._copied()
        logs = opened(self._place, options or self._options)
        try:
            with failing(self._place):
                answer = self._verb.run(logs)
        except Exception as error:  # noqa: BLE001  every error is judged
            wrong = fault_of(error)
            return ([wrong] if wrong else []) + self._repeated(error, logs if options is None else opened(self._place, self._options))
        problems = [] if not self._verb.answers or answer == self._answer else [f"a wrong answer: {answer}, for {self._answer}"]
        if self._content() != self._after:
            if not problems and self._verb.reports(answer):
                return self._repeated(OSError(errno.EIO, "reported"), logs)
            problems.append("no error, and another topic")
        return problems

    def _repeated(self, error: Exception, logs: LogDir[ArrowTopic]) -> list[str]:
        """Return what is not as it should be after the same verb, now that nothing fails: by who had the error, and so knows it."""
        now = self._content()
        if now == self._after and now != self._before:
            known = isinstance(error, CommitStateUnknown) or self.name not in _ONCE
            return [] if known else [f"done, and said not to be: {error}"]
        if self.name in _WHOLE and now != self._before:
            return [f"a part was done: {error}"]
        answer = self._verb.run(logs)
        if self._verb.answers and answer != self._answer:
            return [f"another answer, repeated after {error!r}: {answer}, for {self._answer}"]
        return [] if self._content() == self._after else [f"another topic, repeated after {error!r}"]
