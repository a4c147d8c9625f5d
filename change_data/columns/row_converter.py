"""Rows of a source as canonical JSON: one pass in C for a row that fits, one field at a time for one that does not.

```
 columns              id int, price decimal(20,10), at timestamp_ntz
 row of the source    {"at":1769940360500000,"id":1,"price":"AUzypFwA","note":"x"}
                           │  msgspec: types, ranges, and the order of the columns
                           ▼
 canonical            {"id":1,"price":"143.0000000000","at":"2026-02-01T10:06:00.500000","note":"x"}
```

The columns are compiled into a class of msgspec, which checks types and ranges while it decodes. Only values in another form than the
canonical one are touched in Python. A row that fails is converted again, one field at a time, which finds the field and the reason.
Fields that are no columns stay as they are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from lastword.change_data.columns.column_types import (
    INTEGER_BITS,
    MAX_FLOAT,
    ArrayType,
    DecimalType,
    MapType,
    Misfit,
    ScalarType,
    StructType,
    allowed_values,
)
from lastword.change_data.columns.column_values import (
    UNITS,
    binary_text,
    date_text,
    decimal_conversion,
    json_value,
    time_text,
    timestamp_text,
)
from lastword.change_data.columns.json_rows import can_name_a_field, excerpt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.change_data.columns.column_types import Column, DataType
    from lastword.change_data.columns.column_values import Convert

_UUID: Final = r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z"
_SPECIAL: Final = Literal["NaN", "Infinity", "-Infinity"]
_UNFIT: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ENCODE: Final = msgspec.json.Encoder().encode

#: What msgspec decodes for a kind; texts for all others.
_ANNOTATIONS: Final[dict[str, Any]] = {
    **{kind: Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)] for kind, bits in INTEGER_BITS.items()},
    "boolean": bool,
    "float": Annotated[float, msgspec.Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)] | _SPECIAL,
    "double": float | _SPECIAL,
    "uuid": Annotated[str, msgspec.Meta(pattern=_UUID)],
    "interval": int | float | str,
    "json": msgspec.Raw,
}


def _conversion(kind: str, encoding: str) -> Convert | None:
    """Return what makes the canonical value of a decoded one; None if that is its canonical value."""
    conversions: dict[str, Convert] = {
        "json": partial(json_value, encoding),
        "binary": partial(binary_text, encoding),
        "date": date_text,
        "time": partial(time_text, encoding),
        "timestamp": partial(timestamp_text, encoding, "Z"),
        "timestamp_ntz": partial(timestamp_text, encoding, ""),
    }
    return conversions.get(kind)


def _codec(data_type: DataType) -> tuple[Any, Convert | None]:
    """Return the annotation of a type, and the conversion of its values if they need one."""
    if isinstance(data_type, DecimalType):
        return msgspec.Raw, decimal_conversion(data_type)
    if isinstance(data_type, ScalarType):
        annotation = int | str if data_type.encoding in {"days", *UNITS} else _ANNOTATIONS.get(data_type.kind, str)
        return annotation, _conversion(data_type.kind, data_type.encoding)
    if isinstance(data_type, StructType):
        struct, conversions = _struct_codec(data_type.fields)
        return struct, partial(_convert_fields, conversions) if conversions else None
    inner, convert = _codec(data_type.element if isinstance(data_type, ArrayType) else data_type.value)
    inner = inner if inner is msgspec.Raw else inner | None
    if isinstance(data_type, ArrayType):
        return list[inner], convert and partial(_convert_elements, convert)  # type: ignore[valid-type]
    return dict[str, inner], convert and partial(_convert_values, convert)  # type: ignore[valid-type]


def _convert_elements(convert: Convert, values: list[Any]) -> list[Any]:
    return [value if value is None else convert(value) for value in values]


def _convert_values(convert: Convert, values: dict[str, Any]) -> dict[str, Any]:
    return {name: value if value is None else convert(value) for name, value in values.items()}


def _struct_codec(columns: Sequence[Column], *, has_others: bool = False) -> tuple[Any, list[tuple[str, Convert]]]:
    """Return a struct of the columns, and the fields to convert with their conversions; other fields are errors, or left out."""
    fields: list[tuple[str, Any, Any]] = []
    conversions: list[tuple[str, Convert]] = []
    for number, column in enumerate(columns):
        annotation, convert = _codec(column.data_type)
        is_raw = annotation is msgspec.Raw  # it cannot be optional: missing is the empty text, and null its text
        field = f"field_{number}"
        fields.append((field, annotation if is_raw else annotation | None | msgspec.UnsetType, msgspec.Raw() if is_raw else msgspec.UNSET))
        if convert:
            conversions.append((field, convert))
    names = {f"field_{number}": column.name for number, column in enumerate(columns)}
    struct = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=not has_others, gc=False)
    return struct, conversions


def _can_be_class(data_type: DataType) -> bool:
    """Tell whether all names of a type's structs, at any depth, are names that a class can have."""
    if isinstance(data_type, StructType):
        return all(can_name_a_field(field.name) and _can_be_class(field.data_type) for field in data_type.fields)
    if isinstance(data_type, (ArrayType, MapType)):
        return _can_be_class(data_type.element if isinstance(data_type, ArrayType) else data_type.value)
    return True


def _convert_fields(conversions: list[tuple[str, Convert]], row: Any) -> Any:
    """Convert the fields of an object in place."""
    for field, convert in conversions:
        value = getattr(row, field)
        if value is not None and value is not msgspec.UNSET:
            setattr(row, field, convert(value))
    return row


def _unless_placeholder(convert: Convert, placeholders: frozenset[bytes]) -> Convert:
    """Return a conversion that leaves placeholders as they are."""
    texts = {text for text in map(msgspec.json.decode, placeholders) if isinstance(text, str)}

    def convert_others(value: Any) -> Any:
        is_placeholder = value in texts if isinstance(value, (str, int)) else _ENCODE(value) in placeholders
        return value if is_placeholder else convert(value)

    return convert_others


class RowConverter:
    """Converts rows of a source into canonical JSON."""

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        on_misfit: Literal["error", "null"] = "error",
        placeholders: frozenset[bytes] = frozenset(),
    ) -> None:
        """Compile the conversion.

        Args:
            columns: The columns of the canonical row, in its order.
            on_misfit: What a value that does not fit becomes: a `Misfit`, or null (in an array or map only the element).
            placeholders: JSON texts that stand for a column which the source left out; they stay as they are.

        Raises:
            ValueError: `on_misfit` is neither error nor null, or two columns have one name.
        """
        if on_misfit not in {"error", "null"}:
            message = f"on_misfit = {on_misfit!r}: allowed are error and null"
            raise ValueError(message)
        self.columns = tuple(columns)
        self._names = {column.name for column in self.columns}
        if len(self._names) < len(self.columns):
            message = f"columns {', '.join(column.name for column in self.columns)}: each name is allowed once"
            raise ValueError(message)
        self._null_on_misfit, self._placeholders = on_misfit == "null", placeholders
        #: Whether rows decode into a class, whose fields msgspec checks; else they are converted one field at a time.
        self._has_class = _can_be_class(StructType(self.columns))
        if self._has_class:
            struct, conversions = _struct_codec(self.columns)
            self._decode = msgspec.json.Decoder(struct).decode
            self._decode_columns = msgspec.json.Decoder(_struct_codec(self.columns, has_others=True)[0]).decode
            if placeholders:
                conversions = [(name, _unless_placeholder(convert, placeholders)) for name, convert in conversions]
            self._conversions = conversions
        self._leaves: dict[DataType, tuple[Convert, Convert | None]] = {}

    def convert(self, row: bytes) -> bytes:
        """Return a row as canonical JSON.

        Args:
            row: A JSON object in the source's encodings.

        Returns:
            A JSON object: the columns that the row has, in their order, then fields that are no columns, as they are.

        Raises:
            Misfit: The row is no JSON object, or with `on_misfit="error"` a value does not fit its column.
        """
        if not self._has_class:
            return self._convert_by_field(row)
        try:
            return _ENCODE(_convert_fields(self._conversions, self._decode(row)))
        except _UNFIT:
            return self._convert_by_field(row)

    def _convert_by_field(self, row: bytes) -> bytes:
        try:
            fields = _FIELDS.decode(row)
        except _UNFIT:
            message = f"row = {excerpt(row)}: allowed is a JSON object"
            raise Misfit(message) from None
        others = {name: text for name, text in fields.items() if name not in self._names}
        if others and self._has_class:
            try:
                columns = _ENCODE(_convert_fields(self._conversions, self._decode_columns(row)))
            except _UNFIT:
                pass
            else:
                return (columns[:-1] + b"," if len(columns) > len(b"{}") else b"{") + _ENCODE(others)[1:]
        return _ENCODE(self._object(self.columns, fields, ""))

    def _object(self, columns: Sequence[Column], fields: dict[str, msgspec.Raw], path: str) -> dict[str, Any]:
        present = [column for column in columns if column.name in fields]
        return {**{column.name: self._value(column.data_type, fields.pop(column.name), path + column.name) for column in present}, **fields}

    def _value(self, data_type: DataType, raw: msgspec.Raw, path: str) -> Any:
        text = msgspec.json.format(bytes(raw), indent=-1)
        if text == b"null" or (path in self._names and text in self._placeholders):
            return msgspec.Raw(text)
        try:
            if isinstance(data_type, StructType):
                return self._object(data_type.fields, _FIELDS.decode(text), f"{path}.")
            if isinstance(data_type, ArrayType):
                elements = enumerate(_ELEMENTS.decode(text))
                return [self._value(data_type.element, element, f"{path}[{number}]") for number, element in elements]
            if isinstance(data_type, MapType):
                return {name: self._value(data_type.value, member, f'{path}["{name}"]') for name, member in _FIELDS.decode(text).items()}
            decode, convert = self._leaf(data_type)
            return convert(decode(text)) if convert else decode(text)
        except Misfit:
            raise
        except _UNFIT:
            if self._null_on_misfit:
                return None
            message = f"column {path} = {excerpt(text)}: allowed is {allowed_values(data_type)}"
            raise Misfit(message) from None

    def _leaf(self, data_type: DataType) -> tuple[Convert, Convert | None]:
        if data_type not in self._leaves:
            annotation, convert = _codec(data_type)
            self._leaves[data_type] = msgspec.json.Decoder(annotation).decode, convert
        return self._leaves[data_type]
