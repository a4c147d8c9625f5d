"""The service's configuration file, `lastword.toml`.

```toml
log.dir = "data"
log.retention.hours = 168            # any broker setting of Kafka that lastword has; holds for topics without their own

[topic.airports]                     # created at start when it is not there, else changed to these settings
partitions = 4
cleanup.policy = "compact"

[[source]]                           # one append query each
name = "airports-files"
topic = "airports"
format = "json"
path = "incoming/*.json"
key = ["icao"]

[[table]]                            # a typed Delta table that is kept in step, of one topic or of each that a pattern matches
topic = "airports"
path = "tables/{topic}"
schema = "icao string, name string"

[http]                               # metrics, health and the status page
listen = "127.0.0.1:9464"            # "" for none
records = false                      # true: the status page shows records to everybody who reaches it

[spark]                              # Spark settings
"spark.driver.memory" = "2g"
```

TOML reads a dotted key as nested tables; they are joined again here, so that Kafka's names can be written as they are.
Relative paths are relative to the folder of the file. Topics may also stand in a file `topics.toml` beside it. The environment wins over
the file: LASTWORD_LOG_DIR, a path relative to the working directory, and LASTWORD_HTTP_LISTEN.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lastword.compaction.config.topic_config import parse_service_config, parse_topic_config
from lastword.compaction.errors import InvalidConfiguration, InvalidTopic, UserError, Violation
from lastword.compaction.secrets import HIDDEN
from lastword.service.mistakes import find_misplacement, shown_value, violation_of
from lastword.service.table_settings import TableSettings, doubled_tables
from lastword.status.listen import parse_listen
from lastword.storage.files.locations import location_of, path_below
from lastword.storage.files.paths import check_topic_name
from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Beside the service's file: more [topic.NAME] tables.
_TOPICS: Final = "topics.toml"


def _checked_listen(listen: str) -> str:
    if listen:
        parse_listen(listen)
    return listen


class TopicSettings(BaseModel):
    """A topic that shall exist, with its own configuration: a topic that exists gets the settings that are named here at each start."""

    model_config = ConfigDict(frozen=True)

    partitions: Annotated[int | None, Field(ge=1, description="Fixed at creation; 1 for a topic that is made now")] = None
    config: dict[str, Any] = {}


class HttpSettings(BaseModel):
    """Where the service answers /metrics, /healthz, /readyz and the status page."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: Annotated[
        str, AfterValidator(_checked_listen), Field(description='HOST:PORT; a port of 0 takes any; "" for none; loopback by default')
    ] = "127.0.0.1:9464"
    records: Annotated[
        bool,
        Field(description="Whether the status page shows keys and values of records to everybody who reaches it; off, as it has no login"),
    ] = False


class Settings(BaseModel):
    """What `lastword.toml` says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log_dir: str = "data"
    broker: dict[str, Any] = {}
    topics: dict[str, TopicSettings] = {}
    sources: list[Source] = []
    tables: list[TableSettings] = []
    http: HttpSettings = HttpSettings()
    spark: dict[str, str] = {}


def load_settings(path: Path) -> Settings:
    """Read a configuration file; raise `InvalidConfiguration` with everything that is wrong, or `UserError` if it cannot be read."""
    raw = _read(path)
    violations = _misshapen(raw)
    beside = path.with_name(_TOPICS)
    if path.name != _TOPICS and beside.is_file():
        violations += _add_topics(raw, _read(beside))
    sources = [flat(source, keep=("options",)) for source in raw.pop("source", [])]
    tables = [flat(table, keep=("properties",)) for table in raw.pop("table", [])]
    topics = {name: flat(table) for name, table in raw.pop("topic", {}).items()}
    http = flat(raw.pop("http", {}))
    if "LASTWORD_HTTP_LISTEN" in os.environ:
        http["listen"] = os.environ["LASTWORD_HTTP_LISTEN"]
    spark = _spark_settings(flat(raw.pop("spark", {})), violations)
    broker = flat(raw)
    named = broker.pop("log.dir", "data")
    if not isinstance(named, str):
        violations.append(Violation(key="log.dir", value=shown_value(named), allowed="allowed is a path or URI, in quotes"))
    environment = os.environ.get("LASTWORD_LOG_DIR", "")
    wrong = {key: violation for key, value in broker.items() if (violation := find_misplacement(key, value)) is not None}
    violations += wrong.values()
    broker = {key: value for key, value in broker.items() if key not in wrong}
    partitions = {name: table.pop("partitions", None) for name, table in topics.items()}
    violations += _violations(partial(parse_service_config, broker))
    violations += _wrong_topic_settings(topics)
    settings = {
        "log_dir": environment or str(named),
        "broker": broker,
        "topics": {name: {"partitions": partitions[name], "config": table} for name, table in topics.items()},
        "sources": sources,
        "tables": tables,
        "http": http,
        "spark": spark,
    }
    violations += _violations(partial(checked_settings, settings))
    if violations:
        raise InvalidConfiguration(str(path), violations)
    return _resolve_paths(path.parent, checked_settings(settings), keeps_log_dir=bool(environment))


def _resolve_paths(folder: Path, settings: Settings, *, keeps_log_dir: bool) -> Settings:
    """Return settings whose relative paths are relative to a folder, and no longer to the working directory."""

    def resolve_paths(block: BaseModel, *names: str) -> BaseModel:
        return block.model_copy(update={name: path_below(folder, getattr(block, name)) for name in names if hasattr(block, name)})

    return settings.model_copy(
        update={
            "log_dir": settings.log_dir if keeps_log_dir else path_below(folder, settings.log_dir),
            "sources": [resolve_paths(source, "path", "schema_registry_ssl_ca_location") for source in settings.sources],
            "tables": [resolve_paths(table, "path") for table in settings.tables],
        }
    )


def _spark_settings(given: dict[str, Any], violations: list[Violation]) -> dict[str, str]:
    """Return the settings below [spark] as texts; those that are none are added to the violations."""
    for key in given:
        if not key.startswith("spark."):
            allowed = f"names begin with spark.: write spark.{key} below [spark]"
            violations.append(Violation(key=f"spark: {key}", value=HIDDEN, allowed=allowed))
    return {key: str(value) for key, value in given.items() if key.startswith("spark.")}


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise UserError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path} is not TOML: {error}"
        raise UserError(message) from error


def _add_topics(raw: dict[str, Any], beside: dict[str, Any]) -> list[Violation]:
    """Put the topics of `topics.toml` beside those of the file itself; return what is wrong with them."""
    wrong = [Violation(key=f"{_TOPICS}: {key}", value="{…}", allowed="only [topic.NAME] tables") for key in beside if key != "topic"]
    violations = _misshapen(beside)
    topics = raw.setdefault("topic", {})
    for name, table in beside.get("topic", {}).items():
        if name in topics:
            wrong.append(Violation(key=f"topic.{name}", value="{…}", allowed=f"declare a topic once: here or in {_TOPICS}"))
        else:
            topics[name] = table
    return wrong + violations


def checked_settings(values: dict[str, Any], *, subject: str = "the service") -> Settings:
    """Return the settings that `values` spell, or raise `InvalidConfiguration` of `subject` with every violation."""
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        violations = [violation_of(item, values) for item in error.errors()]
        raise InvalidConfiguration(subject, violations) from error
    if wrong_names := _wrong_topic_names(settings):
        raise InvalidConfiguration(subject, wrong_names)
    if doubled := [*_find_duplicates(settings.sources), *doubled_tables(settings.tables)]:
        raise InvalidConfiguration(subject, doubled)
    return settings


def _wrong_topic_settings(topics: dict[str, dict[str, Any]]) -> list[Violation]:
    """Return what is wrong with the settings of each topic, under its name."""
    by_topic = ((name, _violations(partial(parse_topic_config, settings))) for name, settings in topics.items())
    return [replace(violation, key=f"topic {name}: {violation.key}") for name, violations in by_topic for violation in violations]


def _wrong_topic_names(settings: Settings) -> list[Violation]:
    """Return the names of topics that no topic can have."""
    named = [(f"[topic.{name}]", name) for name in settings.topics]
    named += [(f"source {source.name}: topic", source.topic) for source in settings.sources if source.topic]
    named += [(f"table {table.path}: topic", table.topic) for table in settings.tables if table.topic]
    wrong = list[Violation]()
    for place, name in named:
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            wrong.append(Violation(key=place, value=repr(name), allowed=str(error)))
    return wrong


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


def _misshapen(raw: dict[str, Any]) -> list[Violation]:
    """Take out of `raw` the parts that have not the shape that they must have, and say so."""
    source, topic, spark, http = raw.get("source", []), raw.get("topic", {}), raw.get("spark", {}), raw.get("http", {})
    table = raw.get("table", [])
    wrong = {
        "source": None
        if isinstance(source, list) and all(isinstance(block, dict) for block in source)
        else "[[source]], once for each source",
        "table": None if isinstance(table, list) and all(isinstance(block, dict) for block in table) else "[[table]], once for each table",
        "topic": None
        if isinstance(topic, dict) and all(isinstance(block, dict) for block in topic.values())
        else "[topic.NAME] for each topic",
        "http": None if isinstance(http, dict) else "[http], and listen or records below it",
        "spark": None if isinstance(spark, dict) else "[spark], and Spark's settings below it",
    }
    return [Violation(key=name, value=shown_value(raw.pop(name)), allowed=f"write {form}") for name, form in wrong.items() if form]


def _find_duplicates(sources: Sequence[Source]) -> list[Violation]:
    """Return the names that two sources of one topic share, and what two of them read into one topic."""
    names = Counter((source.filled_topic, source.name) for source in sources)
    allowed = "another source of topic {} has this name, and the position in a source belongs to the name"
    violations = [
        Violation(key="source.name", value=name, allowed=allowed.format(topic)) for (topic, name), count in names.items() if count > 1
    ]
    read: dict[tuple[str, ...], str] = {}
    for source in sources:
        if isinstance(source, RateSource) or (place := _place(source)) is None:
            continue
        first = read.setdefault((source.filled_topic, *place), source.name)
        if first != source.name:
            allowed = f"source {first} of topic {source.filled_topic} reads the same, and each row would be appended twice; leave one out"
            violations.append(Violation(key="source.name", value=source.name, allowed=allowed))
    return violations


def _place(source: FileSource | KafkaSource) -> tuple[str, ...] | None:
    """Return what a source reads; None for the topics of a pattern, which each have one of their own."""
    if isinstance(source, FileSource):
        return location_of(source.path, is_pattern=True), str(sorted(source.options.items()))
    return (source.bootstrap_servers, source.subscribe) if source.subscribe else None


def _violations(parse: Callable[[], object]) -> list[Violation]:
    try:
        parse()
    except InvalidConfiguration as error:
        return list(error.violations)
    return []
