"""What is installed here, and what it needs."""

from __future__ import annotations

from importlib.metadata import distribution
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable


def needed(names: Iterable[str]) -> set[str]:
    """Return distributions and all that they need here, by their canonical names."""
    found, left = set[str](), [str(canonicalize_name(name)) for name in names]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            requirements = [Requirement(text) for text in distribution(name).requires or []]
            left += [str(canonicalize_name(one.name)) for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found
