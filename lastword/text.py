"""Text and sizes for terminals, notebooks and pages: printable characters only, limited in length; sizes with a unit."""

from __future__ import annotations

import base64
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str, most: int) -> str:
    """Return at most `most` characters of a text. Characters that are not printable are replaced by �."""
    shown = "".join(character if character.isprintable() else "�" for character in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def bytes_as_text(raw: bytes, most: int) -> str:
    """Return bytes as printable text of at most `most` characters; those that are not UTF-8 as `base64:…`."""
    begin = raw[: 4 * most]
    try:
        return printable(begin.decode("utf-8"), most)
    except UnicodeDecodeError as error:
        if len(raw) > len(begin) and error.start > len(begin) - 4:  # the cut split a character
            return printable(begin[: error.start].decode("utf-8"), most)
        return printable(f"base64:{base64.b64encode(raw[:most]).decode('ascii')}", most)


def fold(text: str, width: int) -> str:
    """Return a name as lines of at most `width` characters, which end behind a `.`, `_`, `-`, `/` or `:` where there is one."""
    lines = list[str]()
    while len(text) > width:
        at = max((text.rfind(mark, 0, width) for mark in "._-/:"), default=-1) + 1
        at = at if at > width // 3 else width
        lines.append(text[:at])
        text = text[at:]
    return "\n".join([*lines, text])


def size(size_bytes: float) -> str:
    """Return a number of bytes with a binary unit, for example `1.5 MiB`."""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004  a KiB
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.0f} B" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"
