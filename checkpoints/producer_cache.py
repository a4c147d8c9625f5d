"""A topic's producer states between processes: a cache, so that a start need not read the log for them.

`producers/state.json` holds the states at a table version, with a checksum. If it is absent, damaged, of another topic or
format, the log is read. It is replaced in one step, so that a crash leaves the old one or the new one.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.producers import ProducerSnapshot, ProducerState

if TYPE_CHECKING:
    from collections.abc import Callable

#: The file below the folder of a topic.
PRODUCER_STATES: Final = "producers/state.json"
#: Counts the shapes that a state has had.
_FORMAT: Final = 2


class ProducerSnapshots:
    """The file that keeps them."""

    def __init__(self, read: Callable[[str], Any], write: Callable[[str, dict[str, Any]], None], topic_id: Callable[[], str]) -> None:
        """Keep the file in the folder of a topic, in which `read` and `write` read and replace a small file.

        `read` raises `OSError`, `ValueError`, `KeyError` or `TypeError` for a file that is not there or damaged. `topic_id` is asked when
        the file is used: another topic of the name does not inherit it.
        """
        self._read, self._write, self._topic_id = read, write, topic_id

    def load(self) -> ProducerSnapshot | None:
        """Return the kept states, or None when there are none that can be trusted."""
        try:
            body = self._read(PRODUCER_STATES)
            if (body["format"], body["topic_id"]) != (_FORMAT, self._topic_id()):
                return None
            states = [ProducerState(**state) for state in body["states"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return ProducerSnapshot(
            table_version=body["table_version"],
            log_end_offsets=tuple(body["log_end_offsets"]),
            states={(state.partition, state.producer_id): state for state in states},
        )

    def save(self, snapshot: ProducerSnapshot) -> None:
        """Keep `snapshot`; a folder that cannot be written is no reason to fail: it is only a cache."""
        body: dict[str, Any] = {
            "format": _FORMAT,
            "topic_id": self._topic_id(),
            "table_version": snapshot.table_version,
            "log_end_offsets": list(snapshot.log_end_offsets),
            "states": [asdict(state) for state in snapshot.states.values()],
        }
        self._write(PRODUCER_STATES, body)
