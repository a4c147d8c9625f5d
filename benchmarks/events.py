"""Change events against plain rows: what an envelope costs, a source sequence, and events that come late.

(a) An append of events costs at most 1.5 times one of the same keys and values, from Arrow and by Spark. (b) In order, rows with a sequence
cost at most 1.1 times those without. (c) With 1 % late events over 4 M keys an append costs at most twice one in order.
"""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from benchmarks.measure import WHOLE, Scale, headline, in_turns, report
from lastword import Envelope, LogDir, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable

_CONFIG: Final = {"cleanup.policy": "compact"}
_ROWS: Final = 200_000
_KEYS: Final = 4_000_000
_PARTITIONS: Final = 4
_WARM_UP, _TURNS = 2, 7
_SOURCE: Final = (
    '"source":{"version":"3.6.1.Final","connector":"postgresql","name":"shop","ts_ms":1700000000000,"snapshot":"false","db":"shop",'
    '"sequence":"[\\"27580800\\",\\"27582256\\"]","ts_us":1700000000000000,"ts_ns":1700000000000000000,"schema":"public",'
    '"table":"orders","txId":847,"lsn":%d,"xmin":null},"transaction":null,"op":"u","ts_ms":1700000000000,"ts_us":1700000000000000'
)


def run(scale: Scale = WHOLE) -> None:
    """Measure all three."""
    with tempfile.TemporaryDirectory() as folder:
        _envelopes(folder, scale)
        _sequences(folder, scale)
        _late(folder, scale)


def _keys_and_values(count: int) -> tuple[list[str], list[str]]:
    keys = [json.dumps({"id": number}, separators=(",", ":")) for number in range(count)]
    values = [
        json.dumps(
            {"id": number, "sku": f"sku-{number % 97}", "qty": number % 9, "status": "shipped", "note": "x" * 60}, separators=(",", ":")
        )
        for number in range(count)
    ]
    return keys, values


def _envelopes(folder: str, scale: Scale) -> None:
    rows, warm_up, rounds = scale.rows(_ROWS), scale.warm_up(_WARM_UP), scale.turns(_TURNS)
    keys, values = _keys_and_values(rows)
    plain = pa.table({"key": keys, "value": values})
    texts = [f'{{"before":null,"after":{value},{_SOURCE % (1000 + number)}}}' for number, value in enumerate(values)]
    events = pa.table({"key": keys, "value": texts})
    logs, spark = LogDir(f"{folder}/arrow"), spark_session()
    by_spark = LogDir(spark, f"{folder}/spark")
    # Each turn has a topic of its own: the same events once more would all be compared with the log, which is another matter.
    names = {name: [f"{name}-{turn}" for turn in range(warm_up + rounds)] for name in ("plain", "events")}
    topics = {name: iter([logs.create_topic(one, partitions=_PARTITIONS, config=_CONFIG) for one in all_]) for name, all_ in names.items()}
    spark_topics = {
        name: iter([by_spark.create_topic(one, partitions=_PARTITIONS, config=_CONFIG) for one in all_]) for name, all_ in names.items()
    }
    frames = {name: spark.createDataFrame(table).repartition(2).persist() for name, table in (("plain", plain), ("events", events))}
    for frame in frames.values():
        frame.count()
    things: dict[str, dict[str, Callable[[], object]]] = {
        "from Arrow": {
            "plain": lambda: next(topics["plain"]).append(plain),
            "events": lambda: next(topics["events"]).append(events, envelope=Envelope()),
        },
        "by Spark": {
            "plain": lambda: next(spark_topics["plain"]).append(frames["plain"]),
            "events": lambda: next(spark_topics["events"]).append(frames["events"], envelope=Envelope()),
        },
    }
    lines = []
    for way, pair in things.items():
        timings = in_turns(pair, warm_up=warm_up, rounds=rounds)
        named = f"append {rows:,} events {way}"
        headline(named, "the same keys and values", timings["plain"].seconds, timings["events"].seconds, goal=1 / 1.5)
        one, other = timings["plain"].median, timings["events"].median
        lines.append([way, f"{one:.3f}", f"{other:.3f}", f"{other / one:.2f}×", "≤ 1.5"])
    counts = {where.topic(name).describe().record_count for where in (logs, by_spark) for name in where.topics()}
    assert counts == {rows}, counts  # noqa: S101
    report(f"(a) {rows:,} events in an envelope of Debezium", lines, ["", "plain s", "envelope s", "ratio", "bound"])


def _sequences(folder: str, scale: Scale) -> None:
    rows = scale.rows(_ROWS)
    keys, values = _keys_and_values(rows)
    plain, logs, begin = pa.table({"key": keys, "value": values}), LogDir(f"{folder}/sequences"), [0]
    topics = {name: logs.create_topic(name, partitions=_PARTITIONS, config=_CONFIG) for name in ("without", "with")}

    def with_sequence() -> None:
        begin[0] += rows
        topics["with"].append(plain.append_column("source_sequence", pa.array(np.arange(rows) + begin[0])))

    timings = in_turns(
        {"without": lambda: topics["without"].append(plain), "with": with_sequence}, warm_up=scale.warm_up(3), rounds=scale.turns(15)
    )
    assert topics["with"].describe().record_count == topics["without"].describe().record_count  # noqa: S101
    one, other = timings["without"].median, timings["with"].median
    headline(f"append {rows:,} rows in order", "rows without a sequence", timings["without"].seconds, timings["with"].seconds, goal=1 / 1.1)
    line = [f"{one:.3f}", f"{other:.3f}", f"{other / one:.2f}×", "≤ 1.1"]
    report("(b) rows in order, with a source sequence", [line], ["without s", "with s", "ratio", "bound"])


def _late(folder: str, scale: Scale) -> None:
    logs, chance, all_keys, rows = LogDir(f"{folder}/late"), np.random.default_rng(1), scale.rows(_KEYS), scale.rows(_ROWS)
    topic, begin = logs.create_topic("t", partitions=_PARTITIONS, config=_CONFIG), [all_keys]
    for start in range(0, all_keys, rows):
        numbers = np.arange(start, start + rows)
        topic.append(pa.table({"key": pa.array(numbers).cast(pa.string()), "value": [b"x" * 100] * rows, "source_sequence": numbers}))

    def append(*, late: bool) -> None:
        begin[0] += rows
        sequences = np.arange(rows) + begin[0]
        if late:
            at = chance.choice(rows, rows // 100, replace=False)
            sequences[at] = chance.integers(0, all_keys, len(at))
        keys = pa.array(chance.integers(0, all_keys, rows)).cast(pa.string())
        topic.append(pa.table({"key": keys, "value": [b"y" * 100] * rows, "source_sequence": sequences}))

    timings = in_turns(
        {"in order": lambda: append(late=False), "late": lambda: append(late=True)}, warm_up=scale.warm_up(1), rounds=scale.turns(7)
    )
    one, other = timings["in order"].median, timings["late"].median
    headline("append with 1 % late events", "all in order", timings["in order"].seconds, timings["late"].seconds, goal=1 / 2)
    line = [f"{all_keys:,}", f"{one:.3f}", f"{other:.3f}", f"{other / one:.2f}×", "≤ 2"]
    report(f"(c) {rows:,} rows, 1 % of them from anywhere before", [line], ["keys", "in order s", "late s", "ratio", "bound"])
