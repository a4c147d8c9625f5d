"""A Delta write in a transaction that begins at the table version that it was planned with.

`DataFrameWriter` begins its transaction when the write starts, whatever the plan had read, and for a `txnVersion` it computes the whole
state of the table first: four Spark jobs, a third of a small append. What its command does besides (Delta 4.4, `WriteIntoDelta.run`)
happens here too, but

* the transaction begins at the version of the plan, so that Delta compares it with *every* commit since then;
* it depends on the application id that it is going to set, so that another commit of that id since then is a conflict, and nothing else
  has to be looked up;
* what `replaceWhere` names is found by partition columns alone: as a DELETE, which may look at rows, it would compute that state too;
* rows may come in several turns, a job each, before the one commit: what lives at a time is what one turn takes.

```
 version   7      8       9      10
           plan   append  swap   ← ours: 8 and 9 are compared with it; the one of our application id is a conflict
```

Delta's classes are those of the release that is pinned; there is no public way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

_REPLACES_ROWS: Final = "spark.databricks.delta.replaceWhere.dataColumns.enabled"


def write(
    spark: SparkSession,
    turns: Iterable[tuple[DataFrame, str | None]],
    location: str,
    *,
    mode: str,
    options: Mapping[str, str],
    planned_version: int,
) -> int:
    """Write turns of (rows, `replaceWhere` of the rows) into the Delta table at `location`, commit them once, and return the version.

    `mode` is append or overwrite, `options` are those of a Delta write with txnAppId among them, `planned_version` is the table version
    that the write was planned with. Raises Delta's conflicts when a commit since then contradicts this one.
    """
    jvm: Any = spark._jvm  # noqa: SLF001
    delta, option, java_session = jvm.org.apache.spark.sql.delta, jvm.scala.Option, spark._jsparkSession  # noqa: SLF001
    none = option.empty()

    log = delta.DeltaLog.forTable(java_session, location)
    snapshot = log.update(False, none, none)  # noqa: FBT003  as Delta's own writes do
    if snapshot.version() != planned_version:
        snapshot = log.getSnapshotAt(planned_version, none, none, False)  # noqa: FBT003
    transaction = log.startTransaction(none, option.apply(snapshot))
    transaction.readTxn().addOne(options["txnAppId"])

    to_scala = jvm.org.apache.spark.api.python.PythonUtils
    save_mode = jvm.org.apache.spark.sql.SaveMode.valueOf(mode.capitalize())
    nothing = to_scala.toSeq([]), to_scala.toScalaMap({})  # partition columns and properties are those of the table
    writing = java_session
    if mode == "overwrite":
        writing = java_session.cloneSession()
        writing.conf().set(_REPLACES_ROWS, "false")
    actions = tags = None
    replaced = []
    for rows, replaces in turns:
        given = dict(options)  # each turn sets the same application id and version, which Delta takes once
        if replaces is not None:
            given["replaceWhere"] = replaces
            replaced.append(replaces)
        delta_options = delta.DeltaOptions(to_scala.toScalaMap(given), java_session.sessionState().conf())
        command = delta.commands.WriteIntoDelta(log, save_mode, delta_options, *nothing, rows._jdf, none, none, False)  # noqa: FBT003, SLF001
        written = command.writeAndReturnCommitData(transaction, writing, none, False)  # noqa: FBT003
        actions = written.actions() if actions is None else actions.appendedAll(written.actions())
        tags = tags or written.stringTags()
        del rows, command, written  # what a turn has sent to every task lives as long as they do
    predicate = option.apply(" OR ".join(replaced) or None)
    operation = delta.DeltaOperations.Write(save_mode, none, predicate, option.apply(options["userMetadata"]), none, none, none, none, none)
    return int(transaction.commit(actions, operation, tags))
