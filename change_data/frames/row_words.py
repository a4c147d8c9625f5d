"""The settings by which rows with columns become records (key, tombstone, sequence …), and the check of them.

They are the same as arguments in Python, as options of the command line and in a `[[source]]` of the configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from lastword.compaction.rows.input_columns import EventPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Settings that name several columns or expressions; a single name may be given as a text.
_LISTS: Final = ("key", "columns", "drop", "sequence")
_CHOICES: Final = {"sequence_as": ("", "text", "number", "time"), "on_null": ("null", "keep")}


class RowArguments(TypedDict, total=False):
    """The settings as arguments of a method, e.g. of `Topic.append`."""

    key: str | Sequence[str]
    value: str
    columns: str | Sequence[str]
    drop: str | Sequence[str]
    tombstone: str
    sequence: str | Sequence[str]
    sequence_as: str
    truncate: str
    timestamp: str
    on_null: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWords:
    """What the columns of rows mean: which are the key and the value, what orders rows, and which rows delete.

    `key` are the key's columns. The value is the column `value` as it is, or a JSON object of `columns`; without either of all but the
    key's and `drop`. A row for which `tombstone` is true deletes its key, one for which `truncate` is true every key before it. `sequence`
    orders the rows of a key, and `sequence_as` says what a text in it is compared as. `timestamp` is the column of the record's time. With
    `on_null = "keep"` a column that is null keeps the value of the key's last record.
    """

    key: tuple[str, ...] = ()
    value: str = ""
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    tombstone: str = ""
    sequence: tuple[str, ...] = ()
    sequence_as: str = ""
    truncate: str = ""
    timestamp: str = ""
    on_null: Literal["null", "keep"] = "null"

    @property
    def expressions(self) -> dict[str, str]:
        """The SQL expressions by the name that a message gives them: the parts of the sequence, then the conditions."""
        conditions = {"tombstone": self.tombstone, "truncate": self.truncate}
        return {**{f"sequence {number}": text for number, text in enumerate(self.sequence)}, **{k: v for k, v in conditions.items() if v}}

    @property
    def policy(self) -> EventPolicy | None:
        """How the append fills in columns that a row leaves out; None if the settings ask for nothing of the kind."""
        return EventPolicy(null_unresolved=True) if self.on_null == "keep" or self.truncate else None


def row_words(given: Mapping[str, Any]) -> RowWords | None:
    """Return checked settings of given arguments; None if all have their defaults, as for rows with the columns key and value.

    Raises `ValueError`, which names the setting, its value and what is allowed.
    """
    known = {field.name: field.default for field in fields(RowWords)}
    unknown = [name for name in given if name not in known]
    if unknown:
        message = f"{', '.join(unknown)}: there is no such setting; allowed are {', '.join(known)}"
        raise ValueError(message)
    words: dict[str, Any] = {
        name: _as_tuple(name, value) if name in _LISTS else value for name, value in given.items() if value is not None
    }
    for name, value in words.items():
        if name not in _LISTS and not isinstance(value, str):
            message = f"{name} = {value!r}: allowed is a text"
            raise ValueError(message)
        if name in _CHOICES and value not in _CHOICES[name]:
            message = f"{name} = {value!r}: allowed are {', '.join(filter(None, _CHOICES[name]))}"
            raise ValueError(message)
    made = RowWords(**words)
    others = [name for name, default in known.items() if name not in {"key", "sequence_as"} and getattr(made, name) != default]
    if not made.key:
        if others:
            message = f"{', '.join(others)}: without key, which names the columns of the key, rows have the columns key and value; give key"
            raise ValueError(message)
        return None
    check_row_words(made)
    return made


def _as_tuple(name: str, value: Any) -> tuple[str, ...]:
    """Return the names or expressions of a setting in their order. Raises `ValueError` for what is neither a text nor a list of texts."""
    names = _list_of(value)
    if names is None or not all(isinstance(column, str) for column in names):
        message = f"{name} = {value!r}: allowed are texts: {'SQL expressions' if name == 'sequence' else 'names of columns'}"
        raise ValueError(message)
    try:
        check_named_once(names)
    except ValueError as error:
        message = f"{name} = {list(names)!r}: {error}"
        raise ValueError(message) from None
    return names


def _list_of(value: Any) -> tuple[Any, ...] | None:
    """Return the members of a list, or a text as the only member; None for values that are no list, or have no order."""
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, (bytes, Mapping, AbstractSet)):
        return None
    try:
        return tuple(value)
    except TypeError:
        return None


def check_named_once(names: Sequence[str]) -> None:
    """Raise `ValueError` for a name that comes twice, or is empty."""
    twice = sorted({name for name in names if list(names).count(name) > 1 or not name})
    if twice:
        message = f"{', '.join(map(repr, twice))}: each name is allowed once, and not empty"
        raise ValueError(message)


def check_row_words(words: RowWords) -> None:
    """Raise `ValueError` for settings that exclude each other, or have no effect without another setting."""
    if words.value and (words.columns or words.drop or words.on_null == "keep"):
        message = "value takes one column as it is, so columns, drop and on.null = keep say nothing; leave them out"
        raise ValueError(message)
    if words.truncate and not words.sequence:
        message = "truncate deletes every key before it, so it needs a sequence, which says what came before"
        raise ValueError(message)
    if words.on_null == "keep" and not words.sequence:
        message = "on.null = keep looks up the newest row of a key, so it needs a sequence, which says which that is"
        raise ValueError(message)
    if words.columns and words.drop:
        message = "columns and drop exclude each other: give the columns of the value, or those that are left out"
        raise ValueError(message)
    if words.sequence_as and not words.sequence:
        message = f"sequence.as = {words.sequence_as!r}: it says what a text of sequence is compared as; give sequence, or leave it out"
        raise ValueError(message)


def truncate_alert(sequence: Sequence[str]) -> str:
    """Return why a TRUNCATE row without a sequence is refused: the message names the columns or expressions of `sequence`."""
    names = f"each of {', '.join(sequence)}" if len(sequence) > 1 else sequence[0]
    return (
        f"TRUNCATE without a sequence: allowed in {names} is a value that has an order; which rows came before it is unknown, so none was "
        "deleted"
    )
