"""Configuration: Kafka's keys, defaults and validators; every mistake reported at once, before anything is changed.

```
 overrides of one topic          retention.ms = 1h                              wins
 service-wide, topic key         retention.ms = 3d                                ▲
 service-wide, broker synonym    log.retention.ms > .minutes > .hours             │
 Kafka's default                 retention.ms = 604800000                      last resort
```

Each setting is one row of a table (`TOPIC_KEYS`, `SERVICE_KEYS`): name, type, default, range, what it does and its broker synonyms in
Kafka's order of precedence. Parser, normaliser, description and reference documentation all read that table and nothing else.

How a value may be written (docs/semantics.md#16 says what it may be):

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
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex

from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.compaction.secrets import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable


from lastword.compaction.config.keys import (
    DAY_MS,
    MIB,
    MINUTE_MS,
    REFUSED_KEYS,
    SECOND_MS,
    SERVICE_KEYS,
    TOPIC_KEYS,
    UNITS,
    WEEK_MS,
    Key,
    SettingType,
    Synonym,
    Value,
    canonical_text,
    table_of,
)

_NUMBER = re.compile(r"(-?)([0-9]{1,40}(?:\.[0-9]{1,40})?(?:e[+-]?[0-9]{1,3})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_SHOWN_CHARACTERS = 80


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
    segment_slices: int
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

    dead_letter_retention_ms: int = 30 * DAY_MS
    log_cleaner_backoff_ms: int = 15 * SECOND_MS
    log_cleaner_dedupe_buffer_size: int = 128 * MIB
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = math.inf
    log_cleaner_max_failures: int = 10
    log_cleaner_threads: int = 1
    log_initial_task_delay_ms: int = 30 * SECOND_MS
    log_retention_check_interval_ms: int = 5 * MINUTE_MS
    transactional_id_expiration_ms: int = WEEK_MS


def _synonym_key(key: Key, synonym: Synonym) -> Key:
    """Return the synonym as a setting of its own: the key's range in the synonym's unit."""
    coarse = synonym.unit_ms > 1
    return replace(
        key,
        name=synonym.name,
        kind=SettingType.COUNT if coarse else key.kind,
        minimum=key.minimum if synonym.minimum is None else synonym.minimum,
        maximum=key.maximum // synonym.unit_ms if coarse else key.maximum,
        synonyms=(),
    )


#: How the message of a key begins that resembles none.
_UNKNOWN = "unknown; known are"
#: So many names are listed; of more those that are nearest to the name that is not known.
_LISTED = 20
_KEY_OF_SYNONYM = {synonym.name: key.name for key in TOPIC_KEYS.values() for synonym in key.synonyms}
_SYNONYM_KEYS = table_of(*(_synonym_key(key, synonym) for key in TOPIC_KEYS.values() for synonym in key.synonyms))
_SERVICE_WIDE_KEYS: Mapping[str, Key] = MappingProxyType({**TOPIC_KEYS, **_SYNONYM_KEYS, **SERVICE_KEYS})


def parse_topic_config(
    overrides: object,
    *,
    subject: str = "topic",
    defaults: Mapping[str, object] | None = None,
) -> TopicConfig:
    """Return the configuration of a topic: its overrides, else the service-wide defaults, else Kafka's.

    `overrides` has topic keys only; `defaults` may also have broker synonyms (and keys of the service, which are checked and not used).
    Raises `InvalidConfiguration` of `subject` with every violation in both. Rules: docs/semantics.md#16,
    docs/semantics.md#A.36, docs/semantics.md#A.37.
    """
    if not isinstance(overrides, Mapping):
        allowed = 'a mapping of settings, as {"cleanup.policy": "compact"}'
        raise InvalidConfiguration(subject, [Violation(key="config", value=_format(overrides), allowed=allowed)])
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
    values = _gather(settings, _SERVICE_WIDE_KEYS, violations)
    own: dict[str, Any] = {SERVICE_KEYS[name].field: value for name, value in values.items() if name in SERVICE_KEYS}
    config = ServiceConfig(**own)
    violations += _topic_contradictions(_resolve({}, values), violations)
    violations += _service_contradictions(config, violations)
    if violations:
        raise InvalidConfiguration(subject="service", violations=violations)
    return config, {name: canonical_text(values[name]) for name in sorted(values) if name not in SERVICE_KEYS}


def _gather(settings: Mapping[str, object], keys: Mapping[str, Key], violations: list[Violation]) -> dict[str, Value]:
    """Return the typed values of the valid settings by name, and add a violation for each of the others."""
    values: dict[str, Value] = {}
    for name, raw in settings.items():
        value = _parse(keys[name], raw) if name in keys else None
        if value is None:
            allowed = keys[name].allowed if name in keys else _why_not(f"{name}", keys)
            # What resembles no key may be a secret in the wrong place.
            violations.append(Violation(key=f"{name}", value=HIDDEN if allowed.startswith(_UNKNOWN) else _format(raw), allowed=allowed))
        else:
            values[name] = value
    return values


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
    if nearest:
        return f"unknown; did you mean {nearest[0]}?"
    if len(keys) <= _LISTED:
        return f"{_UNKNOWN} {', '.join(sorted(keys))}"
    near = difflib.get_close_matches(name.lower().replace("_", "."), sorted(keys), n=3, cutoff=0.0)
    return f"{_UNKNOWN} {', '.join(near)} and {len(keys) - len(near)} others"


def _parse(key: Key, raw: object) -> Value | None:
    """Return the typed value, or None for what the key does not allow."""
    if key.kind is SettingType.CHOICE:
        name = raw.strip() if isinstance(raw, str) else None
        return name if name in key.choices else None
    if key.kind is SettingType.CHOICES:
        return _parse_choices(key, raw)
    if key.kind is SettingType.BYTES_PER_SECOND and str(raw).strip().lower() == "inf":
        return math.inf
    number = _parse_number(raw, UNITS.get(key.kind, {}))
    if number is None or not (key.minimum <= number <= key.maximum or (key.unlimited and number == -1)):
        return None
    if key.kind in (SettingType.NUMBER, SettingType.BYTES_PER_SECOND):
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


def _format(raw: object) -> str:
    """Return a value as a person should see it, no longer than a line."""
    if isinstance(raw, int) and raw.bit_length() > _SHOWN_CHARACTERS * 3:
        return f"an integer of {raw.bit_length()} bits"
    if isinstance(raw, (set, frozenset)):
        raw = sorted(map(str, raw))
    text = ",".join(map(str, raw)) if isinstance(raw, (list, tuple)) else str(raw)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
