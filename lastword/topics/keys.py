"""Reads the key of `Topic.get` and `Topic.purge`, by its text, its bytes or its columns, and the number of records of `Topic.get`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lastword.change_data.columns.json_rows import NoEvent
from lastword.change_data.events.event_keys import canonical_key
from lastword.compaction.errors import UserError
from lastword.topics.arguments import read_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.storage.reading.key_history import KeyHistory

#: One key: text (UTF-8), bytes, or its columns, as `{"id": 7, "line": 1}`.
KeyValue = str | bytes | Mapping[str, Any]
#: How many records of a key `Topic.get` returns by default.
KEY_RECORDS: Final = 100


def read_wanted_key(key: object) -> list[bytes]:
    """Return the bytes that a key may have in the log, the likeliest first: as it is given, then as canonical JSON.

    A mapping of one column may also stand as the text of that column. Raises `UserError` for what is no key.
    """
    if isinstance(key, Mapping):
        try:
            text = json.dumps(dict(key), ensure_ascii=False, allow_nan=False)
            alone = next(iter(key.values()), None)
        except (TypeError, ValueError, RecursionError):
            message = f"key = {key!r}: allowed is a mapping from column names to texts, numbers and booleans"
            raise UserError(message) from None
        plain = [str(alone).encode()] if len(key) == 1 and isinstance(alone, (str, int)) and not isinstance(alone, bool) else []
        return [canonical_key(text.encode()), *plain]
    exact = read_key(key)
    if not exact.lstrip().startswith(b"{"):
        return [exact]
    try:
        return list(dict.fromkeys([exact, canonical_key(exact)]))
    except (NoEvent, RecursionError):  # no JSON, or nested too deeply to be a key of columns
        return [exact]


def check_limit(limit: object) -> None:
    """Raise `UserError` for a limit that is no whole number from 1 on."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        message = f"limit = {limit!r}: allowed is a whole number from 1 on"
        raise UserError(message)


def only_history(histories: Sequence[KeyHistory], keys: Sequence[bytes], *, topic: str) -> KeyHistory | None:
    """Return the history of the first of `keys` that has one; raise `UserError` if it stands in several partitions."""
    for key in keys:
        mine = [history for history in histories if history.key == key]
        if len(mine) > 1:
            places = ", ".join(str(history.partition) for history in mine)
            message = f"topic {topic}: the key stands in partitions {places}, which are different keys: name one partition"
            raise UserError(message)
        if mine:
            return mine[0]
    return None
