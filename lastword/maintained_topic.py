"""What keeps a topic in order: cleaning, retention, erasure and checks. `lastword.topic.Topic` adds what appends and reads."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lastword.compaction.display import ResultList
from lastword.compaction.errors import CommitConflict
from lastword.storage.verify import VerifyReport, verify
from lastword.topics import decisions
from lastword.topics.arguments import read_offsets_by_partition
from lastword.topics.explanation import PartitionReport, partition_reports
from lastword.topics.keys import read_wanted_key
from lastword.topics.notebooks import html_of_topic
from lastword.topics.purging import Purge, PurgeReceipt, before_as_ms

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lastword.compaction.config.topic_config import TopicConfig
    from lastword.compaction.planning.log_retention import Deletion
    from lastword.compaction.planning.receipt import CleaningReceipt
    from lastword.handle import Handle
    from lastword.storage.log.topic_log import TopicLog
    from lastword.topics.keys import KeyValue


class MaintainedTopic:
    """The methods of a topic that maintain its log: cleaning, retention, erasure and checks."""

    def __init__(self, log_dir: Handle, log: TopicLog) -> None:
        """Belong to `log_dir`; `log` is the storage below."""
        self._log_dir = log_dir
        self._log = log
        self._clock = log_dir.clock

    def __repr__(self) -> str:
        """Return the name and place, for people."""
        return f"{type(self).__name__}({self.name!r}, {self._log.paths.root!r})"

    def _repr_html_(self) -> str:
        return html_of_topic(self._log, now_ms=self._clock())

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._log.name

    @property
    def partitions(self) -> int:
        """The number of partitions, fixed at creation."""
        return self._log.decisions().partitions

    @property
    def config(self) -> TopicConfig:
        """The configuration that holds now: the topic's own settings over the service's over Kafka's defaults."""
        return self._log.config()

    @property
    def log(self) -> TopicLog:
        """The storage below, for tools and tests."""
        return self._log

    def clean(self, *, force: bool = False) -> list[CleaningReceipt]:
        """Clean every eligible partition once and return their receipts; an empty list when nothing is eligible.

        Eligible: the dirty ratio is above `min.cleanable.dirty.ratio`, or `max.compaction.lag.ms` is exceeded, or the horizon of a
        tombstone or marker has passed. With `force` neither the ratio nor failures before matter; what the last stable offset,
        `min.compaction.lag.ms` or the active segment protect stays as it is. Rules: docs/semantics.md#A.19, docs/semantics.md#3 to
        docs/semantics.md#11, KIP-58, KIP-354, KIP-534.
        """
        cleaner = self._log_dir.idle_cleaner(self._log)
        return ResultList(cleaner.clean(self._log, self._log_dir.session, clock_ms=self._clock, force=force))

    def explain(self, *, force: bool = False) -> list[PartitionReport]:
        """Return for each partition what would be cleaned now, or which bound or threshold holds it back, and until when.

        With `force` as `clean` with it would see them.
        """
        cleaner = self._log_dir.cleaner
        plan, _ = cleaner.plan(self._log, now_ms=self._clock(), force=force)
        return ResultList(partition_reports(plan, self._log.decisions().cleaning_failures()))

    def preview_clean(self, *, force: bool = False) -> list[CleaningReceipt]:
        """Return the receipts that `clean` would write in its first round, without writing anything: rows and bytes to go, by reason."""
        return ResultList(self._log_dir.cleaner.preview(self._log, self._log_dir.session, now_ms=self._clock(), force=force))

    def receipts(self, partition: int | None = None) -> list[CleaningReceipt]:
        """Return the receipts of the cleanings that the log still contains, oldest first."""
        self._log.sync_ledger_with_history()
        return ResultList(self._log.receipts(None if partition is None else self._log.check_partition(partition)))

    def apply_retention(self) -> dict[int, Deletion]:
        """Delete the segments that log start, retention.bytes and retention.ms allow to go; return what went, by partition.

        Paused partitions are left alone. Rule: docs/semantics.md#14 (UnifiedLog.deleteOldSegments).
        """
        return self._log_dir.idle_cleaner(self._log).apply_retention(self._log, now_ms=self._clock())

    def delete_records(self, before: Mapping[int, int]) -> dict[int, int]:
        """Delete the records below an offset, by partition; return the log start offsets that hold then (Kafka's DeleteRecords).

        An offset of -1 means the log end. Readers see none of them from now on, whatever table version they ask for; segments that lie
        wholly below are removed at once, or by the service after the cleaning in hand, and files when VACUUM removes them. Raises
        `OffsetOutOfRange` naming what is allowed, `PolicyViolation` for cleanup.policy = compact alone, as Kafka does, and `UserError` for
        a mirror, which follows its source. Rule: docs/semantics.md#A.41.
        """
        moment, before = self._clock(), read_offsets_by_partition(before, argument="before")
        rose = decisions.delete_records(self._log, before, now_ms=moment)
        if rose and not self._log_dir.cleaner.locks.is_held(self._log):  # it is not waited for: the decision holds as it is
            with suppress(CommitConflict):  # asked for again, -1 would mean another log end
                self._log_dir.idle_cleaner(self._log).apply_retention(self._log, now_ms=moment, heeds_claims=True)
        today = self._log.decisions()
        return {partition: today.log_start_offset(partition) for partition in before}

    def purge(self, key: KeyValue, *, before: datetime | str | int | None = None) -> PurgeReceipt:
        """Erase a key: from the log, registered targets and dead letters, and from every file; return the receipt.

        The key is named as for `get`. A key of JSON that no file has as it is given is looked for in its canonical form.
        With `before` (a datetime, ISO 8601 text or ms; without a zone UTC) a key whose newest record is not older keeps that one. Raises
        `PurgeIncomplete` naming what holds it back or remains: the bound, the files; purging again goes on from there. Raises `UserError`
        for a topic that mirrors another or is not compacted. Rule: ADR 0013.
        """
        before_ms = before_as_ms(before)

        def purge_bytes(wanted: bytes) -> PurgeReceipt:
            return Purge(self._log_dir, self._log, wanted, before_ms=before_ms, now_ms=self._clock()).run()

        *others, last = read_wanted_key(key)
        receipts = map(purge_bytes, others)
        return next((receipt for receipt in receipts if receipt.was_found), None) or purge_bytes(last)

    def pause(self, partition: int | None = None) -> dict[int, int]:
        """Pause cleaning and retention of one partition, or of all; return the number of pauses by partition. Each needs a `resume`."""
        return decisions.count_pauses(self._log, partition, 1, now_ms=self._clock())

    def resume(self, partition: int | None = None) -> dict[int, int]:
        """Take one pause away from a partition, or from all that have one; return the pauses that are left."""
        return decisions.count_pauses(self._log, partition, -1, now_ms=self._clock())

    def verify(self) -> VerifyReport:
        """Check the invariants of the log: offsets unique and ascending, slices disjoint, only commits of ours; reads every offset."""
        return verify(self._log)
