"""Random histories of a topic, lived through twice: by a topic and by the executable specification, compared after each step.

Every partition of a topic is a history of its own. `Lives` says what happens; its subclasses append to the topic and read it, with Spark
or without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from lastword.compaction.planning.offset_map import BYTES_PER_ENTRY
from lastword.storage.delta import crash_points
from lastword.storage.delta.crash_points import CrashPoint
from tests.clocks import at
from tests.divisions import DIVISIONS
from tests.model import ModelConfig, ModelTopic, Record
from tests.pictures import DAY_MS, HOUR_MS, T0, delete_records

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from lastword import LogDir, Topic
    from lastword.topics.description import TopicDescription

_KEYS: Final = tuple(f"k{number}".encode() for number in range(6))


_CRASHES: Final = (CrashPoint.OFFSET_MAP_BUILT, CrashPoint.CLEANING_PLANNED, CrashPoint.SWAP_COMMITTED, CrashPoint.RECEIPT_WRITTEN)


class Crash(BaseException):
    """The process is gone: no `except Exception` of it sees this."""


@contextmanager
def crashing(at: CrashPoint | None) -> Iterator[None]:
    """Crash where `at` is reached, if it is."""

    def reached(point: CrashPoint) -> None:
        if point is at:
            raise Crash

    with crash_points.hook(reached):
        yield


class Lives(ABC):
    """A topic and its model, living through the same history; a cleaning has one of some map budgets: `slots`."""

    #: The steps after which everything is compared.
    compared: ClassVar[frozenset[str]] = frozenset({"append", "clean", "retain", "purge", "merge"})

    def __init__(self, logs: LogDir, chance: random.Random, name: str, partitions: int, *, slots: Sequence[int] = (10_000,)) -> None:
        """Create the topic, and begin at `T0`."""
        self.logs, self.chance, self.slots = logs, chance, slots
        self.model = ModelTopic(partitions)
        self.model.config = ModelConfig(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.3, retention_ms=3 * DAY_MS)
        self.topic: Topic = logs.create_topic(
            name, partitions=partitions, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.3, "retention.ms": "3d"}
        )
        self.now_ms = T0
        self.sequences: dict[tuple[int, int], int] = {}
        self.done: list[str] = []

    def append(self) -> None:
        """Append plain records and rows of two transactional producers, in random partitions, in one commit."""
        drawn = [self._row(partition) for partition in range(self.model.partitions) for _ in range(self.chance.choice((0, 1, 4)))]
        if drawn:
            self.appended(drawn)

    @abstractmethod
    def appended(self, drawn: Sequence[tuple[Any, ...]]) -> None:
        """Append to the topic what the model has appended: rows of partition, key, value, timestamp and the columns of a producer."""

    @abstractmethod
    def opened(self) -> LogDir:
        """Return the log.dir as a new process opens it."""

    @abstractmethod
    def rows(self) -> dict[int, list[Record]]:
        """Return every row of the log table by partition, as the model writes it."""

    @abstractmethod
    def words(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        """Return `latest()`: offset and value by partition and key."""

    def _row(self, partition: int) -> tuple[Any, ...]:
        keyless = () if "compact" in self.model.config.cleanup_policy else (None,)
        key, value = self.chance.choice((*_KEYS, *keyless)), self.chance.choice((None, b"", b"v", b"w"))
        timestamp_ms = self.now_ms - self.chance.choice((0, 1, HOUR_MS))
        producer = self.chance.choice((None, None, 0, 1))
        if producer is None:
            self.model.append(partition, key, value, timestamp_ms, now_ms=self.now_ms)
            return partition, key, value, timestamp_ms, None, None, None, None, None
        is_open = producer in self.model.open_transactions(partition)
        control = self.chance.choice((None, "COMMIT", "ABORT")) if is_open else None
        transactional = is_open or self.chance.random() < 0.7
        sequence = None
        if control is None:
            if not self.model.is_active(partition, producer, self.now_ms):
                self.sequences[partition, producer] = -1
            sequence = self.sequences[partition, producer] = self.sequences.get((partition, producer), -1) + 1
        else:
            key, value = None, None
        verdict = self.model.offer(
            partition,
            key,
            value,
            producer_id=producer,
            epoch=0,
            sequence=sequence,
            transactional=transactional,
            control=control,
            timestamp_ms=timestamp_ms,
            now_ms=self.now_ms,
        )
        assert verdict == "accepted"
        return partition, key, value, timestamp_ms, producer, 0, sequence, transactional, control

    def roll(self) -> None:
        """Close the active segments of all partitions, or of one."""
        partition = self.chance.choice((None, None, self.chance.randrange(self.model.partitions)))
        at(self.now_ms, self.topic).roll(partition)
        for one in range(self.model.partitions) if partition is None else [partition]:
            self.model.roll(one)

    def advance(self) -> None:
        """Let time pass."""
        self.now_ms += self.chance.choice((1, HOUR_MS, DAY_MS, 2 * DAY_MS))

    def clean(self) -> None:
        """Clean what is eligible, or everything by force; now and then the process dies of it, and another one looks what came of that."""
        force = self.chance.random() < 0.5
        crash = self.chance.choice((None, None, None, *_CRASHES))
        before, version = self.model.latest(), self.topic.log.snapshot().version
        object.__setattr__(self.logs.service_config, "log_cleaner_dedupe_buffer_size", BYTES_PER_ENTRY * self.chance.choice(self.slots))
        self.logs.cleaner.limits = self.chance.choice(tuple(DIVISIONS.values()))
        try:
            with crashing(crash):
                found = at(self.now_ms, self.topic).clean(force=force)
            crash = None
        except Crash:
            self.done.append(f"crash at {crash}")
            self.restart()
            self.topic.log.sync_ledger_with_history()
            found = [one for one in self.topic.receipts() if (one.table_version or 0) > version]
        receipts = {one.partition: one for one in found}
        for partition in range(self.model.partitions):
            if crash is not None and partition not in receipts:
                continue
            rows = list(self.model.logs[partition])
            end = None
            if partition in receipts:
                end = receipts[partition].end_offset
                assert receipts[partition].rounds_left or end == max(self.model.dirty_range(partition, self.now_ms)), partition
            looked_at = self.model.clean(partition, self.now_ms, force=force, end_offset=end)
            if partition in receipts:
                assert looked_at, f"partition {partition} was cleaned and should not have been"
                gone = len(rows) - len(self.model.logs[partition])
                assert gone == receipts[partition].removed_count - receipts[partition].emptied, partition
            elif looked_at:
                assert self.model.logs[partition] == rows, f"partition {partition} should have been cleaned"
        assert self.model.latest() == before

    def merge(self) -> None:
        """Join the small files of closed segments, as of a topic without `compact`; no row changes."""
        policy = ",".join(self.model.config.cleanup_policy)
        at(self.now_ms, self.topic).alter_config({"cleanup.policy": "delete"})
        self.logs.cleaner.merge(self.topic.log, None, now_ms=self.now_ms)
        at(self.now_ms, self.topic).alter_config({"cleanup.policy": policy})

    def retain(self) -> None:
        """Let retention take what it takes; now and then the process dies of it, and the next one makes it good."""
        try:
            with crashing(self.chance.choice((None, CrashPoint.LOG_START_DECIDED, CrashPoint.SEGMENTS_REMOVED))):
                at(self.now_ms, self.topic).apply_retention()
        except Crash:
            self.done.append("crash of retention")
            self.restart()
            at(self.now_ms, self.topic).apply_retention()
        for partition in range(self.model.partitions):
            self.model.apply_retention(partition, self.now_ms)

    def purge(self) -> None:
        """Delete the records of one partition below a random offset; a log start that rises brings a pass of retention with it."""
        partition = self.chance.randrange(self.model.partitions)
        end = list(self.topic.log.at().log_end_offsets)[partition]
        offset = self.chance.randint(0, end)
        delete_records(at(self.now_ms, self.topic), {partition: offset})
        rises = offset > self.model.log_start_offsets[partition]
        self.model.delete_records(partition, offset)
        for one in range(self.model.partitions) if rises else ():
            self.model.apply_retention(one, self.now_ms)

    def reconfigure(self) -> None:
        """Change what the cleaner and retention go by, while everything lives."""
        policy = self.chance.choice(("compact", "compact", "compact,delete", "delete"))
        lag_ms = self.chance.choice((0, 0, HOUR_MS))
        retention_ms = self.chance.choice((HOUR_MS, DAY_MS))
        at(self.now_ms, self.topic).alter_config(
            {"cleanup.policy": policy, "min.compaction.lag.ms": lag_ms, "delete.retention.ms": retention_ms}
        )
        self.model.config = replace(
            self.model.config,
            cleanup_policy=frozenset(policy.split(",")),
            min_compaction_lag_ms=lag_ms,
            delete_retention_ms=retention_ms,
        )

    def restart(self) -> None:
        """Forget everything that is only in memory."""
        self.logs = self.opened()
        self.topic = self.logs.topic(self.topic.name)

    def adopt(self) -> TopicDescription:
        """Tell the model where segments begin and how large they are; return what the topic says of itself."""
        described = self.topic.describe()
        for one in described.partitions:
            self.model.adopt_segments(one.partition, {segment.label: segment.size_bytes for segment in one.segments})
        return described

    def compare(self) -> None:
        """Compare every row, the last word on every key, and where the log starts."""
        described = self.adopt()
        found = self.rows()
        for partition in range(self.model.partitions):
            assert found[partition] == self.model.logs[partition], f"partition {partition} after {self.done}"
        expected = self.model.latest()
        assert self.words() == {place: (record.offset, record.value) for place, record in expected.items()}, self.done
        assert {place: record.offset for place, record in self.model.last_words().items()} == {
            place: record.offset for place, record in expected.items()
        }
        assert [one.log_start_offset for one in described.partitions] == list(self.model.log_start_offsets.values())
        assert [one.last_stable_offset for one in described.partitions] == [
            self.model.last_stable_offset(one) for one in range(self.model.partitions)
        ]

    def live(self, steps: int) -> None:
        """Live through `steps` random steps, and compare after each."""
        weighted = {"append": 6, "roll": 3, "advance": 3, "clean": 6, "retain": 1, "purge": 1, "reconfigure": 2, "merge": 1, "restart": 1}
        for _ in range(steps):
            step = self.chance.choices(list(weighted), list(weighted.values()))[0]
            self.done.append(step)
            getattr(self, step)()
            if step in self.compared:
                self.compare()
