"""Where things lie: the folders of a log.dir and of a topic, on a local disk or an object store.

```
<log.dir>/.lock                 held by the one committing process (local disks)
<log.dir>/.deleted/             deleted topics, until file.delete.delay.ms has passed
<log.dir>/.requests/            what commands ask of the committing process
<log.dir>/<topic>/log/ ledger/ dead_letters/ producers/ queries/
```
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyarrow import fs

from compaction.errors import InvalidTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

_DELETED: Final = ".deleted"
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TRASH_NAME: Final = re.compile(r"(?P<topic>.+)\.(?P<id>[0-9a-f]{32})\.(?P<due_ms>\d+)")


def check_topic_name(name: str) -> str:
    """Return `name` if Kafka would take it as a topic's name; raise `InvalidTopic` otherwise."""
    if not _TOPIC_NAME.fullmatch(name) or name.startswith("."):
        message = (
            f"topic name {name!r}: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' are allowed, and no '.' in front "
            "(such folders are lastword's own)"
        )
        raise InvalidTopic(message)
    return name


@dataclass(frozen=True, slots=True)
class TopicPaths:
    """The folders of one topic, as URIs or paths that Spark and delta-rs both take."""

    root: str

    @property
    def log(self) -> str:
        """The Delta table of records."""
        return f"{self.root}/log"

    @property
    def ledger(self) -> str:
        """The Delta table of decisions."""
        return f"{self.root}/ledger"

    @property
    def dead_letters(self) -> str:
        """The Delta table of refused rows."""
        return f"{self.root}/dead_letters"

    @property
    def producers(self) -> str:
        """The cache of producer states."""
        return f"{self.root}/producers"

    def query(self, name: str) -> str:
        """Return the Spark checkpointLocation of the streaming query `name`."""
        return f"{self.root}/queries/{name}"


class LogDirFiles:
    """The files of a log.dir: which topics are there, and how one of them goes away."""

    def __init__(self, location: str) -> None:
        """Take a path or a URI; nothing is read or made."""
        if "://" in location or location.startswith("file:"):
            self._filesystem, self._root = fs.FileSystem.from_uri(location)
            self.uri = location.rstrip("/")
        else:
            self._filesystem, self._root = fs.LocalFileSystem(), str(Path(location).absolute())
            self.uri = self._root
        self.local: Path | None = Path(self._root) if isinstance(self._filesystem, fs.LocalFileSystem) else None

    def topic(self, name: str) -> TopicPaths:
        """Return the folders of topic `name`, whether it exists or not."""
        return TopicPaths(f"{self.uri}/{check_topic_name(name)}")

    def topics(self) -> list[str]:
        """Return the names of the folders that hold a ledger, sorted."""
        return sorted(name for name in self._folders("") if not name.startswith(".") and self.has_ledger(name))

    def has_ledger(self, name: str) -> bool:
        """Tell whether topic `name` has a ledger, which is what makes it a topic."""
        return self._exists(f"{name}/ledger/_delta_log")

    def exists(self) -> bool:
        """Tell whether the log.dir itself can be reached."""
        return self._exists("")

    def retire(self, name: str, due_ms: int) -> None:
        """Take topic `name` out of sight at once; its files are due at `due_ms`.

        A local disk renames the folder. Object stores cannot rename one: there the files go at once.
        """
        if self.local is None:
            self._filesystem.delete_dir(f"{self._root}/{name}")
            return
        self._filesystem.create_dir(f"{self._root}/{_DELETED}", recursive=True)
        self._filesystem.move(f"{self._root}/{name}", f"{self._root}/{_DELETED}/{name}.{uuid.uuid4().hex}.{due_ms}")

    def purge_retired(self, now_ms: int) -> list[str]:
        """Delete the files of retired topics that are due; return the names of those topics."""
        purged = []
        for folder in list(self._folders(_DELETED)):
            match = _TRASH_NAME.fullmatch(folder)
            if match and int(match["due_ms"]) <= now_ms:
                self._filesystem.delete_dir(f"{self._root}/{_DELETED}/{folder}")
                purged.append(match["topic"])
        return purged

    def _exists(self, below: str) -> bool:
        return bool(self._filesystem.get_file_info(f"{self._root}/{below}".rstrip("/")).type != fs.FileType.NotFound)

    def _folders(self, below: str) -> Iterator[str]:
        selector = fs.FileSelector(f"{self._root}/{below}".rstrip("/"), allow_not_found=True)
        for info in self._filesystem.get_file_info(selector):
            if info.type == fs.FileType.Directory:
                yield info.base_name
