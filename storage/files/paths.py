"""Where things lie: the folders of a log.dir and of a topic, on a local disk or an object store.

```
<log.dir>/.deleted/             deleted topics, until file.delete.delay.ms has passed
<log.dir>/.settings.json        the service-wide settings that the last service began with
<log.dir>/.history/             samples for the trends of the status page, a file for each service
<log.dir>/<topic>/log/ ledger/ dead_letters/ producers/ queries/
```
"""

from __future__ import annotations

import errno
import json
import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from lastword.compaction.errors import InvalidTopic, LogDirUnreachable, UserError, said_by_delta
from lastword.storage.files.json_files import replace_file
from lastword.storage.files.locations import local_path, location_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DELETED: Final = ".deleted"
_SETTINGS: Final = ".settings.json"
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
#: So object_store, through which delta-rs and Polars read and write, says that a disk, a network or a store failed.
_STORAGE_FAULT: Final = re.compile(
    r"Generic (?:LocalFileSystem|S3|GCS|MicrosoftAzure|HTTP) error|operation lacked |\(os error \d+\)|error stat\(\)ing"
    r"|Could not create local directory"
)
_TRASH_NAME: Final = re.compile(r"(?P<topic>.+)\.(?P<id>[0-9a-f]{32})\.(?P<due_ms>\d+)")


def check_topic_name(name: object) -> str:
    """Return `name` if Kafka would take it as a topic's name; raise `InvalidTopic` otherwise."""
    if not isinstance(name, str) or not _TOPIC_NAME.fullmatch(name) or name.startswith("."):
        message = (
            f"topic name {name!r}: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-' are allowed, and no '.' in front "
            "(such folders are lastword's own)"
        )
        raise InvalidTopic(message)
    return name


def filesystem_of(location: str, storage_options: Mapping[str, str]) -> fs.FileSystem:
    """Return the files below a path or URI, which need not exist; an object store is reached as delta-rs reaches it."""
    local = local_path(location)
    if local is not None:
        return fs.SubTreeFileSystem(str(local), fs.LocalFileSystem())
    return fs.PyFileSystem(_ObjectStore(location.rstrip("/"), dict(storage_options)))


class _ObjectStore(DeltaStorageHandler):
    """delta-rs' view of an object store. Its output streams take bytes alone, and pyarrow hands them buffers.

    Errors have a number, as those of a disk do: without one they could not be told from what pyarrow says of a damaged file.
    """

    def __init__(self, location: str, options: dict[str, str]) -> None:
        super().__init__(location, options)
        self._location = location

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        with storage_faults(self._location):
            return list(super().get_file_info(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        with storage_faults(self._location):
            return list(super().get_file_info_selector(selector))

    def delete_file(self, path: str) -> None:
        with storage_faults(self._location):
            super().delete_file(path)

    def delete_dir(self, path: str) -> None:
        with storage_faults(self._location):
            super().delete_dir(path)

    def move(self, src: str, dest: str) -> None:
        with storage_faults(self._location):
            super().move(src, dest)

    def open_input_file(self, path: str) -> pa.PythonFile:
        with storage_faults(self._location):
            return pa.PythonFile(_NumbersErrors(self._handler.open_input_file(path), self._location))

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        with storage_faults(self._location):
            return pa.PythonFile(_TakesBuffers(self._handler.open_output_stream(path, metadata), self._location))


def is_storage_fault(error: Exception) -> bool:
    """Tell what delta-rs and Polars say of a disk, a network or a store from what they say of a table or a file."""
    return _STORAGE_FAULT.search(str(error)) is not None


@contextmanager
def storage_faults(location: str) -> Iterator[None]:
    """Raise what delta-rs says of a disk, a network or a store as `OSError` with a number; its other errors stay what they are."""
    try:
        yield
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            raise OSError(errno.EIO, f"{location}: {said_by_delta(error)}") from error
        raise
    except DeltaError as error:
        if is_storage_fault(error):
            raise OSError(errno.EIO, f"{location}: {said_by_delta(error)}") from error
        raise


class _NumbersErrors:
    """A stream of an object store."""

    def __init__(self, stream: Any, location: str) -> None:
        self._stream, self._location = stream, location

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, size: int | None = None) -> bytes:
        with storage_faults(self._location):
            data: bytes = self._stream.read(size)
            return data


class _TakesBuffers(_NumbersErrors):
    """A stream that is written buffers to."""

    def write(self, data: Any) -> int:
        with storage_faults(self._location):
            written: int = self._stream.write(bytes(data))
            return written

    def close(self) -> None:
        with storage_faults(self._location):
            self._stream.close()


@dataclass(frozen=True, slots=True)
class TopicPaths:
    """The folders of one topic, as URIs or paths that Spark and delta-rs both take."""

    root: str

    @property
    def place(self) -> str:
        """The topic's folder under one name, however the path or URI of its log.dir was spelled."""
        local = local_path(self.root)
        return self.root if local is None else str(local.resolve())

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


def _check_puts(storage_options: Mapping[str, str]) -> None:
    """Raise `UserError` for an option by which a store would not tell two writers of one commit apart."""
    for name, value in storage_options.items():
        if name.lower() in {"aws_conditional_put", "conditional_put"} and value != "etag":
            message = f"storage option {name} = {value}: allowed is etag: a commit is put only where there is none, or two would overwrite"
            raise UserError(message)


def _check_store(uri: str, storage_options: Mapping[str, str]) -> None:
    """Raise `UserError` for an option that commits to the store could not be put with; nothing is asked of it."""
    from lastword.storage.files.object_stores import open_store  # noqa: PLC0415  Spark's tasks import this module, without obstore

    open_store(uri, storage_options)


class LogDirFiles:
    """The files of a log.dir: which topics are there, and how one of them goes away."""

    def __init__(self, location: str, storage_options: Mapping[str, str] | None = None) -> None:
        """Take a path or a URI, and what delta-rs needs to reach it; nothing is read or made. Raises `UserError` for another location."""
        _check_puts(storage_options or {})
        self.uri = location_of(location)
        self.local = local_path(self.uri)
        if self.local is None:
            _check_store(self.uri, storage_options or {})
        self._filesystem = filesystem_of(self.uri, storage_options or {})
        self._identity: tuple[int, int] | None = None

    def topic(self, name: str) -> TopicPaths:
        """Return the folders of topic `name`, whether it exists or not."""
        return TopicPaths(f"{self.uri}/{check_topic_name(name)}")

    def topics(self) -> list[str]:
        """Return the names of the folders that hold a ledger, sorted; none when there is no log.dir yet (`check_reachable`)."""
        return sorted(name for name in self._folders("") if not name.startswith(".") and self.has_ledger(name))

    def has_ledger(self, name: str) -> bool:
        """Tell whether topic `name` has a ledger, which is what makes it a topic: a commit, not a folder that one was to come into."""
        log = f"{name}/ledger/_delta_log"
        if self._exists(f"{log}/{0:020}.json"):
            return True
        there = self._filesystem.get_file_info(fs.FileSelector(log, allow_not_found=True))
        return any(file.base_name.endswith((".json", ".parquet")) for file in there)

    def make(self) -> None:
        """Make the folder of a local log.dir if it is not there."""
        if self.local is not None:
            self.local.mkdir(parents=True, exist_ok=True)

    def check_exists(self) -> None:
        """Raise `UserError` if a local log.dir does not exist or is no directory; a store has no directories that could be missing."""
        if self.local is None or self.local.is_dir():
            return
        if self.local.exists():
            message = f"log.dir {self.uri} is a file: allowed is a directory"
            raise UserError(message)
        message = (
            f"log.dir {self.uri} does not exist: name the directory of the topics by --log-dir, by LASTWORD_LOG_DIR or in the "
            "configuration file (-c); `lastword topics create` and `lastword run` make a new one"
        )
        raise UserError(message)

    def check_reachable(self) -> None:
        """Raise `LogDirUnreachable` when a local log.dir is another folder than at the first call, or none: a volume that went away.

        That tells it from an empty mount point. Of an object store, what it says about a folder is its own answer.
        """
        if self.local is None:
            return
        try:
            stat = self.local.stat()
        except OSError as error:
            message = f"log.dir {self.uri} is not there any more ({error.strerror}): is the volume mounted?"
            raise LogDirUnreachable(message) from None
        identity = stat.st_dev, stat.st_ino
        if self._identity not in {None, identity}:
            message = f"log.dir {self.uri} is another folder than when this process began: is the volume mounted?"
            raise LogDirUnreachable(message)
        self._identity = identity

    def write_settings(self, settings: Mapping[str, object]) -> None:
        """Store the service settings, which commands that open the log.dir without settings use."""
        unfinished = _SETTINGS if self.local is None else f"{_SETTINGS}.{uuid.uuid4().hex}"  # a store's objects appear whole
        content = json.dumps(dict(settings), sort_keys=True, indent=2).encode()
        replace_file(self._filesystem, _SETTINGS, content, unfinished=unfinished)

    def read_settings(self) -> dict[str, object]:
        """Return what `write_settings` kept; nothing when no service has been here. Raises `UserError` when it cannot be read."""
        if not self._exists(_SETTINGS):
            return {}
        try:
            with self._filesystem.open_input_stream(_SETTINGS) as stream:
                settings = json.loads(stream.read())
        except ValueError as error:
            settings = error
        if not isinstance(settings, dict):
            message = f"{self.uri}/{_SETTINGS} is no JSON object ({settings}): start the service, which writes it anew"
            raise UserError(message)
        return settings

    def retire(self, name: str, due_ms: int) -> None:
        """Take topic `name` out of sight at once; its files are due at `due_ms`.

        A local disk renames the folder. Object stores cannot rename one: there the files go at once.
        """
        if self.local is None:
            self._filesystem.delete_dir(name)
            return
        self._filesystem.create_dir(_DELETED, recursive=True)
        self._filesystem.move(name, f"{_DELETED}/{name}.{uuid.uuid4().hex}.{due_ms}")

    def purge_retired(self, now_ms: int) -> list[str]:
        """Delete the files of retired topics that are due; return the names of those topics."""
        purged = []
        for folder in list(self._folders(_DELETED)):
            match = _TRASH_NAME.fullmatch(folder)
            if match and int(match["due_ms"]) <= now_ms:
                self._filesystem.delete_dir(f"{_DELETED}/{folder}")
                purged.append(match["topic"])
        return purged

    def _exists(self, below: str) -> bool:
        return bool(self._filesystem.get_file_info(below).type != fs.FileType.NotFound)

    def _folders(self, below: str) -> Iterator[str]:
        selector = fs.FileSelector(below, allow_not_found=True)
        for info in self._filesystem.get_file_info(selector):
            if info.type == fs.FileType.Directory:
                yield info.base_name
