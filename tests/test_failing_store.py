"""An object store of which a request fails: every verb ends as if nothing had been, or says so, and is done again (docs/limits.md)."""

from __future__ import annotations

import itertools
import os
import random
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest
from pyarrow import fs

from lastword.storage.files.paths import filesystem_of
from tests.failing_store import FAULTS, REQUESTS, FailingStore
from tests.failing_verbs import READS, WRITES, Trials, make_topic
from tests.object_store import URI, running_store, storage_options_of
from tests.test_model_equality import seed_of_this_run

if TYPE_CHECKING:
    from collections.abc import Iterator

_ALL: Final = 10**9


@dataclass
class Store:
    """A topic in a store, whose copies fail; `retries` is how often delta-rs and Polars ask again by themselves."""

    endpoint: str
    proxy: FailingStore
    base: str = field(default_factory=lambda: f"{URI}/{uuid.uuid4().hex}")
    chance: random.Random = field(default_factory=lambda: random.Random(seed_of_this_run()))
    trials: dict[str, Trials] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the topic."""
        make_topic(self.base, storage_options_of(self.endpoint))
        files = filesystem_of(self.base, storage_options_of(self.endpoint))
        for one in files.get_file_info(fs.FileSelector("", recursive=True)):
            if one.type == fs.FileType.File:
                with files.open_input_file(one.path) as file:
                    self.objects[one.path] = file.read()

    def copied(self) -> str:
        """Copy the log.dir anew."""
        place = f"{URI}/{uuid.uuid4().hex}"
        files = filesystem_of(place, storage_options_of(self.endpoint))
        for path, content in self.objects.items():
            with files.open_output_stream(path) as file:
                file.write(content)
        return place

    def trial(self, verb: str, request: str, fault: str, nth: int, *, goes_on: bool = False, retries: int = 0) -> list[str]:
        """Let the nth request of a verb fail, or all from it on, and return what is wrong."""
        if verb not in self.trials:
            self.trials[verb] = Trials(verb, self.copied if verb in WRITES else lambda: self.base, storage_options_of(self.endpoint))
        last = _ALL if goes_on else nth
        options = {**storage_options_of(self.proxy.endpoint), "max_retries": str(retries)}
        problems = self.trials[verb].faulty(lambda _: self.proxy.failing(request, fault, nth, last=last), options)
        return [f"{verb}: {request} {fault} {nth}{'…' if goes_on else ''}: {problem}" for problem in problems]


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """One for all tests."""
    with running_store() as endpoint:
        proxy = FailingStore(endpoint)
        try:
            yield Store(endpoint, proxy)
        finally:
            proxy.stop()


@pytest.mark.long
def test_a_verb_whose_request_fails_is_as_uninterrupted_or_says_so(store: Store) -> None:
    """Requests that are drawn, and nobody asks again: SlowDown, an error, no answer, half of one, done without an answer."""
    problems = []
    for verb, request in [("latest", "GET"), ("topics", "LIST"), ("records", "GET"), ("append", "PUT")]:
        problems += store.trial(verb, request, store.chance.choice(FAULTS[:-1]), store.chance.randint(1, 30 if request == "GET" else 4))
    assert not problems


@pytest.mark.long
def test_an_append_whose_answer_is_lost_is_appended_once(store: Store) -> None:
    """The store has put one of the objects that an append writes, and says nothing, or SlowDown; it is asked again, or not."""
    for fault in ("lost", "done503"):
        assert not store.trial("append", "PUT", fault, store.chance.randint(1, 3), retries=store.chance.choice((0, 1)))


@pytest.mark.long
def test_what_is_asked_again_is_not_noticed(store: Store) -> None:
    """One request fails, or the store is late: the verb has no error."""
    for verb, request, fault in [("latest", "GET", "503"), ("append", "PUT", "slow")]:
        assert not store.trial(verb, request, fault, 2, retries=3)
        assert store.proxy.failed == 1


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["lost", "done503"])
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("nth", range(1, 8))
def test_an_append_is_appended_once_whichever_answer_is_lost(store: Store, nth: int, retries: int, fault: str) -> None:
    """For each object that the append writes, the answer to its PUT is lost once."""
    assert not store.trial("append", "PUT", fault, nth, retries=retries)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
def test_every_request_of_every_verb_fails_once(store: Store) -> None:
    """LASTWORD_SECONDS says how long; all of them take hours."""
    ends = time.monotonic() + int(os.environ.get("LASTWORD_SECONDS", "900"))
    every = list(itertools.product([*READS, *WRITES], REQUESTS, FAULTS, range(1, 120), (False, True)))
    store.chance.shuffle(every)
    problems, tried = [], 0
    for verb, request, fault, nth, goes_on in every:
        if time.monotonic() > ends:
            break
        if verb in READS and request not in {"GET", "LIST"}:
            continue
        # Most verbs ask less often than 120 times: requests near the first are tried more often.
        problems += store.trial(verb, request, fault, nth if request == "GET" else 1 + nth % 12, goes_on=goes_on and fault != "slow")
        tried += store.proxy.failed > 0
    assert not problems, problems
    assert tried
