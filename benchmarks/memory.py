"""(e) What a cleaning holds in memory: the offset map and at most 300 MiB, the same for 1 M and for 16 M records.

Each log is cleaned in a process of its own that has no JVM, over and over until nothing is eligible; its peak is the kernel's (VmHWM). The
map's budget is small enough that a round of the smaller log fills it, as each of the larger does. What an entry of the map takes is
measured apart: the map of so many keys alone, while it is folded and afterwards.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import WHOLE, Scale, in_a_process, report
from lastword import LogDir
from lastword.compaction.planning.offset_map import map_entries
from lastword.storage.cleaning.limits import CLEANING_LIMITS
from lastword.storage.cleaning.offset_map import PLAIN_COLUMNS, OffsetMap

if TYPE_CHECKING:
    from collections.abc import Callable

_BUDGET = "12MiB"
_EACH = 500_000
_VALUE_BYTES = 184
_MIB = 2**20
_SETTINGS = {"log.cleaner.dedupe.buffer.size": _BUDGET}


def changes(count: int, first_key: int, keys: int, seed: int) -> pa.Table:
    """Return `count` changes of 200 B: keys of 16 B at random among `keys` from `first_key` on, and values that do not compress."""
    chance = np.random.default_rng(seed)
    number = chance.integers(first_key, first_key + keys, count).astype(np.uint64)
    halves = np.stack([number * np.uint64(0x9E3779B97F4A7C15), number], axis=1)
    return pa.table({"key": _binary(halves.tobytes(), 16), "value": _binary(chance.bytes(count * _VALUE_BYTES), _VALUE_BYTES)})


def _binary(data: bytes, size: int) -> pa.Array:
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(data) // size, [None, pa.py_buffer(data)])
    return fixed.cast(pa.binary())


def run(scale: Scale = WHOLE) -> None:
    """Measure and print."""
    rows = []
    for count in (scale.rows(1_000_000), scale.rows(16_000_000)):
        each = scale.rows(_EACH)
        with tempfile.TemporaryDirectory() as folder:
            topic = LogDir(folder).create_topic("memory", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
            for number in range(count // each):
                topic.append(changes(each, number * each // 2, each, number))
                topic.roll()
            found = in_a_process("benchmarks.memory", "clean", folder)
        before, peak = found["before"], found["peak"]
        rows.append([f"{count:,}", str(found["rounds"]), f"{before:.0f}", f"{peak:.0f}", f"{peak - before:.0f}", "≤ map + 300"])
    report(f"(e) MiB of a process that cleans, map budget {_BUDGET}", rows, ["records", "rounds", "before", "peak", "rise", "bound"])
    rows = []
    for entries in (scale.rows(1_000_000), scale.rows(5_000_000)):
        found = in_a_process("benchmarks.memory", "map", str(entries))
        rows.append([f"{entries:,}", f"{found['held']:.0f}", f"{found['peak']:.0f}"])
    report("(e) bytes of an entry of the offset map, keys of 16 B", rows, ["entries", "held", "while it is folded"])


def read_resident_mib(line: str = "VmHWM", *, process: int | None = None) -> float:
    """Return how much memory a process (this one by default) takes, in MiB: VmRSS is what it takes now, VmHWM its peak."""
    lines = Path(f"/proc/{process or 'self'}/status").read_text(encoding="ascii").splitlines()
    return next(int(text.split()[1]) / 1024 for text in lines if text.startswith(line))


def _clean(folder: str) -> dict[str, Any]:
    topic = LogDir(folder, settings=_SETTINGS).topic("memory")
    topic.describe()
    before, rounds = read_resident_mib(), 0
    while topic.clean():
        rounds += 1
    return {"before": before, "peak": read_resident_mib(), "rounds": rounds}


def _map(entries: str) -> dict[str, Any]:
    count = int(entries)
    each = min(count, 250_000)
    assert map_entries(LogDir("nowhere").service_config) >= count  # noqa: S101  the default budget has room for all
    parts = [pa.table({"key": changes(each, 0, 1, 0).column("key"), "offset": pa.array(np.arange(each))}).select(PLAIN_COLUMNS)]
    before = read_resident_mib("VmRSS")
    offsets = OffsetMap(first_dirty_offset=0, end_offset=2**62, aborted=frozenset(), min_batch_keys=CLEANING_LIMITS.min_batch_keys)
    for number in range(count // each):
        keys = np.arange(number * each, (number + 1) * each, dtype=np.uint64)
        halves = np.stack([keys * np.uint64(0x9E3779B97F4A7C15), keys], axis=1)
        part = parts[0].set_column(0, "key", _binary(halves.tobytes(), 16)).set_column(1, "offset", pa.array(keys.astype(np.int64)))
        offsets.add("file", part)
    held = len(offsets.keys)
    assert held == count  # noqa: S101
    return {"held": (read_resident_mib("VmRSS") - before) * _MIB / count, "peak": (read_resident_mib() - before) * _MIB / count}


if __name__ == "__main__":
    measures: dict[str, Callable[[str], dict[str, Any]]] = {"clean": _clean, "map": _map}
    sys.stdout.write(json.dumps(measures[sys.argv[1]](sys.argv[2])) + "\n")
