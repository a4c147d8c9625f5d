"""What can go wrong, by whose fault it is.

Two families, and nothing in between:

* `UserError`: somebody asked for something that cannot be done. The message names the value and what is allowed; nothing was changed.
* the four fates of a commit or a cleaning (`CleaningAborted`, `PartitionUncleanable`, `CommitConflict`, `CommitStateUnknown`): the
  machine's or another writer's doing. Each has exactly one right reaction, which its docstring names.

An `OSError` with a number is the storage's: a disk, a network or an object store that did not do what it was asked. It says nothing of
what is stored. Reaction: do the same again; `CommitStateUnknown` is raised where that could double something.

Any other exception is a bug. "Nothing to do" is a return value, never an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.secrets import HIDDEN, is_secret, without_secrets

if TYPE_CHECKING:
    from collections.abc import Collection

_CALL_FAILED: Final = "An error occurred while calling "
_WAITED: Final = "Exception thrown in awaitResult"
_CAUSED_BY: Final = "Caused by: "
_MOST_CHARACTERS: Final = 500
_COLOUR: Final = re.compile("\x1b\\[[0-9;]*m")
#: What the kernel of delta-rs puts behind a message: "\n   0: <unknown>\n   1: start_thread\n       at ./nptl/…".
_RUST_STACK: Final = re.compile(r"\n *\d+: .*", re.DOTALL)


class LastwordError(Exception):
    """The root of every error that lastword raises on purpose; what it says has no secrets in it."""

    def __str__(self) -> str:
        """Return the message."""
        return without_secrets(super().__str__())


class UserError(LastwordError):
    """A request that cannot be carried out as it stands; nothing was changed by it."""


def check_text(name: str, value: object) -> None:
    """Raise `UserError` if the value of an argument is no text; `name` is what the message calls it."""
    if not isinstance(value, str):
        message = f"{name} = {value!r}: allowed is a text"
        raise UserError(message)


class LogDirUnreachable(UserError):
    """The log.dir that a service works on went away (Kafka takes such a log dir offline, and ends when none is left)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is wrong with one setting: its key, the value given and what is allowed."""

    key: str
    value: str
    allowed: str

    def __str__(self) -> str:
        """Return the line that a person reads."""
        return f"{self.key} = {HIDDEN if is_secret(self.key) else self.value}: {self.allowed}"


class InvalidConfiguration(UserError):
    """A configuration with one or more violations, all of them at once (Kafka's InvalidConfigurationException)."""

    def __init__(self, subject: str, violations: list[Violation]) -> None:
        """Keep what the configuration belongs to (`topic fruit-prices`) and everything that is wrong with it."""
        self.subject = subject
        self.violations = tuple(violations)
        lines = "\n".join(f"  {violation}" for violation in violations)
        super().__init__(f"invalid configuration of {subject}:\n{lines}")


class InvalidTopic(UserError):
    """A topic name or partition count that cannot be (Kafka's InvalidTopicException)."""


class TopicExists(UserError):
    """The name is taken (Kafka's TopicExistsException)."""


class UnknownTopic(UserError):
    """There is no such topic in this log.dir (Kafka's UnknownTopicOrPartitionException)."""


class LedgerUnreadable(UserError):
    """A file of a topic's ledger is spoilt; the message lists the ways out."""


class UnknownFormat(UserError):
    """A file of lastword's own, or a row in it, is of another version, which the message names; nothing is read or changed."""


class CorruptLog(UserError):
    """A table of a topic is not as lastword leaves it: a file without statistics, one that cannot be read. Nothing is written."""


class InvalidRecords(UserError):
    """Rows that the topic may not accept; nothing of the call was written (Kafka's InvalidRecordException)."""


class OffsetOutOfRange(UserError):
    """An offset that the partition does not have (Kafka's OffsetOutOfRangeException)."""


class HistoryCleaned(UserError):
    """The past that was asked for is not there any more: cleaning, deletion or VACUUM took what the answer needs."""


class ReaderBehind(UserError):
    """A reader whose position was overtaken: what it has not read is gone or was taken back; the message says where it can go on."""


class QueryRefused(UserError):
    """A streaming query that cannot continue from where it stands without loss or doubles; the message lists the ways out."""


class SourceFailed(UserError):
    """A source ended by an error: of a command, or of a service in which every source has an end; the message says of which."""


class PolicyViolation(UserError):
    """What the topic's cleanup.policy does not allow (Kafka's PolicyViolationException)."""


class PurgeIncomplete(LastwordError):
    """A key is not erased everywhere; `remains` says where it is still, or what holds it back. Reaction: see to that, purge again."""

    def __init__(self, topic: str, remains: list[str]) -> None:
        """Name the topic and all that remains; never the key."""
        self.remains = tuple(remains)
        super().__init__(f"topic {topic}: the key is not erased yet:\n" + "\n".join(f"  {line}" for line in remains))


class ProducerFenced(UserError):
    """Another instance with the same transactional.id has taken over; nothing of this one is written any more (ProducerFencedException)."""


class InvalidTransactionState(UserError):
    """The transaction is over, or was never begun (Kafka's InvalidTxnStateException)."""


class Aborted(LastwordError):
    """The work was asked to stop before it began. Reaction: none, quietly; it comes again at the next start."""


class CleaningAborted(Aborted):
    """The cleaning was asked to stop, if not by all then for its `paused` partitions. Reaction: quietly plan the others anew."""

    def __init__(self, message: str, paused: Collection[int] = ()) -> None:
        """Say why."""
        self.paused = frozenset(paused)
        super().__init__(message)


class PartitionUncleanable(LastwordError):
    """This partition cannot be cleaned. Reaction: skip it, count it, go on with the others."""


class CommitConflict(LastwordError):
    """Another commit came between the plan and ours; nothing of ours was written. Reaction: read again, plan again."""


class CommitStateUnknown(LastwordError):
    """The store did not say whether the commit was written. Reaction: stop; the next start reads it from the table."""


def in_one_line(error: BaseException) -> str:
    """Return an error of a storage in one line: delta-rs writes each cause into a line of its own, behind an arrow in colour."""
    text = _COLOUR.sub("", without_secrets(str(error)))
    return " ".join(text.replace("↳", "<-").split())[:_MOST_CHARACTERS] or type(error).__name__


def said_by_spark(error: BaseException) -> str:
    """Return what Spark says is wrong with SQL, without the plan or the statement in which it found that."""
    return next(iter(without_secrets(str(error)).strip().splitlines()), type(error).__name__)


def read_root_cause(exception: Any) -> str:
    """Return the first line of the deepest cause of a Java exception, without secrets; `exception` is Py4J's (`java_exception`)."""
    while exception.getCause() is not None:
        exception = exception.getCause()
    return without_secrets(str(exception.toString()).splitlines()[0])


def said_by_delta(error: BaseException) -> str:
    """Return what delta-rs says of an error, without the stack that its kernel puts behind it."""
    return _RUST_STACK.sub("", str(error))


def first_line(error: BaseException) -> str:
    """Return an error in one line: Spark's messages carry the whole stack of the JVM.

    The first line of py4j's says only which of its objects was called; what went wrong stands in the second, or in that of the cause where
    one thread of the JVM waited for another.
    """
    lines = without_secrets(str(error)).splitlines()
    if len(lines) > 1 and lines[0].startswith(_CALL_FAILED):
        causes = [line.removeprefix(_CAUSED_BY) for line in lines[2:] if line.startswith(_CAUSED_BY)] if _WAITED in lines[1] else []
        return next(iter(causes), lines[1].removeprefix(": "))[:_MOST_CHARACTERS]
    return f"{type(error).__name__}: {next(iter(lines), '')}"[:_MOST_CHARACTERS]
