"""lastword: the last word on every key.

A compacted changelog as a continuously running Spark Structured Streaming service on Delta Lake.

```python
from lastword import LogDir, spark_session

logs = LogDir(spark_session(), "data")
topic = logs.create_topic("fruit-prices", partitions=4, config={"cleanup.policy": "compact"})
```
"""

from __future__ import annotations

from lastword.log_dir import LogDir
from lastword.session import spark_session
from lastword.topic import Topic
from storage.append import AppendedRange, AppendResult

__version__ = "0.1.0"
__all__ = ["AppendResult", "AppendedRange", "LogDir", "Topic", "__version__", "spark_session"]
