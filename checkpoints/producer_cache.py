"""A topic's producer states between processes: a cache, so that a start need not read the log for them.

`producers/state.json` holds the states at a table version, with a checksum. Absent, spoilt, of another topic or format: it is as if it were
not there, and the log is read. It is replaced in one step, so that a crash leaves the old one or the new one.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from lastword.compaction.producers import ProducerSnapshot, ProducerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow import fs

_FOLDER: Final = "producers"
_FILE: Final = f"{_FOLDER}/state.json"
#: Counts the shapes that a state has had.
_FORMAT: Final = 2


class ProducerSnapshots:
    """The file that keeps them."""

    def __init__(self, topic: fs.FileSystem, topic_id: Callable[[], str]) -> None:
        """Keep the file in the folder of a topic; `topic_id` is asked when it is used: another topic of the name does not inherit it."""
        self._topic_id = topic_id
        self._filesystem = topic

    def load(self) -> ProducerSnapshot | None:
        """Return the kept states, or None when there are none that can be trusted."""
        try:
            with self._filesystem.open_input_file(_FILE) as file:
                kept = json.loads(file.read())
            body = kept["body"]
            if kept["crc32"] != _checksum(body) or (body["format"], body["topic_id"]) != (_FORMAT, self._topic_id()):
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
        body = {
            "format": _FORMAT,
            "topic_id": self._topic_id(),
            "table_version": snapshot.table_version,
            "log_end_offsets": list(snapshot.log_end_offsets),
            "states": [asdict(state) for state in snapshot.states.values()],
        }
        try:
            self._filesystem.create_dir(_FOLDER, recursive=True)
            with self._filesystem.open_output_stream(f"{_FILE}.new") as file:
                file.write(json.dumps({"crc32": _checksum(body), "body": body}).encode())
            self._filesystem.move(f"{_FILE}.new", _FILE)
        except (OSError, NotImplementedError):
            return


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
