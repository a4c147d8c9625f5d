"""What the cleaner query does at a tick: every topic is cleaned, shortened and kept tidy, several topics side by side.

```
 tick ─► topic by topic, `log.cleaner.threads` at a time
           look at transactions that hang          end them
           rounds, until nothing is eligible       throttled together
           retention                               each tick; of topics without compact each log.retention.check.interval.ms
           small files of closed segments          of topics without compact, then too
           VACUUM, dead letters, ledger            each hour
```

A topic that fails is logged and counted, and the others go on; an unknown state of a commit stops the query.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from compaction.config_keys import DAY_MS, HOUR_MS, SECOND_MS
from compaction.errors import CommitStateUnknown, LastwordError, UnknownTopic, first_line
from compaction.throttle import Throttle
from storage import transactions
from storage.upkeep import compact_ledger, expire_dead_letters, vacuum
from streaming import metrics
from streaming.events import logger
from streaming.ticker import CLEANER_POOL, with_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from compaction.config import ServiceConfig
    from storage.topic_log import TopicLog
    from streaming.cleaner import Cleaner

#: Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms.
_HANGING_MS: Final = 10 * SECOND_MS
_LOG: Final = logger("cleaner")


@dataclass(slots=True)
class Tended:
    """What the cleaner has done since the service started."""

    ticks: int = 0
    rounds: int = 0
    failures: int = 0
    last_failure: str | None = None
    last_tick_ms: int | None = None


@dataclass(slots=True)
class _Due:
    """When something is done again for a topic, in milliseconds; `delay_ms` is how long a topic that is new here waits."""

    delay_ms: int
    hanging_ms: int = 0
    retention_ms: int = 0
    upkeep_ms: int = 0
    orphans_ms: int = 0

    def passed(self, what: str, now_ms: int, interval_ms: int) -> bool:
        """Tell whether something is due, and see to it that it is due again after an interval; a clock put back puts nothing off."""
        if 0 < getattr(self, what) - now_ms <= max(interval_ms, self.delay_ms):
            return False
        setattr(self, what, now_ms + interval_ms)
        return True


@dataclass(slots=True)
class Tending:
    """One cleaner for the topics of a log.dir, called tick by tick."""

    spark: SparkSession
    cleaner: Cleaner
    config: ServiceConfig
    topics: Callable[[], Sequence[TopicLog]]
    clock_ms: Callable[[], int]
    stop: threading.Event = field(default_factory=threading.Event)
    tended: Tended = field(default_factory=Tended)
    _in_hand: threading.Lock = field(default_factory=threading.Lock)
    _due: dict[str, _Due] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _throttle: Throttle | None = None

    def tick(self) -> None:
        """Tend every topic; return when nothing is left to clean, or soon after `stop` was set."""
        with self._in_hand:
            if not self.stop.is_set():
                self._tick()

    def finish(self) -> None:
        """Wait for the tick in hand; `stop` is set, so that it ends after the swap in hand and no other begins."""
        with self._in_hand:
            pass

    def _tick(self) -> None:
        logs = list(self.topics())
        self._due = {log.paths.root: self._due.get(log.paths.root, self._first_due()) for log in logs}
        with ThreadPoolExecutor(max_workers=self.config.log_cleaner_threads, thread_name_prefix="cleaner") as threads:
            for failure in threads.map(self._tend, logs):
                if isinstance(failure, CommitStateUnknown):
                    raise failure
        self.tended.ticks += 1
        self.tended.last_tick_ms = self.clock_ms()
        metrics.LAST_RUN.set(self.tended.last_tick_ms / 1000)

    def _first_due(self) -> _Due:
        delay_ms = self.config.log_initial_task_delay_ms
        first_ms = self.clock_ms() + delay_ms
        return _Due(delay_ms=delay_ms, retention_ms=first_ms, upkeep_ms=first_ms)

    def _tend(self, log: TopicLog) -> Exception | None:
        """Tend one topic; return what went wrong."""
        if self.stop.is_set():
            return None
        with_pool(self.spark, CLEANER_POOL)
        try:
            self._end_hanging_transactions(log)
            self._clean(log)
            self._retain(log)
            self._keep_tidy(log)
        except UnknownTopic:
            self.cleaner.forget(log)
        except Exception as error:  # noqa: BLE001  one topic must not hold up the others
            metrics.TENDING_FAILURES.labels(log.name).inc()
            with self._lock:
                self.tended.failures += 1
                self.tended.last_failure = str(error)
            shown = str(error) if isinstance(error, LastwordError) else first_line(error)
            _LOG.error("topic could not be tended", topic=log.name, error=shown)
            return error
        return None

    def _end_hanging_transactions(self, log: TopicLog) -> None:
        """End what has been open for too long, so that one dead writer does not hold back readers and cleaner for ever."""
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        if not due.passed("hanging_ms", now_ms, _HANGING_MS):
            return
        for one in log.open_transactions(self.spark):
            if one.hangs(now_ms):
                transactions.end_for_others(log, self.spark, one, now_ms=now_ms)
                metrics.HANGING_ENDED.labels(log.name).inc()
                _LOG.warning(
                    "hanging transaction ended",
                    topic=log.name,
                    producer_id=one.producer_id,
                    transactional_id=one.transactional_id,
                    partitions=sorted(one.first_offsets),
                    timeout_ms=one.timeout_ms,
                )

    def _clean(self, log: TopicLog) -> None:
        """Run rounds until nothing is eligible, or a round changed nothing."""
        if not log.config().compacted:
            return
        throttle = self._shared_throttle()
        while not self.stop.is_set():
            self._wait(throttle)
            started_ms = time.monotonic() * 1000
            receipts = self.cleaner.clean(log, self.spark, now_ms=self.clock_ms(), most_bytes=throttle.round_bytes)
            if not receipts:
                return
            with self._lock:
                self.tended.rounds += 1
                throttle.observe(sum(one.read_bytes + (one.bytes_after or 0) for one in receipts), started_ms)
            if not any(one.removed_count or one.end_offset > one.first_dirty_offset for one in receipts):
                return

    def _shared_throttle(self) -> Throttle:
        with self._lock:
            if self._throttle is None:
                self._throttle = Throttle(self.config.log_cleaner_io_max_bytes_per_second)
            return self._throttle

    def _wait(self, throttle: Throttle) -> None:
        with self._lock:
            wait_ms = throttle.wait_ms(time.monotonic() * 1000)
        if wait_ms > 0:
            self.stop.wait(wait_ms / 1000)

    def _retain(self, log: TopicLog) -> None:
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        compacted = log.config().compacted
        if self.stop.is_set() or not (due.passed("retention_ms", now_ms, self.config.log_retention_check_interval_ms) or compacted):
            return
        self.cleaner.apply_retention(log, self.spark, now_ms=now_ms)
        if not compacted:
            self.cleaner.merge(log, self.spark, now_ms=now_ms)

    def _keep_tidy(self, log: TopicLog) -> None:
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        if self.stop.is_set() or not due.passed("upkeep_ms", now_ms, HOUR_MS):
            return
        with log.turn():  # nothing else writes dead letters meanwhile: a purge sweeps their files in its turn
            expire_dead_letters(log, self.spark, now_ms=now_ms, retention_ms=self.config.dead_letter_retention_ms)
        orphans = due.passed("orphans_ms", now_ms, DAY_MS)
        try:
            with metrics.VACUUM_SECONDS.labels(log.name).time():
                vacuum(log, self.spark, now_ms=now_ms, orphans=orphans)
        except Exception:
            due.orphans_ms = 0 if orphans else due.orphans_ms
            raise
        metrics.VACUUM_LAST_RUN.labels(log.name).set(self.clock_ms() / 1000)
        compact_ledger(log, now_ms=now_ms)
