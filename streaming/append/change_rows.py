"""Rows with columns of their own as records of a log: which columns are the key, what orders them, and which rows are deletions.

```
 id  name   op      updated_at                keys = id, sequence_by = updated_at, apply_as_deletes = op = 'D'
 1   plum   I       2026-03-01 06:30:00.5     1 = {"id":1,"name":"plum","op":"I","updated_at":"2026-03-01T06:30:00.500000Z"}
 1   plum   D       2026-03-01 07:00:00       1 = ∅
 -   -      TRUNC   2026-03-02 00:00:00       a TRUNCATE: a tombstone for each key whose record is older
```

The arguments are those of Spark's AUTO CDC. The key of one column is its text; of several, a JSON object of them in the order of their
names. The value is a JSON object. In both, times are in UTC with microseconds, whatever the session's settings say.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.column import Column

from lastword.change_data.columns.column_types import quote_name
from lastword.change_data.columns.connect_schema import column_of_type
from lastword.change_data.columns.table_columns import TableColumns
from lastword.change_data.events.envelopes import Envelope
from lastword.change_data.frames.row_words import truncate_alert
from lastword.compaction.errors import UserError, said_by_spark
from lastword.compaction.rows.input_columns import ALERT, EVENT, MALFORMED, RECORD_KEY, REFUSAL, TRUNCATED, UNCHANGED
from lastword.compaction.rows.validation import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession


#: What a text in a sequence is compared as; empty: there is none.
SequenceAs: TypeAlias = Literal["", "text", "number", "time"]
#: A SQL expression over the columns of the rows, or a column of Spark.
Expression: TypeAlias = str | Column
#: How Spark writes JSON: null is written, and times are those that `from_json` reads back to the microsecond.
_JSON: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
#: Types of a key whose text is the same in every session.
_PLAIN: Final = (T.StringType, T.IntegralType, T.DecimalType, T.BooleanType, T.DateType)
#: Texts that are a date, those that begin with one, and those with a time zone.
_DATE_ALONE, _DATED, _ZONED = (r"^[0-9]{4}-[0-9]{2}-[0-9]{2}" + rest for rest in ("$", "", r"[T ].*(Z|[+-][0-9:]+)$"))
#: All digits of a number of 64 bits, and as many decimals as there is room for.
_NUMBER: Final = "decimal(38,18)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """What the columns of some rows mean.

    `keys` are the key's columns; none: the key is the column `own_key`. `sequence_by` orders the rows of a key by the types of its
    columns, and texts as `sequence_as` says. A row for which
    `apply_as_deletes` is true deletes its key, one for which `apply_as_truncates` is true every key before it. The value is the text of the
    column `value`, or a JSON object of the columns `columns`. With `keeps_nulls` a column that is null keeps the value that the last record
    of the key has. `timestamp` is the column of the record's time. `text` is a column with the text of each row, which a refused row keeps
    for its dead letter. `is_event`: the rows come from a source that knows each by its offset.
    """

    keys: Sequence[str]
    columns: Sequence[str] = ()
    value: str = ""
    sequence_by: Sequence[Expression] = ()
    apply_as_deletes: Expression | None = None
    apply_as_truncates: Expression | None = None
    keeps_nulls: bool = False
    timestamp: str = ""
    text: str = ""
    own_key: str = "key"
    is_event: bool = False
    sequence_as: SequenceAs = ""
    #: The names under which a user gives `sequence_by` and `sequence_as`.
    sequence_names: tuple[str, str] = ("sequence", "sequence.as")

    @property
    def envelope(self) -> Envelope | None:
        """How columns that are left out are filled in: one that no record of the key has is null."""
        return Envelope(unresolved="null") if self.keeps_nulls else None


def _column(name: str) -> Column:
    """Return the column of a name, whatever characters it has."""
    return F.col(quote_name(name))


def change_rows(rows: DataFrame, changes: ChangeColumns, *, subject: str, beside: Sequence[Column] = ()) -> DataFrame:
    """Return rows as the input of an append, streaming or not.

    Columns: key, value, and as far as they are asked for source_sequence, timestamp, and what an envelope says of its events
    (`lastword.compaction.rows.input_columns`); and the columns `beside`. Raises `UserError` that names what is wrong: a column
    that the rows do not have, or what is no SQL, or no condition. `subject` begins its text.
    """
    named = [*changes.keys, *changes.columns, *(name for name in (changes.value, changes.timestamp) if name)]
    missing = [name for name in dict.fromkeys(named) if name not in rows.columns]
    if missing:
        message = f"{subject}: no column {', '.join(missing)}; there are {_format(rows)}"
        raise UserError(message)
    with _ansi(rows.sparkSession):
        return _change_rows(rows, changes, subject, beside)


def _change_rows(rows: DataFrame, changes: ChangeColumns, subject: str, beside: Sequence[Column]) -> DataFrame:
    parts = [_compare(rows, expression, changes, subject) for expression in changes.sequence_by]
    refusal = _refusal(rows, changes, parts)
    is_read = F.lit(True) if refusal is None else refusal.isNull()
    sequence = _sequence(parts)
    deletes = is_read & _condition(rows, changes.apply_as_deletes, subject)
    truncates = is_read & _condition(rows, changes.apply_as_truncates, subject)
    if sequence is not None and refusal is not None:
        sequence = F.when(is_read, sequence)
    value = F.when(~deletes, _value(rows, changes)) if changes.apply_as_deletes is not None else _value(rows, changes)
    made = {"key": _key(rows, changes.keys) if changes.keys else F.col(changes.own_key), "value": value}
    if sequence is not None:
        made["source_sequence"] = sequence
    if changes.timestamp:
        made["timestamp"] = _column(changes.timestamp)
    if changes.apply_as_truncates is not None or changes.keeps_nulls or changes.is_event:
        made[EVENT] = F.when(truncates, _truncate_event(rows, changes, sequence, subject))
        made[RECORD_KEY] = F.when(~truncates, made["key"].cast("binary"))
    if changes.keeps_nulls:
        made[UNCHANGED] = F.when(~deletes & ~truncates, _nulls(changes.columns))
    if refusal is not None:
        made[REFUSAL] = refusal
        if changes.text:
            made[MALFORMED] = F.coalesce(F.col(MALFORMED), F.when(refusal.isNotNull(), _column(changes.text)))
    return _select(rows, [*(column.alias(name) for name, column in made.items()), *beside], subject)


def table_columns(rows: DataFrame, changes: ChangeColumns) -> TableColumns:
    """Return the columns of the table whose rows these are: those of the value, and those that the key alone has."""
    types = {field.name: field.dataType for field in rows.schema.fields}
    of_value = () if changes.value else tuple(column_of_type(name, types[name].simpleString()) for name in changes.columns)
    of_key = tuple(column_of_type(name, types[name].simpleString()) for name in changes.keys)
    return TableColumns(key=of_key, is_key_text=len(of_key) == 1, value=of_value)


@contextmanager
def _ansi(spark: SparkSession) -> Iterator[None]:
    """Let Spark parse expressions as ANSI SQL, in which a cast that fails is an error, whatever the session has set."""
    before = spark.conf.get("spark.sql.ansi.enabled")
    if before == "true":
        yield
        return
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


def _compare(rows: DataFrame, given: Expression, changes: ChangeColumns, subject: str) -> Column:
    """Return a part of the sequence as what it is compared as, by its type; raise `UserError` for a text without `sequence_as`."""
    column = _expression(given)
    data_type = _select(rows, [column.alias("part")], subject).schema["part"].dataType
    if not _has_text(data_type) or changes.sequence_as == "text":
        return column
    if not changes.sequence_as:
        name, setting = changes.sequence_names
        message = (
            f"{subject}: {name} {given!s} is {data_type.simpleString()}, and of texts 10 is below 9: say by {setting} what a text is "
            f"compared as, number, time or text; or cast it to a type, e.g. CAST({given!s} AS BIGINT)"
        )
        raise UserError(message)
    return F.when(F.spark_partition_id() >= 0, _without_text(column, data_type, changes.sequence_as))


def _has_text(data_type: T.DataType) -> bool:
    if isinstance(data_type, T.StructType):
        return any(_has_text(field.dataType) for field in data_type.fields)
    return isinstance(data_type, T.StringType)


def _without_text(column: Column, data_type: T.DataType, kind: SequenceAs) -> Column:
    """Return a column whose texts are numbers or times; one without a time zone is in UTC, whatever the session says."""
    if isinstance(data_type, T.StructType):
        parts = [_without_text(column.getField(field.name), field.dataType, kind).alias(field.name) for field in data_type.fields]
        return F.struct(*parts)
    if not isinstance(data_type, T.StringType):
        return column
    if kind == "number":
        return column.cast(_NUMBER)
    text = F.trim(column)
    whole = F.when(text.rlike(_DATE_ALONE), F.concat(text, F.lit("T00:00:00"))).otherwise(text)
    zoned = F.when(whole.rlike(_ZONED), whole).otherwise(F.concat(whole, F.lit("Z")))
    # Spark takes a text without a date for a time of today.
    no_time = F.when(text.isNotNull(), F.raise_error(F.lit("no date")).cast("timestamp"))
    return F.when(text.rlike(_DATED), zoned.cast("timestamp")).otherwise(no_time)


def _refusal(rows: DataFrame, changes: ChangeColumns, sequence: Sequence[Column]) -> Column | None:
    """Return why a row is refused: what its source says, or that an expression cannot be computed; None where no row can be.

    `try_to_binary` is null where anything in it fails.
    """
    given = [
        ("sequence", expression, column, changes.sequence_as in {"number", "time"})
        for expression, column in zip(changes.sequence_by, sequence, strict=True)
    ]
    conditions = ("tombstone", changes.apply_as_deletes), ("truncate", changes.apply_as_truncates)
    given += [(name, condition, _expression(condition), False) for name, condition in conditions if condition is not None]
    reasons = [F.col(REFUSAL)] if REFUSAL in rows.columns else []
    for name, expression, column, is_cast in given:
        if isinstance(expression, str) and expression in rows.columns and not is_cast:
            continue
        text = F.to_json(F.struct(column.cast("string").alias("found")))
        reason = f"{Reason.FAILED_EXPRESSION.value}: {name} {expression} cannot be computed for this row"
        reasons.append(F.when(F.try_to_binary(text, F.lit("utf-8")).isNull(), F.lit(reason)))
    return F.coalesce(*reasons) if reasons else None


def _sequence(parts: Sequence[Column]) -> Column | None:
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else F.struct(*[part.alias(f"part_{number}") for number, part in enumerate(parts)])


def _truncate_event(rows: DataFrame, changes: ChangeColumns, sequence: Column | None, subject: str) -> Column:
    """Return the `EVENT` of a TRUNCATE row: an alert where its sequence has no order, and it deletes nothing."""
    if sequence is None:
        return F.lit(TRUNCATED)
    data_type = _select(rows, [sequence.alias("sequence")], subject).schema["sequence"].dataType
    alert = F.lit(f"{ALERT}{truncate_alert([str(expression) for expression in changes.sequence_by])}")
    return F.when(_lacks_order(sequence, data_type), alert).otherwise(F.lit(TRUNCATED))


def _lacks_order(sequence: Column, data_type: T.DataType) -> Column:
    """Return whether a sequence, or a part of it, is null or NaN (boolean): it is neither before nor behind another one."""
    if isinstance(data_type, T.StructType):
        parts = [_lacks_order(sequence.getField(field.name), field.dataType) for field in data_type.fields]
        return reduce(or_, parts, sequence.isNull())
    is_float = isinstance(data_type, (T.FloatType, T.DoubleType))
    return sequence.isNull() | F.isnan(sequence) if is_float else sequence.isNull()


def _expression(given: Expression) -> Column:
    """Return an expression of the user's, in a branch that is always taken, which Spark does not know.

    What an expression needs twice, Spark computes before all else, and fails there, where nothing catches it; but not out of a branch.
    """
    return F.when(F.spark_partition_id() >= 0, F.expr(given) if isinstance(given, str) else given)


def _condition(rows: DataFrame, given: Expression | None, subject: str) -> Column:
    """Return a condition that is false where it is null, or where there is none."""
    if given is None:
        return F.lit(False)
    condition = _expression(given)
    try:
        data_type = rows.select(condition.alias("condition")).schema["condition"].dataType
    except (AnalysisException, ParseException) as error:
        message = f"{subject}: {given!s} is not a SQL condition{_over(rows)}: {said_by_spark(error)}"
        raise UserError(message) from error
    if not isinstance(data_type, T.BooleanType):
        message = f"{subject}: {given!s} is not a SQL condition: it is {data_type.simpleString()}, and allowed is boolean"
        raise UserError(message)
    return F.coalesce(condition, F.lit(False))


def _select(rows: DataFrame, columns: Sequence[Column], subject: str) -> DataFrame:
    try:
        return rows.select(*columns)
    except (AnalysisException, ParseException) as error:
        message = f"{subject}: an expression cannot be read{_over(rows)}: {said_by_spark(error)}"
        raise UserError(message) from error


def _format(rows: DataFrame) -> str:
    """Return the columns of rows, without those that a source adds."""
    return ", ".join(name for name in rows.columns if not name.startswith("__"))


def _over(rows: DataFrame) -> str:
    """Return the part of a message that says over which columns an expression is; empty if there are none."""
    return f" over the columns {_format(rows)}" if _format(rows) else ""


def _key(rows: DataFrame, names: Sequence[str]) -> Column:
    types: Mapping[str, T.DataType] = {field.name: field.dataType for field in rows.schema.fields}
    if len(names) > 1:
        is_there = reduce(or_, [_column(name).isNotNull() for name in names])
        columns = [_key_column(name, types[name]).alias(name) for name in sorted(names)]
        return F.when(is_there, F.to_json(F.struct(*columns), _JSON))
    column, data_type = _key_column(names[0], types[names[0]]), types[names[0]]
    if isinstance(data_type, T.BinaryType):
        return column
    if isinstance(data_type, _PLAIN):
        return column.cast("string")
    return F.get_json_object(F.to_json(F.struct(column.alias("key")), _JSON), "$.key")


def _key_column(name: str, data_type: T.DataType) -> Column:
    """Return a column of the key; a decimal without the zeros that only its scale asks for, as another scale makes no other key."""
    column = _column(name)
    if not isinstance(data_type, T.DecimalType):
        return column
    return F.regexp_replace(F.regexp_replace(column.cast("string"), r"(\.[0-9]*?)0+$", "$1"), r"\.$", "")


def _value(rows: DataFrame, changes: ChangeColumns) -> Column:
    if changes.value:
        column = _column(changes.value)
        return column if isinstance(rows.schema[changes.value].dataType, T.BinaryType) else column.cast("string")
    return F.to_json(F.struct(*[_column(name) for name in changes.columns]), _JSON) if changes.columns else F.lit("{}")


def _nulls(names: Sequence[str]) -> Column:
    """Return as `lastword.compaction.rows.unchanged_columns.Unchanged` the columns that are null; null if none is."""
    nulls = F.filter(F.array(*[F.when(_column(name).isNull(), F.lit(name)) for name in names]), lambda name: name.isNotNull())
    return F.when(F.size(nulls) > 0, F.to_json(F.struct(nulls.alias("columns"))))
