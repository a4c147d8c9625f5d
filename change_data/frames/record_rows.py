"""Turns batches of rows with columns into records (key, value, deletion, order) by the settings of `RowWords`.

```
 order_id  status   op   updated_at               key = order_id, tombstone = op = 'd', sequence = updated_at, drop = op
 7         paid     u    2026-03-01T06:30:00Z     7 = {"status":"paid","updated_at":"2026-03-01T06:30:00.000000Z"}
 7         null     d    2026-03-01T07:00:00Z     7 = ∅
```

Typed rows (`TypedRows`) are frames, Parquet and Arrow files, and texts with a schema. Rows of text (`TextRows`) are JSON and CSV as they
stand in a file: their values keep their text, and an expression sees texts. Both give the bytes that a source of Spark's gives.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lastword.change_data.columns.json_rows import NULL, NoEvent
from lastword.change_data.columns.table_columns import TableColumns
from lastword.change_data.files.file_rows import FileColumns
from lastword.change_data.frames.json_columns import (
    WrongColumn,
    java_double,
    json_text,
    keys_of,
    objects_of,
    plain_column,
    plain_texts,
    plain_type,
    table_column,
    type_name,
)
from lastword.change_data.frames.row_words import truncate_alert
from lastword.change_data.frames.sql_expressions import (
    Failures,
    WrongExpression,
    bind_condition,
    bind_expression,
    columns_in,
)
from lastword.change_data.frames.text_casts import cast_texts, record_times
from lastword.compaction.order.sequences import sequence_texts
from lastword.compaction.rows.input_columns import (
    ALERT,
    EVENT,
    MALFORMED,
    RECORD_KEY,
    REFUSAL,
    TRUNCATED,
    UNCHANGED,
    check_names,
)
from lastword.compaction.rows.validation import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lastword.change_data.files.file_rows import RowText
    from lastword.change_data.frames.row_words import RowWords
    from lastword.change_data.frames.sql_expressions import Expression
    from lastword.change_data.frames.typed_texts import ReadTexts

#: All digits of a number of 64 bits, and as many decimals as there is room for.
_NUMBER: Final = pa.decimal128(38, 18)
_TIME: Final = pa.timestamp("us", "UTC")
_WHOLE: Final = re.compile(rb"-?[0-9]+").fullmatch
#: Stands for a JSON object or array, of which expressions see no text.
_NESTED: Final = "{}"


class _Expressions:
    """Computes the sequence, the deletions and the TRUNCATEs of rows from the SQL expressions of the settings."""

    def __init__(self, words: RowWords, types: Mapping[str, pa.DataType] | None) -> None:
        self.words = words
        self.sequence = [bind_expression(text, types) for text in words.sequence]
        conditions = {"tombstone": words.tombstone, "truncate": words.truncate}
        self.conditions = {name: bind_condition(text, types) for name, text in conditions.items() if text}
        for text, part in zip(words.sequence, self.sequence, strict=True):
            self._check_part(text, part)

    def _check_part(self, text: str, part: Expression) -> None:
        if part.kind == "other":
            message = f"sequence {text} is {type_name(part.data_type)}: allowed are numbers, dates, times, booleans and texts"
            raise WrongExpression(message)
        if part.kind == "text" and not self.words.sequence_as:
            message = (
                f"sequence {text} is string, and of texts 10 is below 9: say by sequence.as what a text is compared as, number, time or "
                f"text; or cast it to a type, e.g. CAST({text} AS BIGINT)"
            )
            raise WrongExpression(message)

    def compute(self, columns: Mapping[str, pa.Array], unread: pa.Array, misfits: pa.Array) -> dict[str, pa.Array]:
        """Return the columns source_sequence, tombstone, truncate and `REFUSAL` of some rows.

        `unread` has the reasons of rows whose columns are not known, null for the others: nothing is computed for them. `misfits` has
        those of rows with a value of another type: for their dead letters the other columns are computed.
        """
        reasons, count, made = unread, len(unread), dict[str, pa.Array]()
        parts = list[pa.Array]()
        for text, part in zip(self.words.sequence, self.sequence, strict=True):
            values, reasons = self._compute_part("sequence", text, self._comparison(part), columns, reasons)
            parts.append(values)
        for name, text in (("tombstone", self.words.tombstone), ("truncate", self.words.truncate)):
            if text:
                values, reasons = self._compute_part(name, text, self.conditions[name].compute, columns, reasons)
                made[name] = pc.fill_null(values, fill_value=False)
        is_read = reasons.is_null()
        no = pa.repeat(pa.scalar(value=False), count)
        for name in ("tombstone", "truncate"):
            made[name] = pc.and_(is_read, made[name]) if name in made else no
        if parts:
            lone = parts[0]
            whole = lone if len(parts) == 1 else pa.StructArray.from_arrays(parts, names=[f"part_{at}" for at in range(len(parts))])
            made["source_sequence"] = whole if reasons.null_count == count else whole.take(_rows_or_null(is_read))
        made[REFUSAL] = pc.coalesce(reasons, misfits)
        return made

    def _compute_part(
        self, name: str, text: str, compute: Callable[..., pa.Array], columns: Mapping[str, pa.Array], reasons: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        """Return the values of an expression, and the reasons of refusal with those of rows for which it cannot be computed."""
        failures = Failures(np.zeros(len(reasons), dtype=np.bool_))
        values = compute(columns, failures)
        if failures.rows.any():
            why = f"{Reason.FAILED_EXPRESSION.value}: {name} {text} cannot be computed for this row"
            reasons = pc.coalesce(reasons, pc.if_else(pa.array(failures.rows), why, None))
        return values, reasons

    def _comparison(self, part: Expression) -> Callable[..., pa.Array]:
        """Return how a part of the sequence is computed as what it is compared as."""
        if part.kind != "text" or self.words.sequence_as == "text":
            return part.compute
        data_type = _NUMBER if self.words.sequence_as == "number" else _TIME

        def compute(columns: Mapping[str, pa.Array], failures: Failures) -> pa.Array:
            texts = part.compute(columns, failures)
            values = cast_texts(texts, data_type)
            failures.add(pc.and_(texts.is_valid(), values.is_null()))
            return values

        return compute


def _rows_or_null(which: pa.Array) -> pa.Array:
    return pc.if_else(which, pa.array(np.arange(len(which))), None)


def _events(words: RowWords, made: Mapping[str, pa.Array], keys: pa.Array) -> dict[str, pa.Array]:
    """Return the `EVENT` of rows, and their `RECORD_KEY`, which a TRUNCATE has not.

    The event is null, a TRUNCATE, or an alert for a TRUNCATE whose sequence has no order: it deletes nothing.
    """
    if not pc.any(made["truncate"]).as_py():
        return {EVENT: pa.nulls(len(keys), pa.string()), RECORD_KEY: keys.cast(pa.binary())}
    has_order = sequence_texts(made["source_sequence"]).is_valid()
    known = pc.if_else(has_order, TRUNCATED, f"{ALERT}{truncate_alert(words.sequence)}")
    record_keys = pc.if_else(made["truncate"], pa.scalar(None, pa.binary()), keys.cast(pa.binary()))
    return {EVENT: pc.if_else(made["truncate"], known, None), RECORD_KEY: record_keys}


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows, in whatever types its columns have: dictionaries of views too, of which pyarrow makes none of a list."""
    return pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)


class TypedRows:
    """Turns rows whose columns have types into records."""

    def __init__(self, words: RowWords, schema: pa.Schema) -> None:
        """Check the settings against the columns of a schema.

        Raises:
            WrongColumn: A column is not there, or its type has no JSON.
            WrongExpression: An expression cannot be computed without Spark.
            InvalidRecords: A column comes more than once.
        """
        check_names(schema.names)
        self._words = words
        self._values = self._columns_of_value(schema.names)
        named = [*words.key, *self._values, *((words.value,) if words.value else ()), *((words.timestamp,) if words.timestamp else ())]
        missing = [name for name in dict.fromkeys([*named, *words.drop]) if name not in schema.names]
        if missing:
            message = (
                f"no column {', '.join(missing)}; there are {', '.join(schema.names) or 'none'}{_in_another_case(missing, schema.names)}"
            )
            raise WrongColumn(message)
        used = {name for text in words.expressions.values() for name in columns_in(text)}
        self._used = [name for name in schema.names if name in {*named, *used}]
        written = [name for name in self._used if name != words.timestamp or name in {*used, *words.key, *self._values, words.value}]
        empty = {name: plain_column(name, pa.nulls(0, schema.field(name).type)) for name in written}
        self._types = {name: column.type for name, column in empty.items()}
        known = {name: self._types.get(name, plain_type(schema.field(name).type) or pa.null()) for name in schema.names}
        self._expressions = _Expressions(words, known)
        keys_of(words.key, [empty[name] for name in words.key])
        self._check_lone_columns(schema)

    def _columns_of_value(self, names: Sequence[str]) -> list[str]:
        words = self._words
        if words.value:
            return []
        return list(words.columns) or [name for name in names if name not in {*words.key, *words.drop}]

    def _check_lone_columns(self, schema: pa.Schema) -> None:
        """Raise `WrongColumn` for a column of `value` or `timestamp` whose type is not allowed there."""
        words = self._words
        if words.value:
            data_type = self._types[words.value]
            if pt.is_nested(data_type) or pt.is_floating(data_type) or pt.is_timestamp(data_type):
                message = f"value = {words.value!r} is {type_name(data_type)}: allowed are text, binary, whole numbers, decimals and dates"
                raise WrongColumn(message)
        if words.timestamp:
            data_type = schema.field(words.timestamp).type
            if not (pt.is_timestamp(data_type) or pt.is_integer(data_type) or pt.is_null(data_type)):
                message = f"timestamp = {words.timestamp!r} is {data_type}: allowed are a timestamp, and whole milliseconds since 1970"
                raise WrongColumn(message)

    @property
    def table_columns(self) -> TableColumns:
        """The columns and types of the typed table that the records make."""
        of_key = tuple(table_column(name, self._types[name]) for name in self._words.key)
        of_value = tuple(table_column(name, self._types[name]) for name in self._values)
        return TableColumns(key=of_key, is_key_text=len(of_key) == 1, value=of_value)

    def records(self, batch: pa.RecordBatch, texts: ReadTexts | None = None) -> pa.RecordBatch:
        """Return a batch as input rows of an append.

        `texts` says of rows that were read from texts which of them are refused. Raises `WrongColumn` for values that have no form in
        JSON, such as years of five digits.
        """
        words = self._words
        columns = {name: plain_column(name, batch.column(name)) for name in self._types}
        none = pa.nulls(len(batch), pa.string())
        unread, misfits = (none, none) if texts is None else (_malformed_reasons(texts.unread), _malformed_reasons(texts.misfits))
        computed = self._expressions.compute(columns, unread, misfits)
        value = self._value(columns, len(batch))
        made = {"key": keys_of(words.key, [columns[name] for name in words.key])}
        made["value"] = pc.if_else(computed["tombstone"], pa.scalar(None, value.type), value) if words.tombstone else value
        made |= {name: computed[name] for name in ("source_sequence", REFUSAL) if name in computed}
        if words.timestamp:
            made["timestamp"] = batch.column(words.timestamp)
        if texts is not None:
            made[MALFORMED] = texts.raw
        if self._words.policy is not None:
            made |= _events(words, computed, made["key"])
            if words.on_null == "keep":
                is_row = pc.invert(pc.or_(computed["tombstone"], computed["truncate"]))
                made[UNCHANGED] = pc.if_else(is_row, _nulls(self._values, columns, len(batch)), None)
        return pa.record_batch(made)

    def _value(self, columns: Mapping[str, pa.Array], count: int) -> pa.Array:
        if not self._words.value:
            return objects_of(self._values, [columns[name] for name in self._values], count)
        column = columns[self._words.value]
        if pt.is_binary(column.type):
            return column
        if pt.is_decimal(column.type):
            return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())
        return plain_texts(column)


def _malformed_reasons(reasons: pa.Array) -> pa.Array:
    """Return reasons as those of the refusal `malformed`; null where a reason is null."""
    return pc.binary_join_element_wise(f"{Reason.MALFORMED.value}: ", reasons, "")


def _in_another_case(names: Sequence[str], known: Sequence[str]) -> str:
    folded = {name.casefold() for name in known}
    return ": upper and lower case differ" if any(name.casefold() in folded for name in names) else ""


def _nulls(names: Sequence[str], columns: Mapping[str, pa.Array], count: int) -> pa.Array:
    """Return for each row the JSON of `lastword.compaction.rows.unchanged_columns.Unchanged` with its null columns; null without any."""
    texts = [json_text(name) for name in names]
    rows = zip(*(columns[name].is_null().to_pylist() for name in names), strict=True) if names else iter([()] * count)
    missing = [",".join(text for text, is_null in zip(texts, row, strict=True) if is_null) for row in rows]
    return pa.array([f'{{"columns":[{listed}]}}' if listed else None for listed in missing], pa.string())


def find_missing_columns(names: Sequence[str], first: Sequence[RowText]) -> list[str]:
    """Return the columns of a schema that none of a file's first rows has: they are null, and may come later.

    Raises `WrongColumn` for a column that differs from a column of the rows in case alone, unless the schema has both.
    """
    there = list(dict.fromkeys(name for row in first for name in row.fields))
    missing = _missing(names, there)
    alike = [name for name in missing if name.casefold() in {column.casefold() for column in there if column not in names}]
    if alike:
        message = f"no column {', '.join(alike)}; there are {', '.join(there)}{_in_another_case(alike, there)}"
        raise WrongColumn(message)
    return missing


def _missing(names: Iterable[str], there: Collection[str]) -> list[str]:
    """Return the names, each once, that are not there; none if nothing is known of what is there."""
    return [name for name in dict.fromkeys(names) if there and name not in there]


class TextRows:
    """Turns rows of JSON or CSV into records whose values keep the text of the file; expressions see texts."""

    def __init__(self, words: RowWords) -> None:
        """Check the settings. Raises `WrongExpression` for an expression that cannot be computed without Spark."""
        if words.on_null == "keep":
            message = "on.null = keep needs a schema, which says which columns a row may leave out"
            raise WrongExpression(message)
        self._words = words
        self._own = FileColumns(key=words.key, value=words.value, columns=words.columns, drop=words.drop)
        self._expressions = _Expressions(words, None)
        self._in_expressions = list(dict.fromkeys(name for text in words.expressions.values() for name in columns_in(text)))

    def check_first(self, rows: Sequence[RowText]) -> None:
        """Check the settings against the columns of a file's first rows, where there are any.

        Raises `WrongColumn` for a column of the key, the value or the timestamp that no row has, and for any other column of the settings
        that differs from a column of the rows in case alone.
        """
        names = dict.fromkeys(name for row in rows for name in row.fields)
        words = self._words
        needed = [*words.key, *words.columns, *(name for name in (words.value, words.timestamp) if name)]
        absent = [name for name in dict.fromkeys(needed) if name not in names]
        used = [*self._in_expressions, *words.drop]
        folded = {name.casefold() for name in names}
        absent += [name for name in dict.fromkeys(used) if name not in names and name.casefold() in folded]
        if names and absent:
            message = f"no column {', '.join(absent)}; there are {', '.join(names)}{_in_another_case(absent, list(names))}"
            raise WrongColumn(message)

    def missing_columns(self, rows: Sequence[RowText]) -> list[str]:
        """Return the columns of expressions and of `drop` that none of a file's first rows has: they are null, and may come later."""
        return _missing([*self._in_expressions, *self._words.drop], {name for row in rows for name in row.fields})

    def records(self, rows: Sequence[RowText]) -> pa.RecordBatch:
        """Return rows as input rows of an append; a row that is refused says why in `REFUSAL`, and keeps its text in `MALFORMED`."""
        keys, values, reasons, raw = (list[Any]() for _ in range(4))
        for row in rows:
            key, value, why = None, None, f"{Reason.MALFORMED.value}: {row.detail}" if row.malformed is not None else None
            if why is None:
                try:
                    key, value = self._own.key_of(row.fields), self._own.value_of(row.fields)
                except NoEvent as error:
                    why = f"{Reason.MALFORMED.value}: {error}"
            keys.append(key)
            values.append(value)
            reasons.append(why)
            raw.append(row.malformed if row.malformed is not None else None if why is None else row.text.decode())
        columns, misfits = self._texts(rows, reasons), pa.nulls(len(rows), pa.string())
        made: dict[str, pa.Array] = {}
        if self._words.timestamp:
            texts = columns[self._words.timestamp]
            made["timestamp"] = record_times(texts)
            misfits = self._refuse_times(texts, made["timestamp"])
        computed = self._expressions.compute(columns, pa.array(reasons, pa.string()), misfits)
        for at in np.flatnonzero(computed[REFUSAL].is_valid()).tolist():
            raw[at] = rows[at].text.decode() if raw[at] is None else raw[at]
        value = pa.array(values, pa.binary())
        made |= {"key": pa.array(keys, pa.binary()), "value": pc.if_else(computed["tombstone"], pa.scalar(None, pa.binary()), value)}
        made |= {name: computed[name] for name in ("source_sequence", REFUSAL) if name in computed}
        made[MALFORMED] = pa.array(raw, pa.string())
        if self._words.policy is not None:
            made |= _events(self._words, computed, made["key"])
        return pa.record_batch(made)

    def _refuse_times(self, texts: pa.Array, times: pa.Array) -> pa.Array:
        """Return the reasons of rows whose `timestamp` is a text that is no time; null for the others."""
        wrong = pc.if_else(pc.and_(texts.is_valid(), times.is_null()), texts, None)
        what, allowed = f"timestamp {self._words.timestamp} = ", ": allowed are ISO 8601, and milliseconds since 1970"
        return _malformed_reasons(pc.binary_join_element_wise(what, wrong, allowed, ""))

    def _texts(self, rows: Sequence[RowText], reasons: list[str | None]) -> dict[str, pa.Array]:
        """Return the columns that expressions and `timestamp` need, as texts.

        A row in which such a column is a JSON object or array is refused: its reason is added to `reasons`.
        """
        names = dict.fromkeys(self._in_expressions)
        names |= {self._words.timestamp: None} if self._words.timestamp else {}
        columns = {name: [_text_of(row.fields.get(name)) for row in rows] for name in names}
        for name, texts in columns.items():
            for at, row in enumerate(rows):
                if texts[at] == _NESTED and bytes(row.fields[name]).strip()[:1] in b"{[":
                    why = f"column {name} is an object or an array, which an expression sees as text by Spark alone"
                    texts[at], reasons[at] = None, reasons[at] or f"{Reason.FAILED_EXPRESSION.value}: {why}"
        return {name: pa.array(texts, pa.string()) for name, texts in columns.items()}


def _text_of(raw: msgspec.Raw | None) -> str | None:
    """Return a column of a JSON row as the text that Spark's expressions see: numbers with a fraction are written in Java's form."""
    text = b"" if raw is None else bytes(raw).strip()
    if text in {b"", NULL}:
        return None
    if text.startswith(b'"'):
        return str(msgspec.json.decode(text))
    if text[:1] in b"{[":
        return _NESTED
    if text == b"-0":  # of whole numbers Spark has one zero
        return "0"
    if _WHOLE(text) or text in {b"true", b"false"}:
        return text.decode()
    return java_double(float(text))
