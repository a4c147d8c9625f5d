"""How results are shown: as one short line by `repr`, and in a notebook as HTML tables (IPython's `_repr_html_`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from html import escape
from typing import Any, ClassVar, Final, TypeVar

from lastword.compaction.moments import instant
from lastword.text import bytes_as_text, printable, size

T = TypeVar("T")
#: Fields of results that are moments; other fields whose names end with `_ms` are durations.
MOMENTS: Final = frozenset(
    {"before_ms", "eligible_at_ms", "expires_ms", "horizon_ms", "last_append_ms", "now_ms", "seen_ms", "since_ms", "statistics_until_ms"}
)
#: The most rows of a table: half of them from its beginning, half from its end.
MOST_ROWS: Final = 60
#: The most characters of a value.
_CHARACTERS: Final = 200


class Displayed:
    """The base of results, which are dataclasses with `repr=False`: a short `repr`, and a table of all fields in a notebook.

    `BRIEF` names the fields in the `repr`, and the columns where several results are shown as one table. If it is empty, these are all
    fields, and the `repr` leaves out those that have their default.
    """

    __slots__ = ()
    BRIEF: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        """Return the class with some fields as above, and … if `BRIEF` leaves out others."""
        names = self.BRIEF or _names_without_defaults(self)
        shown = [f"{name}={getattr(self, name)!r}" for name in names]
        return f"{type(self).__name__}({', '.join([*shown, '…'] if self.BRIEF else shown)})"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(type(self).__name__)}</b></p>{_html_of_fields(self)}"


class ResultList(list[T]):
    """A list of results; a notebook shows it as a table with a row for each."""

    def _repr_html_(self) -> str:
        return html_of_results(self)


class ResultTuple(tuple[T, ...]):
    """A tuple of results; a notebook shows it as a table with a row for each."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return html_of_results(self)


def html_of_results(results: Collection[Any]) -> str:
    """Return results of one class as a table of HTML with a row for each; those in the middle are left out if they are too many."""
    if not results:
        return "<p>none</p>"
    all_results = list(results)
    left_out = len(all_results) - MOST_ROWS
    names = _brief_names(all_results[0])
    shown = all_results if left_out <= 0 else [*all_results[: MOST_ROWS // 2], *all_results[-(MOST_ROWS // 2) :]]
    rows = [[_html_of_value(name, getattr(result, name)) for name in names] for result in shown]
    note = f"<p>{left_out:,} of {len(all_results):,} in the middle are not shown</p>" if left_out > 0 else ""
    return html_table(names, rows) + note


def html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML with a head, in the class that notebooks style; `rows` are HTML, `names` are text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _html_of_fields(result: Any) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{_html_of_value(name, getattr(result, name))}</td></tr>" for name in _names(result))
    return f'<table class="dataframe"><tbody>{rows}</tbody></table>'


def _html_of_value(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return _html_of_mapping(name, value)
    if isinstance(value, (tuple, list, frozenset)):
        listed = sorted(value) if isinstance(value, frozenset) else value
        if listed and is_dataclass(listed[0]):
            return html_of_results(listed)
        return _text(", ".join(map(str, listed))) if listed else "–"
    if is_dataclass(value):
        return _html_of_fields(value)
    return _text(_text_of_value(name, value))


def _html_of_mapping(name: str, value: Mapping[Any, Any]) -> str:
    if value and all(map(is_dataclass, value.values())):
        return html_of_results(value.values())
    return "<br>".join(_text(f"{key}: {_text_of_value(name, item)}") for key, item in value.items()) or "–"


def _text_of_value(name: str, value: Any) -> str:
    if value is None or value == "":
        return "–"
    if name in MOMENTS:
        return instant(value)
    if "bytes" in name.split("_"):
        return size(value)
    if isinstance(value, bytes):
        return bytes_as_text(value, _CHARACTERS)
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value.value if isinstance(value, Enum) else value)


def _text(text: str) -> str:
    return escape(printable(text, _CHARACTERS))


def _names(result: Any) -> tuple[str, ...]:
    return tuple(attribute.name for attribute in fields(result))


def _brief_names(result: Any) -> tuple[str, ...]:
    brief: tuple[str, ...] = getattr(result, "BRIEF", ())
    return brief or _names(result)


def _names_without_defaults(result: Any) -> tuple[str, ...]:
    defaults = {field.name: field.default if field.default_factory is MISSING else field.default_factory() for field in fields(result)}
    return tuple(name for name, default in defaults.items() if default is MISSING or getattr(result, name) != default)
