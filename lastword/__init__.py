"""lastword: a compacted changelog as a Spark Structured Streaming service on Delta Lake.

```python
from lastword import LogDir, spark_session

logs = LogDir("data")                        # Arrow tables and Polars frames: no Spark, no JVM
logs = LogDir(spark_session(), "data")       # the same methods with DataFrames, and what streams
topic = logs.create_topic("fruit-prices", partitions=4, config={"cleanup.policy": "compact"})
```

Everything a user needs is importable from here: the log.dir and its topics, what their methods return, positions, receipts and errors.
What needs Spark is imported when it is first used (PEP 562), so that `LogDir("data")` needs neither pyspark nor a JVM.

Packages, from the top down; each one imports only what stands below it (import-linter checks this):

```
 lastword.cli        the command line                    ┐
 lastword.service    `lastword run` and its settings     │ lastword/
 lastword.status     metrics, health, status page        │
 LogDir, Topic       the Python API                      │   log_dir, handle, topic, maintained_topic, arrow_topic, spark_topic,
                                                         │   transaction, spark_transaction, copying, plotting
 lastword.topics     what the methods of a topic do      │
 lastword.spark      session, jars, S3 options           ┘   clock, progress_bars, text
 lastword.streaming  streaming queries                     streaming/
 lastword.storage    the log on Delta                      storage/
 lastword.checkpoints  query checkpoints, caches           checkpoints/
 lastword.compaction   the rules of the log, pure          compaction/
 lastword.change_data  events, rows, schemas, pure         change_data/
```

The last five are folders at the top of the repository; `lastword/streaming` and its like are symbolic links to them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.config.topic_config import ServiceConfig, TopicConfig
from lastword.compaction.errors import (
    Aborted,
    CleaningAborted,
    CommitConflict,
    CommitStateUnknown,
    CorruptLog,
    HistoryCleaned,
    InvalidConfiguration,
    InvalidRecords,
    InvalidTopic,
    InvalidTransactionState,
    LastwordError,
    LedgerUnreadable,
    LogDirUnreachable,
    OffsetOutOfRange,
    PartitionUncleanable,
    PolicyViolation,
    ProducerFenced,
    PurgeIncomplete,
    QueryRefused,
    ReaderBehind,
    SourceFailed,
    TopicExists,
    UnknownFormat,
    UnknownTopic,
    UserError,
    Violation,
)
from lastword.compaction.planning.log_retention import Deletion
from lastword.compaction.planning.receipt import CleaningReceipt
from lastword.compaction.producers import OpenTransaction
from lastword.compaction.read_positions import Position
from lastword.compaction.readers import ReaderStanding
from lastword.spark.installation import PYSPARK, missing_spark

if TYPE_CHECKING:
    from types import ModuleType

    from lastword.arrow_topic import ArrowBootstrap, ArrowTopic
    from lastword.change_data.events.envelopes import Envelope
    from lastword.compaction.order.source_states import SourceCounts
    from lastword.copying import copy_topic
    from lastword.log_dir import LogDir
    from lastword.plotting import LogPlot, plot_log
    from lastword.spark.session import spark_session
    from lastword.spark_topic import SparkBootstrap, SparkTopic
    from lastword.spark_transaction import SparkTransaction
    from lastword.storage.append.ranges import AppendedRange
    from lastword.storage.append.requests import AppendResult
    from lastword.storage.reading.key_history import KeyHistory, KeyRecord, KeyStatus
    from lastword.storage.reading.sql import latest_sql
    from lastword.storage.reading.stale_keys import StaleKey
    from lastword.storage.schema_registry.client import RegistryConfig
    from lastword.storage.schema_registry.decoder import RegistryDecoder
    from lastword.storage.verify import VerifyReport
    from lastword.streaming.append.auto_cdc import AutoCdcFlow
    from lastword.streaming.append.upstream import Mirror, Upstream, UpstreamState
    from lastword.topic import PartitionOffsets, Topic
    from lastword.topics.description import PartitionDescription, TopicDescription
    from lastword.topics.explanation import PartitionReport
    from lastword.topics.purging import PurgeReceipt
    from lastword.topics.sources import SnapshotDescription, SourceDescription
    from lastword.topics.tables import TableDescription, TableDetails, TableFollower, TableProgress
    from lastword.transaction import Transaction

    __version__: str
else:  # a type checker that sees this takes any name for one of ours
    _HOMES: Final = {
        "ArrowBootstrap": "lastword.arrow_topic",
        "ArrowTopic": "lastword.arrow_topic",
        "Envelope": "lastword.change_data.events.envelopes",
        "SourceCounts": "lastword.compaction.order.source_states",
        "copy_topic": "lastword.copying",
        "LogPlot": "lastword.plotting",
        "plot_log": "lastword.plotting",
        "LogDir": "lastword.log_dir",
        "spark_session": "lastword.spark.session",
        "AppendedRange": "lastword.storage.append.ranges",
        "AppendResult": "lastword.storage.append.requests",
        "SparkBootstrap": "lastword.spark_topic",
        "SparkTopic": "lastword.spark_topic",
        "SparkTransaction": "lastword.spark_transaction",
        "RegistryConfig": "lastword.storage.schema_registry.client",
        "RegistryDecoder": "lastword.storage.schema_registry.decoder",
        **dict.fromkeys(("KeyHistory", "KeyRecord", "KeyStatus"), "lastword.storage.reading.key_history"),
        "latest_sql": "lastword.storage.reading.sql",
        "StaleKey": "lastword.storage.reading.stale_keys",
        "VerifyReport": "lastword.storage.verify",
        "AutoCdcFlow": "lastword.streaming.append.auto_cdc",
        "Mirror": "lastword.streaming.append.upstream",
        "Upstream": "lastword.streaming.append.upstream",
        "UpstreamState": "lastword.streaming.append.upstream",
        "PartitionOffsets": "lastword.topic",
        "Topic": "lastword.topic",
        "PartitionDescription": "lastword.topics.description",
        "TopicDescription": "lastword.topics.description",
        "PartitionReport": "lastword.topics.explanation",
        "PurgeReceipt": "lastword.topics.purging",
        "SnapshotDescription": "lastword.topics.sources",
        "SourceDescription": "lastword.topics.sources",
        **dict.fromkeys(("TableDescription", "TableDetails", "TableFollower", "TableProgress"), "lastword.topics.tables"),
        "Transaction": "lastword.transaction",
    }

    def __getattr__(name: str) -> Any:
        """Import the module that defines a public name, and keep the name."""
        if name == "__version__":
            value: Any = _version()
        elif name in _HOMES:
            value = getattr(_module(name), name)
        else:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        globals()[name] = value
        return value

    def _module(name: str) -> ModuleType:
        try:
            return import_module(_HOMES[name])
        except ModuleNotFoundError as error:
            if error.name != PYSPARK:
                raise
            raise ImportError(missing_spark(f"lastword.{name}"), name=PYSPARK) from None

    def __dir__() -> list[str]:
        """Return the public names, imported or not."""
        return sorted({*globals(), *__all__})

    def _version() -> str:
        try:
            return version("lastword")
        except PackageNotFoundError:  # the files without their metadata: a source tree on PYTHONPATH
            return "unknown"


__all__ = [
    "Aborted",
    "AppendResult",
    "AppendedRange",
    "ArrowBootstrap",
    "ArrowTopic",
    "AutoCdcFlow",
    "CleaningAborted",
    "CleaningReceipt",
    "CommitConflict",
    "CommitStateUnknown",
    "CorruptLog",
    "Deletion",
    "Envelope",
    "HistoryCleaned",
    "InvalidConfiguration",
    "InvalidRecords",
    "InvalidTopic",
    "InvalidTransactionState",
    "KeyHistory",
    "KeyRecord",
    "KeyStatus",
    "LastwordError",
    "LedgerUnreadable",
    "LogDir",
    "LogDirUnreachable",
    "LogPlot",
    "Mirror",
    "OffsetOutOfRange",
    "OpenTransaction",
    "PartitionDescription",
    "PartitionOffsets",
    "PartitionReport",
    "PartitionUncleanable",
    "PolicyViolation",
    "Position",
    "ProducerFenced",
    "PurgeIncomplete",
    "PurgeReceipt",
    "QueryRefused",
    "ReaderBehind",
    "ReaderStanding",
    "RegistryConfig",
    "RegistryDecoder",
    "ServiceConfig",
    "SnapshotDescription",
    "SourceCounts",
    "SourceDescription",
    "SourceFailed",
    "SparkBootstrap",
    "SparkTopic",
    "SparkTransaction",
    "StaleKey",
    "TableDescription",
    "TableDetails",
    "TableFollower",
    "TableProgress",
    "Topic",
    "TopicConfig",
    "TopicDescription",
    "TopicExists",
    "Transaction",
    "UnknownFormat",
    "UnknownTopic",
    "Upstream",
    "UpstreamState",
    "UserError",
    "VerifyReport",
    "Violation",
    "__version__",
    "copy_topic",
    "latest_sql",
    "plot_log",
    "spark_session",
]
