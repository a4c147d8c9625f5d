"""The record whose value does not fit: Spark says that a value is malformed, and not whose.

A value is decoded once more, one field at a time, and the first record by partition and offset that does not fit is named with its topic,
partition, offset, key, field and value.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql import types as T

from lastword.streaming.reading.decoding import JSON_OPTIONS, decoded, value_struct

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SHOWN: Final = 200
_CORRUPT: Final = "__lastword_corrupt"


def first_misfit(rows: DataFrame, topic: str, value_format: str | None, schema: T.StructType | str | None) -> str | None:
    """Return which record of `rows` (partition, offset, key, value: bytes) does not fit; None if all do."""
    if value_format is None:
        return None
    filled = rows.where(F.col("value").isNotNull()).select("partition", "offset", "key", "value")
    given = value_struct(schema) if value_format == "json" and schema is not None else None
    if given is None:
        permissive = decoded(filled.withColumn("__given", F.col("value")), value_format, schema, mode="PERMISSIVE")
        fits = permissive.select("partition", "offset", "key", F.col("__given").alias("value"), _is_there(permissive).alias("__fits"))
    else:
        fits = filled.withColumn("__fits", _json_fits(given))
    found = fits.where("NOT __fits").orderBy("partition", "offset").limit(1).select("partition", "offset", "key", "value").collect()
    if not found:
        return None
    partition, offset, key, value = found[0]
    field = "" if given is None else _field(rows, bytes(value), given)
    return f"topic {topic}, partition {partition}, offset {offset}, key {_text(key)}{field}: the value {_text(value)} does not fit"


def _json_fits(given: T.StructType) -> Column:
    """Tell whether a value is JSON of these fields."""
    schema = T.StructType([*given.fields, T.StructField(_CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **JSON_OPTIONS}
    return F.from_json(F.col("value").cast("string"), schema, options).getField(_CORRUPT).isNull()


def _is_there(decoded_rows: DataFrame) -> Column:
    """Tell whether a value was decoded: one that was not is null, or has no field that is not."""
    value = decoded_rows.schema["value"].dataType
    if not isinstance(value, T.StructType) or not value.fields:
        return F.col("value").isNotNull()
    return reduce(or_, [F.col("value").getField(name).isNotNull() for name in value.names])


def _field(rows: DataFrame, value: bytes, given: T.StructType) -> str:
    """Return the first field that a value does not fit, as part of a message; nothing if it is no JSON object at all."""
    one = rows.sparkSession.createDataFrame([(value,)], "value binary")
    asked = [_json_fits(T.StructType([field])).alias(f"c{number}") for number, field in enumerate(given.fields)]
    answers = one.select(*asked).collect()[0]
    wrong = [field for field, fits in zip(given.fields, answers, strict=True) if not fits]
    if not wrong or len(wrong) == len(given.fields) > 1:
        return ""
    return f", field {wrong[0].name} {wrong[0].dataType.simpleString()}"


def _text(given: bytes | str | None) -> str:
    text = bytes(given).decode("utf-8", "replace") if isinstance(given, (bytes, bytearray)) else str(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
