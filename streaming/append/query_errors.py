"""What a streaming query died of, in one line: an error of Python passes the JVM on its way, and only its text survives.

```
 [STREAM_FAILED] Query [id = …] terminated with exception: … py4j.Py4JException: An exception was raised by the Python Proxy.
 Return Message: Traceback (most recent call last):
   File …
 lastword.compaction.errors.QueryRefused: Kafka topic prices has 4 partitions …      ◄── this line
```
"""

from __future__ import annotations

import re
from typing import Final

from lastword.compaction.errors import Aborted, SourceFailed, UnknownTopic

#: The last line of a traceback: an exception's class and what it says.
_RAISED: Final = re.compile(r"^(?P<module>[A-Za-z_][\w.]*\.)?(?P<kind>[A-Za-z_]\w*)(?:: (?P<text>.*))?$", re.MULTILINE)
_OURS: Final = re.compile(r"lastword\.compaction\.errors\.\w+: (?P<text>.*)")
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_CAUSE: Final = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_STREAM_FAILED: Final = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")


def query_error(error: Exception) -> SourceFailed:
    """Return the error of a streaming query as the one that it died of: of lastword, of Python, or the last cause in the JVM."""
    return SourceFailed(_reason(str(error)))


def _reason(text: str) -> str:
    if ours := _OURS.search(text):
        return ours["text"]
    if _TRACEBACK in text:
        raised = _RAISED.search(text.rsplit(_TRACEBACK, 1)[-1])
        if raised is not None:
            return f"{raised['kind']}: {raised['text'] or ''}"
    if causes := _CAUSE.findall(text):
        return str(causes[-1])
    return _STREAM_FAILED.sub("", text.split("\n", 1)[0])


def was_stopped(error: Exception) -> bool:
    """Tell whether a query died because its topic is gone, or because a micro-batch came when it had been asked to stop."""
    return any(f"{kind.__module__}.{kind.__qualname__}: " in str(error) for kind in (Aborted, UnknownTopic))
