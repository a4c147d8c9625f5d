"""Every setting that lastword knows, as data: Kafka's name, type, default, range, what it does and its broker synonyms.

One row a setting (`TOPIC_KEYS`, `SERVICE_KEYS`), and one reason for each setting that Kafka has and lastword has not on purpose
(`REFUSED_KEYS`). Parser, description and reference documentation read these tables and nothing else.
"""

from __future__ import annotations

import enum
import math
import re
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = "int | float | str | frozenset[str]"

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS

_BYTE_UNITS = {
    "b": 1,
    **{letter + end: 1000**power for power, letter in enumerate("kmgt", start=1) for end in ("", "b")},
    **{letter + end: 1024**power for power, letter in enumerate("kmgt", start=1) for end in ("i", "ib")},
}
_TIME_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), SECOND_MS),
    **dict.fromkeys(("m", "min", "minute", "minutes"), MINUTE_MS),
    **dict.fromkeys(("h", "hour", "hours"), HOUR_MS),
    **dict.fromkeys(("d", "day", "days"), DAY_MS),
    **dict.fromkeys(("w", "week", "weeks"), WEEK_MS),
}


_INTERVAL = re.compile(r"\s*(?:interval\s+)?(?:\d+\s*[a-zA-Z]+\s*)+")
_PART = re.compile(r"(\d+)\s*([a-zA-Z]+)")


def interval_ms(text: str) -> int | None:
    """Return the milliseconds of an interval as `10s`, `5 seconds` or, in Spark's form, `interval 1 minute 30 seconds`; None for none."""
    parts = _PART.findall(text.removeprefix("interval "))
    if not _INTERVAL.fullmatch(text) or any(unit.lower() not in _TIME_UNITS for _, unit in parts):
        return None
    return sum(int(count) * _TIME_UNITS[unit.lower()] for count, unit in parts)


class SettingType(enum.Enum):
    """The type of a setting: how its text is read and which Python type its value has."""

    BYTES = "bytes"
    """A size in bytes, `int`."""
    MILLISECONDS = "milliseconds"
    """A time in milliseconds, `int`."""
    COUNT = "whole number"
    """A plain whole number without a unit, `int`."""
    NUMBER = "number"
    """A plain number, `float`."""
    BYTES_PER_SECOND = "bytes per second"
    """A rate in bytes a second, `float`; `inf` is no limit."""
    CHOICE = "choice"
    """One of a few names, `str`."""
    CHOICES = "list of choices"
    """Any of a few names, `frozenset[str]`."""


UNITS: dict[SettingType, dict[str, int]] = {
    SettingType.BYTES: _BYTE_UNITS,
    SettingType.BYTES_PER_SECOND: _BYTE_UNITS,
    SettingType.MILLISECONDS: _TIME_UNITS,
}
_FORMS = {
    SettingType.BYTES: "whole bytes, or with a unit (64 kB = 64000, 64 KiB = 65536)",
    SettingType.MILLISECONDS: "whole milliseconds, or with a unit (500ms, 30 min, 12h, 7d, 1w)",
    SettingType.COUNT: "a whole number",
    SettingType.NUMBER: "a number",
    SettingType.BYTES_PER_SECOND: "bytes per second, or with a unit (50 MiB), or inf for no limit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A broker setting of Kafka that gives a topic key its service-wide default, `unit_ms` milliseconds to its 1."""

    name: str
    unit_ms: int = 1
    minimum: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: everything that the parser and the reference documentation know of it."""

    name: str
    kind: SettingType
    default: Value
    doc: str
    minimum: float = 0
    maximum: float = LONG_MAX
    unlimited: bool = False
    choices: tuple[str, ...] = ()
    synonyms: tuple[Synonym, ...] = ()

    @property
    def field(self) -> str:
        """Return the name of the attribute in `TopicConfig` or `ServiceConfig`."""
        return self.name.replace(".", "_")

    @property
    def default_text(self) -> str:
        """Return the default as canonical text."""
        return canonical_text(self.default)

    @property
    def allowed(self) -> str:
        """Return which values are allowed, as a phrase for messages and documentation."""
        if self.kind is SettingType.CHOICE:
            return f"one of {', '.join(self.choices)}"
        if self.kind is SettingType.CHOICES:
            return f"any of {', '.join(self.choices)}, as a list or with commas between; empty for none"
        bounds = []
        if self.minimum > LONG_MIN:
            bounds.append(f"at least {self.minimum}")
        if self.maximum < LONG_MAX:
            bounds.append(f"at most {self.maximum}")
        limits = " and ".join(bounds) or "any of 64 bits, negative for no limit"
        return f"{_FORMS[self.kind]}; {limits}{', or -1 for no limit' if self.unlimited else ''}"


def canonical_text(value: Value) -> str:
    """Return the one text of a typed value: `1073741824`, `0.5`, `zstd`, `compact,delete`."""
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def table_of(*keys: Key) -> Mapping[str, Key]:
    """Return the keys by name, sorted."""
    return MappingProxyType({key.name: key for key in keys})


TOPIC_KEYS: Mapping[str, Key] = table_of(
    Key(
        name="cleanup.policy",
        kind=SettingType.CHOICES,
        default=frozenset({"delete"}),
        choices=("compact", "delete"),
        synonyms=(Synonym(name="log.cleanup.policy"),),
        doc="What happens to old records: compact keeps the latest of each key, delete drops segments by size and time; both, or neither.",
    ),
    Key(
        name="compression.type",
        kind=SettingType.CHOICE,
        default="zstd",
        choices=("gzip", "lz4", "snappy", "uncompressed", "zstd"),
        doc="The Parquet codec of files written from now on; Kafka's `producer` is not among them, as Spark writes the files.",
    ),
    Key(
        name="delete.retention.ms",
        kind=SettingType.MILLISECONDS,
        default=DAY_MS,
        synonyms=(Synonym(name="log.cleaner.delete.retention.ms"),),
        doc="How long a tombstone or a transaction marker stays after the cleaning that first kept it, so that slow readers see it.",
    ),
    Key(
        name="file.delete.delay.ms",
        kind=SettingType.MILLISECONDS,
        default=MINUTE_MS,
        synonyms=(Synonym(name="log.segment.delete.delay.ms"),),
        doc="How long a file that left the log stays on storage, at the least; a reader that needs it longer keeps it longer.",
    ),
    Key(
        name="max.compaction.lag.ms",
        kind=SettingType.MILLISECONDS,
        default=LONG_MAX,
        minimum=1,
        synonyms=(Synonym(name="log.cleaner.max.compaction.lag.ms"),),
        doc="How long a superseded record may stay before the partition is cleaned whatever its dirty ratio; also a limit of segment.ms.",
    ),
    Key(
        name="max.message.bytes",
        kind=SettingType.BYTES,
        default=1_048_588,
        maximum=INT_MAX,
        synonyms=(Synonym(name="message.max.bytes"),),
        doc="The largest record accepted at append; lowering it leaves existing records as they are.",
    ),
    Key(
        name="min.cleanable.dirty.ratio",
        kind=SettingType.NUMBER,
        default=0.5,
        maximum=1,
        synonyms=(Synonym(name="log.cleaner.min.cleanable.ratio"),),
        doc="A partition is cleaned when its dirty share of the bytes is strictly above this; 1 turns cleaning by ratio off.",
    ),
    Key(
        name="min.compaction.lag.ms",
        kind=SettingType.MILLISECONDS,
        default=0,
        synonyms=(Synonym(name="log.cleaner.min.compaction.lag.ms"),),
        doc="How long a record stays uncompacted, at the least; no more than max.compaction.lag.ms.",
    ),
    Key(
        name="partitioner",
        kind=SettingType.CHOICE,
        default="lastword",
        choices=("kafka", "lastword"),
        doc="Which partition a key belongs to: lastword is any stable hash, kafka is murmur2 as Kafka's clients have it.",
    ),
    Key(
        name="producer.id.expiration.ms",
        kind=SettingType.MILLISECONDS,
        default=DAY_MS,
        minimum=1,
        doc="How long a silent producer is remembered; a service-wide setting in Kafka, which a topic may override here.",
    ),
    Key(
        name="retention.bytes",
        kind=SettingType.BYTES,
        default=-1,
        minimum=LONG_MIN,
        synonyms=(Synonym(name="log.retention.bytes"),),
        doc="With the delete policy: oldest segments go while the partition stays at least this large without them; negative for no limit.",
    ),
    Key(
        name="retention.ms",
        kind=SettingType.MILLISECONDS,
        default=WEEK_MS,
        unlimited=True,
        synonyms=(
            Synonym(name="log.retention.ms", minimum=1),
            Synonym(name="log.retention.minutes", unit_ms=MINUTE_MS, minimum=1),
            Synonym(name="log.retention.hours", unit_ms=HOUR_MS, minimum=1),
        ),
        doc="With the delete policy: a segment goes when its newest record is older than this; -1 for no limit.",
    ),
    Key(
        name="segment.bytes",
        kind=SettingType.BYTES,
        default=GIB,
        minimum=KIB,
        maximum=INT_MAX,
        synonyms=(Synonym(name="log.segment.bytes"),),
        doc="The size at which the active segment rolls; Kafka's least is 1 MiB, here it is 1 KiB.",
    ),
    Key(
        name="segment.ms",
        kind=SettingType.MILLISECONDS,
        default=WEEK_MS,
        minimum=1,
        synonyms=(Synonym(name="log.roll.ms"), Synonym(name="log.roll.hours", unit_ms=HOUR_MS)),
        doc="The age at which the active segment rolls.",
    ),
    Key(
        name="segment.slices",
        kind=SettingType.COUNT,
        default=10_000,
        minimum=1,
        maximum=INT_MAX,
        doc="The number of slices, one for each append, at which the active segment rolls; lastword's own. The service merges old slices.",
    ),
    Key(
        name="transaction.timeout.ms",
        kind=SettingType.MILLISECONDS,
        default=MINUTE_MS,
        minimum=1,
        doc="How long a transaction may stay open before the service aborts it; a producer's setting in Kafka, the topic's here.",
    ),
)
"""Every key of a topic, by name and in the order of the names."""

SERVICE_KEYS: Mapping[str, Key] = table_of(
    Key(
        name="dead.letter.retention.ms",
        kind=SettingType.MILLISECONDS,
        default=30 * DAY_MS,
        doc="How long refused rows stay in a topic's dead letters; lastword's own, Kafka has none.",
    ),
    Key(
        name="log.cleaner.backoff.ms",
        kind=SettingType.MILLISECONDS,
        default=15 * SECOND_MS,
        doc="How long the cleaner waits when there was nothing to clean.",
    ),
    Key(
        name="log.cleaner.dedupe.buffer.size",
        kind=SettingType.BYTES,
        default=128 * MIB,
        doc="The budget of the offset maps of all cleaner threads, 24 bytes a key; more than 1 MiB for each thread.",
    ),
    Key(
        name="log.cleaner.io.buffer.load.factor",
        kind=SettingType.NUMBER,
        default=0.9,
        minimum=0.01,
        maximum=1,
        doc="How full an offset map may become, as a share of its entries.",
    ),
    Key(
        name="log.cleaner.io.max.bytes.per.second",
        kind=SettingType.BYTES_PER_SECOND,
        default=math.inf,
        minimum=1,
        maximum=sys.float_info.max,
        doc="The cleaner's limit of bytes read in both passes and written, on average over a minute.",
    ),
    Key(
        name="log.cleaner.max.failures",
        kind=SettingType.COUNT,
        default=10,
        minimum=1,
        maximum=INT_MAX,
        doc="After so many failed cleanings in a row the cleaner leaves a partition alone; lastword's own, Kafka does after the first.",
    ),
    Key(
        name="log.cleaner.threads",
        kind=SettingType.COUNT,
        default=1,
        minimum=1,
        maximum=INT_MAX,
        doc="How many rounds may run side by side, on different topics.",
    ),
    Key(
        name="log.initial.task.delay.ms",
        kind=SettingType.MILLISECONDS,
        default=30 * SECOND_MS,
        doc="How long after the start of the service the first retention check is made.",
    ),
    Key(
        name="log.retention.check.interval.ms",
        kind=SettingType.MILLISECONDS,
        default=5 * MINUTE_MS,
        minimum=1,
        doc="How often topics without the compact policy are looked at for segments to delete.",
    ),
    Key(
        name="transactional.id.expiration.ms",
        kind=SettingType.MILLISECONDS,
        default=WEEK_MS,
        minimum=1,
        doc="How long a transactional.id is known after its last transaction began; those of streaming queries are known for ever.",
    ),
)
"""Every key of the service itself, by name and in the order of the names."""

_NO_FLUSH = "not here: each append is one durable Delta commit, there is nothing to flush"
_NO_INDEX = "not here: Delta's file statistics take the place of Kafka's index files"
_NO_REPLICAS = "not here: the storage under the log replicates, lastword does not"
_NO_TIERS = "not here: the log lies on one storage, there is nothing to tier"
_NO_JITTER = "not here: segments roll inside an append that is made anyway, there is no burst of rolls to spread"
_NO_LEVEL = "not here: the level is the Spark session's (1 for zstd); choose the codec with compression.type"
_NO_CLOCK = "not here: a record keeps the time that it was given, and gets the time of its append when it has none"
_NO_FORMAT = "not here: records are rows of a Delta table, there is one format"
_NO_BUFFER = "not here: Spark reads and writes the files; the offset map is limited by log.cleaner.dedupe.buffer.size"
_FIXED_PARTITIONS = "the number of partitions is fixed when the topic is created and is not a setting; a copy of the topic can have another"

REFUSED_KEYS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("partitions", "num.partitions"), _FIXED_PARTITIONS),
        **dict.fromkeys(("flush.messages", "flush.ms", "log.flush.interval.messages", "log.flush.interval.ms"), _NO_FLUSH),
        **dict.fromkeys(("log.flush.scheduler.interval.ms", "log.flush.offset.checkpoint.interval.ms"), _NO_FLUSH),
        **dict.fromkeys(("index.interval.bytes", "segment.index.bytes", "log.index.interval.bytes", "log.index.size.max.bytes"), _NO_INDEX),
        **dict.fromkeys(("min.insync.replicas", "unclean.leader.election.enable", "replication.factor"), _NO_REPLICAS),
        **dict.fromkeys(("default.replication.factor", "leader.replication.throttled.replicas"), _NO_REPLICAS),
        **dict.fromkeys(("follower.replication.throttled.replicas", "auto.leader.rebalance.enable"), _NO_REPLICAS),
        **dict.fromkeys(("remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable"), _NO_TIERS),
        **dict.fromkeys(("local.retention.bytes", "local.retention.ms", "log.local.retention.bytes"), _NO_TIERS),
        **dict.fromkeys(("log.local.retention.ms", "remote.log.storage.system.enable"), _NO_TIERS),
        **dict.fromkeys(("segment.jitter.ms", "log.roll.jitter.ms", "log.roll.jitter.hours"), _NO_JITTER),
        **dict.fromkeys(("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"), _NO_LEVEL),
        **dict.fromkeys(("message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"), _NO_CLOCK),
        **dict.fromkeys(("message.timestamp.difference.max.ms", "log.message.timestamp.type"), _NO_CLOCK),
        **dict.fromkeys(("log.message.timestamp.before.max.ms", "log.message.timestamp.after.max.ms"), _NO_CLOCK),
        **dict.fromkeys(("message.format.version", "message.downconversion.enable"), _NO_FORMAT),
        **dict.fromkeys(("log.cleaner.io.buffer.size",), _NO_BUFFER),
        **dict.fromkeys(("preallocate", "log.preallocate"), "not here: a file is written once and whole, there is nothing to preallocate"),
        "auto.create.topics.enable": "not here: a topic is created by asking for it, with its number of partitions",
        "log.cleaner.enable": "not here: the cleaner is part of the service; leave compact out of cleanup.policy instead",
        "num.recovery.threads.per.data.dir": "not here: a Delta commit is whole or absent, there is no log recovery at the start",
        "transaction.max.timeout.ms": "not here: transaction.timeout.ms is the topic's own, no client asks for a longer one",
    }
)
"""Kafka's keys that lastword does not have, on purpose, each with the reason."""
