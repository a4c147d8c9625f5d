"""A table of last words that is kept in step with a log: any Delta table that we made, and how a step is put into it.

```
 commit of the target     what it holds                       userMetadata
 0 bootstrap              the last words below [3, 9]         position [3, 9]
 1 step                   … below [5, 9]                      position [5, 9]
```

The target is its own checkpoint: rows and the position that they are right for change in one commit
(`lastword.streaming.reading.target_state`). A step says from which position it comes, and a compare-and-set (`txnAppId`, `txnVersion`)
lets only one step follow another; so none is applied twice, left out, or written over by a second writer, whatever is killed when. Commits
of others are examined before and after each step: those that keep the rows are looked past, any other one ends the query, until the target
is rebuilt.

A target is written in a session of our own (`lastword.streaming.reading.own_session`): what it is like does not depend on the caller's.

A target is registered in the topic's ledger, so that a purge finds it. Erasing a key there is a MERGE by key: Delta writes the predicate of
a DELETE into its log, and a key has no business there. A target that has not read past the tombstone of a purge may have a step in hand
that was planned when the log still held the key; an empty step, the *fence*, comes before it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.change_data.columns.column_types import quote_name
from lastword.compaction.errors import CommitConflict, UserError
from lastword.storage.files.locations import location_of, spark_location
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.reading.target_columns import (
    CURRENT,
    PERIOD,
    VALID_FROM,
    VALID_TO,
    missing_columns,
    names_of,
    needs_mapping,
    shaped,
)
from lastword.streaming.reading.target_state import APP_ID, Owner, TableStatus, TargetState, obstacles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.compaction.read_positions import Position
    from lastword.storage.key_search import WantedKey
    from lastword.storage.log.topic_log import TopicLog

#: To write the table anew is cheaper than a MERGE that touches every file, when a step changes at least one in so many of its rows.
_REWRITE_SHARE: Final = 20
#: Columns of a step beside those of the table; no field of a value is called so.
_LIVE: Final = "__lastword_live"
_FROM: Final = "__lastword_from"
_UNTIL: Final = "__lastword_until"
_FIRST: Final = "__lastword_first"
_FLOOR: Final = "__lastword_floor"
_CLOSES: Final = "__lastword_closes"
_MAPPING: Final = "delta.columnMapping.mode"
_REBUILD: Final = "rebuild=True (--rebuild) bootstraps it again in the place of what is there"


class Target:
    """A Delta table at `location` that holds the last words of one topic, or with `history` every word and when it held (SCD type 2).

    Columns without a schema: those of `latest()`. With one, the fields of the value beside `_partition`, `_key`, `_offset`, `_timestamp`
    and `_headers`. With `history` also `_valid_from`, `_valid_to` (null while it holds) and `_is_current`: a word holds from the timestamp
    of its record, but not from before the word before it, to that of the next record of its key. So periods never overlap, and one is
    empty where the timestamps go back.
    """

    def __init__(
        self,
        location: str,
        *,
        topic_id: str,
        history: bool = False,
        storage_options: Mapping[str, str] | None = None,
        rewrite_share: int = _REWRITE_SHARE,
    ) -> None:
        """Name it; nothing is read yet. A step that changes at least one in `rewrite_share` of the rows writes the table anew."""
        self.location, self.history, self._rewrite_share = location_of(location), history, rewrite_share
        #: As Spark is given it.
        self._place = spark_location(self.location)
        self._state = TargetState(self.location, Owner(topic_id=topic_id, history=history), storage_options or {})

    def standing(self) -> TableStatus | None:
        """Return where the target stands; None when there is no table yet. Raises `UserError` when it is not a target of this topic.

        What others did to it is not asked here (`check`).
        """
        table = self._state.table()
        if table is None:
            return None
        standing = self._state.standing(table)
        if standing is None:
            message = (
                f"{self.location} is a Delta table, but this topic was not materialised into it (with history = {self.history}), or its "
                "Delta log does not go back to the last step: name another target, drop the table, or bootstrap it anew with rebuild=True "
                "(--rebuild), if the topic was materialised into it before"
            )
            raise UserError(message)
        return standing

    def owner(self) -> str | None:
        """Return the id of the topic whose target the table is; None when it is nobody's, or there is none."""
        table = self._state.table()
        found = None if table is None else self._state.owner(table)
        return None if found is None else found.topic_id

    def check(self, standing: TableStatus, columns: T.StructType | None = None, *, there: T.StructType | None = None) -> TableStatus:
        """Return where the target stands, with the commits of others examined up to now.

        `columns` are those of the rows to come, `there` those that the table has (`columns`). Raises `UserError` naming what others did to
        its rows, to its columns or to its settings, by which a step would be wrong or impossible.
        """
        table = self._state.table()
        if table is None:
            message = f"{self.location}: the table was deleted meanwhile; start again to bootstrap it anew"
            raise UserError(message)
        examined = self._examined(table, standing)
        needed = [*(columns.fields if columns is not None else ()), *(PERIOD if self.history else ())]
        missing = [] if there is None else missing_columns(there, T.StructType(needed))
        if missing:
            message = f"{self.location} does not fit the records: {'; '.join(missing)}. {_REBUILD}"
            raise UserError(message)
        stops = obstacles(table)
        if stops:
            message = f"{self.location} takes no steps with {'; '.join(stops)}: ALTER TABLE takes it back, and {_REBUILD}"
            raise UserError(message)
        return examined

    def columns(self, spark: SparkSession) -> T.StructType:
        """Return the columns that the table has now."""
        return spark.read.format("delta").load(self._place).schema

    def create(self, rows: DataFrame, position: Position, *, replaces: bool = False) -> TableStatus:
        """Write the table of the last words (`latest()`) at a position, in one commit; return where it stands then.

        It is made; or with `replaces` it takes the place of what is there, whatever became of that. Raises `CommitConflict` when another
        writer came first.
        """
        written = shaped(rows)
        if self.history:
            moment = F.col(names_of(written)["timestamp"])
            written = written.withColumns({VALID_FROM: moment, VALID_TO: F.lit(None).cast("timestamp_ltz"), CURRENT: F.lit(True)})
        table = self._state.table() if replaces else None
        if table is None:
            standing = TableStatus(position=position, steps=0)
            writer = written.write.format("delta").options(**self._commit(standing))
            if needs_mapping(written.schema):
                writer = writer.option(_MAPPING, "name")
            try:
                writer.mode("error").save(self._place)
            except Exception as error:
                if "PATH_EXISTS" in str(error) or "already exists" in str(error):
                    message = f"{self.location} was made by somebody else meanwhile"
                    raise CommitConflict(message) from error
                raise
            return self._taken(standing)
        self._unblock(written.sparkSession, table, needs_mapping(written.schema))
        now = self._state.table() or table
        steps = now.transaction_version(APP_ID)
        standing = TableStatus(position=position, steps=0 if steps is None else steps + 1, examined=now.version())
        writer = written.write.format("delta").options(**self._commit(standing))
        writer.mode("overwrite").option("overwriteSchema", "true").save(self._place)
        return self._taken(standing)

    def step(self, rows: DataFrame, standing: TableStatus, position: Position) -> TableStatus:
        """Apply records and move on to `position`, in one commit; return where the target stands then.

        `rows` has partition, key, value, headers, timestamp, offset and `live` (false: a tombstone), in any order. Raises `CommitConflict`
        when another writer took a step since `standing`, nothing of this one is in the table then; `UserError` as `check`.
        """
        examined = self.check(standing, shaped(rows).schema, there=self.columns(rows.sparkSession))
        after = TableStatus(position=position, steps=standing.steps + 1, examined=examined.examined)
        if self.history:
            self._apply_history(rows, self._commit(after))
        else:
            self._apply(rows, self._commit(after))
        return self._taken(after)

    def fence(self, spark: SparkSession, standing: TableStatus, log_version: int) -> None:
        """Take an empty step: no step that was planned from `standing` before `log_version` is applied after it.

        Raises `CommitConflict` when another step came first.
        """
        after = replace(standing, steps=standing.steps + 1, fenced_version=log_version)
        nothing = spark.read.format("delta").load(self._place).limit(0)
        nothing.write.format("delta").mode("append").options(**self._commit(after)).save(self._place)
        self._taken(after, examines=False)

    def erase(self, spark: SparkSession, wanted: WantedKey) -> int:
        """Delete the rows of a key, those of its past too, in a commit of its own; return how many they were."""
        target = SparkDeltaTable.forPath(spark, self._place)
        names = names_of(target.toDF())
        if names["key"] not in target.toDF().columns:
            return 0
        same = f"CAST(target.`{names['key']}` AS BINARY) = gone.key"
        for partition, offset in sorted(wanted.kept):
            same += f" AND NOT (target.`{names['partition']}` = {partition} AND target.`{names['offset']}` = {offset})"
        gone = spark.createDataFrame(pa.table({"key": pa.array([wanted.key], pa.binary())}))
        rows = target.toDF().alias("target").join(F.broadcast(gone.alias("gone")), F.expr(same)).count()
        if rows:
            with _committing(spark, {"userMetadata": self._state.erasure_metadata()}):
                target.alias("target").merge(gone.alias("gone"), same).whenMatchedDelete().execute()
        table = self._state.table()
        if table is not None and "deletionVectors" in (table.protocol().writer_features or ()):  # a deleted row is in its file still
            spark.sql(f"REORG TABLE {self._sql_name()} APPLY (PURGE)")
        return rows

    def _taken(self, standing: TableStatus, *, examines: bool = True) -> TableStatus:
        """Return where the target stands after a step: Delta skips one silently that another writer's came before."""
        table = self._state.table()
        committed = None if table is None else self._state.committed(table, standing)
        if table is None or committed is None:
            message = f"{self.location}: another writer came before step {standing.steps}"
            raise CommitConflict(message)
        return self._examined(table, committed) if examines else committed

    def _examined(self, table: DeltaTable, standing: TableStatus) -> TableStatus:
        """Return where the target stands, with the commits of others examined; raise `UserError` for one that did harm."""
        harm = self._state.harm(table, standing)
        if harm is not None:
            message = f"{self.location} was changed by somebody else: {harm}. {_REBUILD}"
            raise UserError(message)
        if standing.examined == table.version():
            return standing
        examined = replace(standing, examined=table.version())
        self._state.keep(table, examined)
        return examined

    def _unblock(self, spark: SparkSession, table: DeltaTable, mapped: bool) -> None:  # noqa: FBT001  what the new columns need
        """Take back the settings by which a table could not be replaced, and add those that it needs."""
        for text in obstacles(table):
            key = text.partition(" = ")[0]
            is_constraint = key.startswith("delta.constraints.")
            taken = f"DROP CONSTRAINT {quote_name(key.rpartition('.')[2])}" if is_constraint else f"UNSET TBLPROPERTIES ('{key}')"
            spark.sql(f"ALTER TABLE {self._sql_name()} {taken}")
        if mapped and table.metadata().configuration.get(_MAPPING, "none") == "none":
            spark.sql(f"ALTER TABLE {self._sql_name()} SET TBLPROPERTIES ('{_MAPPING}' = 'name')")

    def _sql_name(self) -> str:
        return f"delta.{quote_name(self._place)}"

    def _apply(self, rows: DataFrame, commit: Mapping[str, str]) -> None:
        words = F.max_by(F.struct("value", "headers", "timestamp", "offset", "live"), "offset")
        newest = rows.groupBy("partition", "key").agg(words.alias("newest")).select("partition", "key", "newest.*").persist()
        try:
            table = rows.sparkSession.read.format("delta").load(self._place)
            if newest.count() * self._rewrite_share >= table.count():
                self._rewrite(table, newest, commit)
            else:
                self._merge(newest, commit)
        finally:
            newest.unpersist()

    def _rewrite(self, table: DataFrame, newest: DataFrame, commit: Mapping[str, str]) -> None:
        """Write the table anew: what no record names, and the records that are no tombstones."""
        names = names_of(table)
        keys = newest.select(F.col("partition").alias(names["partition"]), F.col("key").alias(names["key"]))
        kept = table.join(keys, [names["partition"], names["key"]], "left_anti").select(*map(quote_name, table.columns))
        written = kept.unionByName(shaped(newest.where("live")), allowMissingColumns=True)
        written.write.format("delta").mode("overwrite").options(**commit).save(self._place)

    def _merge(self, newest: DataFrame, commit: Mapping[str, str]) -> None:
        target = SparkDeltaTable.forPath(newest.sparkSession, self._place)
        changes = shaped(newest.withColumnRenamed("live", _LIVE), keep=(_LIVE,))
        names = names_of(target.toDF())
        same = f"target.{names['partition']} = change.{names['partition']} AND target.{names['key']} = change.{names['key']}"
        columns: dict[str, str | Column] = {quote_name(name): f"change.{quote_name(name)}" for name in changes.columns if name != _LIVE}
        merge = target.alias("target").merge(changes.alias("change"), same)
        merge = merge.whenMatchedDelete(f"NOT change.{_LIVE}").whenMatchedUpdate(set=columns)
        with _committing(newest.sparkSession, commit):
            merge.whenNotMatchedInsert(f"change.{_LIVE}", values=columns).execute()

    def _apply_history(self, rows: DataFrame, commit: Mapping[str, str]) -> None:
        """Close the words that a newer record ended, and add the new ones: each holds until the next record of its key.

        ```
         timestamps of a key   10:00  9:00  11:00              no word begins before the one before it
         holds                 [10:00, 10:00) [10:00, 11:00) [11:00, …)
        ```
        """
        target = SparkDeltaTable.forPath(rows.sparkSession, self._place)
        names = names_of(target.toDF())
        # When the words of a key that the table has begin and end: nothing that comes later begins before.
        past = target.toDF().groupBy(F.col(names["partition"]).alias("partition"), F.col(names["key"]).alias("key"))
        floor = past.agg(F.max(F.greatest(VALID_FROM, VALID_TO)).alias(_FLOOR))
        ordered = "OVER (PARTITION BY partition, key ORDER BY offset)"
        begun = rows.join(floor, ["partition", "key"], "left").withColumn(_FROM, F.expr(f"greatest({_FLOOR}, max(timestamp) {ordered})"))
        added = {_UNTIL: f"lead({_FROM}) {ordered}", _FIRST: f"row_number() {ordered} = 1", _LIVE: "live"}
        words = begun.withColumns({name: F.expr(text) for name, text in added.items()}).persist()
        try:
            changes = shaped(words, keep=(_FROM, *added)).withColumns(
                {VALID_FROM: F.col(_FROM), VALID_TO: F.col(_UNTIL), CURRENT: F.col(_UNTIL).isNull()}
            )
            # A record stands twice where it must: to close the word before it (matched by key), and to be added (matched by none).
            closing = changes.where(_FIRST).withColumn(_CLOSES, F.col(names["key"]))
            adding = changes.where(_LIVE).withColumn(_CLOSES, F.lit(None).cast(changes.schema[names["key"]].dataType))
            same = (
                f"target.{CURRENT} AND target.{names['partition']} = change.{names['partition']} "
                f"AND target.{names['key']} = change.{_CLOSES}"
            )
            given = [name for name in changes.columns if name not in {_FROM, *added}]
            columns: dict[str, str | Column] = {quote_name(name): f"change.{quote_name(name)}" for name in given}
            merge = target.alias("target").merge(closing.unionByName(adding).alias("change"), same)
            merge = merge.whenMatchedUpdate(set={VALID_TO: f"change.{_FROM}", CURRENT: "false"})
            with _committing(rows.sparkSession, commit):
                merge.whenNotMatchedInsert(f"change.{_CLOSES} IS NULL", values=columns).execute()
        finally:
            words.unpersist()

    def _commit(self, standing: TableStatus) -> dict[str, str]:
        return {"txnAppId": APP_ID, "txnVersion": str(standing.steps), "userMetadata": self._state.metadata(standing)}


def register(log: TopicLog, location: str, *, history: bool, now_ms: int) -> None:
    """Write into the ledger that a table follows the topic, once: a purge erases there too."""
    name, details = location_of(location), {"history": history}
    if log.decisions().targets.get(name) != details:
        row = Decision(kind=Kind.TARGET, time_ms=now_ms, name=name, details=details)
        log.ledger.decide(lambda today: ([] if today.targets.get(name) == details else [row], None))


@contextmanager
def _committing(spark: SparkSession, commit: Mapping[str, str]) -> Iterator[None]:
    """Let the MERGE within carry what a writer's options would; the session is one query's own."""
    places = {
        "txnAppId": "spark.databricks.delta.write.txnAppId",
        "txnVersion": "spark.databricks.delta.write.txnVersion",
        "userMetadata": "spark.databricks.delta.commitInfo.userMetadata",
    }
    for name, value in commit.items():
        spark.conf.set(places[name], value)
    try:
        yield
    finally:
        for name in commit:
            spark.conf.unset(places[name])
