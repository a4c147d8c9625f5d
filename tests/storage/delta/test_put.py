"""A commit is put once, whatever a disk or a store says of it: both are asked the same questions."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from lastword.compaction.errors import CommitStateUnknown
from lastword.storage.delta.put import put_if_absent
from lastword.storage.files.paths import filesystem_of
from tests.failing_store import ANY, COMMIT, LATE, FailingStore
from tests.object_store import URI, running_store, storage_options_of
from tests.storage.logs import DiskLog
from tests.storage.storm import storm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

#: While it is entered something fails; what it yields are the storage options to use.
_Failing: TypeAlias = "AbstractContextManager[dict[str, str]]"
_OURS, _OTHER = b'{"commitInfo":{"userMetadata":"ours"}}\n', b'{"commitInfo":{"userMetadata":"another"}}\n'
_PATH: Final = f"_delta_log/{1:020}.json"


@dataclass
class Disk:
    """A folder of a local disk, where the next link fails."""

    location: str
    patch: pytest.MonkeyPatch
    options: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def failing(self, *, done: bool, error: int) -> Iterator[dict[str, str]]:
        """Let a link be made, or not, and fail."""
        real = os.link

        def link(source: Path, target: Path) -> None:
            if done:
                real(source, target)
            raise OSError(error, os.strerror(error))

        with self.patch.context() as patch:
            patch.setattr(os, "link", link)
            yield {}

    def lost(self) -> list[_Failing]:
        """Return the ways in which a commit is put and the reply is an error."""
        return [self.failing(done=True, error=number) for number in (errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EEXIST)]

    def refused(self) -> list[_Failing]:
        """Return the ways in which a commit is not put."""
        return [self.failing(done=False, error=number) for number in (errno.EIO, errno.ENOSPC)]

    @contextmanager
    def silent(self) -> Iterator[dict[str, str]]:
        """Let the commit be put, and nothing be read after it."""

        def unreadable(*_: object) -> None:
            raise OSError(errno.EIO, "no answer")

        with self.failing(done=True, error=errno.EIO) as options, self.patch.context() as patch:
            patch.setattr(Path, "samefile", unreadable)
            yield options


@dataclass
class Store:
    """A folder of an S3 server behind a proxy that fails."""

    location: str
    proxy: FailingStore
    options: dict[str, str]

    @contextmanager
    def failing(self, request: str, fault: str, *, last: int = 1, **options: str) -> Iterator[dict[str, str]]:
        """Let the first request of a kind fail."""
        with self.proxy.failing(request, fault, 1, last=last):
            yield {**storage_options_of(self.proxy.endpoint), "max_retries": "0", **options}
        assert self.proxy.failed

    def lost(self) -> list[_Failing]:
        """Return the ways in which a commit is put and the reply is an error: none, SlowDown, late; asked again or not."""
        return [
            self.failing("PUT", "lost"),
            self.failing("PUT", "lost", max_retries="2"),
            self.failing("PUT", "done503"),
            self.failing("PUT", "done503", max_retries="2"),  # the second request is told that there is an object
            self.failing("PUT", LATE, timeout="300ms"),
            self.failing("PUT", "slow"),
        ]

    def refused(self) -> list[_Failing]:
        """Return the ways in which a commit is not put."""
        return [self.failing("PUT", fault) for fault in ("500", "503", "reset")]

    @contextmanager
    def silent(self) -> Iterator[dict[str, str]]:
        """Let the commit be put, and nothing be read after it."""
        with self.failing(ANY, "lost", last=10**9) as options:
            yield options


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, FailingStore]]:
    """An S3 server, and a proxy before it."""
    with running_store() as endpoint:
        proxy = FailingStore(endpoint)
        try:
            yield endpoint, proxy
        finally:
            proxy.stop()


@pytest.fixture(params=["disk", pytest.param("store", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk | Store:
    """A folder that has an empty Delta log; each test takes versions of its own."""
    if request.param == "disk":
        (tmp_path / "_delta_log").mkdir()
        return Disk(str(tmp_path), monkeypatch)
    endpoint, proxy = request.getfixturevalue("server")
    return Store(f"{URI}/{uuid.uuid4().hex}/a b", proxy, storage_options_of(endpoint))


def _put(place: Disk | Store, text: bytes, options: dict[str, str] | None = None, version: int = 1) -> bool:
    return put_if_absent(place.location, options or place.options, version, text)


def _read(place: Disk | Store, version: int = 1) -> bytes | None:
    try:
        with filesystem_of(place.location, place.options).open_input_stream(f"_delta_log/{version:020}.json") as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def test_a_commit_is_put_where_none_is_and_nowhere_else(place: Disk | Store) -> None:
    """The second of two at one version is refused, and changes nothing; nothing else is left in the folder."""
    assert _put(place, _OURS)
    assert not _put(place, _OTHER)
    assert _read(place) == _OURS
    if isinstance(place, Disk):
        assert [file.name for file in Path(place.location, "_delta_log").iterdir()] == [f"{1:020}.json"]


def test_a_commit_that_was_put_is_found_whatever_was_reported(place: Disk | Store) -> None:
    """The reply is lost, late, an error, or says that another has the name."""
    for version, failing in enumerate(place.lost()):
        with failing as options:
            assert _put(place, _OURS, options, version), version
        assert _read(place, version) == _OURS


def test_the_commit_of_another_writer_is_found_whatever_was_reported(place: Disk | Store) -> None:
    """It was put before ours, and ours is answered by an error."""
    for version, failing in enumerate(place.lost()):
        assert _put(place, _OTHER, version=version)
        if isinstance(place, Disk):
            assert not _put(place, _OURS, version=version)
            continue
        with failing as options:
            assert not _put(place, _OURS, options, version), version
        assert _read(place, version) == _OTHER


def test_a_commit_that_was_not_put_is_an_error_with_a_number(place: Disk | Store) -> None:
    """Nothing of it is there, and it is put at the next try."""
    for failing in place.refused():
        with pytest.raises(OSError) as caught, failing as options:  # noqa: PT011  the number is asked for
            _put(place, _OURS, options)
        assert caught.value.errno in {errno.EIO, errno.ENOSPC}
        assert _read(place) is None
    assert _put(place, _OURS)


def test_a_commit_that_cannot_be_read_back_is_unknown(place: Disk | Store) -> None:
    """Who took it for one that failed would append again."""
    with pytest.raises(CommitStateUnknown, match="cannot be found out"), place.silent() as options:
        _put(place, _OURS, options)
    assert _read(place) == _OURS


def test_a_commit_survives_a_temporary_file_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit has its name by then."""
    (tmp_path / "_delta_log").mkdir()

    def refusing(*_: object) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(Path, "unlink", refusing)
    assert put_if_absent(str(tmp_path), {}, 1, _OURS)


@pytest.mark.long
def test_several_processes_commit_to_a_store_that_answers_no_put_of_a_commit(server: tuple[str, FailingStore]) -> None:
    """Each commit is put, and each answer is SlowDown: every offset is given once all the same."""
    endpoint, proxy = server
    log = DiskLog.create(f"{URI}/{uuid.uuid4().hex}", storage_options_of(endpoint))
    log.storage_options |= {**storage_options_of(proxy.endpoint), "max_retries": "1"}
    with proxy.failing(COMMIT, "done503", 1, last=10**9):
        storm(log, writers=2, commits=3)
    assert proxy.failed
