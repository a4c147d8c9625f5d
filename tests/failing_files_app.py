"""Verbs and random histories on a disk of which calls fail, as a process that was started with `tests.failing_files.environment`.

`python -m tests.failing_files_app FOLDER SEED (draw TRIALS | sweep SECONDS | lives HISTORIES)`

It prints a line for each thing that is not as it should be, and at last how much was tried.
"""

from __future__ import annotations

import errno
import io
import itertools
import logging
import random
import shutil
import sys
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import structlog

import tests.lives
from lastword import LogDir
from lastword.cli.app import main as main_of_commands
from lastword.compaction.errors import CommitStateUnknown
from lastword.streaming.cleaning.failures import record_success
from tests import clocks
from tests.failing_files import Call, FailingFiles, Fault
from tests.failing_verbs import READS, TOPIC, WRITES, Trials, fault_of, make_topic
from tests.lives import Crash
from tests.test_disk_histories import DiskLives

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lastword.storage.delta.crash_points import CrashPoint

_NUMBERS: Final = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EROFS)
_READING: Final = Call.OPEN | Call.READ | Call.LIST | Call.STAT
_WRITING: Final = Call.MAKE | Call.WRITE | Call.SYNC | Call.NAME | Call.DELETE
#: What may become of calls of a kind. A call that said nothing of a failure, or that failed after it was done, is one that wrote.
_FAULTS: Final = {
    **dict.fromkeys((Call.OPEN, Call.LIST, Call.STAT, Call.MAKE), (Fault.FAIL,)),
    Call.READ: (Fault.FAIL, Fault.SHORT),
    Call.WRITE: (Fault.FAIL, Fault.SHORT),
    **dict.fromkeys((Call.SYNC, Call.NAME, Call.DELETE), (Fault.FAIL, Fault.FAIL_AFTERWARDS)),
}
_ALL: Final = 10**9


class Disk:
    """A folder with a topic, whose copies fail."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        """Make the topic."""
        self._base, self._run, self.chance, self.files = folder / "base", folder / "run", chance, FailingFiles()
        make_topic(str(self._base))
        self.trials: dict[str, Trials] = {}
        self.tried = 0

    def copied(self) -> str:
        """Copy the log.dir anew."""
        shutil.rmtree(self._run, ignore_errors=True)
        shutil.copytree(self._base, self._run)
        return str(self._run)

    def of(self, verb: str) -> Trials:
        """Return the trials of a verb."""
        if verb not in self.trials:
            self.trials[verb] = Trials(verb, self.copied if verb in WRITES else lambda: str(self._base))
        return self.trials[verb]

    def sites(self, verb: str, call: Call) -> list[str]:
        """Return where a verb makes its calls of a kind; it is run for that."""
        trials = self.of(verb)
        place = self.copied() if verb in WRITES else str(self._base)
        return self.files.sites(place, call, lambda: trials.run(place))

    def trial(self, verb: str, call: Call, fault: Fault, nth: int, *, goes_on: bool) -> None:
        """Let the nth call fail, or all from it on, and print what is wrong."""
        number, last = self.chance.choice(_NUMBERS), _ALL if goes_on else nth
        trials = self.of(verb)
        try:
            problems = trials.faulty(lambda place: self.files.failing(place, call, fault, nth, number, last=last))
        except Exception as error:  # noqa: BLE001  of the topic that the fault left
            problems = [repr(error)]
        self.tried += self.files.failed > 0
        for problem in problems if self.files.failed else ():
            print(f"{verb}: {call.name} {fault.name} {nth}{'…' if goes_on else ''} {errno.errorcode[number]} {self.files.path}: {problem}")  # noqa: T201


def command(disk: Disk, words: Sequence[str], call: Call) -> None:
    """Run a command while a call of a kind fails, or all from it on: it succeeds, or prints one message and no traceback."""
    place, shown = disk.copied(), io.StringIO()
    nth, last = disk.chance.choice((1, 2, 5, 13, 30, 60)), disk.chance.choice((0, _ALL))
    with patch.object(sys, "argv", ["lastword", *words, "--log-dir", place]), redirect_stdout(io.StringIO()), redirect_stderr(shown):
        code: object = 0
        try:
            with disk.files.failing(place, call, Fault.FAIL, nth, disk.chance.choice(_NUMBERS), last=max(nth, last)):
                main_of_commands()
        except SystemExit as ended:
            code = ended.code
    told = shown.getvalue()
    wrong = [word for word in ("Traceback", "<unknown>", "move the folder", "does not exist") if word in told]
    errors = sum(line.startswith("error: ") for line in told.splitlines())
    if errors != (code != 0) or wrong:
        print(f"lastword {' '.join(words)}: {call.name} {nth} {disk.files.path}: exit code {code}, {told}")  # noqa: T201


def draw(disk: Disk, trials: int) -> None:
    """Try each verb, in turn, with calls that are drawn."""
    for words in (["latest", TOPIC], ["records", TOPIC, "--limit", "3"], ["topics", "list"], ["roll", TOPIC], ["clean", TOPIC, "--force"]):
        command(disk, words, disk.chance.choice([one for one in _FAULTS if one in _READING]))
    for verb in itertools.islice(itertools.cycle([*READS, *WRITES]), trials):
        kinds = _READING if verb in READS or disk.chance.random() < 0.5 else _WRITING
        call = disk.chance.choice([one for one in _FAULTS if one in kinds])
        sites = disk.sites(verb, call)
        if not sites:
            continue
        nth = sites.index(disk.chance.choice(sorted(set(sites)))) + 1
        disk.trial(verb, call, disk.chance.choice(_FAULTS[call]), nth, goes_on=disk.chance.random() < 0.3)


def sweep(disk: Disk, seconds: float) -> None:
    """Try the first call of each site of each verb, and then each call, in an order that is drawn, until the time is over."""
    ends = time.monotonic() + seconds
    firsts: list[tuple[str, Call, Fault, int, bool]] = []
    others: list[tuple[str, Call, Fault, int, bool]] = []
    for verb in [*READS, *WRITES]:
        for call in _FAULTS if verb in WRITES else _READING:
            seen: set[str] = set()
            for nth, site in enumerate(disk.sites(verb, call), 1):
                cases = [(verb, call, fault, nth, goes_on) for fault in _FAULTS[call] for goes_on in (False, True)]
                (others if site in seen else firsts).extend(cases)
                seen.add(site)
    disk.chance.shuffle(firsts)
    disk.chance.shuffle(others)
    for number, case in enumerate([*firsts, *others]):
        if time.monotonic() > ends:
            break
        verb, call, fault, nth, goes_on = case
        disk.trial(verb, call, fault, nth, goes_on=goes_on)
        if (number + 1) % 500 == 0:
            print(f"# {number + 1} of {len(firsts)} sites and {len(others)} more", file=sys.stderr)  # noqa: T201
    print(f"# {disk.tried} failed, of {len(firsts)} sites and {len(others)} more", file=sys.stderr)  # noqa: T201


class _FaultyLives(DiskLives):
    """Lives on a disk that fails: what ends by an error is done again, as after a crash."""

    files: FailingFiles

    @contextmanager
    def failing(self, kinds: Call) -> Iterator[None]:
        """Let one call fail, or a few; an error that tells it is a crash, every other one is a bug."""
        call = self.chance.choice([one for one in _FAULTS if one in kinds])
        nth, number = self.chance.choice((1, 2, 3, 5, 8, 13, 30, 80, 200)), self.chance.choice(_NUMBERS)
        last = self.chance.choice((nth, nth, nth + 3, _ALL))
        try:
            with self.files.failing(self.logs.location, call, self.chance.choice(_FAULTS[call]), nth, number, last=last):
                yield
        except (OSError, CommitStateUnknown) as error:
            wrong = fault_of(error)
            if wrong:
                raise AssertionError(wrong) from error
            self.done.append(f"{call.name} {nth} failed")
            raise Crash from error

    def appended(self, drawn: Sequence[tuple[Any, ...]]) -> None:
        table = self.table(drawn)
        self._written += 1
        key = str(self._written)
        try:
            with self.failing(_READING | _WRITING):
                clocks.at(self.now_ms, self.topic).append(table, idempotency_key=key)
        except Crash:
            if self.chance.random() < 0.5:
                self.restart()
            clocks.at(self.now_ms, self.topic).append(table, idempotency_key=key)
        self.adopt()

    def forgive(self) -> bool:
        """End the backoff of partitions whose cleaning failed, which the ledger and `explain` report; tell whether there are any."""
        log = self.topic.log
        failures = log.decisions().cleaning_failures()
        record_success(log, failures, table_version=log.snapshot().version, now_ms=self.now_ms)
        return bool(failures)

    def words(self) -> dict[tuple[int, bytes], tuple[int, bytes]]:
        found = super().words()
        try:
            with self.failing(_READING):
                again = super().words()
        except Crash:
            return found
        assert again == found, "a wrong answer"
        return found


def lives(folder: Path, chance: random.Random, histories: int) -> None:
    """Live through random histories of 20 partitions, as many as are wanted."""
    _FaultyLives.files = FailingFiles()
    current: list[_FaultyLives] = []

    @contextmanager
    def crashing(at: CrashPoint | None) -> Iterator[None]:
        if at is None:
            yield
            return
        try:
            with current[-1].failing(_READING | _WRITING):
                yield
        finally:
            is_reported = current[-1].forgive()
        if is_reported:  # the others were cleaned
            raise Crash

    tests.lives.crashing = crashing
    for number in range(-(-histories // 20)):
        one = _FaultyLives(LogDir(str(folder / f"logs-{number}")), chance, f"lives-{number}", 20)
        current.append(one)
        one.live(12)
        one.compare()
        shutil.rmtree(folder / f"logs-{number}")


def main(folder: str, seed: str, what: str, much: str) -> None:
    """Do what the module says."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chance = random.Random(seed)
    if what == "lives":
        lives(Path(folder), chance, int(much))
        return
    disk = Disk(Path(folder), chance)
    if what == "draw":
        draw(disk, int(much))
    else:
        sweep(disk, float(much))


if __name__ == "__main__":
    main(*sys.argv[1:])
