"""Text and sizes for terminals and pages: printable characters only, limited in length; sizes with a unit."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str, most: int) -> str:
    """Return at most `most` characters of a text. Characters that are not printable are replaced by �."""
    shown = "".join(character if character.isprintable() else "�" for character in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def size(size_bytes: float) -> str:
    """Return a number of bytes with a binary unit, for example `1.5 MiB`."""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004  a KiB
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.0f} B" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"
