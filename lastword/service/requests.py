"""Requests: what a command asks of the process that holds the log.dir, because that one alone may commit.

```
 command                                     <log.dir>/.requests/          service, at each tick
 ask    write, then rename into place  ───►  ID.request.json
                                             ID.begun.json       ◄───      serve  takes it by a rename
        read it and take it away       ◄───  ID.answer.json      ◄───             carries it out, answers
 nobody came in time: delete ID.request.json, so that it is never carried out
```

A rename or a deletion of one file has one winner: a request is either begun or withdrawn. What waited longer than its asker wanted to is
answered, not carried out; what a dead service left begun is answered by the next one, which does not know what came of it; what the cleaner
is in the way of is put back and waits, and a service that stops begins nothing. Only the verbs below are known, with the arguments that
their models allow; anything else in the folder gets an error for an answer.

The folder belongs to the log.dir, not to a topic: the answer to `topics delete` outlives the topic's folder, a request for a topic that
does not exist makes none, and a tick lists one folder. It can be deleted at any time; askers then hear nothing.
"""

from __future__ import annotations

import base64
import time
import uuid
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pyarrow import fs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lastword import clock
from lastword.compaction.config.keys import HOUR_MS
from lastword.compaction.errors import (
    Aborted,
    CommitConflict,
    CommitStateUnknown,
    InvalidTopic,
    LastwordError,
    PurgeIncomplete,
    UserError,
    first_line,
)
from lastword.storage.files.paths import check_topic_name, filesystem_of
from lastword.streaming.events import logger
from lastword.streaming.ticker import CLEANER_POOL, with_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastword.log_dir import LogDir

_FOLDER: Final = ".requests"
_REQUEST: Final = ".request.json"
_BEGUN: Final = ".begun.json"
_ANSWER: Final = ".answer.json"
_UNFINISHED: Final = ".tmp"
#: What is longer is no request.
_MOST_BYTES: Final = 2**20
_POLL_SECONDS: Final = 0.1
#: How long an answer that nobody fetched is kept.
_KEPT_MS: Final = HOUR_MS
_LOG: Final = logger("requests")


class NoAnswer(LastwordError):
    """No answer came in time. `begun` tells whether the request is being carried out; if not, it was withdrawn."""

    def __init__(self, timeout_s: float, *, begun: bool) -> None:
        """Say what became of the request."""
        self.begun = begun
        fate = (
            "the service is executing the request and will finish it: check the result, or wait longer with --timeout"
            if begun
            else "the request is withdrawn and nothing was done"
        )
        super().__init__(f"no answer came within {timeout_s:g} s; {fate}")


def _topic_name(name: str) -> str:
    try:
        return check_topic_name(name)
    except InvalidTopic as error:
        raise ValueError(str(error)) from error  # what pydantic takes for a refusal


def _base64(text: str) -> str:
    base64.b64decode(text, validate=True)  # a ValueError is what pydantic takes for a refusal
    return text


class _Request(BaseModel):
    """A verb that commits. `carry_out` does it, by a clock, and returns what came of it, with JSON's types alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    needs_spark: ClassVar[bool] = True

    topic: Annotated[str, AfterValidator(_topic_name)]


class Clean(_Request):
    """`Topic.clean`; the result has the receipts, and what `explain` says afterwards."""

    verb: Literal["clean"] = "clean"
    force: bool = False

    def carry_out(self, logs: LogDir, clock_ms: Callable[[], int]) -> dict[str, Any]:
        """Return {"receipts": as `to_details`, "reports": as `PartitionReport`}; raise `Aborted` if the cleaner was told to stop first."""
        topic = logs.topic(self.topic)
        receipts = logs.idle_cleaner(topic.log).clean(topic.log, logs.spark, clock_ms=clock_ms, force=self.force)
        if not receipts and logs.cleaner.stopping.is_set():  # whether there was anything to do, nobody has looked
            message = f"topic {self.topic} is not cleaned: the service stops"
            raise Aborted(message)
        return {"receipts": [one.to_details() for one in receipts], "reports": [asdict(one) for one in topic.explain(clock_ms())]}


class ApplyRetention(_Request):
    """`Topic.apply_retention`."""

    verb: Literal["retention"] = "retention"

    def carry_out(self, logs: LogDir, clock_ms: Callable[[], int]) -> list[dict[str, Any]]:
        """Return for each partition that lost segments which, why, and its log start offset now."""
        found = logs.topic(self.topic).apply_retention(clock_ms())
        return [
            {
                "partition": partition,
                "log_start_offset": one.log_start_offset,
                "segments": [
                    {
                        "base_offset": segment.base_offset,
                        "last_offset": segment.last_offset,
                        "record_count": segment.record_count,
                        "size_bytes": segment.size_bytes,
                        "reason": breach.value,
                    }
                    for segment, breach in one.segments
                ],
            }
            for partition, one in sorted(found.items())
        ]


class DeleteRecords(_Request):
    """`Topic.delete_records`."""

    verb: Literal["delete-records"] = "delete-records"
    before: dict[Annotated[int, Field(ge=0)], int]

    def carry_out(self, logs: LogDir, clock_ms: Callable[[], int]) -> list[dict[str, int]]:
        """Return the log start offset of each partition that was named."""
        found = logs.topic(self.topic).delete_records(self.before, now_ms=clock_ms())
        return [{"partition": partition, "log_start_offset": offset} for partition, offset in sorted(found.items())]


class AbortTransaction(_Request):
    """`Topic.abort_transaction`."""

    verb: Literal["transactions abort"] = "transactions abort"
    producer_id: int

    def carry_out(self, logs: LogDir, clock_ms: Callable[[], int]) -> dict[str, Any]:
        """Return the partitions that the transaction had touched, and the table version."""
        result = logs.topic(self.topic).abort_transaction(self.producer_id, now_ms=clock_ms())
        return {"partitions": sorted(result.ranges), "table_version": result.table_version}


class Purge(_Request):
    """`Topic.purge`. The request holds the key, as it must; its file goes when it is answered or withdrawn, and the answer holds none.

    What a killed service had begun lies there until the next one answers it, and a deleted file may stay on the disk's free blocks.
    """

    verb: Literal["purge"] = "purge"
    key_base64: Annotated[str, AfterValidator(_base64)]
    before_ms: int | None = None

    def carry_out(self, logs: LogDir, clock_ms: Callable[[], int]) -> dict[str, Any]:
        """Return {"receipt": as `PurgeReceipt.to_details`, or None, "remains": lines}."""
        key = base64.b64decode(self.key_base64)
        try:
            receipt = logs.topic(self.topic).purge(key, before=self.before_ms, now_ms=clock_ms())
        except PurgeIncomplete as error:
            return {"receipt": None, "remains": list(error.remains)}
        return {"receipt": receipt.to_details(), "remains": []}


class DeleteTopic(_Request):
    """`LogDir.delete_topic`."""

    verb: Literal["topics delete"] = "topics delete"
    needs_spark: ClassVar[bool] = False

    def carry_out(self, logs: LogDir, clock_ms: Callable[[], int]) -> None:
        """Return nothing."""
        logs.delete_topic(self.topic, now_ms=clock_ms())
        logs.purge_deleted(now_ms=clock_ms())


Request: TypeAlias = Clean | ApplyRetention | DeleteRecords | AbortTransaction | Purge | DeleteTopic


class _Letter(BaseModel):
    """A request as it lies in the folder: it is not carried out `timeout_ms` after `asked_at_ms`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    asked_at_ms: int
    timeout_ms: Annotated[int, Field(ge=0)]
    request: Annotated[Request, Field(discriminator="verb")]


class Answer(BaseModel):
    """What came of a request: the `result` of its `carry_out`, or the class (`error`) and `message` of what it raised.

    `mistake` tells a user's mistake, whose message says everything, from a failure of the service.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    ok: bool
    result: Any = None
    error: str = ""
    message: str = ""
    mistake: bool = False


def ask(log_dir_location: str, request: Request, timeout_s: float) -> Answer:
    """Put a request before the process that serves a log.dir, wait for its answer and return it.

    Raises `NoAnswer` after `timeout_s`; a request that was not begun is withdrawn then, as it is when the wait is interrupted.
    """
    box = _Box(log_dir_location)
    name = uuid.uuid4().hex
    letter = _Letter(asked_at_ms=clock.now_ms(), timeout_ms=round(timeout_s * 1000), request=request)
    box.put(f"{name}{_REQUEST}", letter.model_dump_json())
    deadline = time.monotonic() + timeout_s
    withdrawn = False
    try:
        while True:
            text = box.take(f"{name}{_ANSWER}")
            if text is not None:
                return _parsed(text)
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        withdrawn = box.remove(f"{name}{_REQUEST}")
    text = None if withdrawn else box.take(f"{name}{_ANSWER}")
    if text is None:
        raise NoAnswer(timeout_s, begun=not withdrawn)
    return _parsed(text)


def serve(logs: LogDir, now_ms: Callable[[], int]) -> int:
    """Carry out the requests that wait for the process that holds `logs`, oldest first, and return how many were answered.

    None is begun once its cleaner is `stopping`: it waits for the next service, or is withdrawn.
    For one thread of one process. Whatever a request holds or runs into becomes its answer; only `CommitStateUnknown` is raised too,
    after the answer: the caller must stop.
    """
    if not logs.is_local:  # there nobody needs to ask: whoever wants to commit does
        return 0
    box = _Box(logs.location)
    served = 0
    try:
        left_begun, waiting = box.tidied(now_ms() - _KEPT_MS)
    except OSError as error:
        _LOG.warning("request listing failed", log_dir=logs.location, error=first_line(error))
        return 0
    for name in left_begun:
        message = "the service stopped while it executed the request; its progress is unknown, and repeating the request is safe"
        _reply(box, name, Answer(ok=False, error="Interrupted", message=message).model_dump_json())
    for name in waiting:
        if logs.cleaner.stopping.is_set():
            break
        try:
            text = box.begin(name)
        except OSError as error:  # this one cannot be taken, others can
            _LOG.warning("request read failed", log_dir=logs.location, name=name, error=first_line(error))
            continue
        if text is None:
            continue
        try:
            answer, unknown = _answered(logs, text, now_ms)
        except (Aborted, CommitConflict) as error:
            _LOG.info("request deferred", name=name, why=str(error))
            box.put_back(name)
            continue
        _reply(box, name, answer)
        served += 1
        if unknown is not None:
            raise unknown
    return served


def _reply(box: _Box, name: str, answer: str) -> None:
    """Answer a request; if that fails, its asker is told by the next `serve`."""
    try:
        box.reply(name, answer)
    except OSError as error:
        _LOG.warning("request reply failed", name=name, error=first_line(error))


def _answered(logs: LogDir, text: bytes, now_ms: Callable[[], int]) -> tuple[str, CommitStateUnknown | None]:
    """Carry out what a request file says; return the answer as JSON, and the error that must stop the service, if any.

    Raises `CommitConflict` when others came first and there is time to try again (the cleaner may be in the middle of a round), and
    `Aborted` when there is time for the next service.
    """
    unknown = None
    try:
        letter = _Letter.model_validate_json(text)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors(include_input=False)[:5])
        _LOG.warning("request rejected", error=wrong)
        refused = Answer(ok=False, error="InvalidRequest", message=f"the service rejected the request: {wrong}", mistake=True)
        return refused.model_dump_json(), None
    request, moment_ms = letter.request, now_ms()
    told = _LOG.bind(verb=request.verb, topic=request.topic)
    waited_ms = moment_ms - letter.asked_at_ms
    if waited_ms > letter.timeout_ms:
        told.warning("request expired", waited_ms=waited_ms)
        message = f"the request waited for more than {letter.timeout_ms / 1000:g} s; nothing was done"
        return Answer(ok=False, error="Expired", message=message).model_dump_json(), None
    try:
        if request.needs_spark:
            with_pool(logs.spark, CLEANER_POOL)
        answer = Answer(ok=True, result=request.carry_out(logs, now_ms)).model_dump_json()
        told.info("request completed", waited_ms=waited_ms)
    except Exception as error:  # a request must not stop the service
        if isinstance(error, (Aborted, CommitConflict)) and now_ms() - letter.asked_at_ms < letter.timeout_ms:
            raise
        told.warning("request failed", error=first_line(error))
        message = str(error) if isinstance(error, LastwordError) else first_line(error)
        answer = Answer(ok=False, error=type(error).__name__, message=message, mistake=isinstance(error, UserError)).model_dump_json()
        unknown = error if isinstance(error, CommitStateUnknown) else None
    return answer, unknown


def _parsed(text: bytes) -> Answer:
    try:
        return Answer.model_validate_json(text)
    except ValidationError as error:
        message = "the answer of the service cannot be read: is it another version of lastword?"
        raise LastwordError(message) from error


class _Box:
    """The folder of requests and answers of one log.dir."""

    def __init__(self, location: str) -> None:
        """Take the log.dir's path or URI; the folder is made when something is put into it."""
        self._files, self._folder = filesystem_of(location, {}), _FOLDER

    def put(self, name: str, text: str) -> None:
        """Write a file that is there as a whole or not at all."""
        self._files.create_dir(self._folder, recursive=True)
        unfinished = f"{self._folder}/{uuid.uuid4().hex}{_UNFINISHED}"
        with self._files.open_output_stream(unfinished) as stream:
            stream.write(text.encode())
        self._files.move(unfinished, f"{self._folder}/{name}")

    def take(self, name: str) -> bytes | None:
        """Return the bytes of a file and remove it; None when it is not there."""
        text = self._read(name)
        if text is not None:
            self.remove(name)
        return text

    def remove(self, name: str) -> bool:
        """Remove a file; tell whether it was there."""
        try:
            self._files.delete_file(f"{self._folder}/{name}")
        except FileNotFoundError:
            return False
        return True

    def begin(self, name: str) -> bytes | None:
        """Take a request in hand and return its bytes; None when it was withdrawn."""
        try:
            self._files.move(f"{self._folder}/{name}{_REQUEST}", f"{self._folder}/{name}{_BEGUN}")
        except FileNotFoundError:
            return None
        return self._read(f"{name}{_BEGUN}", _MOST_BYTES)

    def reply(self, name: str, answer: str) -> None:
        """Answer a request that was begun."""
        self.put(f"{name}{_ANSWER}", answer)
        self.remove(f"{name}{_BEGUN}")

    def put_back(self, name: str) -> None:
        """Let a request that was begun wait again."""
        try:
            self._files.move(f"{self._folder}/{name}{_BEGUN}", f"{self._folder}/{name}{_REQUEST}")
        except OSError as error:  # the next `serve` answers it as interrupted
            _LOG.warning("request requeue failed", name=name, error=first_line(error))

    def tidied(self, before_ms: int) -> tuple[list[str], list[str]]:
        """Return the names of what was begun and of what waits, oldest first; remove what nobody fetched or finished since `before_ms`."""
        found: dict[str, list[str]] = {_BEGUN: [], _REQUEST: []}
        for info in sorted(self._list(), key=lambda one: (one.mtime_ns or 0, one.base_name)):
            for ending, names in found.items():
                if info.base_name.endswith(ending):
                    names.append(info.base_name.removesuffix(ending))
            if info.base_name.endswith((_ANSWER, _UNFINISHED)) and (info.mtime_ns or 0) < before_ms * 1_000_000:
                self.remove(info.base_name)
        return found[_BEGUN], found[_REQUEST]

    def _list(self) -> list[fs.FileInfo]:
        infos = self._files.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        return [info for info in infos if info.type == fs.FileType.File]

    def _read(self, name: str, most_bytes: int | None = None) -> bytes | None:
        """Return the bytes of a file, or the first of them; None when it is not there."""
        try:
            with self._files.open_input_stream(f"{self._folder}/{name}") as stream:
                return bytes(stream.read(most_bytes))
        except FileNotFoundError:
            return None
