"""A table of last words that is kept in step with a log: any Delta table that we made, and how a step is put into it.

```
 commit of the target     what it holds                       userMetadata
 0 bootstrap              the last words below [3, 9]         position [3, 9]
 1 step                   … below [5, 9]                      position [5, 9]
```

The target is its own checkpoint: rows and the position that they are right for change in one commit. A step says from which position it
comes, and a compare-and-set (`txnAppId`, `txnVersion`) lets only one step follow another; so none is applied twice, left out, or written
over by a second writer, whatever is killed when. Commits of others (OPTIMIZE, VACUUM) are looked past.

A target is registered in the topic's ledger, so that a purge finds it. Erasing a key there is a MERGE by key: Delta writes the predicate of
a DELETE into its log, and a key has no business there. A target that has not read past the tombstone of a purge may have a step in hand
that was planned when the log still held the key; an empty step, the *fence*, comes before it.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.errors import CommitConflict, UserError
from lastword.compaction.read_positions import Position
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.storage.reading.view import LATEST_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.storage.key_search import WantedKey
    from lastword.storage.log.topic_log import TopicLog

_APP_ID: Final = "lastword-materialize"
#: The table is written anew when a step changes at least one in so many of its rows: cheaper than a MERGE that touches every file.
_REWRITE_SHARE: Final = 20
#: The columns beside the fields of a decoded value; their names are out of the way of the fields'.
_TYPED: Final = {"partition": "_partition", "key": "_key", "offset": "_offset", "timestamp": "_timestamp", "headers": "_headers"}
_CURRENT: Final = "_is_current"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a target stands: the position that its rows are right for, and the number of steps that it has taken.

    `fenced_version`: what was planned at an older table version of the log must not be applied any more, as a purge came between.
    """

    position: Position
    steps: int
    fenced_version: int = field(default=-1, compare=False)


class Target:
    """A Delta table at `location` that holds the last words of one topic, or with `history` every word and when it held (SCD type 2).

    Columns without a schema: those of `latest()`. With one, the fields of the value beside `_partition`, `_key`, `_offset`, `_timestamp`
    and `_headers`. With `history` also `_valid_from`, `_valid_to` (timestamps of the records; null while it holds) and `_is_current`.
    """

    def __init__(self, location: str, *, topic_id: str, history: bool = False, storage_options: Mapping[str, str] | None = None) -> None:
        """Name it; nothing is read yet."""
        self.location, self.history, self._topic_id = location, history, topic_id
        self._options = dict(storage_options or {})

    def standing(self) -> Standing | None:
        """Return where the target stands; None when there is no table yet. Raises `UserError` when it is not a target of this topic."""
        try:
            table = DeltaTable(self.location, storage_options=self._options)
        except TableNotFoundError:
            return None
        steps = table.transaction_version(_APP_ID)
        for entry in table.history():
            found = _metadata(entry.get("userMetadata"))
            if found is not None:
                if found["topic_id"] != self._topic_id or found["history"] != self.history or steps is None:
                    break
                position = Position.from_dict(found["position"])
                return Standing(position=position, steps=steps, fenced_version=found.get("fenced_version", -1))
        message = (
            f"{self.location} is a Delta table, but this topic was not materialised into it (with history = {self.history}), or its "
            "Delta log does not go back to the last step: name another target, or drop the table and bootstrap it anew"
        )
        raise UserError(message)

    def create(self, rows: DataFrame, position: Position, *, after: Standing | None = None) -> None:
        """Write the table of the last words (`latest()`) at a position, in one commit.

        It is made; or it replaces what is there, if no step came after `after`. Raises `CommitConflict` when another writer came first.
        """
        shaped = _shaped(rows)
        if self.history:
            shaped = shaped.withColumns(_holds(shaped, F.lit(None).cast("timestamp")))
        steps = 0 if after is None else after.steps + 1
        writer = shaped.write.format("delta").options(**self._commit(position, steps))
        if after is None:
            try:
                writer.mode("error").save(self.location)
            except Exception as error:
                if "PATH_EXISTS" in str(error) or "already exists" in str(error):
                    message = f"{self.location} was made by somebody else meanwhile"
                    raise CommitConflict(message) from error
                raise
        else:
            writer.mode("overwrite").option("overwriteSchema", "true").save(self.location)
        self._check(steps, position)

    def step(self, rows: DataFrame, standing: Standing, position: Position) -> Standing:
        """Apply records and move on to `position`, in one commit; return where the target stands then.

        `rows` has partition, key, value, headers, timestamp, offset and `live` (false: a tombstone), in any order. Raises `CommitConflict`
        when another writer took a step since `standing`; nothing of this one is in the table then.
        """
        steps = standing.steps + 1
        commit = self._commit(position, steps)
        if self.history:
            self._apply_history(rows, commit)
        else:
            self._apply(rows, commit)
        self._check(steps, position)
        return Standing(position=position, steps=steps)

    def owner(self) -> str | None:
        """Return the id of the topic whose target the table is; None when it is nobody's, or there is none."""
        try:
            entries = DeltaTable(self.location, storage_options=self._options).history()
        except TableNotFoundError:
            return None
        found = (_metadata(entry.get("userMetadata")) for entry in entries)
        return next((str(one["topic_id"]) for one in found if one is not None), None)

    def fence(self, spark: SparkSession, standing: Standing, log_version: int) -> None:
        """Take an empty step: no step that was planned from `standing` before `log_version` is applied after it.

        Raises `CommitConflict` when another step came first.
        """
        commit = self._commit(standing.position, standing.steps + 1, fenced_version=log_version)
        nothing = spark.read.format("delta").load(self.location).limit(0)
        nothing.write.format("delta").mode("append").options(**commit).save(self.location)
        self._check(standing.steps + 1, standing.position)

    def erase(self, spark: SparkSession, wanted: WantedKey) -> int:
        """Delete the rows of a key, those of its past too, in a commit of its own; return how many they were."""
        target = SparkDeltaTable.forPath(spark, self.location)
        names = _names(target.toDF())
        if names["key"] not in target.toDF().columns:
            return 0
        same = f"CAST(target.`{names['key']}` AS BINARY) = gone.key"
        for partition, offset in sorted(wanted.kept):
            same += f" AND NOT (target.`{names['partition']}` = {partition} AND target.`{names['offset']}` = {offset})"
        gone = spark.createDataFrame(pa.table({"key": pa.array([wanted.key], pa.binary())}))
        rows = target.toDF().alias("target").join(F.broadcast(gone.alias("gone")), F.expr(same)).count()
        if rows:
            target.alias("target").merge(gone.alias("gone"), same).whenMatchedDelete().execute()
        features = DeltaTable(self.location, storage_options=self._options).protocol().writer_features
        if "deletionVectors" in (features or ()):  # a deleted row is in its file still
            spark.sql(f"REORG TABLE delta.`{self.location.replace('`', '``')}` APPLY (PURGE)")
        return rows

    def _check(self, steps: int, position: Position) -> None:
        """Ask the table whether a commit is there: Delta skips one silently that another writer's came before."""
        now = self.standing()
        if now != Standing(position=position, steps=steps):
            message = f"{self.location}: another writer came before step {steps}"
            raise CommitConflict(message)

    def _apply(self, rows: DataFrame, commit: Mapping[str, str]) -> None:
        words = F.max_by(F.struct("value", "headers", "timestamp", "offset", "live"), "offset")
        newest = rows.groupBy("partition", "key").agg(words.alias("newest")).select("partition", "key", "newest.*").persist()
        try:
            table = rows.sparkSession.read.format("delta").load(self.location)
            if newest.count() * _REWRITE_SHARE >= table.count():
                self._rewrite(table, newest, commit)
            else:
                self._merge(newest, commit)
        finally:
            newest.unpersist()

    def _rewrite(self, table: DataFrame, newest: DataFrame, commit: Mapping[str, str]) -> None:
        """Write the table anew: what no record names, and the records that are no tombstones."""
        names = _names(table)
        keys = newest.select(F.col("partition").alias(names["partition"]), F.col("key").alias(names["key"]))
        kept = table.join(keys, [names["partition"], names["key"]], "left_anti")
        written = kept.select(*table.columns).unionByName(_shaped(newest.where("live")))
        written.write.format("delta").mode("overwrite").options(**commit).save(self.location)

    def _merge(self, newest: DataFrame, commit: Mapping[str, str]) -> None:
        target = SparkDeltaTable.forPath(newest.sparkSession, self.location)
        shaped = _shaped(newest.withColumnRenamed("live", "__live"), keep=("__live",))
        names = _names(target.toDF())
        same = f"target.{names['partition']} = change.{names['partition']} AND target.{names['key']} = change.{names['key']}"
        columns: dict[str, str | Column] = {f"`{name}`": f"change.`{name}`" for name in shaped.columns if name != "__live"}
        merge = target.alias("target").merge(shaped.alias("change"), same)
        merge = merge.whenMatchedDelete("NOT change.__live").whenMatchedUpdate(set=columns)
        with _committing(newest.sparkSession, commit):
            merge.whenNotMatchedInsert("change.__live", values=columns).execute()

    def _apply_history(self, rows: DataFrame, commit: Mapping[str, str]) -> None:
        """Close the words that a newer record ended, and add the new ones: each holds until the next record of its key."""
        target = SparkDeltaTable.forPath(rows.sparkSession, self.location)
        columns_now = target.toDF().columns
        ordered = "PARTITION BY partition, key ORDER BY offset"
        added = {"__next": f"lead(timestamp) OVER ({ordered})", "__first": f"row_number() OVER ({ordered}) = 1", "__live": "live"}
        words = rows.withColumns({name: F.expr(text) for name, text in added.items()}).persist()
        try:
            shaped = _shaped(words, keep=tuple(added))
            shaped = shaped.withColumns(_holds(shaped, F.col("__next")))
            names = _names(shaped)
            # A record stands twice where it must: to close the word before it (matched by key), and to be added (matched by none).
            closing = shaped.where("__first").withColumn("__closes", F.col(names["key"]))
            adding = shaped.where("__live").withColumn("__closes", F.lit(None).cast(shaped.schema[names["key"]].dataType))
            same = (
                f"target.{_CURRENT} AND target.{names['partition']} = change.{names['partition']} "
                f"AND target.{names['key']} = change.__closes"
            )
            columns: dict[str, str | Column] = {f"`{name}`": f"change.`{name}`" for name in columns_now}
            merge = target.alias("target").merge(closing.unionByName(adding).alias("change"), same)
            merge = merge.whenMatchedUpdate(set={"_valid_to": f"change.{names['timestamp']}", _CURRENT: "false"})
            with _committing(rows.sparkSession, commit):
                merge.whenNotMatchedInsert("change.__closes IS NULL", values=columns).execute()
        finally:
            words.unpersist()

    def _commit(self, position: Position, steps: int, *, fenced_version: int = -1) -> dict[str, str]:
        body = {"lastword_target": 1, "topic_id": self._topic_id, "history": self.history, "position": json.loads(position.to_json())}
        body |= {"fenced_version": fenced_version} if fenced_version >= 0 else {}
        return {"txnAppId": _APP_ID, "txnVersion": str(steps), "userMetadata": json.dumps(body, separators=(",", ":"))}


def register(log: TopicLog, location: str, *, history: bool, now_ms: int) -> None:
    """Write into the ledger that a table follows the topic, once: a purge erases there too."""
    name = location if "://" in location or location.startswith("file:") else str(Path(location).absolute())
    details = {"history": history}
    if log.decisions().targets.get(name) != details:
        row = Decision(kind=Kind.TARGET, time_ms=now_ms, name=name, details=details)
        log.ledger.decide(lambda today: [] if today.targets.get(name) == details else [row])


def _shaped(rows: DataFrame, keep: Sequence[str] = ()) -> DataFrame:
    """Return rows in the columns of a target: as they are, or, of a decoded value, its fields beside the columns with an underscore."""
    value = rows.schema["value"].dataType
    if not isinstance(value, T.StructType):
        return rows.select(*LATEST_COLUMNS, *keep)
    clash = sorted(set(value.names) & {*_TYPED.values(), "_valid_from", "_valid_to", _CURRENT})
    if clash:
        message = f"schema: the fields {', '.join(clash)} have the names of columns that a target adds; call them something else"
        raise UserError(message)
    beside = [F.col(name).alias(new) for name, new in _TYPED.items()]
    return rows.select(*beside, *[F.col("value").getField(name).alias(name) for name in value.names], *keep)


def _names(table: DataFrame) -> dict[str, str]:
    """Return what a target calls partition, key, offset, timestamp and headers."""
    return _TYPED if _TYPED["key"] in table.columns else {name: name for name in _TYPED}


def _holds(shaped: DataFrame, until: Column) -> dict[str, Column]:
    """Return the columns that say when a word held."""
    moment = F.col(_names(shaped)["timestamp"])
    return {"_valid_from": moment, "_valid_to": until, _CURRENT: until.isNull()}


def _metadata(text: str | None) -> dict[str, Any] | None:
    try:
        body = json.loads(text or "")
    except ValueError:
        return None
    return body if isinstance(body, dict) and "lastword_target" in body else None


@contextmanager
def _committing(spark: SparkSession, commit: Mapping[str, str]) -> Iterator[None]:
    """Let the MERGE within carry what a writer's options would; the session is one query's own."""
    settings = {
        "spark.databricks.delta.write.txnAppId": commit["txnAppId"],
        "spark.databricks.delta.write.txnVersion": commit["txnVersion"],
        "spark.databricks.delta.commitInfo.userMetadata": commit["userMetadata"],
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)
