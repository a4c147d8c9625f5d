"""A table that is kept in step with a topic: the newest row of each key, typed, or with `history` every row and when it held.

```
 commit of the table     what it does                                      transaction versions that it sets
 0 bootstrap             the rows of latest() at [3, 9], and the columns   lastword-table/<topic id>/0 = 3, …/1 = 9, …/version = 12
 1 step                  new rows as files, old ones in vectors            …/0 = 5, …/version = 14
 2 upkeep                the same rows in fewer files
```

The table is its own checkpoint: rows and position change in one commit, put only where it was planned. So no step is taken twice or left
out, whatever is killed when and however many processes try. It is a Delta table like any other to its readers. Design: docs/adr/0048.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyroaring import BitMap

from lastword.compaction.errors import CommitConflict, CommitStateUnknown, CorruptLog, UserError
from lastword.storage.delta import crash_points
from lastword.storage.delta.commit import retry_on_conflict
from lastword.storage.delta.crash_points import CrashPoint
from lastword.storage.delta.tables import checkpoint_version, open_table, write_checkpoint
from lastword.storage.files.locations import location_of
from lastword.storage.reading.view import view_of
from lastword.storage.tables.bootstrap import plan_bootstrap
from lastword.storage.tables.dropped_records import DroppedRecords
from lastword.storage.tables.key_index import KeyIndex
from lastword.storage.tables.log_rows import new_watch, next_position, step_records
from lastword.storage.tables.partitioning import check_partition_columns
from lastword.storage.tables.step_changes import StepChanges, Vectors
from lastword.storage.tables.table_files import TableFiles
from lastword.storage.tables.table_log import REBUILD, FileChanges, TableLog
from lastword.storage.tables.table_options import Erased, TableStep, TableUpkeep
from lastword.storage.tables.table_properties import (
    TableOwner,
    column_actions,
    is_obstacle,
    position_of,
    position_transactions,
    table_actions,
)
from lastword.storage.tables.table_rows import RECORD_COLUMNS, RowMaker
from lastword.storage.tables.table_schema import differing_columns, read_schema, stored_name
from lastword.storage.tables.table_state import ERASURE_OF_CHANGED
from lastword.storage.tables.upkeep import plan_merges, unused_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lastword.compaction.read_positions import Position
    from lastword.storage.log.topic_log import TopicLog
    from lastword.storage.reading.view import View
    from lastword.storage.tables.bootstrap import Bootstrap
    from lastword.storage.tables.table_options import TableOptions
    from lastword.storage.tables.table_rows import RecordKeys, TableLayout
    from lastword.storage.tables.table_state import TableFile, TableState
    from lastword.storage.tasks import Cluster


class MaterializedTable:
    """The table of one topic at a location. Not for several threads at once; several processes may keep one table."""

    def __init__(
        self,
        log: TopicLog,
        location: str,
        layout: Callable[[], TableLayout],
        options: TableOptions,
        storage_options: Mapping[str, str],
        *,
        cluster: Cluster | None = None,
    ) -> None:
        """Name it; nothing is read yet. `layout` returns the columns of the table as the topic has them now."""
        self._topic, self.location, self._layout, self._options = log, location_of(location), layout, options
        self._storage_options, self._cluster = storage_options, cluster
        self._log = TableLog(self.location, storage_options)
        self._watch = new_watch()
        self._index: tuple[tuple[str, ...], KeyIndex] | None = None
        self._vectors: Vectors | None = None

    def position(self) -> Position | None:
        """Return the position that the rows of the table are right for; None when there is no table.

        Raises `UserError` when the table is none of this topic, or was changed by somebody else.
        """
        state = self._log.examine(self._check_owner)
        return None if state is None else self._position(state)

    def check(self, *, rebuild: bool) -> None:
        """Raise `UserError` if the next step, or a rebuild, would end with it for what the table is."""
        state = self._log.state()
        if state is not None and not rebuild:
            self.position()
            return
        if state is not None:
            self._check_replaceable(state)
        self._new_row_maker(state, self._layout())

    def is_of_topic(self) -> bool:
        """Tell whether the table is one of this topic, or none is there and files lie at its place, as a crash may have left them."""
        state = self._log.state()
        if state is None:
            return bool(self._files_of(None).list_files())
        try:
            return self._owner(state).topic_id == self._topic.decisions().topic_id
        except UserError:
            return False

    def rebuild(self) -> TableStep:
        """Write the table anew in one commit, in the place of what is there; or make it."""
        return retry_on_conflict(lambda: self._write_anew(self._log.state()))

    def step(self) -> TableStep | None:
        """Make the table, or take the next step of it; return what was done, None when nothing was new.

        Raises `UserError` naming the topic, partition, offset, key, column and value that does not fit, or what somebody else did to the
        table; `ReaderBehind` when the log does not have any more what the table has not read.
        """
        return retry_on_conflict(self._step)

    # --- one commit ---------------------------------------------------------------------------------------------------------------------

    def _step(self) -> TableStep | None:
        state = self._log.examine(self._check_owner)
        if state is None:
            return self._write_anew(None)
        position = self._position(state)
        view = view_of(self._topic.at(), self._options.isolation)
        end = next_position(self._topic, view, position, self._watch, max_offsets=self._options.max_offsets_per_step)
        if end == position:
            return None
        layout = self._layout()
        rows = self._row_maker(layout, state.partition_by)
        there = read_schema(state.metadata["schemaString"])
        changed = self._differences(state, there, rows, layout)
        if changed:
            if self._options.on_type_change == "fail":
                message = f"{self.location} does not fit the records: {'; '.join(changed)}. {REBUILD}"
                raise UserError(message)
            return self._write_anew(state)
        is_new = [name not in there.names for name in rows.schema.names]
        new, named = (pa.schema(compress(schema, is_new)) for schema in (rows.schema, rows.named_schema))
        schema = pa.schema([*(column for column in there if not pa.types.is_null(column.type)), *new])
        table = column_actions(state, named, deletion_vectors=state.takes_vectors)
        delta_schema = _delta_schema(table) or state.metadata["schemaString"]
        files = self._new_files(state.files, schema, layout, state.partition_by, delta_schema=delta_schema)()
        letters = self._letters(view, replaces=False)
        changes = StepChanges(
            state.files,
            files,
            self._key_index(files, layout),
            self._vector_cache(files),
            rows,
            refuse=None if letters is None else letters.take,
        )
        limits, columns = self._options.limits, _record_columns(layout, whole=letters is not None)
        crash_points.reached(CrashPoint.STEP_PLANNED)
        records = step_records(view, position.offsets, end.offsets, columns, max_rows=limits.chunk_rows, max_bytes=limits.chunk_bytes)

        def apply() -> FileChanges:
            for chunk in records:
                changes.add(chunk)
            return changes.files(deletion_vectors=self._options.deletion_vectors and state.takes_vectors)

        return self._apply_and_commit("step", state, changes, apply, end, table=table, letters=letters)

    def _write_anew(self, state: TableState | None) -> TableStep:
        """Make the table, or write all of it anew at the newest position."""
        if state is not None:
            self._check_replaceable(state)
        layout = self._layout()
        rows, partition_by = self._new_row_maker(state, layout)
        view = view_of(self._topic.at(), self._options.isolation)
        table = table_actions(
            state,
            rows.named_schema,
            self._wanted_owner(layout),
            deletion_vectors=self._options.deletion_vectors,
            properties=self._options.properties,
            partition_by=partition_by,
        )
        new_files = self._new_files(None, rows.schema, layout, partition_by, delta_schema=_delta_schema(table))
        self._index = None
        letters = self._letters(view, replaces=True)
        columns = _record_columns(layout, whole=letters is not None)
        bootstrap = plan_bootstrap(
            view,
            columns,
            new_files=new_files,
            new_rows=self._new_rows(layout, partition_by),
            limits=self._options.limits,
            refuse=None if letters is None else letters.take,
            cluster=self._cluster,
        )
        crash_points.reached(CrashPoint.TARGET_PLANNED)
        kind = "bootstrap" if state is None else "rebuild"
        done = self._apply_and_commit(kind, state, bootstrap, bootstrap.run, view.position, table=table, letters=letters)
        crash_points.reached(CrashPoint.TARGET_MADE)
        return done

    def _apply_and_commit(
        self,
        kind: str,
        state: TableState | None,
        changes: StepChanges | Bootstrap,
        apply: Callable[[], FileChanges],
        end: Position,
        *,
        table: list[dict[str, Any]],
        letters: DroppedRecords | None,
    ) -> TableStep:
        """Apply changes and commit them; the files of a commit that is not made are deleted. Dead letters are committed before."""
        files = FileChanges()

        def discard(files: FileChanges) -> None:
            changes.discard(files)
            if letters is not None:
                letters.discard()

        with self._discarding(lambda: files, discard):
            files = apply()
            if letters is not None:
                letters.commit()
            if kind == "rebuild" and state is not None:
                files.removed += [*state.files.values(), *state.stale]
            after = self._log.commit(
                state,
                files,
                kind=kind,
                operation="MERGE" if kind == "step" else "CREATE TABLE AS SELECT" if state is None else "REPLACE TABLE AS SELECT",
                transactions=position_transactions(end),
                table=table,
            )
        crash_points.reached(CrashPoint.STEP_TAKEN)
        if self._index is not None:
            self._index[1].keep(after.files)
        if self._vectors is not None:
            self._vectors.keep(after.files)
        return TableStep(
            kind=kind,
            table_version=after.version,
            position=end,
            written_rows=changes.written_rows,
            deleted_rows=changes.deleted_rows,
            misfit_rows=changes.misfit_rows,
        )

    @staticmethod
    @contextmanager
    def _discarding(changes: Callable[[], FileChanges], discard: Callable[[FileChanges], None]) -> Iterator[None]:
        """Delete the files of a commit that is surely not made; those of a commit that may be there stay."""
        try:
            yield
        except CommitStateUnknown:
            raise
        except BaseException:
            if not changes().is_put:
                discard(changes())
            raise

    # --- upkeep and erasure -------------------------------------------------------------------------------------------------------------

    def upkeep(self, *, now_ms: int) -> TableUpkeep:
        """Write small files and files of many deleted rows again, write a checkpoint, and delete files that no reader needs, as is due.

        A step of another process that comes first ends it: it is for the next time then. Raises as `position`.
        """
        state = self._log.examine(self._check_owner)
        if state is None:
            return TableUpkeep()
        files = self._files_of(state)
        merged = 0
        for group in plan_merges(state.files.values(), self._options.upkeep):
            with suppress(CommitConflict):
                state = self._merge_files(state, files, group)
                merged += len(group)
        if state.version - checkpoint_version(self._log.filesystem) >= self._options.upkeep.checkpoint_commits:
            with suppress(DeltaError, OSError):  # a later upkeep has its own
                table = open_table(self.location, self._storage_options)
                write_checkpoint(table, self._storage_options)
                table.cleanup_metadata()
        unused = unused_files(self._log.filesystem, state, now_ms=now_ms)
        files.delete(unused)
        return TableUpkeep(merged_files=merged, deleted_files=len(unused))

    def _merge_files(self, state: TableState, files: TableFiles, group: Sequence[TableFile]) -> TableState:
        """Write the live rows of some files as one file, and commit that."""
        vectors = self._vector_cache(files)
        live = [rows for file in group for rows in files.live_rows(file.path, vectors.of(file))]
        rows = pa.concat_tables([files.schema.empty_table(), *live]).combine_chunks()
        written = files.write(rows)
        changes = FileChanges(added=[file for file, _ in written], removed=list(group))
        with self._discarding(lambda: changes, files.discard):
            after = self._log.commit(state, changes, kind="upkeep", operation="OPTIMIZE", transactions={}, changes_rows=False)
        index = self._key_index(files, self._layout())
        for file, part in written:
            index.put(file.path, files.keys_of(part))
        index.keep(after.files)
        return after

    def erase(self, key: bytes, *, kept: Mapping[int, int]) -> Erased:
        """Delete all rows of a key, those of its past too, and every file in the table's folder that holds one.

        `kept` are offsets by partition: the record there stays, if the table has it. A commit is made in any case: a step that was planned
        before, with a record of the key in hand, is not taken after it. A file that was written since then may be one of a step under way:
        it stays, and is `left` until the table has it, or the next erasure finds it again.
        """
        done, written = retry_on_conflict(lambda: self._erase_rows(key, kept))
        return replace(done, **self._delete_files_of(key, written))

    def _erase_rows(self, key: bytes, kept: Mapping[int, int]) -> tuple[Erased, set[str]]:
        """Commit the erasure; return what it did, and the files that were there before."""
        state, kind = self._log.state(), "erase"
        if state is None:  # files may be those of another process that makes the table: no commit keeps it from doing so
            return Erased(), set()
        self._check_owner(state)
        try:
            self._log.examine(self._check_owner)
        except UserError:  # the key goes whatever others did, and the steps end all the same
            kind = ERASURE_OF_CHANGED
        if self._owner(state).key != self._layout().key_names:
            message = f"{self.location}: the key of the topic has other columns than the table was made with: rebuild it, and erase again"
            raise UserError(message)
        files, position = self._files_of(state), self._position(state)
        wanted, vectors, changes, count = self._keys_of(key), self._vector_cache(files), FileChanges(), 0
        for file in state.files.values():
            rows, deleted = files.rows_of(file.path, wanted), vectors.of(file)
            live = [row for row in rows.tolist() if row not in deleted]
            stays = files.kept_rows(file.path, live, kept, position.offsets)
            going = BitMap(set(live) - stays)
            if not going and len(live) == len(rows):
                continue
            count += len(going)
            changes.removed.append(file)
            left = list(files.live_rows(file.path, deleted | going))
            changes.added += [file for file, _ in files.write(pa.concat_tables([files.schema.empty_table(), *left]))]
        written = set(files.list_files())
        with self._discarding(lambda: changes, files.discard):
            self._log.commit(state, changes, kind=kind, operation="DELETE", transactions={})
        return Erased(rows=count), written

    def _delete_files_of(self, key: bytes, written: Collection[str]) -> dict[str, Any]:
        """Delete those of some files that hold a key and are not in the table; return the counts, and what is left."""
        state = self._log.state()
        files = self._files_of(state)
        wanted, removed, searched, left = self._keys_of(key), list[str](), 0, list[str]()
        for path in files.list_files():
            if state is not None and path in state.files:
                continue
            searched += 1
            try:
                holds = len(files.rows_of(path, wanted)) > 0
            except CorruptLog as error:
                left.append(f"{self.location}/{path}: {error}")
                continue
            if holds and path not in written:
                left.append(f"{self.location}/{path}: was written meanwhile, by a step perhaps; erase again")
            removed += [path] if holds and path in written else []
        files.delete(removed)
        left += [f"{self.location}/{path}: could not be deleted" for path in set(removed) & set(files.list_files())]
        return {"removed_files": len(removed), "searched_files": searched + (0 if state is None else len(state.files)), "left": tuple(left)}

    def _keys_of(self, key: bytes) -> RecordKeys:
        partitions = self._topic.decisions().partitions
        columns = {"partition": pa.array(range(partitions), pa.int32()), "key": pa.array([key] * partitions, pa.binary())}
        return self._row_maker(self._layout()).keys(pa.table(columns))

    # --- what the table says of itself --------------------------------------------------------------------------------------------------

    def _owner(self, state: TableState) -> TableOwner:
        """Return what the table says of whose it is; raise `UserError` when it is none of lastword."""
        owner = TableOwner.of(state, self.location)
        if owner is None:
            message = (
                f"{self.location} is a Delta table that topic {self._topic.name} was not materialized into: name another place, or drop "
                "the table"
            )
            raise UserError(message)
        return owner

    def _wanted_owner(self, layout: TableLayout) -> TableOwner:
        """Return what a table that this object makes says of its owner."""
        topic_id = self._topic.decisions().topic_id
        return TableOwner(topic=self._topic.name, topic_id=topic_id, history=layout.history, key=layout.key_names)

    def _check_owner(self, state: TableState) -> None:
        self._owner(state).check(self._wanted_owner(self._layout()), self.location, ways_out=REBUILD)
        wanted, there = self._options.partition_by, state.partition_by
        if wanted and wanted != there:
            message = f"{self.location} is partitioned by ({', '.join(there)}), and ({', '.join(wanted)}) is asked for: {REBUILD}"
            raise UserError(message)

    def _new_row_maker(self, state: TableState | None, layout: TableLayout) -> tuple[RowMaker, tuple[str, ...]]:
        """Return what makes the rows of a table that is written anew, and its partition columns: those that are asked for, or that it had.

        Raises `UserError` for names that are no columns of the table, or of a type that it cannot be partitioned by.
        """
        names = self._options.partition_by or (() if state is None else state.partition_by)
        rows = self._row_maker(layout, names)
        check_partition_columns(rows.named_schema, names, self.location)
        return rows, names

    def _check_replaceable(self, state: TableState) -> None:
        """Raise `UserError` for a table that is not to be replaced: one that was never a table of this topic."""
        owner = self._owner(state)
        owner.check(replace(self._wanted_owner(self._layout()), history=owner.history), self.location, ways_out=REBUILD)
        mode = state.configuration.get("delta.columnMapping.mode", "none")
        if is_obstacle("delta.columnMapping.mode", mode):
            message = f"{self.location} has delta.columnMapping.mode = {mode}, which cannot be taken back: drop the table"
            raise UserError(message)

    def _differences(self, state: TableState, there: pa.Schema, rows: RowMaker, layout: TableLayout) -> list[str]:
        """Return what differs of the columns that a step cannot go on with."""
        key = self._owner(state).key
        differing = differing_columns(there, rows.schema, rows.named_schema.names)
        if key != layout.key_names:
            differing.append(f"the key is ({', '.join(key)}) and would be ({', '.join(layout.key_names)})")
        return differing

    def _position(self, state: TableState) -> Position:
        return position_of(state, self._owner(state).topic_id)

    def _files_of(self, state: TableState | None) -> TableFiles:
        layout = self._layout()
        schema = self._row_maker(layout).schema if state is None else read_schema(state.metadata["schemaString"])
        known = pa.schema([column for column in schema if not pa.types.is_null(column.type)])
        delta_schema = None if state is None else state.metadata["schemaString"]
        there, partition_by = (None, ()) if state is None else (state.files, state.partition_by)
        return self._new_files(there, known, layout, partition_by, delta_schema=delta_schema)()

    def _new_files(
        self,
        there: Mapping[str, TableFile] | None,
        schema: pa.Schema,
        layout: TableLayout,
        partition_by: Sequence[str],
        *,
        delta_schema: str | None,
    ) -> Callable[[], TableFiles]:
        """Return what makes the data files of the table in any process."""
        return partial(
            TableFiles,
            self.location,
            dict(self._storage_options),
            schema,
            layout.stored_key_names,
            partition_by=tuple(stored_name(name) for name in partition_by),
            there=there,
            delta_schema=delta_schema,
        )

    def _letters(self, view: View, *, replaces: bool) -> DroppedRecords | None:
        if self._options.mode != "DROPMALFORMED":
            return None
        return DroppedRecords(self._topic, view, f"table {self.location}", replaces=replaces)

    # --- caches -------------------------------------------------------------------------------------------------------------------------

    def _row_maker(self, layout: TableLayout, partition_by: Sequence[str] = ()) -> RowMaker:
        return self._new_rows(layout, partition_by)()

    def _new_rows(self, layout: TableLayout, partition_by: Sequence[str]) -> Callable[[], RowMaker]:
        """Return what makes rows of records in any process."""
        on_misfit: Literal["error", "null"] = "error" if self._options.mode == "FAILFAST" else "null"
        return partial(RowMaker, layout, topic=self._topic.name, on_misfit=on_misfit, partition_by=tuple(partition_by))

    def _key_index(self, files: TableFiles, layout: TableLayout) -> KeyIndex:
        if self._index is None or self._index[0] != layout.identity_names:
            self._index = layout.identity_names, KeyIndex(max_bytes=self._options.limits.index_bytes)
        self._index[1].reads_by(files.read_keys)
        return self._index[1]

    def _vector_cache(self, files: TableFiles) -> Vectors:
        if self._vectors is None:
            self._vectors = Vectors(files)
        return self._vectors


def _record_columns(layout: TableLayout, *, whole: bool) -> list[str]:
    """Return the columns of the log that rows of a layout are made of, or with `whole` those that dead letters have, too."""
    needed = {"partition", "offset", "key", "value", *(name.removeprefix("_") for name in layout.own_columns if name in RECORD_COLUMNS)}
    needed |= {"timestamp"} if layout.history or whole else set()
    return sorted(needed | ({"headers"} if whole else set()))


def _delta_schema(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the `schemaString` that some actions give a table; None if they leave it as it is."""
    return next((action["metaData"]["schemaString"] for action in actions if "metaData" in action), None)
