"""A real PostgreSQL server for tests: one cluster in a temporary folder, on a free loopback port, gone with the `with` block.

```python
with Postgres(programs()) as server:
    server.run("shop", "CREATE TABLE fruit (id int PRIMARY KEY)")
    server.rows("shop", "SELECT * FROM fruit")      # [{"id": 1}, …]
```

Logical decoding and prepared transactions are on; nothing is flushed to the disk, as no test takes the machine its power. PostgreSQL
refuses to run as root: for root the cluster is that of the user `postgres`, whom the packages of Linux distributions make.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from tests.processes import free_port

if TYPE_CHECKING:
    from types import TracebackType

_START_SECONDS: Final = 60
_ANSWER_SECONDS: Final = 300
_USER: Final = "postgres"
_PROGRAMS: Final = ("initdb", "postgres", "psql")
#: Where packages put what is not on the PATH; the newest release wins.
_FOLDERS: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin")
#: Deadlocks and waits for locks are part of what is tested: they end soon.
_SETTINGS: Final = {
    "wal_level": "logical",
    "max_prepared_transactions": "20",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "deadlock_timeout": "200ms",
    "lock_timeout": "0",
    "autovacuum": "off",
}


def programs() -> Path | None:
    """Return the folder with PostgreSQL's programs, None where there is none that can be used."""
    if os.geteuid() == 0 and not _is_user(_USER):
        return None
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted((path for pattern in _FOLDERS for path in Path("/").glob(pattern[1:])), key=_release, reverse=True)
    return next((folder for folder in folders if all((folder / name).is_file() for name in _PROGRAMS)), None)


class Postgres:
    """A cluster that runs inside a `with` block."""

    def __init__(self, folder_of_programs: Path) -> None:
        """Remember where the programs are; nothing runs yet."""
        self._programs = folder_of_programs
        self._folder = Path()
        self._server: subprocess.Popen[bytes] | None = None
        self.port = 0
        #: PostgreSQL's own user, where this process is root's.
        self._user = _USER if os.geteuid() == 0 else None

    def __enter__(self) -> Postgres:  # noqa: PYI034  typing.Self is of Python 3.11
        """Make the cluster, start the server and return when it answers. Raises `RuntimeError` with its log when it does not."""
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the server and remove the cluster."""
        self._stop()

    def psql(self, database: str, script: str, *, stops: bool) -> str:
        """Run a script and return what it printed; `stops` raises `RuntimeError` at its first error, else the script goes on behind it."""
        command = [str(self._programs / "psql"), "-XAtq", "-h", "127.0.0.1", "-p", str(self.port), "-U", _USER, "-d", database]
        command += ["-v", f"ON_ERROR_STOP={int(stops)}", "-v", "VERBOSITY=terse"]
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)  # noqa: S603
        if stops and done.returncode:
            message = f"{done.stderr.strip()} in\n{script}"
            raise RuntimeError(message)
        return done.stdout if stops else done.stdout + done.stderr

    def run(self, database: str, script: str) -> str:
        """Run a script in which nothing may fail, and return what it printed."""
        return self.psql(database, script, stops=True)

    def rows(self, database: str, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        printed = self.run(database, f"SELECT row_to_json(one) FROM ({query}) AS one;")  # noqa: S608  a database of our own
        return [json.loads(line) for line in printed.splitlines()]

    def _start(self) -> None:
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self.port = free_port()
        data, log = self._folder / "data", self._folder / "log"
        with log.open("wb") as output:
            made = self._popen("initdb", "-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N", output=output)
            made.wait(_START_SECONDS)
            settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
            words = ["-D", str(data), "-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder), *settings]
            self._server = self._popen("postgres", *words, output=output)
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.run("postgres", "SELECT 1;")
            except RuntimeError:
                if self._server.poll() is not None or time.monotonic() > end:
                    message = f"PostgreSQL did not start:\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}"
                    raise RuntimeError(message) from None
                time.sleep(0.1)
            else:
                return

    def _popen(self, program: str, *words: str, output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603  our own command line
            [str(self._programs / program), *words],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=self._user,
        )

    def _stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)  # an immediate shutdown
            self._server.wait(_START_SECONDS)
            self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _release(folder: Path) -> int:
    digits = "".join(one for one in folder.parent.name.rpartition("-")[2].rpartition("@")[2] if one.isdigit())
    return int(digits or 0)
