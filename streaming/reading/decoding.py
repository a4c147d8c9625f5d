"""Values as what they mean: JSON, Avro or text instead of bytes, decoded by Spark's own expressions when a reader asks for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.compaction.errors import UserError, said_by_spark
from lastword.compaction.rows.column_types import ScalarType, ddl_of, quoted, with_time_zones
from lastword.storage.reading.view import misfit_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from lastword.compaction.rows.column_types import Column as TableColumn
    from lastword.compaction.rows.table_columns import TableColumns

#: What a value can be read as.
VALUE_FORMATS: Final = ("json", "avro", "utf8")
#: How JSON is read whatever the session says: a time without a zone is UTC.
JSON_OPTIONS: Final = {"timeZone": "UTC"}


def decoded(rows: DataFrame, value_format: str | None, schema: T.StructType | str | None, *, mode: str = "FAILFAST") -> DataFrame:
    """Return rows with `value` decoded; unchanged when `value_format` is None. A tombstone's value stays null.

    * `utf8`: a string.
    * `json`: a struct of `schema` (a StructType, or SQL DDL such as `icao string, elevation double`); without a schema a VARIANT.
    * `avro`: a struct, by the Avro schema (JSON text) that the values were written with; bare Avro binary, no registry header.

    A malformed value ends the read (`mode="FAILFAST"`) or becomes null, or a struct of nulls (`"PERMISSIVE"`). Raises `UserError` naming
    what is allowed for a format, schema or mode that is not.
    """
    if value_format is None:
        if schema is not None:
            message = f"schema = {schema}: a schema needs value_format; allowed is {', '.join(VALUE_FORMATS)}"
            raise UserError(message)
        return rows
    if value_format not in VALUE_FORMATS:
        message = f"value_format = {value_format!r}: allowed is {', '.join(VALUE_FORMATS)}"
        raise UserError(message)
    misfit_policy(mode)
    return rows.withColumn("value", _decoded(F.col("value"), value_format, schema, mode))


def as_table(rows: DataFrame, columns: TableColumns, *, mode: str = "FAILFAST") -> DataFrame:
    """Return records (key, value) as rows of the table that they are: the columns of the key alone, then those of the value.

    A value that does not fit its column ends the read (`mode="FAILFAST"`), or is null (`"PERMISSIVE"`).
    """
    misfit_policy(mode)
    found = list["Column"]()
    if columns.of_key_alone:
        name, key = columns.of_key_alone[0].name, F.col("key").cast("string")
        objects = {
            "object": key,
            "text": F.to_json(F.struct(key.alias(name))),
            "json": F.concat(F.lit(f"{{{json.dumps(name)}:"), key, F.lit("}")),
        }
        if columns.key_form == "bytes":
            found.append(F.col("key").alias(name))
        else:
            found += _fields(objects[columns.key_form], columns.of_key_alone, mode)
    return rows.select(*found, *(_fields(F.col("value").cast("string"), columns.value, mode) if columns.value else []))


def _fields(text: Column, columns: Sequence[TableColumn], mode: str) -> list[Column]:
    parsed = F.from_json(text, ddl_of(columns), {"mode": mode, **JSON_OPTIONS})
    return [_not_null_variant(parsed.getField(column.name), column).alias(column.name) for column in columns]


def _not_null_variant(field: Column, column: TableColumn) -> Column:
    """Return a field; JSON that says null, which a column has that is null in the source, is null and no VARIANT of null."""
    is_json = isinstance(column.data_type, ScalarType) and column.data_type.kind == "json"
    return _not_null(field) if is_json else field


def _not_null(field: Column) -> Column:
    return F.when(~F.is_variant_null(field), field)


def _decoded(value: Column, value_format: str, schema: T.StructType | str | None, mode: str) -> Column:
    match value_format:
        case "json":
            text = value.cast("string")
            if schema is None:
                return F.parse_json(text) if mode == "FAILFAST" else F.try_parse_json(text)
            fields = value_struct(schema)
            found = F.from_json(text, fields, {"mode": mode, **JSON_OPTIONS})
            for field in fields:
                if isinstance(field.dataType, T.VariantType):
                    found = found.withField(quoted(field.name), _not_null(found.getField(field.name)))
            return found
        case "avro":
            options = F.create_map(F.lit("mode"), F.lit(mode))
            return F.call_function("from_avro", value, F.lit(_avro(schema)), options)
        case _:
            if schema is not None:
                message = f"schema = {schema}: utf8 has none; allowed is value_format json or avro with a schema"
                raise UserError(message)
            return value.cast("string")


def value_struct(schema: T.StructType | str) -> T.StructType:
    """Return the fields that a schema names; raise `UserError` for text that is not SQL DDL of columns."""
    if isinstance(schema, T.StructType):
        return schema
    try:
        given = T.DataType.fromDDL(with_time_zones(schema))
    except PySparkException as error:
        message = f"schema {schema!r} is not SQL DDL (icao string, elevation double): {said_by_spark(error)}"
        raise UserError(message) from error
    if not isinstance(given, T.StructType):
        message = f"schema {schema!r}: allowed is a list of columns (icao string, elevation double)"
        raise UserError(message)
    return given


def _avro(schema: object) -> str:
    try:
        if not isinstance(schema, str):
            raise ValueError(schema)  # noqa: TRY004, TRY301  one message for whatever it is
        json.loads(schema)
    except ValueError:
        message = f"schema = {schema!r}: avro needs the writer's schema as JSON text"
        raise UserError(message) from None
    return schema
