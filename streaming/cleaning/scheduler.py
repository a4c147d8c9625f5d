"""What the cleaner does at a tick: every topic is cleaned, shortened and kept tidy, several topics side by side.

```
 tick ─► plan every topic: which is the most urgent?
         topic by topic in that order, `log.cleaner.threads` at a time; who has more to do stands in line again
           look at transactions that hang          end them
           one pass over what is eligible          one rate for all
           retention                               each tick; of topics without compact each log.retention.check.interval.ms
           small files                             each log.retention.check.interval.ms, and on until they are merged
           a checkpoint of the Delta log           after a hundred commits, so that hardly an append writes one
           VACUUM, dead letters, producers, ledger each hour, of each topic at a minute of its own
           what crashes left behind (full VACUUM)  each day; the ledger knows when it was last, so a restart does not repeat it
```

No topic waits for another one to be clean: a tick begins nothing again after `log.cleaner.backoff.ms`, and the next one lists and orders
the topics anew. A topic that fails is logged and counted, and the others go on; an unknown state of a commit stops the query.
"""

from __future__ import annotations

import threading
import time
import zlib
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lastword.compaction.config.keys import DAY_MS, HOUR_MS, SECOND_MS
from lastword.compaction.errors import CommitConflict, CommitStateUnknown, LastwordError, UnknownTopic, first_line
from lastword.compaction.planning.planner import LEAST_URGENT
from lastword.compaction.planning.rate_limiter import RateLimiter
from lastword.storage.append import transactions
from lastword.storage.append.dead_letters import expire_dead_letters
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.log.limits import UPKEEP_LIMITS
from lastword.storage.log.upkeep import checkpoint, compact_ledger, vacuum
from lastword.streaming import metrics
from lastword.streaming.cleaning.rate_limit import SharedRate
from lastword.streaming.events import logger
from lastword.streaming.ticker import CLEANER_POOL, with_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from lastword.compaction.config.topic_config import ServiceConfig
    from lastword.compaction.planning.planner import Urgency
    from lastword.storage.log.limits import UpkeepLimits
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.cleaning.cleaner import Cleaner

#: Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms.
_HANGING_MS: Final = 10 * SECOND_MS
#: How often a tick that waits for its rounds looks whether something is due that must not wait for them.
_PROMPT_SECONDS: Final = 1.0
#: Files that crashes left behind, which a full VACUUM removes.
_ORPHANS: Final = "orphans"
_LOG: Final = logger("cleaner")


@dataclass(slots=True)
class MaintenanceCounts:
    """What the cleaner has done since the service started."""

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
    merge_ms: int = 0
    upkeep_ms: int = 0
    #: The table version of the newest checkpoint of the Delta log that is known here, or at which none could be written.
    checkpoint_version: int = 0
    compacted: bool = True

    def is_pressing(self, now_ms: int) -> bool:
        """Return True if work is due that does not wait for rounds of cleaning; reads no storage."""
        return self.hanging_ms <= now_ms or (not self.compacted and self.retention_ms <= now_ms)

    def take_if_due(self, what: str, now_ms: int, interval_ms: int) -> bool:
        """Return True if a task is due, which is due again after an interval then; a clock that is put back delays nothing."""
        if 0 < getattr(self, what) - now_ms <= max(interval_ms, self.delay_ms):
            return False
        setattr(self, what, now_ms + interval_ms)
        return True


@dataclass(slots=True)
class MaintenanceScheduler:
    """One cleaner for the topics of a log.dir, called tick by tick."""

    #: The session whose executors clean; None: threads of this process do.
    spark: SparkSession | None
    cleaner: Cleaner
    config: ServiceConfig
    topics: Callable[[], Sequence[TopicLog]]
    clock_ms: Callable[[], int]
    limits: UpkeepLimits = UPKEEP_LIMITS
    #: The time by which a tick ends, in seconds.
    monotonic: Callable[[], float] = time.monotonic
    stop: threading.Event = field(default_factory=threading.Event)
    counts: MaintenanceCounts = field(default_factory=MaintenanceCounts)
    rate: SharedRate = field(init=False)
    _in_hand: threading.Lock = field(default_factory=threading.Lock)
    _due: dict[str, _Due] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Begin with nothing spent."""
        self.rate = SharedRate(RateLimiter(self.config.log_cleaner_io_max_bytes_per_second), self.stop)

    def tick(self) -> None:
        """Tend every topic once, and again while there is more to do, but no longer than a tick is; return soon after `stop` was set."""
        with self._in_hand:
            if not self.stop.is_set():
                self._tick()

    def finish(self) -> None:
        """Wait for the tick in hand; `stop` is set, so that it ends after the swap in hand and no other begins."""
        with self._in_hand:
            pass

    def _tick(self) -> None:
        began = self.monotonic()
        logs = list(self.topics())
        self._due = {log.paths.root: self._due.get(log.paths.root, self._first_due(log.name)) for log in logs}
        with ThreadPoolExecutor(self.config.log_cleaner_threads, "cleaner", initializer=self._choose_pool) as threads:
            list(threads.map(self._keep_prompt, logs))
            urgency = dict(zip(logs, threads.map(self._urgency, logs), strict=True))
            running = {threads.submit(self._maintain, log): log for log in sorted(logs, key=urgency.__getitem__)}
            while running:
                for future in wait(running, _PROMPT_SECONDS, return_when=FIRST_COMPLETED).done:
                    log, more = running.pop(future), future.result()  # raises what leaves a commit in an unknown state
                    if more and (self.monotonic() - began) * 1000 < self.config.log_cleaner_backoff_ms:
                        running[threads.submit(self._maintain, log)] = log
                for log in logs:
                    if self._due[log.paths.root].is_pressing(self.clock_ms()):
                        self._keep_prompt(log)
        self.counts.last_tick_ms = self.clock_ms()
        metrics.LAST_RUN.set(self.counts.last_tick_ms / 1000)

    def _choose_pool(self) -> None:
        if self.spark is not None:
            with_pool(self.spark, CLEANER_POOL)

    def _urgency(self, log: TopicLog) -> Urgency:
        """Return how urgent a topic is: lowest priority if planning fails; the error is reported when the topic is processed."""
        if self.stop.is_set():
            return LEAST_URGENT
        try:
            return self.cleaner.plan(log, now_ms=self.clock_ms())[0].urgency
        except CommitStateUnknown:
            raise
        except Exception:  # noqa: BLE001  one topic must not hold up the others
            return LEAST_URGENT

    def _first_due(self, topic: str) -> _Due:
        """Return when work on a topic begins that is new here: upkeep is spread over the hour, so that many topics are not due at once."""
        now_ms, delay_ms = self.clock_ms(), self.config.log_initial_task_delay_ms
        upkeep_ms = now_ms + max(delay_ms, zlib.crc32(topic.encode()) % HOUR_MS)
        return _Due(delay_ms=delay_ms, retention_ms=now_ms + delay_ms, merge_ms=now_ms + delay_ms, upkeep_ms=upkeep_ms)

    def _keep_prompt(self, log: TopicLog) -> None:
        """Do for a topic what must not wait until a round of cleaning ends, its own or another topic's; only what is due."""
        self._run_for(log, self._promptly)

    def _promptly(self, log: TopicLog) -> bool:
        self._end_hanging_transactions(log)
        due = self._due[log.paths.root]
        due.compacted = log.config().compacted
        if not due.compacted:
            self._retain(log)
        return False

    def _maintain(self, log: TopicLog) -> bool:
        """Tend one topic; return whether there may be more to clean or to merge."""
        more = self._run_for(log, self._clean)
        more = self._run_for(log, self._merge) or more
        self._run_for(log, self._retain)
        self._run_for(log, self._checkpoint)
        self._run_for(log, self._keep_tidy)
        return more

    def _run_for(self, log: TopicLog, do: Callable[[TopicLog], object]) -> bool:
        """Do something for a topic and return what it says. What goes wrong is logged; raises `CommitStateUnknown`."""
        if self.stop.is_set():
            return False
        try:
            return bool(do(log))
        except UnknownTopic:
            self.cleaner.forget(log)
        except Exception as error:  # one topic must not hold up the others
            metrics.TENDING_FAILURES.labels(log.name).inc()
            with self._lock:
                self.counts.failures += 1
                self.counts.last_failure = str(error)
            shown = str(error) if isinstance(error, LastwordError) else first_line(error)
            _LOG.error("topic maintenance failed", topic=log.name, error=shown)
            if isinstance(error, CommitStateUnknown):
                raise
        return False

    def _end_hanging_transactions(self, log: TopicLog) -> None:
        """End what has been open for too long, so that one dead writer does not hold back readers and cleaner for ever."""
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        if not due.take_if_due("hanging_ms", now_ms, _HANGING_MS):
            return
        for transaction in transactions.end_hanging(log, now_ms=now_ms):
            metrics.HANGING_ENDED.labels(log.name).inc()
            _LOG.warning(
                "hanging transaction ended",
                topic=log.name,
                producer_id=transaction.producer_id,
                transactional_id=transaction.transactional_id,
                partitions=sorted(transaction.first_offsets),
                timeout_ms=transaction.timeout_ms,
            )

    def _clean(self, log: TopicLog) -> bool:
        """Clean what is eligible, or with a limit of bytes a second one round of it; return whether that changed anything."""
        if not log.config().compacted:
            return False
        self.rate.spend(0)  # before it is planned, so that the plan is no old one
        receipts = self.cleaner.clean(log, self.spark, clock_ms=self.clock_ms, rate=self.rate)
        if not receipts:
            return False
        with self._lock:
            self.counts.rounds += 1
        return any(receipt.removed_count or receipt.end_offset > receipt.first_dirty_offset for receipt in receipts)

    def _retain(self, log: TopicLog) -> None:
        """Let retention take what it takes; what a round of the topic holds at this moment would be left out, so that it stays due then."""
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        compacted = log.config().compacted
        if self.cleaner.locks.is_held(log):
            return
        if self.stop.is_set() or not (due.take_if_due("retention_ms", now_ms, self.config.log_retention_check_interval_ms) or compacted):
            return
        self.cleaner.apply_retention(log, now_ms=now_ms, heeds_claims=True)

    def _merge(self, log: TopicLog) -> bool:
        """Merge small files, about a segment of each partition; return whether there were any: then it is due again at once.

        That ends: what was merged is merged again only with what has been appended since.
        """
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        if self.stop.is_set() or not due.take_if_due("merge_ms", now_ms, self.config.log_retention_check_interval_ms):
            return False
        if not self.cleaner.merge(log, self.spark, now_ms=now_ms, rate=self.rate):
            return False
        due.merge_ms = 0
        return True

    def _checkpoint(self, log: TopicLog) -> None:
        """Write a checkpoint of the Delta log if it is due; who deletes the topic waits until it is written, as for a round."""
        due, version = self._due[log.paths.root], log.snapshot().version
        if 0 <= version - due.checkpoint_version < self.limits.checkpoint_commits:
            return
        with suppress(CommitConflict), self.cleaner.locks.hold(log):  # at the next tick
            due.checkpoint_version = version  # where none can be written it is tried again after as many commits
            due.checkpoint_version = checkpoint(log, limits=self.limits)

    def _keep_tidy(self, log: TopicLog) -> None:
        now_ms, due = self.clock_ms(), self._due[log.paths.root]
        if self.stop.is_set() or not due.take_if_due("upkeep_ms", now_ms, HOUR_MS):
            return
        id_expiration_ms = self.config.transactional_id_expiration_ms
        self._run_for(log, lambda log: self._expire_dead_letters(log, now_ms))
        self._run_for(log, lambda log: self._vacuum(log, now_ms))
        self._run_for(log, lambda log: log.forget_producers(now_ms=now_ms))
        self._run_for(log, lambda log: compact_ledger(log, now_ms=now_ms, id_expiration_ms=id_expiration_ms, limits=self.limits))

    def _expire_dead_letters(self, log: TopicLog, now_ms: int) -> None:
        with log.append_lock():  # nothing else writes dead letters meanwhile: a purge sweeps their files under it
            before_ms = now_ms - self.config.dead_letter_retention_ms
            expire_dead_letters(log.paths.dead_letters, log.storage_options, before_ms=before_ms)

    def _vacuum(self, log: TopicLog, now_ms: int) -> None:
        last_ms = log.decisions().upkeep_ms.get(_ORPHANS, 0)
        orphans = not 0 <= now_ms - last_ms < DAY_MS
        with metrics.VACUUM_SECONDS.labels(log.name).time():
            vacuum(log, now_ms=now_ms, orphans=orphans, limits=self.limits)
        if orphans:
            log.ledger.append([Decision(kind=Kind.UPKEEP, time_ms=now_ms, name=_ORPHANS)])
        metrics.VACUUM_LAST_RUN.labels(log.name).set(self.clock_ms() / 1000)
