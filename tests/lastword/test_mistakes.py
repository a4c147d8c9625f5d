"""Mistakes that people make in `lastword.toml`, on the command line and in Python, each with the line that it gets.

A line names the setting, its value, and what is allowed or was meant. Nothing is written, and no mistake ends in a traceback.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
import polars as pl
import pytest

from lastword import Envelope, LastwordError, LogDir, copy_topic, latest_sql
from lastword.service.settings import load_settings
from tests.lastword.failing_commands import message_of

if TYPE_CHECKING:
    from pathlib import Path

_SOURCE: Final = {"name": '"orders"', "topic": '"orders"', "format": '"json"', "path": '"incoming"', "key": '["id"]'}
_KAFKA: Final = {"name": '"shop"', "topic": '"shop"', "format": '"kafka"', "bootstrap.servers": '"b:9092"', "subscribe": '"shop"'}
_TABLE: Final = {"topic": '"orders"', "path": '"tables/orders"'}


def _block(head: str, settings: dict[str, str], **changed: str | None) -> str:
    """Return a block of the file, in which some settings are others, or are missing (None)."""
    wanted = settings | {name.replace("_", "."): value for name, value in changed.items()}
    return "\n".join([head, *(f"{name} = {value}" for name, value in wanted.items() if value is not None)])


def _source(**changed: str | None) -> str:
    return _block("[[source]]", _SOURCE, **changed)


def _table(**changed: str | None) -> str:
    return _block("[[table]]", _TABLE, **changed)


_INTERVAL: Final = "allowed are available-now, and an interval as 10s, 5 seconds or 1 minute 30 seconds; empty: at once, for ever"
_IN_TOML: Final = [
    ('logdir = "x"', "logdir = 'x': unknown; did you mean log.dir?"),
    ("log.dir = 5", "log.dir = 5: allowed is a path or URI, in quotes"),
    ('log.dir = "data', "is not TOML: Unterminated string"),
    ('log.segmnt.bytes = "1GiB"', "log.segmnt.bytes = 1GiB: unknown; did you mean log.segment.bytes?"),
    ('log.cleaner.threads = "two"', "log.cleaner.threads = two: a whole number; at least 1"),
    ("[topics.orders]\npartitions = 1", "topics.orders.partitions = ***: unknown; did you mean [topic.NAME] for each topic?"),
    ('[topic."a/b"]\npartitions = 1', "[topic.a/b] = 'a/b': topic name 'a/b': 1 to 249 of the characters"),
    ("[topic.orders]\npartitions = 0", "topic orders: partitions = 0: allowed is a number from 1 on"),
    ('[topic.orders]\ncleanup.policy = "compacted"', "topic orders: cleanup.policy = compacted: any of compact, delete"),
    (_block("[[sources]]", _SOURCE), "sources = ***: unknown; did you mean [[source]], once for each source?"),
    (_block("[source]", _SOURCE), "source = {…}: write [[source]], once for each source"),
    (_source(format='"jsonl"'), "source orders: format = 'jsonl': allowed are json, csv, parquet, kafka, rate; did you mean json?"),
    (_source(format=None), "source orders: format = nothing: allowed are json, csv, parquet, kafka, rate"),
    (_source(key='"id"'), "source orders: key = 'id': allowed is a list, as [\"id\"]"),
    (_source(key="[5]"), "source orders: key = 5: allowed is a text, in quotes"),
    (_source(key=None), "source orders: key = []: name the key's columns, or give an envelope"),
    (_source(name=None), "source orders: name = nothing: it must be given: The query's name"),
    (_source(path=None), "source orders: path = nothing: it must be given: A directory, a file, or a glob"),
    (_source(topic='"a b"'), "source orders: topic = 'a b': topic name 'a b': 1 to 249 of the characters"),
    (_source(trigger='"now"'), f"source orders: trigger = 'now': {_INTERVAL}"),
    (_source(trigger='"10 parsecs"'), f"source orders: trigger = '10 parsecs': {_INTERVAL}"),
    (_source(triger='"10s"'), "source orders: triger = '10s': unknown; did you mean trigger?"),
    (_source(envelope='"debezum"'), "envelope = 'debezum': allowed are debezium, debezium-flat, or an empty text; did you mean debezium?"),
    (_source(tombstone='["a"]'), "source orders: tombstone = ['a']: allowed is a text, in quotes"),
    (_source(max_files_per_trigger="-1"), "source orders: max.files.per.trigger = -1: allowed is a number from 0 on"),
    (_block("[[source]]", _KAFKA, bootstrap_servers=None), "source shop: bootstrap.servers = nothing: it must be given: host:port"),
    (_block("[[source]]", _KAFKA, mirror='"perhaps"'), "source shop: mirror = 'perhaps': allowed are true and false"),
    (_table(path=None), "table orders: path = nothing: it must be given: The path or URI of the Delta table"),
    (_table(mode='"upsert"'), "table orders: mode = 'upsert': allowed are FAILFAST, PERMISSIVE, DROPMALFORMED"),
    (_table(every='"often"'), "table orders: every = 'often': allowed are a number of seconds, and an interval as 10s"),
    (_table(every="0"), "table orders: every = 0: allowed is a number above 0"),
    (_table(schema='"n strng"'), "table orders: schema = 'n strng': DDL, at strng: a type expected: binary, date"),
    (_table(histry="true"), "table orders: histry = True: unknown; did you mean history?"),
    ('[http]\nlisten = "99999"', "http.listen = '99999': allowed is HOST:PORT with a port of 0 (any) to 65535"),
    ("[http]\nport = 9464", "http.port = ***: unknown; known are listen, records"),
    ('[spark]\nexecutor.memory = "5g"', "spark: executor.memory = ***: names begin with spark.: write spark.executor.memory below [spark]"),
]


@pytest.mark.parametrize(("text", "line"), _IN_TOML)
def test_a_mistake_in_the_configuration_file(tmp_path: Path, text: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is named as the file has it, by its name or topic; values that may be passwords are not shown."""
    monkeypatch.delenv("LASTWORD_LOG_DIR", raising=False)
    path = tmp_path / "lastword.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LastwordError) as caught:
        load_settings(path)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


def test_intervals_are_written_in_any_way() -> None:
    """`every` of a table is read in seconds; a trigger reaches Spark in milliseconds."""
    from lastword.service.table_settings import TableSettings  # noqa: PLC0415  beside what it is compared with
    from lastword.streaming.append.source_settings import trigger_of  # noqa: PLC0415

    for text, interval in {"10s": 10_000, "5 seconds": 5_000, "1 minute 30 seconds": 90_000, "interval 2 hours": 7_200_000}.items():
        assert trigger_of(text) == {"processingTime": f"{interval} milliseconds"}
        assert TableSettings.model_validate({"topic": "t", "path": "p", "every": text}).every == interval / 1000
    assert (trigger_of(""), trigger_of("available-now")) == ({}, {"availableNow": True})
    assert TableSettings(topic="t", path="p", every=0.5).every == 0.5


_WHOLE: Final = "allowed is a whole number"
_DDL: Final = "DDL, at strng: a type expected: binary, date"
#: Command line, exit code, and what standard error has.
_ON_THE_COMMAND_LINE: Final = [
    ("topics creat x", 2, "No such command 'creat'. Did you mean 'create'?"),
    ("topics create fruit-prices", 1, "error: topic fruit-prices exists already in "),
    ("topics create a/b", 1, "error: topic name 'a/b': 1 to 249 of the characters"),
    ("topics create x --partitions two", 2, f"Invalid value for '--partitions': 'two': {_WHOLE}"),
    ("topics create x --partitions 0", 1, f"error: partitions = 0: {_WHOLE} from 1 to 10000"),
    ("topics create x --config cleanup.policy", 2, "error: --config = cleanup.policy: write KEY=VALUE"),
    ("topics create x --config cleanup.policy=compacted", 1, "cleanup.policy = compacted: any of compact, delete"),
    ("topics create x --config cleanup.polcy=compact", 1, "cleanup.polcy = compact: unknown; did you mean cleanup.policy?"),
    ("topics create x --config retention.ms=soon", 1, "retention.ms = soon: whole milliseconds, or with a unit"),
    ("topics describe fruit-price", 1, "error: topic fruit-price does not exist in"),
    ("topics describe", 2, "Missing argument 'name'."),
    ("topics alter fruit-prices --config segment.bytes=1", 1, "segment.bytes = 1: whole bytes, or with a unit"),
    ("latest fruit-prices --limit many", 2, f"Invalid value for '--limit': 'many': {_WHOLE}"),
    ("latest fruit-prices --jsn", 2, "No such option: --jsn"),
    ("latest fruit-prices --log-dir notes.txt", 1, "notes.txt is a file: allowed is a directory"),
    ("latest fruit-prices --log-dir elsewhere", 1, "elsewhere does not exist: name the directory of the topics by --log-dir"),
    ("records fruit-prices --partition 7", 1, "error: topic fruit-prices has no partition 7"),
    ("changes fruit-prices --from sometime", 1, "begin = 'sometime': allowed is earliest, latest, a time (ISO 8601"),
    ("""changes fruit-prices --from '{"0":9}'""", 1, "begin = {'0': 9}: no offset for partition 1"),
    ("get fruit-prices zzz", 1, "error: topic fruit-prices has no record of the key 'zzz'"),
    ("sql 'select * from nothing'", 1, "error: sql: topic nothing does not exist (existing: fruit-prices)"),
    ("sql 'delete from fruit'", 1, "error: sql: delete: allowed are queries, which begin with SELECT, WITH or EXPLAIN"),
    ("materialize fruit-prices", 2, "Missing argument 'TABLE'."),
    ("materialize fruit-prices t --schema 'n strng' --once", 1, f"error: topic fruit-prices: schema = 'n strng': {_DDL}"),
    ("materialize fruit-prices t --mode upsert --once", 1, "error: mode = 'upsert': allowed is FAILFAST, PERMISSIVE or DROPMALFORMED"),
    ("purge fruit-prices", 2, "error: --key = nothing: specify the key with either --key (text) or --key-base64 (bytes)"),
    ("transactions abort fruit-prices nothing", 2, f"Invalid value for 'producer_id': 'nothing': {_WHOLE}"),
    ("run -c none.toml", 1, "error: cannot read none.toml: No such file or directory"),
    ("run -c notes.txt", 1, "error: notes.txt is not TOML: Expected '=' after a key"),
    ("--storage-option hunter2 latest fruit-prices", 2, "error: --storage-option = ***: write KEY=VALUE"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log.dir `data`, which has the topic fruit-prices, and a file of something else."""
    made = tmp_path_factory.mktemp("mistakes")
    topic = LogDir(made / "data").create_topic("fruit-prices", partitions=2, config={"cleanup.policy": "compact"})
    topic.append([{"key": "lime", "value": '{"n":1}'}, {"key": "fig", "value": '{"n":2}'}])
    (made / "notes.txt").write_text("hello", encoding="utf-8")
    return made


@pytest.fixture
def _at_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in the folder, with a wide terminal."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("LASTWORD_LOG_DIR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("_at_the_folder")
@pytest.mark.parametrize(("command", "code", "line"), _ON_THE_COMMAND_LINE)
def test_a_mistake_on_the_command_line(
    command: str, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option, the value and what is allowed; exit code 2 for what cannot be carried out as it is written."""
    assert line in message_of(shlex.split(command), capsys, monkeypatch, code=code)


_TAKEN: Final = "allowed are an Arrow table, record batch or stream, a Polars, pandas or Spark DataFrame, or a list of dicts"
_KEYS: Final = "allowed is a text (its UTF-8 is the key), bytes, or a list of those"
_IN_PYTHON: Final = [
    ('logs.create_topic("x", partitions="2")', "partitions = '2': allowed is a whole number from 1 to 10000"),
    ('logs.create_topic("x", partitions=True)', "partitions = True: allowed is a whole number from 1 to 10000"),
    ('logs.create_topic("x", config=["cleanup.policy=compact"])', 'a mapping of settings, as {"cleanup.policy": "compact"}'),
    ('logs.create_topic("x", config="compact")', 'config = compact: a mapping of settings, as {"cleanup.policy": "compact"}'),
    ('logs.create_topic("x", config={"cleanup.policy": None})', "cleanup.policy = None: any of compact, delete"),
    ('logs.create_topic("x", config={5: 1})', "5 = ***: unknown; known are cleanup.policy"),
    ("logs.create_topic(5)", "topic name 5: 1 to 249 of the characters"),
    ('logs.topic("nope")', "topic nope does not exist in "),
    ("LogDir(5)", 'LogDir takes a location, LogDir("data"), or a Spark session and a location'),
    ('LogDir("s4://x")', "location 's4://x': there is no way to commit to s4:"),
    ("topic.append(pd.DataFrame())", "column key is missing: binary or string (UTF-8)"),
    ('topic.append({"key": "a", "value": "b"})', f"topic fruit-prices cannot take dict: {_TAKEN}"),
    ('topic.append([("a", "b")])', f"topic fruit-prices cannot take list: rows of it are of the type tuple; {_TAKEN}"),
    ('topic.append(pl.DataFrame({"k": ["a"], "value": ["b"]}))', "column k is unknown: allowed are key, value, headers"),
    ('topic.append([{"key": 1, "value": "b"}])', "column key is int64: allowed is binary or string (UTF-8)"),
    ('topic.append([{"key": None, "value": "b"}])', "1 × keyless: key is null, and fruit-prices is compacted: each record needs a key"),
    ('topic.append([{"key": "a", "value": "b", "timestamp": "yesterday"}])', "column timestamp is string: allowed is timestamp"),
    ('topic.append([{"key": "a", "value": "b"}], on_invalid="ignore")', "on.invalid = ignore: dead-letter or fail"),
    ('topic.append([{"key": "a", "value": "b"}], idempotency_key=5)', "topic fruit-prices: idempotency_key = 5: allowed is a text"),
    ('topic.append([{"key": "a", "value": "b"}], envelope="debezium")', "envelope = 'debezium': allowed is an Envelope"),
    ('Envelope(kind="debezum")', "kind = debezum: one of debezium, debezium-flat"),
    ("topic.latest(keys=5)", f"keys = 5: {_KEYS}"),
    ('topic.latest(columns=["nope"])', "unknown column 'nope': allowed are partition, offset"),
    ('topic.latest(isolation="x")', "isolation 'x': allowed is read_committed or read_uncommitted"),
    ('topic.records(from_offsets={0: "a"})', "from_offsets = {0: 'a'}: 0: 'a' is no partition with its offset"),
    ('topic.changes("earliest", "sometime")', "end = 'sometime': allowed is earliest, latest, a time (ISO 8601"),
    ("topic.get(None)", f"key = None: {_KEYS}"),
    ('topic.table(schema="n strng")', f"schema = 'n strng': {_DDL}"),
    ("topic.table()", "no source of the topic says which columns its rows have; give them as SQL DDL"),
    ('topic.materialize("table", schema="n int", mode="x")', "mode = 'x': allowed is FAILFAST, PERMISSIVE or DROPMALFORMED"),
    ('topic.materialize("table", schema="n int", partition_by="zz")', "partition_by = zz: allowed are different columns of text"),
    ('topic.alter_config({"segment.bytes": 1})', "segment.bytes = 1: whole bytes, or with a unit"),
    ("topic.transaction(5)", "transactional_id = 5: allowed is a text"),
    ("topic.delete_records({0: 99})", "cleanup.policy = compact does not allow to delete records by offset"),
    ('topic.retire_source("nope")', "topic fruit-prices has no source 'nope'; its sources are: none"),
    ("logs.sql(5)", "sql: query = 5: allowed is a text"),
    ('copy_topic(logs, "nope", "u", partitions=1)', "topic nope does not exist in "),
    ("latest_sql(5)", "source = 5: allowed is a text"),
]


@pytest.mark.parametrize(("call", "line"), _IN_PYTHON)
def test_a_mistake_in_python(folder: Path, call: str, line: str) -> None:
    """An error of lastword's own, before anything is written."""
    logs = LogDir(folder / "data")
    topic = logs.topic("fruit-prices")
    names: dict[str, Any] = {"logs": logs, "topic": topic, "pl": pl, "pd": pd, "LogDir": LogDir, "Envelope": Envelope}
    before = topic.offsets(), logs.topics()
    with pytest.raises(LastwordError) as caught:
        eval(call, names | {"copy_topic": copy_topic, "latest_sql": latest_sql})  # noqa: S307  the calls of this file
    assert line in str(caught.value)
    assert (topic.offsets(), logs.topics()) == before
