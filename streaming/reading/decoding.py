"""Values as what they mean: JSON, Avro or text instead of bytes, decoded by Spark's own expressions when a reader asks for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from lastword.change_data.columns.column_types import ArrayType, MapType, ScalarType, StructType, quote_name, with_time_zones
from lastword.change_data.columns.table_columns import RowMisfit, TableDecoder, describe_misfit
from lastword.compaction.errors import UserError, said_by_spark
from lastword.storage.reading.view import misfit_policy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame

    from lastword.change_data.columns.column_types import DataType
    from lastword.change_data.columns.table_columns import TableColumns

#: What a value can be read as.
VALUE_FORMATS: Final = ("json", "avro", "utf8")
#: How JSON is read whatever the session says: a time without a zone is UTC.
JSON_OPTIONS: Final = {"timeZone": "UTC"}
#: The column of a decoded table with the message for a record that does not fit.
_MISFIT: Final = "misfit"


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


def as_table(rows: DataFrame, columns: TableColumns, *, topic: str, mode: str = "FAILFAST") -> DataFrame:
    """Return records (partition, offset, key, value) as rows of their table: the columns of the key alone, then those of the value.

    A value that does not fit its column ends the read (`mode="FAILFAST"`) with an error that names the topic, the partition, the offset,
    the key, the column and the value; or it is null (`"PERMISSIVE"`). Tasks decode with the same `TableDecoder` as reads without Spark.
    """
    decode, table_columns = _Decode(columns, topic, misfit_policy(mode)), (*columns.of_key_alone, *columns.value)
    schema = from_arrow_schema(decode.schema, prefer_timestamp_ntz=True)
    decoded_rows = rows.select("partition", "offset", "key", "value").mapInArrow(decode, schema)
    fits = F.when(F.col(_MISFIT).isNull(), F.lit(True)).otherwise(F.raise_error(F.col(_MISFIT)).cast("boolean"))
    typed = [_with_variants(F.col(f"c{number}"), column.data_type).alias(column.name) for number, column in enumerate(table_columns)]
    return decoded_rows.where(fits).select(*typed)


@dataclass(frozen=True, slots=True)
class _Decode:
    """Decodes batches of records in a task; the message for a record that does not fit is a row of its own, which Spark raises."""

    columns: TableColumns
    topic: str
    on_misfit: Literal["error", "null"]

    @property
    def schema(self) -> pa.Schema:
        """The schema of the decoded batches: c0, c1 … for the table's columns, and the message."""
        fields = TableDecoder(self.columns, for_spark=True).schema
        return pa.schema([*(field.with_name(f"c{number}") for number, field in enumerate(fields)), pa.field(_MISFIT, pa.string())])

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield decoded batches."""
        decoder, schema = TableDecoder(self.columns, on_misfit=self.on_misfit, for_spark=True), self.schema
        for batch in batches:
            try:
                for table_rows in decoder.decode(batch.column("key"), batch.column("value")):
                    yield pa.record_batch([*table_rows.columns, pa.nulls(len(table_rows), pa.string())], schema=schema)
            except RowMisfit as error:
                message = describe_misfit(self.topic, batch.slice(error.row, 1).to_pylist()[0], str(error))
                yield pa.record_batch([*(pa.nulls(1, field.type) for field in decoder.schema), pa.array([message])], schema=schema)
                return


def _with_variants(value: Column, data_type: DataType) -> Column:
    """Return a value with VARIANTs in the place of the JSON texts inside it."""
    if not _has_json(data_type):
        return value
    if isinstance(data_type, ArrayType):
        element = data_type.element
        return F.transform(value, lambda inner: _with_variants(inner, element))
    if isinstance(data_type, MapType):
        inner_type = data_type.value
        return F.transform_values(value, lambda _, inner: _with_variants(inner, inner_type))
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            if _has_json(field.data_type):
                value = value.withField(quote_name(field.name), _with_variants(value.getField(field.name), field.data_type))
        return value
    return F.parse_json(value)


def _has_json(data_type: DataType) -> bool:
    """Tell whether a type is JSON, or has JSON inside it."""
    if isinstance(data_type, StructType):
        return any(_has_json(field.data_type) for field in data_type.fields)
    if isinstance(data_type, (ArrayType, MapType)):
        return _has_json(data_type.element if isinstance(data_type, ArrayType) else data_type.value)
    return isinstance(data_type, ScalarType) and data_type.kind == "json"


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
                    found = found.withField(quote_name(field.name), _not_null(found.getField(field.name)))
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
