"""The service's configuration file: Kafka's names as they are, and everything that is wrong with it said at once."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lastword.compaction.config.keys import SERVICE_KEYS, TOPIC_KEYS
from lastword.compaction.config.topic_config import parse_service_config, parse_topic_config
from lastword.compaction.errors import InvalidConfiguration, UserError
from lastword.service import settings
from lastword.service.settings import checked_settings, load_settings
from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FULL = """
log.dir = "s3://bucket/logs"
log.retention.hours = 168
log.retention.check.interval.ms = "1min"
log.cleaner.threads = 2
"log.cleaner.dedupe.buffer.size" = "64MiB"
message.max.bytes = 2000

[topic.airports]
partitions = 4
cleanup.policy = "compact"
min.cleanable.dirty.ratio = 0.2
"segment.bytes" = "128MiB"

[topic.airports.delete.retention]
ms = "12h"

[topic."orders.v1"]
cleanup.policy = ["compact", "delete"]

[topic.plain]

[[source]]
name = "airports-files"
topic = "airports"
format = "json"
path = "incoming/*.json"
key = ["icao"]
tombstone = "op = 'd'"
drop = ["op"]
timestamp = "at"
schema = "icao string, op string, at bigint"
trigger = "available-now"
on.invalid = "fail"
max.files.per.trigger = 10
[source.options]
multiLine = true
encoding = "UTF-8"

[[source]]
name = "orders"
topic = "orders.v1"
format = "kafka"
bootstrap.servers = "localhost:9092"
subscribe = "orders"
mirror = false
starting.offsets = "latest"
options.kafka.security.protocol = "SSL"
options."minPartitions" = 4

[[source]]
name = "trial"
topic = "plain"
format = "rate"
rows.per.second = 5

[spark]
"spark.driver.memory" = "2g"
spark.sql.shuffle.partitions = 8
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no setting of the machine win over the files of these tests."""
    monkeypatch.delenv("LASTWORD_LOG_DIR", raising=False)


def _file(folder: Path, text: str) -> Path:
    path = folder / "lastword.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _violations(path: Path) -> dict[str, str]:
    """Return what is allowed for everything that is wrong with a file."""
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(path)
    assert caught.value.subject == str(path)
    return {violation.key: violation.allowed for violation in caught.value.violations}


_TABLES = """
[[table]]
topics.pattern = "shop\\\\..*"
path = "tables/{topic}"
every = 0.5
on.type.change = "fail"
record.columns = ["_offset"]
[table.properties]
delta.appendOnly = "false"

[[table]]
topic = "fruit"
path = "tables/fruit"
schema = "price int"
"""


def test_tables_of_a_topic_and_of_a_pattern(tmp_path: Path) -> None:
    """The name of the topic stands in the path of a pattern; properties keep their dots."""
    of_pattern, of_topic = load_settings(_file(tmp_path, _TABLES)).tables
    assert (of_pattern.every, of_pattern.on_type_change, of_pattern.record_columns) == (0.5, "fail", ["_offset"])
    assert dict(of_pattern.properties) == {"delta.appendOnly": "false"}
    assert [of_pattern.matches(name) for name in ("shop.orders", "workshop.orders", "shop")] == [True, False, False]
    assert of_pattern.path_of("shop.orders") == str(tmp_path / "tables" / "shop.orders")
    assert (of_topic.columns, of_topic.matches("fruit"), of_topic.matches("fruits")) == ("price int", True, False)


@pytest.mark.parametrize(
    ("block", "key", "allowed"),
    [
        ('path = "t"', "table t", "give either topic or topics.pattern"),
        ('path = "t"\ntopic = "a"\ntopics.pattern = "b"', "table a", "give either topic or topics.pattern"),
        ('path = "t"\ntopics.pattern = "b"', "table b", "write {topic} in it"),
        ('path = "t/{topic}"\ntopics.pattern = "("', "table (", "is no regular expression"),
        ('topic = "a"', "table a: path", "it must be given: The path or URI"),
        ('topic = "a"\npath = "hdfs://x/t"', "table a: path", "Allowed are a path"),
        ('topic = "a"\npath = "t"\nevery = 0', "table a: every", "above 0"),
        ('topic = "a"\npath = "t"\nmode = "DROP"', "table a: mode", "allowed are FAILFAST, PERMISSIVE, DROPMALFORMED"),
        (
            'topic = "a"\npath = "t"\nrecord.columns = ["_partition"]',
            "table a: record.columns",
            "allowed are _offset, _timestamp, _headers, _value",
        ),
        ('topic = "a"\npath = "t"\nintervall = 3', "table a: intervall", "unknown"),
        ('topic = "a"\npath = "t"\nhistry = true', "table a: histry", "did you mean history?"),
        ('topic = "a"\npath = "t"\n[[table]]\ntopic = "b"\npath = "t"', "table.path", "another [[table]] has this path"),
    ],
)
def test_what_is_wrong_with_a_table(tmp_path: Path, block: str, key: str, allowed: str) -> None:
    """The setting is named, and what is allowed."""
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(_file(tmp_path, f"[[table]]\n{block}"))
    found = {violation.key: violation.allowed for violation in caught.value.violations}
    assert key in found
    assert allowed in found[key]


def test_kafka_s_dotted_names_may_be_written_as_they_are(tmp_path: Path) -> None:
    """TOML nests them, in the file's head, in topics, in sources and under [spark]; quoted ones are the same."""
    found = load_settings(_file(tmp_path, _FULL))
    assert found.log_dir == "s3://bucket/logs"
    assert found.broker == {
        "log.retention.hours": 168,
        "log.retention.check.interval.ms": "1min",
        "log.cleaner.threads": 2,
        "log.cleaner.dedupe.buffer.size": "64MiB",
        "message.max.bytes": 2000,
    }
    assert {name: (topic.partitions, topic.config) for name, topic in found.topics.items()} == {
        "airports": (
            4,
            {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.2, "segment.bytes": "128MiB", "delete.retention.ms": "12h"},
        ),
        "orders.v1": (None, {"cleanup.policy": ["compact", "delete"]}),
        "plain": (None, {}),
    }
    assert found.spark == {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "8"}


def test_each_source_has_the_settings_of_its_format(tmp_path: Path) -> None:
    """Options for Spark's reader keep their names, dots and capitals, and are texts."""
    files, kafka, rate = load_settings(_file(tmp_path, _FULL)).sources
    assert isinstance(files, FileSource)
    assert (files.name, files.topic, files.format, files.key, files.drop) == ("airports-files", "airports", "json", ["icao"], ["op"])
    assert (files.trigger, files.on_invalid, files.max_files_per_trigger) == ("available-now", "fail", 10)
    assert (files.schema_ddl, files.timestamp) == ("icao string, op string, at bigint", "at")
    assert files.options == {"multiLine": "True", "encoding": "UTF-8"}
    assert isinstance(kafka, KafkaSource)
    assert (kafka.bootstrap_servers, kafka.subscribe, kafka.mirror, kafka.starting_offsets) == ("localhost:9092", "orders", False, "latest")
    assert (kafka.isolation_level, kafka.on_invalid) == ("read_committed", "dead-letter")
    assert kafka.options == {"kafka.security.protocol": "SSL", "minPartitions": "4"}
    assert isinstance(rate, RateSource)
    assert (rate.rows_per_second, rate.keys) == (5, 1_000)


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """A log.dir `data`, and nothing to do."""
    found = load_settings(_file(tmp_path, ""))
    assert (found.log_dir, found.broker, found.topics, found.sources, found.spark) == (str(tmp_path / "data"), {}, {}, [], {})


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LASTWORD_LOG_DIR; an empty one is none."""
    path = _file(tmp_path, _FULL)
    monkeypatch.setenv("LASTWORD_LOG_DIR", "elsewhere")
    assert load_settings(path).log_dir == "elsewhere"
    monkeypatch.setenv("LASTWORD_LOG_DIR", "")
    assert load_settings(path).log_dir == "s3://bucket/logs"


def test_the_example_of_the_documentation_loads(tmp_path: Path) -> None:
    """The one in the docstring of `lastword.service.settings`."""
    example = (settings.__doc__ or "").split("```toml\n")[1].split("```")[0]
    found = load_settings(_file(tmp_path, example))
    assert (found.log_dir, found.broker) == (str(tmp_path / "data"), {"log.retention.hours": 168})
    assert [(name, topic.partitions, topic.config) for name, topic in found.topics.items()] == [
        ("airports", 4, {"cleanup.policy": "compact"})
    ]
    assert [source.name for source in found.sources] == ["airports-files"]
    assert found.spark == {"spark.driver.memory": "2g"}


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    """In the head, in two topics and in three sources; misspelt keys get the nearest right one."""
    text = """
log.retention.hour = 1
log.cleaner.threads = 0

[topic.airports]
partitions = 0
cleanup.polcy = "compact"

[topic.prices]
segment.bytes = 5

[[source]]
name = "files"
topic = "airports"
format = "json"
key = []
paht = "incoming"

[[source]]
name = "mirror"
topic = "prices"
format = "kafak"

[[source]]
topic = "prices"
format = "rate"
rows.per.second = 0
"""
    allowed = _violations(_file(tmp_path, text))
    assert allowed["log.retention.hour"] == "unknown; did you mean log.retention.hours?"
    assert "at least 1" in allowed["log.cleaner.threads"]
    assert allowed["topic airports: cleanup.polcy"] == "unknown; did you mean cleanup.policy?"
    assert "at least 1024" in allowed["topic prices: segment.bytes"]
    assert "from 1 on" in allowed["topic airports: partitions"]
    wrong = {key.removeprefix("source "): text for key, text in allowed.items() if key.startswith("source ")}
    places = ("files: path", "files: key", "files: paht", "mirror: format", "prices: name", "prices: rows.per.second")
    assert set(wrong) == set(places)
    assert wrong["mirror: format"] == "allowed are json, csv, parquet, kafka, rate; did you mean kafka?"
    assert len(allowed) == 11


def test_a_message_does_not_show_the_options_of_a_source(tmp_path: Path) -> None:
    """There may be a password among them."""
    text = '[[source]]\nname = "a"\ntopic = "b"\nformat = "kafka"\noptions.kafka.sasl.jaas.config = "secret"\n'
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(_file(tmp_path, text))
    assert "source a: bootstrap.servers" in str(caught.value)
    assert "secret" not in str(caught.value)


_SOURCE = '[[source]]\nname = "a"\ntopic = "b"\nformat = "{}"\n'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (_SOURCE.format("kafka") + "kafka.sasl.jaas.config = \"required password='hunter2';\"", "write options.kafka.sasl.jaas.config"),
        (_SOURCE.format("kafka") + 'sasl.jaas.config = "hunter2"', "write options.kafka.sasl.jaas.config"),
        (_SOURCE.format("kafka") + 'ssl.keystore.key = "hunter2"', "write options.kafka.ssl.keystore.key"),
        (_SOURCE.format("json") + 'spark.hadoop.fs.s3a.secret.key = "hunter2"', "write it below [spark]"),
        (_SOURCE.format("kafka") + 'schema.registry.basic.auth.user.inf = "hunter2"', "did you mean schema.registry.basic.auth.user.info?"),
        (_SOURCE.format("json") + 'whatever = "hunter2"', "below options"),
        ('sasl.jaas.config = "hunter2"', "write options.kafka.sasl.jaas.config in its [[source]]"),
        ('kafka.ssl.key.password = "hunter2"', "write options.kafka.ssl.key.password in its [[source]]"),
        ('spark.hadoop.fs.s3a.secret.key = "hunter2"', "write spark.hadoop.fs.s3a.secret.key below [spark]"),
        ('fs.s3a.secret.key = "hunter2"', "write spark.hadoop.fs.s3a.secret.key below [spark]"),
        ('whatever = "hunter2"', "unknown"),
        ('[topic.b]\nwhatever = "hunter2"', "unknown"),
        ('[http]\ntoken = "hunter2"', "unknown"),
        ('[spark]\nspark.x = 1\n[[source]]\nformat = "kafka"\noptions.kafka.sasl.jaas.config = "hunter2"', "it must be given"),
    ],
)
def test_a_setting_in_the_wrong_place_is_named_with_its_place_and_without_its_value(tmp_path: Path, text: str, place: str) -> None:
    """It may be a password."""
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(_file(tmp_path, text))
    assert place in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.violations)


@pytest.mark.parametrize("option", ["failOnDataLoss", "failondataloss", "FAILONDATALOSS"])
def test_what_becomes_of_lost_offsets_is_said_in_one_place(tmp_path: Path, option: str) -> None:
    """on.data.loss, and not an option of Spark beside it."""
    found = _violations(_file(tmp_path, _SOURCE.format("kafka") + f'bootstrap.servers = "a:1"\nsubscribe = "x"\noptions.{option} = false'))
    assert "on.data.loss (fail or go-on) says this" in found["source a"]


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ('[source]\nname = "files"\n', "source", "write [[source]], once for each source"),
        ('source = ["files"]\n', "source", "write [[source]], once for each source"),
        ("[topic]\npartitions = 4\n", "topic", "write [topic.NAME] for each topic"),
        ('topic = "airports"\n', "topic", "write [topic.NAME] for each topic"),
        ('spark = "local"\n', "spark", "write [spark], and Spark's settings below it"),
    ],
)
def test_a_part_of_the_wrong_shape_is_a_violation(tmp_path: Path, text: str, key: str, allowed: str) -> None:
    """[source] for [[source]] is an easy mistake; what else is wrong is said too."""
    found = _violations(_file(tmp_path, "log.cleaner.threads = 0\n" + text))
    assert found[key] == allowed
    assert set(found) == {key, "log.cleaner.threads"}


def test_two_sources_of_one_name_for_one_topic_are_refused(tmp_path: Path) -> None:
    """They would share a checkpoint; for another topic the name is free."""
    source = '[[source]]\nname = "trial"\ntopic = "{}"\nformat = "rate"\n'
    assert len(load_settings(_file(tmp_path, source.format("a") + source.format("b"))).sources) == 2
    found = _violations(_file(tmp_path, source.format("a") + source.format("b") + source.format("a")))
    assert found == {"source.name": "another source of topic a has this name, and the position in a source belongs to the name"}


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Missing, a folder, no TOML, not even text."""
    with pytest.raises(UserError, match=r"cannot read .*none\.toml: No such file"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        load_settings(tmp_path)
    with pytest.raises(UserError, match=r"lastword\.toml is not TOML: .*line 2"):
        load_settings(_file(tmp_path, 'log.dir = "data"\nlog.cleaner.threads = = 1\n'))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"log.dir = '\xff'")
    with pytest.raises(UserError, match="is not TOML"):
        load_settings(binary)


_PATHS = """
log.dir = "{log_dir}"
[[source]]
name = "s"
topic = "t"
format = "json"
path = "{source}"
key = ["id"]
[[table]]
topic = "t"
path = "{table}"
schema = "id bigint"
"""


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("data", "{folder}/conf/data"),
        ("./data/", "{folder}/conf/data"),
        ("../data", "{folder}/data"),
        ("a b/{{x,y}}/*.json", "{folder}/conf/a b/{{x,y}}/*.json"),
        ("/data", "/data"),
        ("~/data", "~/data"),
        ("file:///data", "file:///data"),
        ("s3a://bucket/logs", "s3a://bucket/logs"),
        ("./s3:x", "{folder}/conf/s3:x"),
    ],
)
def test_relative_paths_go_by_the_folder_of_the_file(tmp_path: Path, given: str, read: str) -> None:
    """They do not depend on the working directory; absolute paths, `~` and URIs stay as they are."""
    (tmp_path / "conf").mkdir()
    given, read = given.replace("{{", "{").replace("}}", "}"), read.replace("{{", "{").replace("}}", "}").replace("{folder}", str(tmp_path))
    text = _PATHS
    for place in ("log_dir", "source", "table"):
        text = text.replace(f"{{{place}}}", given)

    settings = load_settings(_file(tmp_path / "conf", text))

    [source], [table] = settings.sources, settings.tables
    assert (settings.log_dir, source.path, table.path) == (read, read, read)  # type: ignore[union-attr]


def test_the_folder_of_the_working_directory_changes_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-c lastword.toml` is what it always was; `./s3:x` stays a folder, `-c conf/lastword.toml` names it from where one is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    text = _PATHS.format(log_dir="data", source="./s3:x", table="../tables/{topic}")
    for folder, read in (("", ("data", "./s3:x", "../tables/{topic}")), ("conf", ("conf/data", "conf/s3:x", "tables/{topic}"))):
        settings = load_settings(_file(Path(folder), text))
        assert (settings.log_dir, settings.sources[0].path, settings.tables[0].path) == read  # type: ignore[union-attr]


def test_a_log_dir_of_the_environment_goes_by_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every path that stands on a command line; a file without log.dir has `data` beside it."""
    assert load_settings(_file(tmp_path, "")).log_dir == str(tmp_path / "data")
    monkeypatch.setenv("LASTWORD_LOG_DIR", "elsewhere")
    assert load_settings(_file(tmp_path, 'log.dir = "data"')).log_dir == "elsewhere"


def test_the_annotated_configuration_of_the_project_loads() -> None:
    """conf/lastword.toml is what a user copies."""
    settings = load_settings(Path(__file__).parents[3] / "conf" / "lastword.toml")
    assert [source.name for source in settings.sources] == ["airports-files"]
    assert settings.topics["airports"].partitions == 4
    assert settings.http.listen == "127.0.0.1:9464"


def test_the_annotated_configuration_names_every_setting_with_its_default() -> None:
    """Every `# key = value` of the two files, read as if it stood there, is the default; and no setting is left out."""
    conf = Path(__file__).parents[3] / "conf"
    for name, keys in (("topics.toml", TOPIC_KEYS), ("lastword.toml", SERVICE_KEYS)):
        text = (conf / name).read_text().split("[[source]]")[0].rpartition("# [topic.NAME]")[2]
        shown = dict(re.findall(r"^# ([a-z.]+) = ([^#\n]+?)[ \t]*(?:#.*)?$", text, re.MULTILINE))
        assert set(keys) <= set(shown), set(keys) - set(shown)
        found = tomllib.loads("".join(f'"{key}" = {shown[key]}\n' for key in keys))
        if keys is TOPIC_KEYS:
            assert parse_topic_config(found) == parse_topic_config({})
        else:
            assert parse_service_config(found)[0] == parse_service_config({})[0]


def test_topics_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Beside the service's file; once each, and nothing but topics there."""
    (tmp_path / "topics.toml").write_text("[topic.pears]\npartitions = 3\n")
    assert load_settings(_file(tmp_path, "[topic.plums]\n")).topics.keys() == {"plums", "pears"}
    found = _violations(_file(tmp_path, "[topic.pears]\n"))
    assert found == {"topic.pears": "declare a topic once: here or in topics.toml"}
    (tmp_path / "topics.toml").write_text('log.dir = "x"\ntopic = 3\n')
    assert set(_violations(_file(tmp_path, "[topic.pears]\n"))) == {"topics.toml: log", "topic"}


def test_where_http_is_answered_is_checked_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOST:PORT, or nothing."""
    assert load_settings(_file(tmp_path, '[http]\nlisten = "[::1]:0"\n')).http.listen == "[::1]:0"
    for wrong in ("9464", "localhost", "a:70000", ":1"):
        assert "allowed is HOST:PORT" in _violations(_file(tmp_path, f'[http]\nlisten = "{wrong}"\n'))["http.listen"]
    monkeypatch.setenv("LASTWORD_HTTP_LISTEN", "")
    assert load_settings(_file(tmp_path, "")).http.listen == ""


def test_records_are_shown_only_if_the_file_says_so(tmp_path: Path) -> None:
    """`http.records` decides, at any address, because the page has no login."""
    assert load_settings(_file(tmp_path, '[http]\nlisten = "127.0.0.1:0"\n')).http.records is False
    assert load_settings(_file(tmp_path, "[http]\nrecords = true\n")).http.records is True
    assert "http.records" in _violations(_file(tmp_path, '[http]\nrecords = "perhaps"\n'))


_FILES = {"format": "json", "path": "in", "key": ["id"]}
_EVENTS = {"format": "json", "path": "in", "envelope": "debezium"}
_KAFKA = {"format": "kafka", "bootstrap.servers": "b:1", "subscribe": "s"}
_RATE = {"format": "rate"}


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (_FILES, {"decimal.handling.mode": "double"}, "decimal.handling.mode: only with an envelope"),
        (_FILES, {"time.precision.mode": "connect"}, "time.precision.mode: only with an envelope"),
        (_FILES, {"binary.handling.mode": "hex"}, "binary.handling.mode: only with an envelope"),
        (_FILES, {"unavailable.value.placeholder": "x"}, "unavailable.value.placeholder: only with an envelope"),
        (_FILES, {"on.unresolved": "null", "on.misfit": "null"}, "on.unresolved, on.misfit: only with an envelope"),
        (_FILES, {"add.fields.prefix": "x_"}, "add.fields.prefix: only with envelope = debezium-flat"),
        (_EVENTS, {"add.fields": ["op"]}, "add.fields: only with envelope = debezium-flat"),
        (_EVENTS, {"add.headers": ["op"], "add.headers.prefix": ""}, "add.headers, add.headers.prefix: only with envelope = debezium-flat"),
        (_KAFKA, {"delete.tombstone.handling.mode": "rewrite"}, "delete.tombstone.handling.mode: only with envelope = debezium-flat"),
        (_FILES, {"sequence.as": "number"}, "sequence.as = 'number': it says what a text of sequence is compared as; give sequence"),
        (_EVENTS, {"sequence.as": "time"}, "sequence.as = 'time': it says"),
        (_FILES, {"lines": "records"}, "lines = 'records': it says what a line of change events is"),
        (_FILES, {"key.format": "string"}, "key.format = 'string' is how the record's own key is read"),
        (_EVENTS, {"key.format": "string", "key": ["id"]}, "key.format = 'string' is how the record's own key is read"),
        (_EVENTS, {"key.format": "string", "lines": "values"}, "lines that are values have no key of their own"),
        (_KAFKA, {"key.format": "long"}, "key.format = 'long' is how the record's own key is read"),
        (_FILES, {"key": ["id", "id"]}, "'id': each name is allowed once, and not empty"),
        (_FILES, {"drop": [""]}, "'': each name is allowed once, and not empty"),
        (_EVENTS, {"sequence": ["source.lsn", "source.lsn"]}, "'source.lsn': each name is allowed once"),
        (_EVENTS, {"add.fields.prefix": "x_"}, "add.fields.prefix: only with envelope = debezium-flat"),
        (_EVENTS, {"format": "csv"}, "format = 'csv': with an envelope each line of a file is an event in JSON"),
        (_EVENTS, {"format": "parquet"}, "format = 'parquet': with an envelope"),
        (_EVENTS, {"options": {"encoding": "ISO-8859-1"}}, "options encoding: of change events allowed are pathGlobFilter"),
        (_EVENTS, {"options": {"multiLine": "true"}}, "options multiLine: of change events allowed are pathGlobFilter"),
        (_FILES, {"options": {"encoding": "UTF-8", "charset": "UTF-8"}}, "options encoding and charset are the same"),
        (_FILES, {"format": "csv", "options": {"sep": ";", "delimiter": ","}}, "options sep and delimiter are the same"),
        (_KAFKA, {"schema.registry.ssl.ca.location": "ca.pem"}, "schema.registry.ssl.ca.location without schema.registry.url"),
        (_KAFKA, {"schema.registry.basic.auth.user.info": "a:b"}, "basic.auth.user.info without schema.registry.url does nothing"),
        (_KAFKA, {"partitions": 3, "topic": "t"}, "partitions = 3: topic t has its partitions"),
        (_KAFKA, {"mirror": True, "envelope": "debezium"}, "mirror = true: not with an envelope or a schema"),
        (_KAFKA, {"mirror": True, "schema": "id int", "key": ["id"]}, "mirror = true: not with an envelope or a schema"),
        (_KAFKA, {"options": {"startingOffsets": "latest"}}, "options.startingOffsets: starting.offsets says this"),
        (_KAFKA, {"options": {"maxOffsetsPerTrigger": "5"}}, "options.maxOffsetsPerTrigger: max.offsets.per.trigger says this"),
        (_KAFKA, {"options": {"failOnDataLoss": "false"}}, "options.failOnDataLoss: on.data.loss (fail or go-on) says this"),
        (_KAFKA, {"options": {"kafka.bootstrap.servers": "c:1"}}, "options.kafka.bootstrap.servers: bootstrap.servers says this"),
        (_KAFKA, {"options": {"minPartitons": "5"}}, "options minPartitons: of a source of kafka allowed are fetchOffset.numRetries"),
        (_RATE, {"options": {"rowsPerSecond": "5"}}, "options.rowsPerSecond: rows.per.second says this"),
        (_RATE, {"options": {"kafka.x": "5"}}, "options kafka.x: of a source of rate allowed are numPartitions, rampUpTime"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_of_a_source_that_would_do_nothing_is_refused(source: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    """It is for sources of another kind, or another setting says it."""
    values = {"sources": [{"name": "files", "topic": "fruit", **source, **settings}]}
    with pytest.raises(InvalidConfiguration) as refused:
        checked_settings(values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "source",
    [
        _FILES | {"sequence": ["at"], "sequence.as": "time"},
        _FILES | {"decimal.handling.mode": "precise", "on.misfit": "dead-letter"},
        _EVENTS | {"on.misfit": "null", "time.precision.mode": "connect", "options": {"pathGlobFilter": "*.json"}},
        _EVENTS | {"envelope": "debezium-flat", "add.fields.prefix": "x_", "add.fields": ["op", "source.lsn:place"]},
        _EVENTS
        | {"envelope": "debezium-flat", "add.headers.prefix": "x_", "add.headers": ["op"], "delete.tombstone.handling.mode": "drop"},
        _EVENTS | {"lines": "records", "key.format": "string"},
        _KAFKA | {"mirror": False, "schema": "id int", "key.format": "long"},
        _KAFKA | {"mirror": True, "options": {"kafka.security.protocol": "SSL", "minpartitions": "4"}},
        _KAFKA | {"mirror": False, "schema": "id int", "key": ["id"]},
        _RATE | {"options": {"numPartitions": "2"}},
    ],
)
def test_settings_of_a_source_that_are_used_are_taken(source: dict[str, Any]) -> None:
    """A setting whose value is its default is accepted, too."""
    assert len(checked_settings({"sources": [{"name": "files", "topic": "fruit", **source}]}).sources) == 1


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        (_FILES, _FILES, True),
        (_FILES, _FILES | {"path": "./in/"}, True),
        (_FILES, _FILES | {"format": "csv"}, True),
        (_FILES, _FILES | {"path": "in/*.json"}, False),
        (_FILES, _FILES | {"options": {"pathGlobFilter": "*.json"}}, False),
        (_FILES, _FILES | {"topic": "other"}, False),
        (_KAFKA, _KAFKA | {"mirror": False}, True),
        (_KAFKA, _KAFKA | {"subscribe": "t"}, False),
        (_KAFKA, _KAFKA | {"bootstrap.servers": "c:1"}, False),
        (_RATE, _RATE, False),
    ],
)
def test_sources_that_read_the_same_into_one_topic_are_refused(first: dict[str, Any], second: dict[str, Any], *, is_refused: bool) -> None:
    """Each row would be appended twice; the message names both."""
    values = {"sources": [{"name": "one", "topic": "fruit", **first}, {"name": "two", "topic": "fruit", **second}]}
    if not is_refused:
        assert len(checked_settings(values).sources) == 2
        return
    with pytest.raises(InvalidConfiguration, match=r"source.name = two: source one of topic fruit reads the same"):
        checked_settings(values)
