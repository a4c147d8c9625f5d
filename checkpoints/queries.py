"""Query checkpoints: whose they are, and what to do when one is gone.

Spark keeps a streaming query's position in its checkpointLocation, under a query id that it draws when the folder is new. A deleted
folder therefore starts the source from its beginning under a new id, and every row would come again as new. The topic's ledger knows
which id belongs to which name, so that this is noticed before the first row.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import QueryRefused

if TYPE_CHECKING:
    from pyarrow import fs

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_query_name(name: str) -> str:
    """Return `name` if it can name a streaming query; raise `QueryRefused` otherwise."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        message = f"query name {name!r}: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' are allowed, and no '.' in front"
        raise QueryRefused(message)
    return name


def stored_query_id(checkpoint: fs.FileSystem) -> str | None:
    """Return the query id that a checkpointLocation, whose files these are, holds; None when there is none (yet, or any more)."""
    try:
        with checkpoint.open_input_file("metadata") as file:
            return str(json.loads(file.read())["id"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def check_query(name: str, *, topic: str, known_id: str | None, stored_id: str | None, offsets_are_kept: bool) -> None:
    """Raise `QueryRefused` if starting the query would bring rows again that the log holds already.

    `known_id` is the id under which the ledger knows `name` (None: not known, or forgotten on purpose), `stored_id` the one in the
    checkpoint. A mirror (`offsets_are_kept`) may always go on: what it brings again lies below the log end and is dropped.
    """
    if known_id is None or known_id == stored_id or offsets_are_kept:
        return
    gone = "is gone" if stored_id is None else f"holds another query's id ({stored_id})"
    message = (
        f"query {name} of topic {topic}: its checkpoint {gone}, so its source would be read from the beginning, and rows that the log "
        f"already holds (appended as query {known_id}) would be appended again. Ways out: restore the checkpoint folder "
        f"queries/{name}; or start under a new name from a position in the source that you choose; or, if you want every row again, "
        f"forget the query first: lastword queries forget {topic} {name}"
    )
    raise QueryRefused(message)
