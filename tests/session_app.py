"""A tour of `tests.test_session_settings` in an application of somebody else's settings: `python -m tests.session_app PLACE log|tables`.

The last line that it prints is what each reader showed, as a Python literal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from lastword import spark_session
from tests.test_session_settings import toured

#: Settings that an application has once: those of a session cannot change them.
_STATIC: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,com.example.NoSuchExtension",
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.globalTempDatabase": "theirs",
    "spark.sql.sources.default": "orc",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    "spark.default.parallelism": "1",
    "spark.scheduler.mode": "FIFO",
    "spark.io.compression.codec": "zstd",
    "spark.shuffle.compress": "false",
    "spark.rdd.compress": "true",
    "spark.log.level": "OFF",
}


def main(place: str, part: str) -> None:
    """Run the tour."""
    os.chdir(place)  # Hive makes its metastore there
    settings = {**_STATIC, "spark.sql.warehouse.dir": f"{place}/their warehouse"}
    session = spark_session("theirs", master="local[2]", settings=settings)
    sys.stdout.write(f"{toured(session, {}, Path(place), tables=part == 'tables')!r}\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
