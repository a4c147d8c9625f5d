"""Turns what `append` is given into the input of an append: records, frames and files with columns of their own, change events."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.events.event_rows import event_rows, event_table, line_events
from lastword.change_data.frames.json_columns import WrongColumn
from lastword.change_data.frames.record_rows import TextRows, TypedRows, empty_batch, find_missing_columns
from lastword.change_data.frames.row_words import RowArguments, RowWords, row_words
from lastword.change_data.frames.sql_expressions import WrongExpression
from lastword.change_data.frames.typed_texts import TypedTexts, schema_of_ddl
from lastword.compaction.errors import InvalidRecords, UserError, check_text
from lastword.compaction.rows.batches import in_batches, in_threads
from lastword.compaction.rows.input_columns import INPUT_COLUMNS, check_sequence_column, columns_of
from lastword.storage.append.batch_rows import BatchRows
from lastword.storage.append.inputs import arrow_table
from lastword.storage.append.writing import ArrowRows
from lastword.storage.files.file_format import FILE_OPTIONS, FileFormat, check_file_options
from lastword.storage.files.input_files import find_format, naming_file, spool, typed_batches, typed_schema
from lastword.storage.files.locations import location_of
from lastword.storage.files.source_files import read_first_texts, read_lines, read_texts
from lastword.storage.ledger.table_columns import keep_columns
from lastword.streaming.events import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lastword.change_data.columns.table_columns import TableColumns
    from lastword.change_data.events.event_rows import FrameDecoder
    from lastword.change_data.files.file_rows import RowText
    from lastword.compaction.rows.input_columns import EventPolicy
    from lastword.storage.append.requests import InputRows
    from lastword.storage.log.topic_log import TopicLog


#: The arguments that say how a file is read, not what its columns mean.
_OF_FILES: Final = ("format", "schema", "options", "lines")
_LOG: Final = logger("append")


class GivenRows(NamedTuple):
    """The input of an append, and the columns of the table whose rows it is; None where they are not known.

    `missing` are columns that expressions or a schema name, and the first rows of a file do not have.
    """

    rows: InputRows
    columns: TableColumns | None = None
    missing: tuple[str, ...] = ()

    def report_missing(self, log: TopicLog, path: str | PathLike[str] | IO[bytes]) -> None:
        """Log a warning that names the columns which the first rows of a file do not have: their values are null."""
        if self.missing:
            _LOG.warning("columns are not in the file; they are null", topic=log.name, file=_name(path), columns=", ".join(self.missing))

    def keep_columns(self, log: TopicLog, *, now_ms: int) -> None:
        """Write the columns into the topic's ledger, where they are known."""
        if self.columns is not None:
            keep_columns(log.ledger, self.columns.as_details(), now_ms=now_ms)


class AppendArguments(RowArguments, total=False):
    """The arguments of `Topic.append` behind its rows."""

    idempotency_key: str | None
    envelope: Envelope | None
    decoder: FrameDecoder | None
    on_invalid: str


class FileArguments(RowArguments, total=False):
    """How a file is read, as arguments of `Topic.append_file`."""

    format: str
    schema: str
    options: Mapping[str, str]
    lines: str


def read_words(arguments: Mapping[str, Any], *, topic: str) -> RowWords | None:
    """Return the settings of rows among the arguments of an append; None if all have their defaults. Raises `UserError`."""
    try:
        return row_words(arguments)
    except (ValueError, TypeError) as error:
        message = f"append to topic {topic}: {str(error).replace('sequence.as', 'sequence_as').replace('on.null', 'on_null')}"
        raise UserError(message) from None


def check_envelope(envelope: object, words: RowWords | None, *, topic: str) -> None:
    """Raise `UserError` for what is no envelope, and for settings of rows beside it, which its events say themselves."""
    if envelope is not None and not isinstance(envelope, Envelope):
        message = f"topic {topic}: envelope = {envelope!r}: allowed is an Envelope, e.g. Envelope(kind='debezium-flat')"
        raise UserError(message)
    if envelope is not None and words is not None:
        message = f"topic {topic}: key and its like: the events of an envelope say this themselves; leave them out, or the envelope"
        raise UserError(message)


def read_frame(
    data: Any, words: RowWords | None, envelope: Envelope | None, decoder: FrameDecoder | None, *, topic: str, sequence_as: str = ""
) -> GivenRows:
    """Return data in memory as the input of an append. Raises `UserError` that names what is wrong with it."""
    table = arrow_table(data, topic=topic, are_records=words is None)
    if words is not None:
        return _read_columns(table, words, topic)
    if envelope is not None:
        return GivenRows(ArrowRows(event_table(table, envelope, decoder, topic=topic), envelope.policy))
    check_key(table.schema, topic=topic)
    rows: InputRows = ArrowRows(table)
    check_sequence_column(rows.columns, sequence_as, topic=topic)
    return GivenRows(rows)


def check_key(schema: pa.Schema, *, topic: str) -> None:
    """Raise `InvalidRecords` for rows with neither a key nor a value but columns of their own: nothing says which of them are the key."""
    own = [name for name in schema.names if name not in INPUT_COLUMNS]
    if own and all(name not in schema.names or pa.types.is_null(schema.field(name).type) for name in ("key", "value")):
        message = (
            f"topic {topic} cannot take these rows: they have neither the column key nor the column value; there are {', '.join(own)}: "
            f"name the columns that are the key, e.g. key={own[0]!r}"
        )
        raise InvalidRecords(message)


def _read_columns(table: pa.Table, words: RowWords, topic: str) -> GivenRows:
    if not len(table):  # an empty list has no columns, and an empty frame of pandas none with a type
        return GivenRows(ArrowRows(pa.table({"key": pa.array([], pa.string()), "value": pa.array([], pa.string())})))
    try:
        records = TypedRows(words, table.schema)
        batches = list(in_threads(records.records, in_batches(table)))
        empty = records.records(empty_batch(table.schema))
    except (WrongColumn, WrongExpression) as error:
        message = f"topic {topic} cannot take these rows: {_spell(error)}"
        raise InvalidRecords(message) from None
    made = pa.Table.from_batches(batches, empty.schema)
    return GivenRows(ArrowRows(made, words.policy), records.table_columns)


def _spell(error: Exception) -> str:
    return str(error).replace("sequence.as", "sequence_as").replace("on.null", "on_null")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """Reads a file as the input of an append, by the arguments of `Topic.append_file`."""

    arguments: FileArguments
    envelope: Envelope | None = None

    @contextmanager
    def open(self, log: TopicLog, path: str | PathLike[str] | IO[bytes]) -> Iterator[GivenRows]:
        """Return a file, or a stream of bytes, as input that is read in batches. Raises `UserError` that names it and what is wrong."""
        self._check_arguments(log.name)
        words = read_words({name: given for name, given in self.arguments.items() if name not in _OF_FILES}, topic=log.name)
        check_envelope(self.envelope, words, topic=log.name)
        lines = self.arguments.get("lines", "")
        if lines not in {"", "records", "values"} or (lines and self.envelope is None):
            message = f"lines = {lines!r}: allowed are records and values, with an envelope"
            raise UserError(message)
        if isinstance(path, (str, PathLike)):
            yield self._read_file(log, _name(path), location_of(str(path), is_pattern=True), words)
            return
        _check_stream(path)
        with spool(path) as location:
            yield self._read_file(log, _name(path), location, words)

    def _check_arguments(self, topic: str) -> None:
        """Raise `UserError` for an argument that is unknown, or of another type."""
        given, allowed = self.arguments, (*_OF_FILES, *(field.name for field in fields(RowWords)))
        unknown = [name for name in given if name not in allowed]
        if unknown:
            message = f"append to topic {topic}: {', '.join(unknown)}: there is no such argument; allowed are {', '.join(allowed)}"
            raise UserError(message)
        for name in ("format", "schema", "lines"):
            check_text(f"append to topic {topic}: {name}", given.get(name, ""))
        options: object = given.get("options", {})
        if not isinstance(options, Mapping) or not all(isinstance(part, str) for pair in options.items() for part in pair):
            message = f"append to topic {topic}: options = {options!r}: allowed are names and texts, e.g. {{'header': 'true'}}"
            raise UserError(message)

    def _read_file(self, log: TopicLog, path: str, location: str, words: RowWords | None) -> GivenRows:
        options, schema, reader_options = log.storage_options, self.arguments.get("schema", ""), self.arguments.get("options", {})
        kind = find_format(path, location, self.arguments.get("format", ""), options)
        try:
            check_file_options(reader_options, FILE_OPTIONS.get(kind, ()), f"{kind} files")
        except ValueError as error:
            message = f"{path}: {error}"
            raise UserError(message) from None
        file_format = FileFormat.of_options(kind, reader_options)
        try:
            with naming_file(path):
                if self.envelope is not None:
                    return _read_event_file(log, path, location, self.envelope, kind=kind, lines=self.arguments.get("lines", ""))
                if kind in {"parquet", "arrow"}:
                    if schema:
                        message = f"{path}: schema = {schema!r}: a file of {kind} says which types its columns have; leave it out"
                        raise UserError(message)
                    return _read_typed_file(path, location, kind, words, options=options)
                if words is None:
                    message = f"{path} holds {kind}: name the columns that are the key, or give an envelope"
                    raise UserError(message)
                return _read_text_file(path, location, file_format, words, schema=schema, options=options)
        except (WrongColumn, WrongExpression, InvalidRecords) as error:
            message = f"{path} cannot be appended to topic {log.name}: {_spell(error)}; nothing of it was appended"
            raise InvalidRecords(message) from None


def _check_stream(stream: object) -> None:
    """Raise `UserError` unless an object is a stream of bytes."""
    is_text = isinstance(stream, io.TextIOBase)
    if is_text or not hasattr(stream, "read"):
        hint = ": a file of texts; open it with mode 'rb'" if is_text else ""
        message = f"path = {stream!r}{hint}: allowed are a path, a URI and a stream of bytes"
        raise UserError(message)


@contextmanager
def naming_rows(path: str | PathLike[str] | IO[bytes]) -> Iterator[None]:
    """Name the file in the message of rows that a topic refuses."""
    try:
        yield
    except InvalidRecords as error:
        message = str(error) if str(error).startswith(_name(path)) else f"{_name(path)}: {error}"
        raise InvalidRecords(message) from None


def _name(path: str | PathLike[str] | IO[bytes]) -> str:
    return str(path) if isinstance(path, (str, PathLike)) else str(getattr(path, "name", "the stream"))


def _read_event_file(log: TopicLog, path: str, location: str, envelope: Envelope, *, kind: str, lines: str) -> GivenRows:
    """Return the lines of a file of JSON as change events."""
    if kind != "json":
        message = f"{path} is a file of {kind}: with an envelope each line of a file is an event in JSON; allowed is json"
        raise UserError(message)

    are_records = None if not lines else lines == "records"

    def events(texts: list[bytes]) -> pa.RecordBatch:
        batch = line_events(pa.record_batch({"value": pa.array(texts, pa.binary())}), are_records=are_records)
        return event_rows(batch, envelope)

    return GivenRows(_batches(path, events, partial(read_lines, location, log.storage_options), events([]), envelope.policy))


def _read_typed_file(path: str, location: str, kind: str, words: RowWords | None, *, options: Mapping[str, str]) -> GivenRows:
    """Return a Parquet or Arrow file: of records as they are, or with columns of its own."""
    there, read = typed_schema(location, kind, options), partial(typed_batches, location, kind, options)
    if words is None:
        unknown = [name for name in ("key", "value") if name not in there.names]
        if unknown:
            names = ", ".join(there.names)
            message = f"{path} has no column {' and no column '.join(unknown)}; there are {names}: name those that are the key"
            raise UserError(message)
        rows = BatchRows(columns_of(there), lambda: _naming_file(path, read()))
        check_sequence_column(rows.columns, "", topic=path)
        return GivenRows(rows)
    records = TypedRows(words, there)
    empty = records.records(empty_batch(there))
    return GivenRows(_batches(path, records.records, read, empty, words.policy), records.table_columns)


def _read_text_file(
    path: str, location: str, file_format: FileFormat, words: RowWords, *, schema: str, options: Mapping[str, str]
) -> GivenRows:
    """Return a file of JSON or CSV: as it stands, or with the columns of a schema."""
    read, first = partial(read_texts, location, file_format, options), read_first_texts(location, file_format, options)
    if schema:
        texts = TypedTexts(schema_of_ddl(schema), are_texts=file_format.name == "csv")
        typed = TypedRows(words, texts.schema)

        def records_of(rows: list[RowText]) -> pa.RecordBatch:
            as_read = texts.read(rows)
            return typed.records(as_read.rows, as_read)

        missing = find_missing_columns(texts.schema.names, first)
        return GivenRows(_batches(path, records_of, read, records_of([]), words.policy), typed.table_columns, tuple(missing))
    records = TextRows(words)
    records.check_first(first)
    rows = _batches(path, records.records, read, records.records([]), words.policy)
    return GivenRows(rows, missing=tuple(records.missing_columns(first)))


def _batches(
    path: str,
    records: Callable[[Any], pa.RecordBatch],
    read: Callable[[], Iterator[Any]],
    empty: pa.RecordBatch,
    policy: EventPolicy | None,
) -> BatchRows:
    return BatchRows(columns_of(empty.schema), lambda: _naming_file(path, map(records, read())), policy)


def _naming_file(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of a file; what is wrong with the file, or with a value in it, names the file."""
    with naming_file(path):
        try:
            yield from batches
        except WrongColumn as error:
            message = f"{path}: {error}; nothing of it was appended"
            raise InvalidRecords(message) from None
