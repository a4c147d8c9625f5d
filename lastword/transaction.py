"""A transaction: all of its appends become visible together, in every partition, or not at all.

```python
with topic.transaction("prices-loader") as txn:    # begun: another instance with this id is fenced, what it left open is aborted
    txn.append(first)                              # in the log, but no read_committed reader sees it
    txn.append(second)
                                                   # committed at the end; aborted if an exception came
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.compaction.errors import InvalidTransactionState
from lastword.compaction.producers import Control, ProducerStamp
from lastword.storage.append import transactions
from lastword.storage.append.requests import AppendResult, AppendStats

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Unpack

    from lastword.change_data.frames.row_words import RowArguments
    from lastword.storage.append.inputs import ArrowInput
    from lastword.storage.log.topic_log import TopicLog
    from lastword.topics.appending import GivenRows


class Transaction:
    """One transaction of one transactional.id; made by `Topic.transaction`."""

    def __init__(self, log: TopicLog, stamp: ProducerStamp, read_rows: Callable[..., GivenRows], clock_ms: Callable[[], int]) -> None:
        """Append with the producer id and epoch of `stamp`, which the ledger has. `read_rows` turns the arguments of `append` into rows."""
        self._log = log
        self._stamp = stamp
        self._read_rows = read_rows
        self._clock = clock_ms
        self._stats = AppendStats()
        self._versions: list[int] = []
        self._ended: Control | None = None

    @property
    def producer_id(self) -> int:
        """The producer id that its records carry."""
        return self._stamp.producer_id

    @property
    def epoch(self) -> int:
        """The epoch that its records carry."""
        return self._stamp.epoch

    def append(self, rows: ArrowInput, **words: Unpack[RowArguments]) -> AppendResult:
        """Append rows as part of the transaction, in one Delta commit; columns as `Topic.append` takes them, without producer or offset.

        `words` are arguments of `Topic.append`: `key`, `tombstone`, `drop` …; not `sequence`, as rows of a transaction come in its order.

        Raises `InvalidRecords` (nothing of the call is written; the transaction is still open), `ProducerFenced` when another instance has
        taken over, `InvalidTransactionState` after the end, and when a RESTORE took back what was appended before.
        """
        self._check_open("append to")
        given = self._read_rows(rows, **words)
        result = transactions.append(self._log, given.rows, self._stamp, now_ms=self._clock(), stats=self._stats, versions=self._versions)
        if result.table_version is not None:
            self._versions.append(result.table_version)
        given.keep_columns(self._log, now_ms=self._clock())
        return result

    def commit(self) -> AppendResult:
        """Commit: a COMMIT marker in every touched partition, in one Delta commit.

        Raises `ProducerFenced` when taken over; `InvalidTransactionState` when a RESTORE took a part of it back: the rest is aborted.
        """
        return self._end(Control.COMMIT)

    def abort(self) -> AppendResult:
        """Abort: an ABORT marker in every touched partition, in one Delta commit. Raises `ProducerFenced` when taken over."""
        return self._end(Control.ABORT)

    def __enter__(self) -> Transaction:  # noqa: PYI034  typing.Self is of Python 3.11
        """Return itself: it was begun when it was made."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit, or abort when an exception came; nothing when it was ended by hand."""
        if self._ended is None:
            self._end(Control.COMMIT if kind is None else Control.ABORT)

    def _end(self, control: Control) -> AppendResult:
        self._check_open(control.name.lower())
        result = transactions.end(self._log, self._stamp, control, now_ms=self._clock(), versions=self._versions)
        self._ended = control
        return result

    def _check_open(self, verb: str) -> None:
        if self._ended is not None:
            message = (
                f"topic {self._log.name}: cannot {verb} the transaction of {self._stamp.transactional_id}: "
                f"it was ended by {self._ended.value}; begin another one"
            )
            raise InvalidTransactionState(message)
