"""What Spark does with a log, on a disk of which calls fail: `python -m tests.failing_spark_app FOLDER SEED TRIALS`.

```
 DataFrame ─ append ─► log ─┬─ latest, records    the last words, or an error
 files ─ append_stream ─►   ├─ materialize ─►     the last words, after an error too
                            └─ tail ─►            each record once, after an error too
```

It is started with `tests.failing_files.environment`, so calls fail in Python, in its workers and in the JVM: below FOLDER/disk, where the
log.dir and the table lie. It prints a line for each thing that is not as it should be, and at last how much was tried.
"""

from __future__ import annotations

import errno
import logging
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import polars as pl
import structlog

from lastword import LogDir, UserError, spark_session
from lastword.compaction.errors import CorruptLog
from lastword.streaming.append import dataframes
from tests.failing_files import Call, FailingFiles, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from lastword import SparkTopic

_NUMBERS: Final = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE)
_CALLS: Final = (Call.OPEN, Call.READ, Call.LIST, Call.STAT, Call.MAKE, Call.WRITE, Call.SYNC, Call.NAME, Call.DELETE)
_ONCE: Final = {"availableNow": True}
_ALL: Final = 10**9


class Tour:
    """A topic, the table and the tail that follow it, and what they must hold."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        """Begin with an empty topic."""
        self._disk, self._checkpoint, self._incoming = folder / "disk", folder / "checkpoint", folder / "incoming"
        self._chance, self._files = chance, FailingFiles()
        self._spark = spark_session(master="local[2]", settings={"spark.log.level": "OFF", "spark.driver.memory": "1g"})
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        self._topic: SparkTopic = LogDir(self._spark, str(self._disk / "logs")).create_topic("fruit", partitions=2, config=config)
        self._words: dict[str, str] = {}
        self._tailed: dict[int, list[tuple[int, int, str, str | None]]] = {}
        self._appended = 0
        self.tried = 0

    def append(self) -> None:
        """Append a DataFrame, by the driver or by tasks."""
        self._appended += 1
        drawn = {f"k{self._chance.randrange(30)}": self._chance.choice([f"v{self._appended}", None]) for _ in range(6)}
        rows = self._spark.createDataFrame(list(drawn.items()), "key string, value string")
        most = self._chance.choice((0, 2**26))

        def append() -> None:
            with patch.object(dataframes, "MAX_COLLECTED_BYTES", most):
                self._topic.append(rows, idempotency_key=str(self._appended))

        self._tried("append", append)
        self._words = {key: value for key, value in {**self._words, **drawn}.items() if value is not None}
        if self._chance.random() < 0.5:
            self._topic.roll()

    def stream(self) -> None:
        """Append a file or two by a query, whose checkpoint lies in the log.dir."""
        self._incoming.mkdir(exist_ok=True)
        for _ in range(self._chance.choice((1, 2))):
            self._appended += 1
            key, value = f"s{self._appended}", f"v{self._appended}"
            (self._incoming / f"{key}.json").write_text(f'{{"key":"{key}","value":"{value}"}}\n')
            self._words[key] = value
        rows = self._spark.readStream.schema("key string, value string").json(str(self._incoming))
        self._tried("stream", lambda: self._topic.append_stream(rows, name="files", trigger=_ONCE).awaitTermination())
        found = [bytes(row["key"]).decode() for row in self._topic.records().collect()]
        once = [key for key in found if key.startswith("s")]
        self._compare("stream, its records", sorted(once), sorted(key for key in self._words if key.startswith("s")))

    def clean(self) -> None:
        """Clean the topic; `explain` says it if that fails."""
        self._tried("clean", lambda: self._topic.clean(force=True))

    def latest(self) -> None:
        """Read the last words."""
        self._read("latest", lambda: {bytes(row["key"]).decode(): bytes(row["value"]).decode() for row in self._topic.latest().collect()})

    def records(self) -> None:
        """Read the records, and fold them."""
        self._read("records", lambda: _folded((row["partition"], row["offset"], *_texts(row)) for row in self._topic.records().collect()))

    def materialize(self) -> None:
        """Take a step of the table."""
        target = str(self._disk / "target")
        self._tried("materialize", lambda: self._topic.materialize(target, trigger=_ONCE, record_columns=["_value"]).awaitTermination())
        found = pl.read_delta(target).select("_key", "_value").rows()
        self._compare("materialize", sorted((key.decode(), value.decode()) for key, value in found), sorted(self._words.items()))

    def tail(self) -> None:
        """Follow the records with a query that keeps them by the number of the micro-batch."""

        def keep(rows: DataFrame, number: int) -> None:
            self._tailed[number] = [(row["partition"], row["offset"], *_texts(row)) for row in rows.collect()]

        query = self._topic.tail().writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        self._tried("tail", lambda: query.trigger(availableNow=True).start().awaitTermination())
        found = [row for _, rows in sorted(self._tailed.items()) for row in sorted(rows)]
        self._compare("tail, its records", len({row[:2] for row in found}), len(found))
        self._compare("tail, folded", _folded(found), self._words)

    def _read(self, verb: str, read: Callable[[], object]) -> None:
        found: list[object] = []
        self._tried(verb, lambda: found.append(read()))
        self._compare(verb, found[-1], self._words)

    def _tried(self, verb: str, do: Callable[[], object]) -> None:
        """Do something while a call fails, or all from it on; after an error again, where nothing fails."""
        call, nth, number = self._chance.choice(_CALLS), int(100 ** self._chance.random()), self._chance.choice(_NUMBERS)
        last = self._chance.choice((nth, nth, nth + 3, _ALL))
        what = f"{verb}: {call.name} {nth} to {last} {errno.errorcode[number]}"
        try:
            with self._files.failing(str(self._disk), call, Fault.FAIL, nth, number, last=last):
                do()
        except (UserError, CorruptLog) as error:
            print(f"{what} {self._files.path}: told as {error!r}")  # noqa: T201
            do()
        except Exception:  # noqa: BLE001  of the disk, as Spark says it
            do()
        self.tried += self._files.failed > 0
        self._now = f"{what} {self._files.path}"

    def _compare(self, verb: str, found: object, wanted: object) -> None:
        if found != wanted:
            print(f"{self._now}: {verb}: {found}, for {wanted}")  # noqa: T201


def _texts(row: object) -> tuple[str, str | None]:
    key, value = row["key"], row["value"]  # type: ignore[index]
    return bytes(key).decode(), None if value is None else bytes(value).decode()


def _folded(rows: object) -> dict[str, str]:
    words = {key: value for _, _, key, value in sorted(rows)}  # type: ignore[call-overload]
    return {key: value for key, value in words.items() if value is not None}


def main(folder: str, seed: str, trials: str) -> None:
    """Do what the module says."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chance = random.Random(seed)
    tour = Tour(Path(folder), chance)
    verbs = (tour.append, tour.stream, tour.clean, tour.latest, tour.records, tour.materialize, tour.tail)
    for number in range(int(trials)):
        chance.choice(verbs if number else verbs[:1])()
    print(f"# {tour.tried} of {trials}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
