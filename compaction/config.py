"""Configuration: Kafka's keys, defaults and validators; every mistake reported at once, before anything is changed.

```
 overrides of one topic          retention.ms = 1h                              wins
 service-wide, topic key         retention.ms = 3d                                ▲
 service-wide, broker synonym    log.retention.ms > .minutes > .hours             │
 Kafka's default                 retention.ms = 604800000                      last resort
```

Each setting is one row of a table (`TOPIC_KEYS`, `SERVICE_KEYS`): name, type, default, range, what it does and its broker synonyms in
Kafka's order of precedence. Parser, normaliser, description and reference documentation all read that table and nothing else.

How a value may be written (SEMANTICS §16 says what it may be):

* a size: whole bytes, as a number or with a unit in any case. Decimal: `k`, `kB`, `M`, `MB`, `G`, `GB`, `T`, `TB` are powers of 1000;
  binary: `Ki`, `KiB`, `Mi`, `MiB`, `Gi`, `GiB`, `Ti`, `TiB` are powers of 1024; `B` is one byte. So `64kb` is 64000 and `64KiB` is 65536;
* a time: whole milliseconds, as a number or with `ms`, `s`, `m` or `min`, `h`, `d`, `w` or their English names, in any case. A day is
  24 hours, a week 7 days;
* a fraction is fine where the result is whole (`1.5 GiB`, `0.5 d`); a negative number has no unit (`-1`);
* a set of policies: a list, or text with commas. Booleans, NaN and missing values are never numbers.

A canonical text is what the ledger stores and a person reads back: whole numbers without a unit, policies sorted (`compact,delete`).
"""

from __future__ import annotations

import difflib
import enum
import math
import re
import sys
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from compaction.errors import InvalidConfiguration, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
_NUMBER = re.compile(r"(-?)([0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,3})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_SHOWN_CHARACTERS = 80


class Kind(enum.Enum):
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


_UNITS: dict[Kind, dict[str, int]] = {Kind.BYTES: _BYTE_UNITS, Kind.BYTES_PER_SECOND: _BYTE_UNITS, Kind.MILLISECONDS: _TIME_UNITS}
_FORMS = {
    Kind.BYTES: "whole bytes, or with a unit (64 kB = 64000, 64 KiB = 65536)",
    Kind.MILLISECONDS: "whole milliseconds, or with a unit (500ms, 30 min, 12h, 7d, 1w)",
    Kind.COUNT: "a whole number",
    Kind.NUMBER: "a number",
    Kind.BYTES_PER_SECOND: "bytes per second, or with a unit (50 MiB), or inf for no limit",
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
    kind: Kind
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
        if self.kind is Kind.CHOICE:
            return f"one of {', '.join(self.choices)}"
        if self.kind is Kind.CHOICES:
            return f"any of {', '.join(self.choices)}, as a list or with commas between; empty for none"
        bounds = []
        if self.minimum > LONG_MIN:
            bounds.append(f"at least {self.minimum}")
        if self.maximum < LONG_MAX:
            bounds.append(f"at most {self.maximum}")
        limits = " and ".join(bounds) or "any of 64 bits, negative for no limit"
        return f"{_FORMS[self.kind]}; {limits}{', or -1 for no limit' if self.unlimited else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic as typed values, one field a key (`segment.bytes` is `segment_bytes`); see `TOPIC_KEYS` for each."""

    cleanup_policy: frozenset[str]
    compression_type: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    partitioner: str
    producer_id_expiration_ms: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    transaction_timeout_ms: int

    @property
    def compacted(self) -> bool:
        """Return whether the cleaner keeps the latest record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Return whether old segments go by size and time."""
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """Return the age in milliseconds at which a segment rolls (Kafka's LogConfig.maxSegmentMs)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacted else self.segment_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """The settings of the service itself, one field a key; see `SERVICE_KEYS` for each."""

    log_cleaner_backoff_ms: int = 15 * SECOND_MS
    log_cleaner_dedupe_buffer_size: int = 128 * MIB
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = math.inf
    log_cleaner_threads: int = 1
    log_initial_task_delay_ms: int = 30 * SECOND_MS
    log_retention_check_interval_ms: int = 5 * MINUTE_MS


def _table(*keys: Key) -> Mapping[str, Key]:
    return MappingProxyType({key.name: key for key in keys})


TOPIC_KEYS: Mapping[str, Key] = _table(
    Key(
        name="cleanup.policy",
        kind=Kind.CHOICES,
        default=frozenset({"delete"}),
        choices=("compact", "delete"),
        synonyms=(Synonym(name="log.cleanup.policy"),),
        doc="What happens to old records: compact keeps the latest of each key, delete drops segments by size and time; both, or neither.",
    ),
    Key(
        name="compression.type",
        kind=Kind.CHOICE,
        default="zstd",
        choices=("gzip", "lz4", "snappy", "uncompressed", "zstd"),
        doc="The Parquet codec of files written from now on; Kafka's `producer` is not among them, as Spark writes the files.",
    ),
    Key(
        name="delete.retention.ms",
        kind=Kind.MILLISECONDS,
        default=DAY_MS,
        synonyms=(Synonym(name="log.cleaner.delete.retention.ms"),),
        doc="How long a tombstone or a transaction marker stays after the cleaning that first kept it, so that slow readers see it.",
    ),
    Key(
        name="file.delete.delay.ms",
        kind=Kind.MILLISECONDS,
        default=MINUTE_MS,
        synonyms=(Synonym(name="log.segment.delete.delay.ms"),),
        doc="How long a file that left the log stays on storage, at the least; a reader that needs it longer keeps it longer.",
    ),
    Key(
        name="max.compaction.lag.ms",
        kind=Kind.MILLISECONDS,
        default=LONG_MAX,
        minimum=1,
        synonyms=(Synonym(name="log.cleaner.max.compaction.lag.ms"),),
        doc="How long a superseded record may stay before the partition is cleaned whatever its dirty ratio; also a limit of segment.ms.",
    ),
    Key(
        name="max.message.bytes",
        kind=Kind.BYTES,
        default=1_048_588,
        maximum=INT_MAX,
        synonyms=(Synonym(name="message.max.bytes"),),
        doc="The largest record accepted at append; lowering it leaves existing records as they are.",
    ),
    Key(
        name="min.cleanable.dirty.ratio",
        kind=Kind.NUMBER,
        default=0.5,
        maximum=1,
        synonyms=(Synonym(name="log.cleaner.min.cleanable.ratio"),),
        doc="A partition is cleaned when its dirty share of the bytes is strictly above this; 1 turns cleaning by ratio off.",
    ),
    Key(
        name="min.compaction.lag.ms",
        kind=Kind.MILLISECONDS,
        default=0,
        synonyms=(Synonym(name="log.cleaner.min.compaction.lag.ms"),),
        doc="How long a record stays uncompacted, at the least; no more than max.compaction.lag.ms.",
    ),
    Key(
        name="partitioner",
        kind=Kind.CHOICE,
        default="lastword",
        choices=("kafka", "lastword"),
        doc="Which partition a key belongs to: lastword is any stable hash, kafka is murmur2 as Kafka's clients have it.",
    ),
    Key(
        name="producer.id.expiration.ms",
        kind=Kind.MILLISECONDS,
        default=DAY_MS,
        minimum=1,
        doc="How long a silent producer is remembered; a service-wide setting in Kafka, which a topic may override here.",
    ),
    Key(
        name="retention.bytes",
        kind=Kind.BYTES,
        default=-1,
        minimum=LONG_MIN,
        synonyms=(Synonym(name="log.retention.bytes"),),
        doc="With the delete policy: oldest segments go while the partition stays at least this large without them; negative for no limit.",
    ),
    Key(
        name="retention.ms",
        kind=Kind.MILLISECONDS,
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
        kind=Kind.BYTES,
        default=GIB,
        minimum=KIB,
        maximum=INT_MAX,
        synonyms=(Synonym(name="log.segment.bytes"),),
        doc="The size at which the active segment rolls; Kafka's least is 1 MiB, here it is 1 KiB.",
    ),
    Key(
        name="segment.ms",
        kind=Kind.MILLISECONDS,
        default=WEEK_MS,
        minimum=1,
        synonyms=(Synonym(name="log.roll.ms"), Synonym(name="log.roll.hours", unit_ms=HOUR_MS)),
        doc="The age at which the active segment rolls.",
    ),
    Key(
        name="transaction.timeout.ms",
        kind=Kind.MILLISECONDS,
        default=MINUTE_MS,
        minimum=1,
        doc="How long a transaction may stay open before the service aborts it; a producer's setting in Kafka, the topic's here.",
    ),
)
"""Every key of a topic, by name and in the order of the names."""

SERVICE_KEYS: Mapping[str, Key] = _table(
    Key(
        name="log.cleaner.backoff.ms",
        kind=Kind.MILLISECONDS,
        default=15 * SECOND_MS,
        doc="How long the cleaner waits when there was nothing to clean.",
    ),
    Key(
        name="log.cleaner.dedupe.buffer.size",
        kind=Kind.BYTES,
        default=128 * MIB,
        doc="The budget of the offset maps of all cleaner threads, 24 bytes a key; more than 1 MiB for each thread.",
    ),
    Key(
        name="log.cleaner.io.buffer.load.factor",
        kind=Kind.NUMBER,
        default=0.9,
        minimum=0.01,
        maximum=1,
        doc="How full an offset map may become, as a share of its entries.",
    ),
    Key(
        name="log.cleaner.io.max.bytes.per.second",
        kind=Kind.BYTES_PER_SECOND,
        default=math.inf,
        minimum=1,
        maximum=sys.float_info.max,
        doc="The cleaner's limit of bytes read in both passes and written, on average over a minute.",
    ),
    Key(
        name="log.cleaner.threads",
        kind=Kind.COUNT,
        default=1,
        minimum=1,
        maximum=INT_MAX,
        doc="How many rounds may run side by side, on different topics.",
    ),
    Key(
        name="log.initial.task.delay.ms",
        kind=Kind.MILLISECONDS,
        default=30 * SECOND_MS,
        doc="How long after the start of the service the first retention check is made.",
    ),
    Key(
        name="log.retention.check.interval.ms",
        kind=Kind.MILLISECONDS,
        default=5 * MINUTE_MS,
        minimum=1,
        doc="How often topics without the compact policy are looked at for segments to delete.",
    ),
)
"""Every key of the service itself, by name and in the order of the names."""

_NO_FLUSH = "not here: each append is one durable Delta commit, there is nothing to flush"
_NO_INDEX = "not here: Delta's file statistics take the place of Kafka's index files"
_NO_REPLICAS = "not here: the storage under the log replicates, lastword does not"
_NO_TIERS = "not here: the log lies on one storage, there is nothing to tier"
_NO_JITTER = "not here: segments roll inside an append that is made anyway, there is no burst of rolls to spread"
_NO_LEVEL = "not here: Spark's own level of the codec is used; choose the codec with compression.type"
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
        "transactional.id.expiration.ms": "not here: transactional ids stay in the ledger; producer.id.expiration.ms forgets producers",
    }
)
"""Kafka's keys that lastword does not have, on purpose, each with the reason."""


def _synonym_key(key: Key, synonym: Synonym) -> Key:
    """Return the synonym as a setting of its own: the key's range in the synonym's unit."""
    coarse = synonym.unit_ms > 1
    return replace(
        key,
        name=synonym.name,
        kind=Kind.COUNT if coarse else key.kind,
        minimum=key.minimum if synonym.minimum is None else synonym.minimum,
        maximum=key.maximum // synonym.unit_ms if coarse else key.maximum,
        synonyms=(),
    )


_KEY_OF_SYNONYM = {synonym.name: key.name for key in TOPIC_KEYS.values() for synonym in key.synonyms}
_SYNONYM_KEYS = _table(*(_synonym_key(key, synonym) for key in TOPIC_KEYS.values() for synonym in key.synonyms))
_SERVICE_WIDE_KEYS: Mapping[str, Key] = MappingProxyType({**TOPIC_KEYS, **_SYNONYM_KEYS, **SERVICE_KEYS})


def parse_topic_config(
    overrides: Mapping[str, object],
    *,
    subject: str = "topic",
    defaults: Mapping[str, object] | None = None,
) -> TopicConfig:
    """Return the configuration of a topic: its overrides, else the service-wide defaults, else Kafka's.

    `overrides` has topic keys only; `defaults` may also have broker synonyms (and keys of the service, which are checked and not used).
    Raises `InvalidConfiguration` of `subject` with every violation in both. Rules: SEMANTICS §16 and A.
    """
    violations: list[Violation] = []
    own = _gather(overrides, TOPIC_KEYS, violations)
    service_wide = _gather(defaults or {}, _SERVICE_WIDE_KEYS, violations)
    values = _resolve(own, service_wide)
    violations += _topic_contradictions(values, violations)
    if violations:
        raise InvalidConfiguration(subject, violations)
    fields: dict[str, Any] = {TOPIC_KEYS[name].field: value for name, value in values.items()}
    return TopicConfig(**fields)


def normalize_overrides(overrides: Mapping[str, object], *, subject: str = "topic") -> dict[str, str]:
    """Return the overrides as canonical texts in the order of their keys, as the ledger stores them.

    Raises `InvalidConfiguration` as `parse_topic_config` does without service-wide defaults.
    """
    parse_topic_config(overrides, subject=subject)
    values = _gather(overrides, TOPIC_KEYS, [])
    return {name: canonical_text(values[name]) for name in sorted(values)}


def describe_topic_config(config: TopicConfig) -> dict[str, str]:
    """Return every key of the topic with its value as canonical text, in the order of the keys; `parse_topic_config` reads it back."""
    return {name: canonical_text(getattr(config, TOPIC_KEYS[name].field)) for name in sorted(TOPIC_KEYS)}


def parse_service_config(settings: Mapping[str, object]) -> tuple[ServiceConfig, dict[str, str]]:
    """Return the service's own settings, and the topic defaults among the settings as canonical texts under the names that were given.

    The second is what `parse_topic_config` takes as `defaults`. Raises `InvalidConfiguration` with every violation in either.
    """
    violations: list[Violation] = []
    found = _gather(settings, _SERVICE_WIDE_KEYS, violations)
    own: dict[str, Any] = {SERVICE_KEYS[name].field: value for name, value in found.items() if name in SERVICE_KEYS}
    config = ServiceConfig(**own)
    violations += _topic_contradictions(_resolve({}, found), violations)
    violations += _service_contradictions(config, violations)
    if violations:
        raise InvalidConfiguration(subject="service", violations=violations)
    return config, {name: canonical_text(found[name]) for name in sorted(found) if name not in SERVICE_KEYS}


def canonical_text(value: Value) -> str:
    """Return the one text of a typed value: `1073741824`, `0.5`, `zstd`, `compact,delete`."""
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def _gather(settings: Mapping[str, object], keys: Mapping[str, Key], violations: list[Violation]) -> dict[str, Value]:
    """Return the typed values of the valid settings by name, and add a violation for each of the others."""
    found: dict[str, Value] = {}
    for name, raw in settings.items():
        value = _parse(keys[name], raw) if name in keys else None
        if value is None:
            allowed = keys[name].allowed if name in keys else _why_not(name, keys)
            violations.append(Violation(key=name, value=_shown(raw), allowed=allowed))
        else:
            found[name] = value
    return found


def _resolve(own: Mapping[str, Value], service_wide: Mapping[str, Value]) -> dict[str, Value]:
    """Return a value for every topic key: the topic's own, else service-wide by key, else by synonym in order, else the default."""
    values: dict[str, Value] = {}
    for name, key in TOPIC_KEYS.items():
        synonyms = [_in_milliseconds(service_wide[synonym.name], synonym) for synonym in key.synonyms if synonym.name in service_wide]
        candidates = [*(source[name] for source in (own, service_wide) if name in source), *synonyms, key.default]
        values[name] = candidates[0]
    return values


def _in_milliseconds(value: Value, synonym: Synonym) -> Value:
    """Return the value of a synonym in its key's unit; -1, no limit, has none."""
    return value * synonym.unit_ms if isinstance(value, int) and value > 0 else value


def _topic_contradictions(values: Mapping[str, Value], violations: Iterable[Violation]) -> list[Violation]:
    """Return what is wrong between the settings of a topic, each valid on its own."""
    low, high = (values[name] for name in ("min.compaction.lag.ms", "max.compaction.lag.ms"))
    blamed = {_KEY_OF_SYNONYM.get(violation.key, violation.key) for violation in violations}
    if blamed.isdisjoint({"min.compaction.lag.ms", "max.compaction.lag.ms"}) and low > high:  # type: ignore[operator]
        allowed = f"at most max.compaction.lag.ms, which is {high}"
        return [Violation(key="min.compaction.lag.ms", value=canonical_text(low), allowed=allowed)]
    return []


def _service_contradictions(config: ServiceConfig, violations: Iterable[Violation]) -> list[Violation]:
    """Return what is wrong between the settings of the service, each valid on its own (Kafka's check of the dedupe buffer)."""
    size, threads = config.log_cleaner_dedupe_buffer_size, config.log_cleaner_threads
    blamed = {violation.key for violation in violations}
    if blamed.isdisjoint({"log.cleaner.dedupe.buffer.size", "log.cleaner.threads"}) and size // threads <= MIB:
        allowed = f"more than {MIB} (1 MiB) for each of log.cleaner.threads, which is {threads}"
        return [Violation(key="log.cleaner.dedupe.buffer.size", value=str(size), allowed=allowed)]
    return []


def _why_not(name: str, keys: Mapping[str, Key]) -> str:
    """Return why there is no such setting here, and which one is probably meant."""
    if name in REFUSED_KEYS:
        return REFUSED_KEYS[name]
    if name in SERVICE_KEYS:
        return "a setting of the service, not of one topic"
    if name in _KEY_OF_SYNONYM:
        return f"a service-wide default; for one topic the key is {_KEY_OF_SYNONYM[name]}"
    nearest = difflib.get_close_matches(name.lower().replace("_", "."), keys, n=1)
    return f"unknown; did you mean {nearest[0]}?" if nearest else f"unknown; known are {', '.join(sorted(keys))}"


def _parse(key: Key, raw: object) -> Value | None:
    """Return the typed value, or None for what the key does not allow."""
    if key.kind is Kind.CHOICE:
        name = raw.strip() if isinstance(raw, str) else None
        return name if name in key.choices else None
    if key.kind is Kind.CHOICES:
        return _parse_choices(key, raw)
    if key.kind is Kind.BYTES_PER_SECOND and str(raw).strip().lower() == "inf":
        return math.inf
    number = _parse_number(raw, _UNITS.get(key.kind, {}))
    if number is None or not (key.minimum <= number <= key.maximum or (key.unlimited and number == -1)):
        return None
    if key.kind in (Kind.NUMBER, Kind.BYTES_PER_SECOND):
        return float(number)
    return int(number) if number.denominator == 1 else None


def _parse_choices(key: Key, raw: object) -> frozenset[str] | None:
    """Return the set of names in a list or a text with commas; None when one of them is not a choice."""
    if isinstance(raw, str):
        raw = raw.split(",") if raw.strip() else []
    if not isinstance(raw, (list, tuple, set, frozenset)):
        return None
    names = [name.strip() if isinstance(name, str) else name for name in raw]
    return frozenset(names) if all(name in key.choices for name in names) else None


def _parse_number(raw: object, units: Mapping[str, int]) -> Fraction | None:
    """Return the exact number in a value, times its unit; None when it is no finite number or the unit is not known."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, SupportsIndex):
        return Fraction(raw.__index__())
    if isinstance(raw, float):
        return Fraction(raw) if math.isfinite(raw) else None
    match = _NUMBER.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None:
        return None
    sign, digits, unit = match.groups()
    if unit == "":
        return Fraction(sign + digits)
    factor = units.get(unit.lower())
    return None if sign or factor is None else Fraction(digits) * factor


def _shown(raw: object) -> str:
    """Return a value as a person should see it, no longer than a line."""
    if isinstance(raw, int) and raw.bit_length() > _SHOWN_CHARACTERS * 3:
        return f"an integer of {raw.bit_length()} bits"
    if isinstance(raw, (set, frozenset)):
        raw = sorted(map(str, raw))
    text = ",".join(map(str, raw)) if isinstance(raw, (list, tuple)) else str(raw)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
