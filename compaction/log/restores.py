"""Delta RESTOREs of the log: which table versions the newest one stands on, and which were taken back.

```
 version       1    2    3    4    5             6             7
                                   RESTORE to 1  RESTORE to 4  append
 stands on     1    2    3    4                  6             7         the first RESTORE was itself taken back
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A Delta RESTORE of the log: the commit `version` brought back what `restored_version` held."""

    version: int
    restored_version: int


def is_contained(restores: Iterable[Restore], table_version: int, *, as_of_version: int | None = None) -> bool:
    """Tell whether a table version (default: the newest) stands on what was committed as `table_version`: no RESTORE took it back."""
    return _stands(restores, table_version, committed=True, as_of_version=as_of_version)


def is_contained_after(restores: Iterable[Restore], table_version: int) -> bool:
    """Tell whether the newest table version stands on what was decided after `table_version` and before the next one."""
    return _stands(restores, table_version, committed=False, as_of_version=None)


def _stands(restores: Iterable[Restore], table_version: int, *, committed: bool, as_of_version: int | None) -> bool:
    below = as_of_version
    for restore in sorted(restores, key=lambda restore: restore.version, reverse=True):
        if below is not None and restore.version > below:
            continue  # it was taken back itself, or came later than what is asked
        if table_version >= restore.version:
            break
        if table_version > restore.restored_version or (table_version == restore.restored_version and not committed):
            return False
        below = restore.restored_version
    return as_of_version is None or table_version <= as_of_version
