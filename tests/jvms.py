"""The JVMs that tests start: the options with which one that lives for a minute takes half of the processor time, and class archives.

A JVM of tests ends before its second compiler has paid for itself. Without it the room for compiled code is 48 MiB, which Spark fills in
some minutes; from then on the JVM throws away and interprets what it has compiled. So there is more room. What a JVM loads is the same each
time: an archive of those classes (`make` writes it to `.jars/`, by `python -m tests.jvms`) saves a third of what is left. A JVM that an
archive does not fit, because it is another Java or has another class path, starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_FOLDER: Final = Path(__file__).parents[1] / ".jars"
SPARK_ARCHIVE: Final = _FOLDER / "spark.jsa"
BROKER_ARCHIVE: Final = _FOLDER / "broker.jsa"
#: An archive that does not fit is no news.
_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=240m",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)
#: Where Spark's scripts look for options: those of a driver and of a master or worker, which load the same classes.
_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")


def jvm_options(archive: Path) -> tuple[str, ...]:
    """Return the options of a JVM that tests start, with an archive of classes where it has been written."""
    return (*_OPTIONS, f"-XX:SharedArchiveFile={archive}") if archive.exists() and " " not in str(archive) else _OPTIONS


def set_spark_options(environment: MutableMapping[str, str]) -> None:
    """Give every JVM that Spark's scripts start from an environment the options; those that it names already come last and win."""
    options = {name: jvm_options(SPARK_ARCHIVE) for name in _VARIABLES}
    # The JVM that puts the command of another one together.
    for name, words in {**options, "SPARK_LAUNCHER_OPTS": _OPTIONS}.items():
        given = environment.get(name, "")
        if _OPTIONS[0] not in given:
            environment[name] = " ".join((*words, given)).strip()


def write_spark_archive(archive: Path) -> None:
    """Write the archive of a Spark session that appends, streams, cleans, reads and materializes."""
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}"))
    from lastword import LogDir, spark_session  # noqa: PLC0415  the JVM reads the options when it starts

    spark = spark_session("classes", master="local[2]", settings={"spark.log.level": "OFF"})
    with tempfile.TemporaryDirectory() as folder:
        topic = LogDir(spark, f"{folder}/logs").create_topic("fruit", config={"cleanup.policy": "compact"})
        rows = spark.createDataFrame([("apple", "1"), ("lime", "2"), ("apple", "3")], "key string, value string")
        topic.append(rows)
        rows.write.json(f"{folder}/incoming")
        stream = spark.readStream.schema(rows.schema).json(f"{folder}/incoming")
        topic.append_stream(stream, name="incoming", trigger={"availableNow": True}).awaitTermination()
        topic.roll()
        topic.clean()
        topic.materialize(f"{folder}/table", trigger={"availableNow": True}, record_columns=["_value"]).awaitTermination()
        topic.records().orderBy("offset").collect()
        topic.latest().collect()
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001  the only name of its process
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=300)


def write_broker_archive(archive: Path) -> None:
    """Write the archive of a Kafka broker that a topic is created in and written to."""
    from tests.kafka_broker import KafkaBroker, Record  # noqa: PLC0415  it needs jars that Spark alone does not

    with KafkaBroker(jvm=("-Xmx512m", *_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}")) as broker:
        broker.create_topic("fruit")
        broker.produce("fruit", [Record(0, b"apple", b"1")], transactional_id="till")
        broker.terminate()


if __name__ == "__main__":
    {"spark": write_spark_archive, "broker": write_broker_archive}[sys.argv[1]](Path(sys.argv[2]).absolute())
