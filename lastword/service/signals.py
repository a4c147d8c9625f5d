"""SIGTERM and Ctrl-C of the commands that run streaming queries: a flag that the main thread polls.

```
 signal ─► handler: `received` is set ─► the loop of the command looks every 0.2 s ─► queries stop after the micro-batch in hand ─► exit 0
```

A handler runs between two instructions of the main thread, perhaps inside of a lock or of a call to the JVM. One that took the same lock,
or called the JVM too, would wait for itself or fail, so a handler here does nothing but set the flag.
"""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.errors import LastwordError
from lastword.spark.installation import require_spark
from lastword.spark.session import spark_session, without_query_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from pyspark.sql import SparkSession
    from typing_extensions import Self

#: How often a loop looks whether a signal was received.
POLL_SECONDS: Final = 0.2
_NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
#: Set while a session is started.
_STARTING: Final = threading.Event()


class Stopped(LastwordError):
    """A signal ended a command before its query was started; nothing was changed. The command ends with exit code 0."""


class StopSignals:
    """Whether the process was asked to stop; a context in which SIGTERM and SIGINT set the flag instead of ending the process."""

    def __init__(self) -> None:
        """Begin without a signal; the handlers are installed by `install` or by entering the context."""
        #: The signal that was received last.
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        self._before = {number: signal.getsignal(number) for number in _NUMBERS}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        """Install the handlers of before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers for as long as nothing else installs others."""
        for number in _NUMBERS:
            signal.signal(number, self._receive)

    def check(self, what: str) -> None:
        """Raise `Stopped` if a signal was received; `what` is the query that is not started."""
        if self.received is not None:
            message = f"stopped by {self.received.name} before {what} was started; nothing was changed"
            raise Stopped(message)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)


def _ignore_sigterm_in_the_jvm() -> None:
    """Let a process that is forked while the session starts ignore SIGTERM: that outlives its exec, which a handler does not."""
    if _STARTING.is_set():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


# Between fork and exec, so that this process heeds the signal all the time. PySpark's Popen has a preexec_fn; without one Python calls no
# hook.
os.register_at_fork(after_in_child=_ignore_sigterm_in_the_jvm)


def start_session(settings: Mapping[str, str], signals: StopSignals, *, start: Callable[..., SparkSession] | None = None) -> SparkSession:
    """Start the session with a JVM that ignores SIGTERM, so that a signal to the process group does not kill it under a micro-batch.

    A signal that comes meanwhile is received by `signals`; the start, which takes seconds, goes on. A thread starts the session: PySpark
    would install a handler for SIGINT in the main thread, which calls the JVM and raises KeyboardInterrupt. `start` is by default
    `spark_session`. Raises `UserError` where Spark is not installed.
    """
    require_spark("a streaming query")
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    signals.install()
    _STARTING.set()
    without_query_contexts()
    try:
        with ThreadPoolExecutor(1, "session-start") as thread:
            return thread.submit(start or spark_session, master=settings.get("spark.master"), settings=settings).result()
    finally:
        _STARTING.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
