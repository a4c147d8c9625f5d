"""lastword: the last word on every key.

A compacted changelog as a continuously running Spark Structured Streaming service on Delta Lake.

```python
from lastword import LogDir, spark_session

logs = LogDir(spark_session(), "data")
topic = logs.create_topic("fruit-prices", partitions=4, config={"cleanup.policy": "compact"})
```

The names are imported when they are first asked for (PEP 562), so that `lastword.arrow` needs neither pyspark nor a JVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

__version__ = "0.1.0"
__all__ = ["AppendResult", "AppendedRange", "LogDir", "Topic", "__version__", "spark_session"]

if TYPE_CHECKING:
    from lastword.log_dir import LogDir
    from lastword.spark.session import spark_session
    from lastword.storage.append.append import AppendedRange, AppendResult
    from lastword.topic import Topic
else:  # a type checker that saw this would take any name for one of ours
    _HOMES: Final = {
        "AppendResult": "lastword.storage.append.append",
        "AppendedRange": "lastword.storage.append.append",
        "LogDir": "lastword.log_dir",
        "Topic": "lastword.topic",
        "spark_session": "lastword.spark.session",
    }

    def __getattr__(name: str) -> Any:
        """Import the module that a public name lives in, and remember the name."""
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        """Return the public names, imported or not."""
        return sorted({*globals(), *__all__})
