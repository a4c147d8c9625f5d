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

[spark]                              # Spark settings
"spark.driver.memory" = "2g"
```

TOML reads a dotted key as nested tables; they are joined again here, so that Kafka's names can be written as they are.
Topics may also stand in a file `topics.toml` beside it. The environment wins over the file: LASTWORD_LOG_DIR, LASTWORD_HTTP_LISTEN.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lastword.compaction.config.topic_config import parse_service_config, parse_topic_config
from lastword.compaction.errors import InvalidConfiguration, UserError, Violation
from lastword.compaction.secrets import HIDDEN
from lastword.service.table_settings import TableSettings, doubled_tables
from lastword.status.listen import parse_listen
from lastword.storage.files.locations import location_of
from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pydantic_core import ErrorDetails

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Beside the service's file: more [topic.NAME] tables.
_TOPICS: Final = "topics.toml"
#: How settings of a Kafka client begin that are often written without `options.kafka.`.
_OF_KAFKA_CLIENT: Final = ("sasl.", "ssl.", "security.")


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
    log_dir = os.environ.get("LASTWORD_LOG_DIR") or broker.pop("log.dir", "data")
    broker.pop("log.dir", None)
    for key, place in [(key, place) for key in broker if (place := _find_misplaced(key)) is not None]:
        violations.append(Violation(key=key, value=HIDDEN, allowed=place))
        del broker[key]
    partitions = {name: table.pop("partitions", None) for name, table in topics.items()}
    violations += _violations(partial(parse_service_config, broker))
    for table in topics.values():
        violations += _violations(partial(parse_topic_config, table))
    settings = {
        "log_dir": str(log_dir),
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
    return checked_settings(settings)


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
        violations = [_violation(item) for item in error.errors()]
        raise InvalidConfiguration(subject, violations) from error
    if doubled := [*_find_duplicates(settings.sources), *doubled_tables(settings.tables)]:
        raise InvalidConfiguration(subject, doubled)
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
        "http": None if isinstance(http, dict) else "[http], and listen below it",
        "spark": None if isinstance(spark, dict) else "[spark], and Spark's settings below it",
    }
    return [Violation(key=name, value=_format(raw.pop(name)), allowed=f"write {form}") for name, form in wrong.items() if form]


def _find_duplicates(sources: Sequence[Source]) -> list[Violation]:
    """Return the names that two sources of one topic share, and what two of them read into one topic."""
    names = Counter((source.topic, source.name) for source in sources)
    allowed = "another source of topic {} has this name, and the position in a source belongs to the name"
    violations = [
        Violation(key="source.name", value=name, allowed=allowed.format(topic)) for (topic, name), count in names.items() if count > 1
    ]
    read: dict[tuple[str, ...], str] = {}
    for source in sources:
        if isinstance(source, RateSource) or (place := _place(source)) is None:
            continue
        first = read.setdefault((source.topic, *place), source.name)
        if first != source.name:
            allowed = f"source {first} of topic {source.topic} reads the same, and each row would be appended twice; leave one out"
            violations.append(Violation(key="source.name", value=source.name, allowed=allowed))
    return violations


def _place(source: FileSource | KafkaSource) -> tuple[str, ...] | None:
    """Return what a source reads; None for the topics of a pattern, which each have one of their own."""
    if isinstance(source, FileSource):
        return location_of(source.path, is_pattern=True), str(sorted(source.options.items()))
    return (source.bootstrap_servers, source.subscribe) if source.subscribe else None


def _violation(item: ErrorDetails) -> Violation:
    """Return what is wrong with a setting; of one that is not known the value is not shown, and the place is where it may belong."""
    place, key = ".".join(str(part) for part in item["loc"]), str(item["loc"][-1])
    if item["type"] != "extra_forbidden":
        return Violation(key=place, value=_format(item["input"]), allowed=item["msg"])
    if key.startswith("kafka."):
        allowed = f"an option of the Kafka client: write options.{key}"
    elif key.startswith(_OF_KAFKA_CLIENT):
        allowed = f"an option of the Kafka client: write options.kafka.{key}"
    elif key.startswith("spark."):
        allowed = "a setting of Spark: write it below [spark]"
    else:
        models: dict[str, type[BaseModel]] = {"json": FileSource, "csv": FileSource, "parquet": FileSource, "kafka": KafkaSource}
        models |= {"tables": TableSettings}
        model = next((models[str(part)] for part in item["loc"] if part in models), None)
        names = [] if model is None else [field.alias or name for name, field in model.model_fields.items()]
        nearest = get_close_matches(key.replace("_", "."), names, n=1)
        allowed = f"unknown; did you mean {nearest[0]}?" if nearest else "unknown; further options of Spark's reader stand below options"
    return Violation(key=place, value=HIDDEN, allowed=allowed)


def _find_misplaced(key: str) -> str | None:
    """Return where a key of the file's head belongs, if it is one of an object store or a Kafka client."""
    if key.startswith("fs."):
        return f"a setting of Hadoop: write spark.hadoop.{key} below [spark]"
    if key.startswith(("kafka.", *_OF_KAFKA_CLIENT)):
        return f"an option of the Kafka client: write options.kafka.{key.removeprefix('kafka.')} in its [[source]]"
    return None


def _format(value: object) -> str:
    """Return a value as a message shows it; a table not at all, as there may be a password in it."""
    return "{…}" if isinstance(value, (dict, BaseModel)) else repr(value)


def _violations(parse: Callable[[], object]) -> list[Violation]:
    try:
        parse()
    except InvalidConfiguration as error:
        return list(error.violations)
    return []
