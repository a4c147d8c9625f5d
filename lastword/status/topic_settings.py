"""The settings of a topic as people read them: value, where it comes from, and the default.

| origin  | the value is                                                    |
|---------|-----------------------------------------------------------------|
| topic   | set for this topic (`lastword topics alter`, `[topic.NAME]`)     |
| service | a default of the service, in the file of its configuration      |
| default | Kafka's default                                                 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.compaction.config.keys import TOPIC_KEYS, SettingType
from lastword.status.troubles import duration
from lastword.text import size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.config.keys import Key

#: The longest time that a duration is written for; above it a setting means "no limit".
_NO_LIMIT: int = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting of a topic: `value` and `default` as canonical texts, and with a unit where they have one."""

    name: str
    value: str
    readable: str
    origin: str
    default: str
    doc: str


def describe_settings(config: Mapping[str, str], overrides: Mapping[str, str]) -> list[SettingRow]:
    """Return every setting of a topic; those that were set come first, then those of the service."""
    rows = [
        SettingRow(
            name=name,
            value=value,
            readable=_readable(TOPIC_KEYS[name], value),
            origin="topic" if name in overrides else "service" if value != TOPIC_KEYS[name].default_text else "default",
            default=TOPIC_KEYS[name].default_text,
            doc=TOPIC_KEYS[name].doc,
        )
        for name, value in config.items()
        if name in TOPIC_KEYS
    ]
    order = ("topic", "service", "default")
    return sorted(rows, key=lambda row: (order.index(row.origin), row.name))


def _readable(key: Key, value: str) -> str:
    """Return a value with a unit, "" where it has none."""
    if key.kind not in {SettingType.BYTES, SettingType.MILLISECONDS}:
        return ""
    number = int(value)
    if number < 0 or number > _NO_LIMIT:
        return "no limit"
    return size(number) if key.kind is SettingType.BYTES else duration(number)
