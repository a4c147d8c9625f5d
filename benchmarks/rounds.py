"""Rounds of cleaning without Spark: a small one, and a large one against Kafka's own cleaner on the same records.

(f) 1 M records of 208 B (key and value) over 100,000 keys at random, in one partition: Kafka's cleaner in a live broker, with one cleaner
    thread and its default buffers, as it logs its own time; and ours, one partition, so one core. Both uncompressed, and both with zstd.
    Topic by topic in turns: at least 4× its bytes a second.
(g) Two partitions with 1,000 dirty records and 100,000 clean ones each: a round, from planning to the receipts, in at most 0.3 s, in a
    process without a JVM.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.measure import WHOLE, Scale, headline, report
from lastword import LogDir, clock
from lastword.storage.delta.commit import new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID
from lastword.storage.files.data_files import SliceWriter, complete
from tests.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword import Topic
    from lastword.storage.files.data_files import DataFile

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
_RECORDS = 1_000_000
_KEYS = 100_000
_KEY_BYTES = 16
_VALUE_BYTES = 192
_APPENDS = 20
_WARM_UP = 1
_ROUNDS = 3
#: The broker as it runs for others: both compilers, and memory for its buffers.
_JVM = ("-Xmx2g", "-XX:+UseG1GC", "-Djava.awt.headless=true")
_SMALL_ROUNDS = 9


def against_kafka(scale: Scale = WHOLE) -> None:
    """Measure (f), with uncompressed records on both sides, and with zstd on both."""
    draw = random.Random(7)
    keys = [f"{number:0{_KEY_BYTES}d}".encode() for number in range(_KEYS)]
    block = draw.randbytes(2**20).hex().encode()
    records = [
        (draw.choice(keys), _value(block, draw)) for _ in range(scale.rows(_RECORDS, least=200_000))
    ]  # Kafka cleans closed segments of 16 MiB alone
    properties = {"log.cleaner.dedupe.buffer.size": str(128 * 2**20), "log.cleaner.io.buffer.size": str(512 * 2**10)}
    rows, warm_up = [], scale.warm_up(_WARM_UP)
    with KafkaBroker({**properties, "log.cleaner.threads": "1"}, jvm=_JVM) as broker, tempfile.TemporaryDirectory() as folder:
        logs = LogDir(folder)
        for codec in ("uncompressed", "zstd"):
            theirs, ours, sections = [], [], []
            for number in range(warm_up + scale.turns(_ROUNDS)):
                dirty, seconds = _cleaned_by_kafka(broker, f"{codec}{number}", records, codec)
                theirs.append(seconds / dirty)
                sections.append(dirty)
                ours.append(_cleaned_here(logs, f"{codec}{number}", records[:dirty], codec) / dirty)
            theirs, ours = theirs[warm_up:], ours[warm_up:]
            headline(f"clean 1 M records of 208 B in one partition, {codec}", "Kafka's cleaner in a live broker", theirs, ours, goal=4)
            size = (_KEY_BYTES + _VALUE_BYTES) / 2**20
            speeds = (f"{size / statistics.median(each):.0f} MiB/s" for each in (theirs, ours))
            rows.append([codec, f"{statistics.median(sections):,.0f}", *speeds])
    report("(f) bytes of keys and values cleaned a second", rows, ["records", "dirty", "Kafka", "lastword"])


def small(scale: Scale = WHOLE) -> None:
    """Measure (g)."""
    seconds, clean = [], scale.rows(100_000)
    with tempfile.TemporaryDirectory() as folder:
        logs = LogDir(folder)
        for number in range(scale.turns(_SMALL_ROUNDS)):
            topic = logs.create_topic(f"s{number}", partitions=2, config=_COMPACT)
            _append(topic, [(b"%016d" % at, b"v" * _VALUE_BYTES) for at in range(clean)])
            topic.roll()
            topic.clean(force=True)
            _append(topic, [(b"%016d" % (at * 90), b"w" * _VALUE_BYTES) for at in range(clean // 100)])
            topic.roll()
            begun = time.perf_counter()
            receipts = topic.clean()
            seconds.append(time.perf_counter() - begun)
            assert [one.records_after for one in receipts] == [clean, clean]  # noqa: S101
    text = f"{statistics.median(seconds):.3f} s [{min(seconds):.3f}–{max(seconds):.3f}]"
    report("(g) a round over 2 partitions, 1,000 dirty and 100,000 clean records each, no JVM", [[text, "≤ 0.3 s"]], ["round", "bound"])


def _value(block: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(block) - _VALUE_BYTES)
    return block[at : at + _VALUE_BYTES]


def _cleaned_by_kafka(broker: KafkaBroker, name: str, records: Sequence[tuple[bytes, bytes]], codec: str) -> tuple[int, float]:
    """Produce records to a topic that is not compacted yet, let it be, and return how many were cleaned in how many seconds."""
    broker.create_topic(name, config={"cleanup.policy": "delete", "segment.bytes": str(16 * 2**20), "min.cleanable.dirty.ratio": "0.01"})
    for first in range(0, len(records), 100_000):
        sent = ((0, *record) for record in records[first : first + 100_000])
        broker.produce(name, sent, compression="none" if codec == "uncompressed" else codec)
    broker.alter_topic(name, "cleanup.policy", "compact")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        mine = [one for one in broker.cleanings() if one[0] == name]
        if mine:
            _, first, end, seconds = mine[0]
            return end - first, seconds
        time.sleep(0.2)
    message = f"Kafka has not cleaned {name} in 120 s"
    raise RuntimeError(message)


def _cleaned_here(logs: LogDir, name: str, records: Sequence[tuple[bytes, bytes]], codec: str) -> float:
    """Append records to one partition, and return in how many seconds a round has cleaned them."""
    topic = logs.create_topic(name, config={**_COMPACT, "compression.type": codec})
    step = -(-len(records) // _APPENDS)
    for first in range(0, len(records), step):
        _append(topic, records[first : first + step], partitions=1, codec=codec)
        topic.roll()
    begun = time.perf_counter()
    [receipt] = topic.clean(force=True)
    assert receipt.records_before == len(records)  # noqa: S101
    return time.perf_counter() - begun


def _append(topic: Topic, records: Sequence[tuple[bytes, bytes]], *, partitions: int = 2, codec: str = "zstd") -> None:
    """Append records to each partition, as an append does: a file each, in one commit."""
    snapshot = topic.log.snapshot()
    ends = snapshot.log_end_offsets(topic.log.decisions().partitions)
    files = [_file(topic.log.paths.log, partition, ends[partition], records, codec) for partition in range(partitions)]
    topic.log.commit(snapshot, family=APPEND_APP_ID, metadata=CommitMetadata(token=new_token(), kind="append"), adds=files)


def _file(location: str, partition: int, first: int, records: Sequence[tuple[bytes, bytes]], codec: str) -> DataFile:
    times = pa.array([clock.now_ms() * 1000] * len(records), pa.int64()).cast(pa.timestamp("us", "UTC"))
    rows = pa.table(
        {
            "offset": pa.array(range(first, first + len(records)), pa.int64()),
            "key": pa.array([key for key, _ in records], pa.binary()),
            "value": pa.array([value for _, value in records], pa.binary()),
            "timestamp": times,
            "appended_at": times,
        }
    )
    writer = SliceWriter(location, {}, partition=partition, segment=first, slice_=first, codec=codec)
    writer.write(complete(rows))
    return writer.close()
