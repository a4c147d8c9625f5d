"""The file source: every file of a path, once, in the order of arrival, whatever its name and its age.

```
 listing (driver)     which files are new: an entry of the query's `FileListing`, and one micro-batch
 tasks                a few files each: read whole, then given row by row
 without a schema     key and value as they stand in the file; an expression sees texts
 with a schema        columns with types, as of any other source (`lastword.streaming.append.change_rows`)
```

A file that cannot be read is a dead letter that names it, or ends the query (`on.corrupt.file`). One that changes after it was read is
reported, and not read again. A folder that is gone for a while is waited for.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from inspect import signature
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from lastword.change_data.columns.column_types import quote_name
from lastword.change_data.files.file_rows import CorruptFile, FileColumns
from lastword.compaction.errors import UserError
from lastword.compaction.rows.input_columns import MALFORMED, REFUSAL
from lastword.storage.files.file_format import FileFormat
from lastword.storage.files.file_listing import FileListing
from lastword.storage.files.locations import local_path, location_of
from lastword.storage.files.schema import HEADERS_TYPE
from lastword.storage.files.source_files import (
    FoundFile,
    check_apart,
    find_files,
    parquet_schema,
    read_columns_of,
    read_first_texts,
    read_texts,
)
from lastword.storage.ledger.decisions import Decision, Kind
from lastword.streaming.append.change_rows import ChangeColumns, change_rows
from lastword.streaming.append.file_task import FILE, KEY, PLACE, ROW, TEXT, VALUE, FileTask, event_lines, read_as_they_stand
from lastword.streaming.append.missing_columns import missing_columns, report_missing
from lastword.streaming.append.source_issues import set_source_issue
from lastword.streaming.append.source_rows import OpenSource, change_columns, given_schema, open_rows, parsed_json
from lastword.streaming.append.upstream import Upstream, check_read_once, read_twice
from lastword.streaming.events import logger
from lastword.streaming.planned_source import Planner, PollPace, planned_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.file_task import Read
    from lastword.streaming.append.source_settings import FileSource

#: Arguments of `to_arrow_schema` for times in UTC. Spark 4.0 and 4.1 have no such argument and always use UTC.
_IN_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
_UNREAD: Final = "__unread"
_TIME: Final = "__time"
_SAMPLED_ROWS, _SAMPLED_FILES = 1_000, 10
#: A folder that cannot be listed is reported so often.
_REPORT_SECONDS: Final = 60.0
_LOG: Final = logger("files")


def open_files(spark: SparkSession, source: FileSource, log: TopicLog, *, now_ms: int) -> OpenSource:
    """Open the files of a source; raise `UserError` that names what is wrong. Nothing is kept of a start that fails."""
    try:
        files = _list_files(source, log.storage_options)
    except OSError as error:
        message = f"source {source.name}: {source.path} cannot be read ({error}); make the folder first"
        raise UserError(message) from error
    check_apart(source.path, log.paths.root.rpartition("/")[0], files)
    upstream = Upstream(source=f"the files of {source.path}", reads=_what_is_read(source), ask=lambda: None)
    check_read_once(log.decisions(), upstream.reads, topic=log.name, query=source.name)
    _check_not_taken(source, log, files)
    return replace(_open_format(spark, source, log, files, now_ms), upstream=upstream)


def _open_format(spark: SparkSession, source: FileSource, log: TopicLog, files: Sequence[FoundFile], now_ms: int) -> OpenSource:
    """Open the files of a source as what they hold: change events, Parquet, or rows with or without a schema."""
    if source.envelope:
        types = {"key": "binary", "value": "binary", "headers": HEADERS_TYPE}
        return OpenSource(rows=_stream(spark, source, log, partial(event_lines, log.storage_options, source.are_records), types))
    if source.format == "parquet":
        return _parquet(spark, source, log, files, now_ms)
    if source.schema_ddl:
        return _with_schema(spark, source, log, files, now_ms)
    return _as_they_stand(spark, source, log, files)


def _what_is_read(source: FileSource) -> str:
    """Return by what the ledger knows the files of a source: their path, however it is spelled, and the filter of their names."""
    name_filter = _options(source).get("pathglobfilter", "")
    path = location_of(source.path, is_pattern=True)
    local = local_path(path)
    return f"files {path if local is None else os.path.realpath(local)}{f' ({name_filter})' if name_filter else ''}"


def _check_not_taken(source: FileSource, log: TopicLog, files: Sequence[FoundFile]) -> None:
    """Raise `QueryRefused` if a query of the topic that is not known yet would read files which another one has read."""
    queries = log.decisions().queries
    if queries.get(source.name) is not None:
        return
    paths = {_real_path(file.path) for file in files}
    for name, query_id in queries.items():
        if name == source.name or query_id is None:
            continue
        known = FileListing(log.paths.query(name), log.storage_options).known
        taken = sorted(paths & set(map(_real_path, known)))
        if taken:
            more = f" and {len(taken) - 1:,} more of the files of {source.path}" if len(taken) > 1 else ""
            what = taken[0] + more
            raise read_twice(what, topic=log.name, query=source.name, other=name)


def _real_path(path: str) -> str:
    """Return a local file by its one path without links; any other location as it is."""
    local = local_path(path)
    return path if local is None else os.path.realpath(local)


def _options(source: FileSource) -> dict[str, str]:
    """Return the options of a source; case does not count in their names, as in Spark's."""
    return {name.lower(): value for name, value in source.options.items()}


def _list_files(source: FileSource, storage_options: Mapping[str, str]) -> list[FoundFile]:
    return find_files(source.path, storage_options, name_filter=_options(source).get("pathglobfilter", ""))


def file_format_of(source: FileSource) -> FileFormat:
    """Return how the files of a source are read, from its options under Spark's names."""
    return FileFormat.of_options(source.format, source.options)


def _stream(spark: SparkSession, source: FileSource, log: TopicLog, read: Read, types: Mapping[str, str]) -> DataFrame:
    """Return the rows of the files that arrive: `read` gives those of one file, in columns of `types`; `PLACE` stands beside them."""
    columns = spark.createDataFrame([], ", ".join(f"{quote_name(name)} {data_type}" for name, data_type in {**types, **PLACE}.items()))
    return planned_stream(FilePlanner(spark, source, log, read, columns.schema), columns)


class FilePlanner(Planner):
    """Lists the files of a source, and says which of them make the next micro-batch."""

    def __init__(self, spark: SparkSession, source: FileSource, log: TopicLog, read: Read, schema: T.StructType) -> None:
        """Plan for a source whose files `read` reads into the columns of `schema`; nothing is listed yet."""
        self.name = f"files[{source.path}]"
        self._spark, self._source, self._log, self._read = spark, source, log, read
        self._schema = schema
        self._listing: FileListing | None = None
        self._until: set[str] | None = None
        self._reported_at = -_REPORT_SECONDS
        self._pace = PollPace(source.path)
        self._changed: set[FoundFile] = set()
        self._waiting: int | None = None
        self._issue = ""

    def first(self) -> str:
        """Return the source offset before the first entry."""
        return json.dumps({"files": 0})

    def bound(self, query: str) -> None:
        """Read no file that is not there now."""
        del query
        self._until = {file.path for file in self._find()}

    def latest(self, after: str, query: str) -> str:
        """Return the entry with the next files, which is written here; or the one that a query has not ended."""
        del query
        listing, number = self._open_listing(), self._number(after)
        if listing.last > number:  # a micro-batch that was begun, and not ended
            return json.dumps({"files": number + 1})
        new = self._new(listing)
        limit = self._source.max_files_per_trigger or len(new)
        self._waiting = None if self._issue else len(new[limit:])
        return json.dumps({"files": listing.add(new[:limit])}) if new else after

    def newest(self) -> str | None:
        """Return the last entry, and how many files wait for a later micro-batch; None before the first listing."""
        if self._waiting is None:
            return None
        return json.dumps({"files": self._open_listing().last, "waiting": self._waiting})

    def rows(self, after: str, end: str) -> DataFrame | None:
        """Return the rows of the files between two entries."""
        task = self.task(after, end, parts=self._spark.sparkContext.defaultParallelism)
        if not task.parts:
            return None
        # A range has a row, a part, for each of its partitions.
        return self._spark.range(0, len(task.parts), 1, len(task.parts)).mapInArrow(task, self._schema)

    def task(self, after: str, end: str, *, parts: int) -> FileTask:
        """Return what reads the files between two source offsets, in up to so many parts."""
        listing = self._open_listing()
        files = [file for number in range(self._number(after) + 1, self._number(end) + 1) for file in listing.files(number)]
        return FileTask(
            parts=_parts(files, parts),
            read=self._read,
            root=self._source.path,
            schema=to_arrow_schema(self._schema, **_IN_UTC),
            stops=self._source.on_corrupt_file == "fail",
        )

    def stop(self, query: str) -> None:
        """Forget what was listed: another process may run the query next."""
        del query
        self._listing, self._until, self._waiting = None, None, None
        self._report_issue("")

    def _report_issue(self, issue: str) -> None:
        self._issue = issue
        set_source_issue(self._log.paths.root, self._source.name, issue)

    def _number(self, offset: str) -> int:
        fields = json.loads(offset)
        if "files" not in fields:
            message = (
                f"source {self._source.name}: its checkpoint is of an earlier version of lastword, which listed files by Spark's file "
                f"source (source offset {offset}). Start it under a new name with the files that are not in the topic yet"
            )
            raise UserError(message)
        return int(fields["files"])

    def _open_listing(self) -> FileListing:
        if self._listing is None:
            self._listing = FileListing(self._log.paths.query(self._source.name), self._log.storage_options)
        return self._listing

    def _new(self, listing: FileListing) -> list[FoundFile]:
        """Return the files that are not taken yet; report those that changed since."""
        try:
            files = self._find()
        except OSError as error:
            self._report_issue(f"its files cannot be listed: {error}")
            if time.monotonic() - self._reported_at >= _REPORT_SECONDS:
                self._reported_at = time.monotonic()
                _LOG.warning("files cannot be listed", source=self._source.name, topic=self._log.name, error=str(error))
            return []
        self._report_issue("")
        for file in files:
            taken = listing.known.get(file.path)
            if taken not in {None, file} and file not in self._changed:
                self._changed.add(file)
                _LOG.warning(
                    "file changed after it was read; its rows are not read again, put them into a new file",
                    source=self._source.name,
                    topic=self._log.name,
                    file=file.path,
                )
        return [file for file in files if file.path not in listing.known and (self._until is None or file.path in self._until)]

    def _find(self) -> list[FoundFile]:
        self._pace.begin()
        try:
            return _list_files(self._source, self._log.storage_options)
        finally:
            self._pace.rest()


def _parts(files: Sequence[FoundFile], count: int) -> list[list[tuple[int, str]]]:
    """Return files, numbered in their order, in up to `count` parts of about the same size: each goes where the middle of it falls."""
    parts: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    total, before = sum(file.size_bytes + 1 for file in files), 0
    for number, file in enumerate(files):
        size = file.size_bytes + 1
        parts[(2 * before + size) * count // (2 * total)].append((number, file.path))
        before += size
    return [part for part in parts if part]


def _as_they_stand(spark: SparkSession, source: FileSource, log: TopicLog, files: Sequence[FoundFile]) -> OpenSource:
    """Open files without a schema: keys and values have the texts of the file, and an expression sees its columns as texts."""
    if source.on_null == "keep":
        message = f"source {source.name}: on.null = keep needs a schema, which says which columns a row may leave out"
        raise UserError(message)
    types = _named_columns(spark, source, log, files)
    own = FileColumns(key=source.key, value=source.value, columns=source.columns, drop=source.drop)
    read = partial(read_as_they_stand, file_format_of(source), log.storage_options, own)
    names = dict.fromkeys([*types.names, *([source.timestamp] if source.timestamp else [])])
    rows = _stream(spark, source, log, read, {KEY: "binary", VALUE: "binary", **({TEXT: "string"} if names else {})})
    changes = ChangeColumns(
        keys=(),
        own_key=KEY,
        value=VALUE,
        sequence_by=source.sequence,
        apply_as_deletes=source.tombstone or None,
        apply_as_truncates=source.truncate or None,
        timestamp=_TIME if source.timestamp else "",
        text=TEXT if names else "",
        sequence_as=source.sequence_as,
    )
    casts = {field.name: F.col(quote_name(field.name)).try_cast(field.dataType) for field in types}
    if source.timestamp:
        casts[_TIME] = _time(F.col(quote_name(source.timestamp)))
    typed = _cast(rows, names, casts, source, [KEY, VALUE, TEXT])
    beside = [F.col(name) for name in ((FILE, ROW) if names else (MALFORMED, FILE, ROW))]
    return OpenSource(rows=change_rows(typed, changes, subject=f"source {source.name}", beside=beside))


def _time(text: Column) -> Column:
    """Return a text as a time: one of 11 to 13 digits is ms since 1970, one of fewer or more digits alone is none."""
    millis = F.when(text.rlike(r"^\d{11,13}$"), F.timestamp_millis(text.try_cast("bigint")))
    return millis.otherwise(F.when(~text.rlike(r"^-?\d+$"), text.try_cast("timestamp")))


def _with_schema(spark: SparkSession, source: FileSource, log: TopicLog, files: Sequence[FoundFile], now_ms: int) -> OpenSource:
    """Open files whose columns have the types of a schema."""
    schema, file_format, options = given_schema(source), file_format_of(source), log.storage_options
    read = partial(read_as_they_stand, file_format, options, None)
    rows = _cast_columns(_stream(spark, source, log, read, {TEXT: "string"}), schema, source)
    names = _first_columns(files, lambda path: [name for row in read_first_texts(path, file_format, options) for name in row.fields])
    _report_absent(source, log, schema.names, names, declared=schema.names)
    return _as_source(rows, schema, source, log, now_ms)


def _as_source(rows: DataFrame, schema: T.StructType, source: FileSource, log: TopicLog, now_ms: int) -> OpenSource:
    """Return rows with the columns of a schema as an open source."""
    changes = change_columns(source, schema.names, [name for name in schema.names if name not in source.key])
    return open_rows(rows, changes, source, log, now_ms, beside=_beside())


def _beside() -> list[Column]:
    return [F.col(name) for name in (MALFORMED, FILE, ROW)]


def _read_first_schema(source: FileSource, log: TopicLog) -> T.StructType | None:
    """Return the columns of the first start of a source; None for a source whose query was not started yet."""
    decisions = log.decisions()
    known = decisions.schemas.get(source.name) if source.name in decisions.queries else None
    return None if known is None else T.StructType.fromJson(dict(known))


def _remember(source: FileSource, log: TopicLog, schema: T.StructType, now_ms: int) -> None:
    """Let the next start have the columns of this one; nothing is written if it would have them already."""
    details = schema.jsonValue()
    if log.decisions().schemas.get(source.name) != details:
        log.ledger.append([Decision(kind=Kind.SCHEMA, time_ms=now_ms, name=source.name, details=details)])


def _cast_columns(rows: DataFrame, schema: T.StructType, source: FileSource) -> DataFrame:
    """Return rows with the columns of a schema, from their text; what does not fit it is malformed."""
    if source.format == "csv":
        casts = {field.name: F.col(quote_name(field.name)).try_cast(field.dataType) for field in schema}
        return _cast(rows, schema.names, casts, source, [])
    made = parsed_json(rows, F.col(TEXT), schema, _kept_columns([]), subject=f"source {source.name}")
    return made.withColumn(MALFORMED, F.coalesce(F.col(_UNREAD), F.col(MALFORMED))).drop(_UNREAD, TEXT)


def _cast(rows: DataFrame, names: Iterable[str], casts: Mapping[str, Column], source: FileSource, beside: Sequence[str]) -> DataFrame:
    """Return rows with columns that are casts of the fields `names` of their text; a value that a cast makes null is malformed."""
    texts = T.StructType([T.StructField(name, T.StringType()) for name in names])
    if not texts.names:
        return rows
    made = parsed_json(rows, F.col(TEXT), texts, _kept_columns(beside), subject=f"source {source.name}")
    fields = {name: source.timestamp if name == _TIME else name for name in casts}
    wrong = [F.col(quote_name(fields[name])).isNotNull() & column.isNull() for name, column in casts.items()]
    malformed = F.coalesce(F.col(_UNREAD), F.when(reduce(or_, wrong), F.col(TEXT))).alias(MALFORMED)
    return made.select(*[column.alias(name) for name, column in casts.items()], malformed, *[*beside, REFUSAL, FILE, ROW])


def _kept_columns(beside: Sequence[str]) -> list[Column]:
    return [*[F.col(name) for name in dict.fromkeys((TEXT, *beside, REFUSAL, FILE, ROW))], F.col(MALFORMED).alias(_UNREAD)]


def _expressions(source: FileSource) -> list[str]:
    return [*source.sequence, *_conditions(source)]


def _conditions(source: FileSource) -> list[str]:
    return [condition for condition in (source.tombstone, source.truncate) if condition]


def _named_columns(spark: SparkSession, source: FileSource, log: TopicLog, files: Sequence[FoundFile]) -> T.StructType:
    """Return the columns that the expressions of a source name: texts, and a boolean for one that is a whole condition.

    Raises `UserError` at the first start for a column of the key, the value or the timestamp that the first rows do not have, and at
    each start for one that differs from a column of them in case alone: JSON and CSV have both.
    """
    used = missing_columns(spark, source.sequence, {}, whole="string")
    used |= missing_columns(spark, _conditions(source), used)
    names, wrong = _first_names(source, files, log.storage_options)
    if source.name not in log.decisions().queries:
        _check_columns(source, names, wrong)
    _report_absent(source, log, [*used, *source.drop], names)
    return _struct(used)


def _report_absent(
    source: FileSource, log: TopicLog, columns: Sequence[str], names: Collection[str], *, declared: Collection[str] = ()
) -> None:
    """Report the columns that are not among `names`, those of the first rows.

    Raises `UserError` for a column that differs from a name in case alone, unless that name is `declared`, too.
    """
    absent = [name for name in columns if names and name not in names]
    others = [column for column in names if column not in declared]
    alike = {name: column for name in absent for column in others if column.casefold() == name.casefold()}
    if alike:
        message = f"source {source.name}: no column {', '.join(alike)}; there are {', '.join(alike.values())}: upper and lower case differ"
        raise UserError(message)
    report_missing(absent, names, source=source.name, topic=log.name)


def _struct(types: Mapping[str, str]) -> T.StructType:
    return T.StructType([T.StructField(name, T.DataType.fromDDL(kind)) for name, kind in types.items()])


def _check_columns(source: FileSource, names: Collection[str], wrong: str) -> None:
    """Raise `UserError` for a column that the first rows do not have and must have, and where no row can be read."""
    if not names and wrong:
        message = (
            f"source {source.name}: there is no row in {source.path} that could be read{wrong}; put files there first, or give `schema`"
        )
        raise UserError(message)
    needed = [*source.key, *source.columns, *(column for column in (source.value, source.timestamp) if column)]
    absent = [name for name in dict.fromkeys(needed) if name not in names] if names else []
    if absent:
        message = f"source {source.name}: no column {', '.join(absent)}; there are {', '.join(names)}"
        raise UserError(message)


def _first_names(source: FileSource, files: Sequence[FoundFile], options: Mapping[str, str]) -> tuple[dict[str, None], str]:
    """Return the columns of the first rows, in their order, and what was wrong with a row or a file of them."""
    names, wrong, count = dict[str, None](), "", 0
    for file in files[:_SAMPLED_FILES]:
        try:
            for texts in read_texts(file.path, file_format_of(source), options):
                good = [row for row in texts if row.malformed is None]
                names |= {name: None for row in good[:_SAMPLED_ROWS] for name in row.fields}
                count += len(good)
                wrong = wrong or next((f" ({file.path}: {row.detail})" for row in texts if row.malformed is not None), "")
        except CorruptFile as error:
            wrong = wrong or f" ({file.path}: {error})"
        if count >= _SAMPLED_ROWS:
            break
    return names, wrong


def _parquet(spark: SparkSession, source: FileSource, log: TopicLog, files: Sequence[FoundFile], now_ms: int) -> OpenSource:
    """Open Parquet files: with the columns of a schema, or those that the first file had at the first start."""
    known = given_schema(source) if source.schema_ddl else _read_first_schema(source, log)
    first = known or _first_schema(source, files, log.storage_options)
    if source.schema_ddl:
        there = _first_columns(files, lambda path: parquet_schema(path, log.storage_options).names)
        alike = {name.casefold() for name in there}  # Parquet's columns are taken whatever their case is
        report_missing([name for name in first.names if there and name.casefold() not in alike], there, source=source.name, topic=log.name)
    schema = first if source.schema_ddl else _with_missing(spark, source, log, first)
    read = partial(
        read_columns_of,
        schema=to_arrow_schema(schema, **_IN_UTC),
        storage_options=log.storage_options,
        may_have_more=bool(source.schema_ddl),
    )
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    rows = _stream(spark, source, log, read, types)
    changes = change_columns(source, schema.names, [name for name in first.names if name not in source.key])
    made = open_rows(rows, changes, source, log, now_ms, beside=_beside())
    if not source.schema_ddl:
        _remember(source, log, schema, now_ms)
    return made


def _first_columns(files: Sequence[FoundFile], columns_of: Callable[[str], Iterable[str]]) -> dict[str, None]:
    """Return the columns of the first files, in their order."""
    names = dict[str, None]()
    for file in files[:_SAMPLED_FILES]:
        with suppress(CorruptFile, OSError):  # the query says so when it reads the file
            names |= dict.fromkeys(columns_of(file.path))
    return names


def _with_missing(spark: SparkSession, source: FileSource, log: TopicLog, schema: T.StructType) -> T.StructType:
    """Return the columns of Parquet files with those that expressions and `drop` name and that are not there yet."""
    missing = missing_columns(spark, _expressions(source), {field.name: field.dataType.simpleString() for field in schema.fields})
    missing |= {name: "string" for name in source.drop if name not in {*schema.names, *missing}}
    report_missing(missing, schema.names, source=source.name, topic=log.name)
    return T.StructType([*schema.fields, *_struct(missing).fields])


def _first_schema(source: FileSource, files: Sequence[FoundFile], options: Mapping[str, str]) -> T.StructType:
    wrong = "there is no file yet"
    for file in files[:_SAMPLED_FILES]:
        try:
            return from_arrow_schema(parquet_schema(file.path, options), prefer_timestamp_ntz=True)
        except (CorruptFile, PySparkException) as error:
            wrong = f"{file.path}: {error}"
    message = f"source {source.name}: {source.path} does not say its columns ({wrong}); put files there first, or give `schema`"
    raise UserError(message)
