"""How a file of JSON, CSV, Parquet or Arrow is read: its format, and the options of Spark's readers that are known here."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The options of the formats that have some.
FILE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "json": ("encoding", "charset", "multiLine"),
    "csv": ("sep", "delimiter", "quote", "escape", "header", "encoding", "charset"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """The format `json`, `csv`, `parquet` or `arrow`, and how texts are read."""

    name: str
    encoding: str = "UTF-8"
    multi_line: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    header: bool = True

    @staticmethod
    def of_options(name: str, options: Mapping[str, str]) -> FileFormat:
        """Return a format with Spark's options; case does not count in their names."""
        known = {option.lower(): value for option, value in options.items()}
        return FileFormat(
            name=name,
            encoding=known.get("encoding", known.get("charset", "UTF-8")),
            multi_line=known.get("multiline", "false").lower() == "true",
            separator=known.get("sep", known.get("delimiter", ",")).replace("\\t", "\t"),
            quote=known.get("quote", '"'),
            escape=known.get("escape", ""),
            header=known.get("header", "true").lower() == "true",
        )


def check_file_options(options: Mapping[str, str], allowed: tuple[str, ...], what: str) -> None:
    """Raise `ValueError` for options that a format does not have, and for values that say nothing that can be done."""
    unknown = [name for name in options if name.lower() not in {option.lower() for option in allowed}]
    if unknown:
        message = f"options {', '.join(unknown)}: of {what} allowed are {', '.join(allowed) or 'none'}"
        raise ValueError(message)
    _check_values({name.lower(): value for name, value in options.items()})


def _check_values(known: Mapping[str, str]) -> None:
    """Raise `ValueError` for values of options, by their names in small letters, that say nothing that can be done."""
    for pair in (("encoding", "charset"), ("sep", "delimiter")):
        if all(name in known for name in pair):
            message = f"options {' and '.join(pair)} are the same; give one of them"
            raise ValueError(message)
    for name in ("encoding", "charset"):
        try:
            codecs.lookup(known.get(name, "UTF-8"))
        except LookupError:
            message = f"{name} = {known[name]!r}: no such encoding; allowed is a name of Python's codecs, e.g. ISO-8859-1"
            raise ValueError(message) from None
    for name in ("multiline", "header"):
        if known.get(name, "true").lower() not in {"true", "false"}:
            message = f"{name} = {known[name]!r}: allowed are true and false"
            raise ValueError(message)
    for name, least in (("sep", 1), ("delimiter", 1), ("quote", 0), ("escape", 0)):
        text = known.get(name, ",").replace("\\t", "\t")
        if not least <= len(text) <= 1 or not text.isascii() or text in {"\n", "\r"}:
            message = f"{name} = {known[name]!r}: allowed is one ASCII character that ends no line{'' if least else ', or none'}"
            raise ValueError(message)
