"""Finds the columns of a topic, which its sources name or DDL gives, and decodes its records to rows with these columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import RowMisfit, TableColumns, describe_misfit
from lastword.compaction.errors import UserError
from lastword.compaction.order.source_states import ADD_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

    from lastword.change_data.columns.table_columns import TableDecoder
    from lastword.storage.log.topic_log import TopicLog


class ColumnsUnknown(UserError):
    """The columns of a topic are not known, because none of its sources has named them."""


def decode_batch(records: pa.RecordBatch, decoder: TableDecoder, *, topic: str) -> list[pa.RecordBatch]:
    """Decode records of a topic (partition, offset, key, value) to rows with the columns of its table.

    Raises `UserError` for a value that does not fit its column; it names the topic and the record.
    """
    try:
        return decoder.decode(records.column("key"), records.column("value"))
    except RowMisfit as error:
        row = records.slice(error.row, 1).to_pylist()[0]
        raise UserError(describe_misfit(topic, row, str(error))) from None


def table_columns(log: TopicLog, schema: str | None) -> TableColumns:
    """Return the columns of the table whose rows a topic holds: those that its sources say, or `schema` gives as SQL DDL.

    Raises `UserError` when `schema` is no DDL, and `ColumnsUnknown` when nothing says them.
    """
    columns = columns_of_sources(log)
    given: Any = schema
    if given is not None and not isinstance(given, str):
        message = f"topic {log.name}: schema = {given!r}: allowed is SQL DDL as a text, such as 'id bigint, price decimal(10,2)'"
        raise UserError(message)
    if schema is not None:
        try:
            return replace(columns or TableColumns(), value=columns_of_ddl(schema))
        except ValueError as error:
            message = f"topic {log.name}: schema = {schema!r}: {error}"
            raise UserError(message) from None
    if columns is None:
        message = f"topic {log.name}: no source of the topic says which columns its rows have; "
        message += f"{ADD_SCHEMA}; or, where no value is encoded, " if log.decisions().sources else ""
        message += 'give them as SQL DDL: schema="id bigint, price decimal(10,2)"'
        raise ColumnsUnknown(message)
    return columns


def columns_of_sources(log: TopicLog) -> TableColumns | None:
    """Return the columns that the topic's sources have named; None if no source has named any."""
    details = log.decisions().columns
    return None if details is None else TableColumns.of_details(details)
