"""Text that is safe and short on a terminal or a page, and sizes in units that people read."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def printable(text: str, most: int) -> str:
    """Return text of at most `most` characters that does nothing to a terminal or a page: what is not printable comes as �."""
    shown = "".join(character if character.isprintable() else "�" for character in text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def size(size_bytes: float) -> str:
    """Return a number of bytes in a unit that people read."""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004  a KiB
        size_bytes, unit = size_bytes / 1024, unit + 1
    return f"{size_bytes:.0f} B" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"
