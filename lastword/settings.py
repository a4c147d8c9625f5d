"""The service's configuration file, `lastword.toml`.

```toml
log.dir = "data"
log.retention.hours = 168            # any broker setting of Kafka that lastword has; holds for topics without their own

[topic.airports]                     # created at start when it is not there
partitions = 4
cleanup.policy = "compact"

[[source]]                           # one append query each
name = "airports-files"
topic = "airports"
format = "json"
path = "incoming/*.json"
key = ["icao"]

[spark]                              # Spark settings
"spark.driver.memory" = "2g"
```

TOML reads a dotted key as nested tables; they are joined again here, so that Kafka's names can be written as they are.
The environment wins over the file: LASTWORD_LOG_DIR.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compaction.config import parse_service_config, parse_topic_config
from compaction.errors import InvalidConfiguration, UserError, Violation
from streaming.sources import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class TopicSettings(BaseModel):
    """A topic that shall exist, with its own configuration."""

    model_config = ConfigDict(frozen=True)

    partitions: Annotated[int, Field(ge=1, description="Fixed at creation")] = 1
    config: dict[str, Any] = {}


class Settings(BaseModel):
    """What `lastword.toml` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log_dir: str = "data"
    broker: dict[str, Any] = {}
    topics: dict[str, TopicSettings] = {}
    sources: list[Source] = []
    spark: dict[str, str] = {}


def load_settings(path: Path) -> Settings:
    """Read a configuration file; raise `InvalidConfiguration` with everything that is wrong, or `UserError` if it cannot be read."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise UserError(message) from error
    except tomllib.TOMLDecodeError as error:
        message = f"{path} is not TOML: {error}"
        raise UserError(message) from error
    sources = [flat(source, keep=("options",)) for source in raw.pop("source", [])]
    topics = {name: flat(table) for name, table in raw.pop("topic", {}).items()}
    spark = {key: str(value) for key, value in flat(raw.pop("spark", {})).items()}
    broker = flat(raw)
    log_dir = os.environ.get("LASTWORD_LOG_DIR") or broker.pop("log.dir", "data")
    broker.pop("log.dir", None)
    subject = str(path)
    violations: list[Violation] = []
    try:
        settings = Settings.model_validate(
            {
                "log_dir": str(log_dir),
                "broker": broker,
                "topics": {name: {"partitions": table.pop("partitions", 1), "config": table} for name, table in topics.items()},
                "sources": sources,
                "spark": spark,
            }
        )
    except ValidationError as error:
        violations = [
            Violation(key=".".join(str(part) for part in item["loc"]), value=repr(item["input"]), allowed=item["msg"])
            for item in error.errors()
        ]
        raise InvalidConfiguration(subject, violations) from error
    violations += _violations(partial(parse_service_config, settings.broker))
    for name, topic in settings.topics.items():
        violations += _violations(partial(parse_topic_config, topic.config, subject=f"topic {name}"))
    if violations:
        raise InvalidConfiguration(subject, violations)
    return settings


def flat(table: dict[str, Any], *, keep: tuple[str, ...] = (), prefix: str = "") -> dict[str, Any]:
    """Join nested tables to dotted keys: {"log": {"dir": "x"}} → {"log.dir": "x"}; the tables named in `keep` are flattened inside only."""
    joined: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and key in keep:
            joined[key] = {name: str(one) for name, one in flat(value).items()}
        elif isinstance(value, dict):
            joined.update(flat(value, keep=keep, prefix=f"{prefix}{key}."))
        else:
            joined[f"{prefix}{key}"] = value
    return joined


def _violations(parse: Callable[[], object]) -> list[Violation]:
    try:
        parse()
    except InvalidConfiguration as error:
        return list(error.violations)
    return []
