"""The three Delta tables of a topic, and what is stored beside them: an example of each versioned format, and what another version gets."""

from __future__ import annotations

import ast
import json
import struct
import zlib
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lastword import LogDir, Position, RegistryConfig, RegistryDecoder, UnknownFormat
from lastword.compaction.readers import EXPIRATION_MS, Reader
from lastword.status.samples import HistoryFile, Sample, SampleHistory
from lastword.storage.files.file_listing import FileListing
from lastword.storage.files.source_files import FoundFile
from lastword.streaming.reading.tail import TailRange
from tests.clocks import at
from tests.golden import files, frozen_clock
from tests.pictures import T0, rows
from tests.stability.lives import EAGER
from tests.test_tidy import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastword import ArrowTopic
    from tests.golden import Golden

#: Each versioned format: its golden file, the module that counts its versions, and the version that is written.
FORMATS: Final = {
    "commit_metadata": ("history", 1),
    "position": ("read_positions", 1),
    "reader_position": ("reader_positions", 1),
    "producer_states": ("producer_cache", 2),
    "file_listing": ("file_listing", 1),
    "registry_schema": ("store", 1),
    "typed_table": ("table_properties", 1),
    "status_history": ("samples", 1),
}
#: What is stored without a version: Delta's own formats, and texts that only grow.
_WITHOUT_VERSION: Final = {"log_commit", "ledger_commit", "data_file", "ledger_file", "settings", "stream_offset"}
_AVRO: Final = {"type": "record", "name": "fruit", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[ArrowTopic]:
    """Return a topic with a transaction, a deletion and a cleaning, whose clock stands at T0."""
    with frozen_clock(T0):
        made = LogDir(tmp_path).create_topic("fruit", config=EAGER)
        made.append(rows("lime=1 kiwi=1 lime=2 kiwi=∅", timestamp_ms=T0))
        with made.transaction("loader", timeout_ms=60_000) as transaction:
            transaction.append(rows("fig=1", timestamp_ms=T0))
        made.roll()
        made.clean()
        yield made


@pytest.mark.parametrize("table", ["log", "ledger", "dead_letters"])
def test_the_columns_and_properties_of_a_table(topic: ArrowTopic, golden: Golden, table: str) -> None:
    """Any Delta reader sees them; those of the log are fixed when a topic is created, so that topics of before do not have new ones."""
    actions = _actions(Path(topic.log.paths.root) / table, 0)
    metadata = next(action["metaData"] for action in actions if "metaData" in action)
    golden.check(
        f"tables/{table}.json",
        {
            "columns": {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]},
            "nullable": all(field["nullable"] for field in json.loads(metadata["schemaString"])["fields"]),
            "partition columns": metadata["partitionColumns"],
            "properties": dict(sorted(metadata["configuration"].items())),
            "protocol": next(action["protocol"] for action in actions if "protocol" in action),
        },
    )


def test_the_commits_of_a_log_and_what_they_carry(topic: ArrowTopic, golden: Golden) -> None:
    """Statistics of files, receipts of a cleaning, transaction identifiers: all in one commit."""
    log = Path(topic.log.paths.log)
    commits = {name: [_readable(action) for action in _actions(log, number)] for name, number in (("append", 1), ("clean", 4))}
    golden.check("formats/log_commit.json", commits)
    metadata = [json.loads(_info(log, number)["userMetadata"]) for number in range(1, 5)]
    golden.check("formats/commit_metadata.json", metadata)
    golden.check("formats/ledger_commit.json", [_readable(action) for action in _actions(Path(topic.log.paths.ledger), 1)])


def test_the_files_of_the_tables(topic: ArrowTopic, golden: Golden) -> None:
    """Columns with their types, the codec, and what the footer says of its writer."""
    golden.check("formats/data_file.json", _described(_newest_file(Path(topic.log.paths.log))))
    golden.check("formats/ledger_file.json", _described(_newest_file(Path(topic.log.paths.ledger))))


def test_a_position_and_what_is_stored_of_it(golden: Golden) -> None:
    """Users keep positions; Spark keeps them in the checkpoint of a tail, with where the micro-batch began."""
    position = Position(offsets=(7, 0), table_version=4, since_version=2, topic_id="0" * 32)
    golden.check("formats/position.json", json.loads(position.to_json()))
    golden.check("formats/stream_offset.json", json.loads(TailRange(begin=(3, 0), end=position).to_json()))


def test_the_producer_states_of_a_topic(topic: ArrowTopic, golden: Golden) -> None:
    """A cache of what the rows of the log say."""
    topic.open_transactions()
    golden.check("formats/producer_states.json", json.loads(_producers(topic).read_text()))


def test_where_a_registered_reader_is(topic: ArrowTopic, golden: Golden) -> None:
    """It counts as long as its registration is the newest row of the reader in the ledger."""
    _register(topic, 5)
    golden.check("formats/reader_position.json", json.loads(_reader_file(topic).read_text()))


def test_the_files_that_a_query_has_taken(tmp_path: Path, golden: Golden) -> None:
    """An entry for each micro-batch; now and then one has all of those before it."""
    FileListing(str(tmp_path), {}).add([FoundFile("/in/1.json", 120, T0 * 1_000_000), FoundFile("/in/2.json", 80, T0 * 1_000_000)])
    golden.check("formats/file_listing.json", json.loads((tmp_path / "files" / "0000000001.json").read_text()))


def test_a_schema_of_a_registry(tmp_path: Path, golden: Golden, registry: str) -> None:
    """Kept under its id, so that the registry may be away later."""
    _decoder(registry, tmp_path)
    kept = json.loads((tmp_path / "schemas" / "1.json").read_text().replace(registry, "<registry>"))
    golden.check("formats/registry_schema.json", kept)


def test_what_a_typed_table_says_of_itself(tmp_path: Path, golden: Golden) -> None:
    """A property names its topic, transaction versions hold its position: both outlive old commits."""
    with frozen_clock(T0):
        topic = LogDir(tmp_path / "data").create_topic("fruit", config=EAGER)
        for prices in ("lime=1 kiwi=1", "lime=2 kiwi=∅"):
            topic.append(rows(prices, timestamp_ms=T0))
            topic.materialize(str(tmp_path / "table"), schema="price int", mode="PERMISSIVE", record_columns=["_offset"])
    topic_id = topic.log.decisions().topic_id
    text = json.dumps([[_readable(action) for action in _actions(tmp_path / "table", version)] for version in (0, 1)])
    golden.check("formats/typed_table.json", json.loads(text.replace(topic_id, "<topic id>")))


def test_the_samples_of_the_status_page(tmp_path: Path, golden: Golden) -> None:
    """A cache of what was seen: rows of numbers under the names of topics, those of all topics together under no name."""
    history = SampleHistory()
    for name in ("", "fruit"):
        history.add(name, Sample(time_ms=T0, size_bytes=120, record_count=3, cleanable_bytes=40, end_offsets=7, dirty_percent=33))
    HistoryFile(str(tmp_path), {}, host="alpha", port=9464).save(history, T0, at_once=True)
    golden.check("formats/status_history.json", json.loads((tmp_path / ".history" / "alpha.9464.json").read_text()))


def test_the_settings_of_the_service_stay_with_the_log_dir(tmp_path: Path, golden: Golden) -> None:
    """They are kept as they were in the file; a process that opens the log.dir without settings uses them."""
    LogDir(tmp_path, settings={"log.retention.hours": "24", "log.cleaner.threads": 2}).keep_settings()
    golden.check("formats/settings.json", json.loads((tmp_path / ".settings.json").read_text()))


# --- versions ---------------------------------------------------------------------------------------------------------------------------


def test_every_versioned_format_has_a_golden() -> None:
    """A module that counts versions has a constant `_FORMAT`."""
    found = {}
    for module in MODULES:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "_FORMAT":
                assert isinstance(node.value, ast.Constant)
                found[module.stem] = node.value.value

    assert found == dict(FORMATS.values())
    assert files("formats") == {*FORMATS, *_WITHOUT_VERSION}


def test_a_position_of_another_version_is_refused() -> None:
    """Offsets that are misread would skip records."""
    with pytest.raises(UnknownFormat, match="a position has format 2"):
        Position.from_json('{"format":2,"offsets":{"0":7}}')


def test_a_commit_of_another_version_is_refused(tmp_path: Path) -> None:
    """By whatever reads or writes the log: the commit may be a RESTORE, or make records void."""
    made = LogDir(tmp_path).create_topic("fruit", config={"cleanup.policy": "compact"})
    made.append(rows("plum=1", timestamp_ms=T0))
    commit = Path(made.log.paths.log, "_delta_log", f"{1:020}.json")
    commit.write_text(commit.read_text().replace('{\\"lastword\\":1', '{\\"lastword\\":2'))
    topic = LogDir(tmp_path).topic("fruit")
    append = partial(topic.append, rows("plum=2", timestamp_ms=T0))
    for refused in (topic.clean, topic.explain, topic.describe, topic.roll, topic.verify, topic.latest, topic.records, append):
        with pytest.raises(UnknownFormat, match="a commit has metadata of format 2"):
            refused()


def test_producer_states_of_another_version_are_read_from_the_log(topic: ArrowTopic) -> None:
    """As if the file were not there."""
    with topic.transaction("other") as transaction:
        transaction.append(rows("fig=2", timestamp_ms=T0))
        _with_format(_producers(topic), 3)
        [found] = LogDir(Path(topic.log.paths.root).parent).topic("fruit").open_transactions()
        assert found.transactional_id == "other"


def test_a_reader_position_of_another_version_does_not_count(topic: ArrowTopic) -> None:
    """The registration counts then: more is kept for the reader than it needs."""
    _register(topic, 1)
    _register(topic, 5)
    assert [reader.offsets for reader in topic.readers()] == [(5,)]
    _with_format(_reader_file(topic), 2)
    assert [reader.offsets for reader in topic.readers()] == [(1,)]


def test_a_list_of_files_of_another_version_is_refused(tmp_path: Path) -> None:
    """Files would be read twice."""
    FileListing(str(tmp_path), {}).add([FoundFile("/in/1.json", 120, 1)])
    _with_format(tmp_path / "files" / "0000000001.json", 2)
    with pytest.raises(UnknownFormat, match="has format 2, and this version of lastword reads 1"):
        FileListing(str(tmp_path), {})


def test_a_schema_of_another_version_is_fetched_again(tmp_path: Path, registry: str) -> None:
    """And the file is replaced."""
    _decoder(registry, tmp_path)
    path = tmp_path / "schemas" / "1.json"
    whole = path.read_text()
    _with_format(path, 2)
    _decoder(registry, tmp_path, unknown_s=1.0)
    assert path.read_text() == whole


def _actions(table: Path, version: int) -> list[dict[str, Any]]:
    text = (table / "_delta_log" / f"{version:020}.json").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _info(table: Path, version: int) -> dict[str, Any]:
    return next(action["commitInfo"] for action in _actions(table, version) if "commitInfo" in action)


def _readable(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action whose members that are JSON texts are parsed; receipts have a golden of their own."""
    [(kind, body)] = action.items()
    if "stats" in body:
        body["stats"] = json.loads(body["stats"])
    if "userMetadata" in body:
        body["userMetadata"] = json.loads(body["userMetadata"])
        body["userMetadata"].pop("receipts", None)
    ordered: dict[str, Any] = json.loads(json.dumps({kind: body}, sort_keys=True))  # Delta gives no order
    return ordered


def _newest_file(table: Path) -> Path:
    opened = DeltaTable(table)
    newest: str = max(opened.get_add_actions(flatten=True).column("path").to_pylist())
    return table / newest


def _described(path: Path) -> dict[str, Any]:
    file = pq.ParquetFile(path)
    metadata = {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
    columns = {field.name: str(field.type) for field in file.schema_arrow}
    return {"columns": columns, "codec": file.metadata.row_group(0).column(0).compression, "metadata": metadata}


def _producers(topic: ArrowTopic) -> Path:
    return Path(topic.log.paths.root, "producers", "state.json")


def _register(topic: ArrowTopic, offset: int) -> None:
    position = Position(offsets=(offset,), table_version=3, since_version=1)
    reader = Reader(name="orders-cache", position=position, seen_ms=T0, expiration_ms=EXPIRATION_MS)
    at(T0, topic).log.reader_positions.write(reader, topic.log.ledger)


def _reader_file(topic: ArrowTopic) -> Path:
    return Path(topic.log.paths.root, "readers", "orders-cache.json")


def _with_format(path: Path, version: int) -> None:
    """Write a file as another version would."""
    body = {**json.loads(path.read_text())["body"], "format": version}
    path.write_text(json.dumps({"crc32": zlib.crc32(json.dumps(body, sort_keys=True).encode()), "body": body}))


class _Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with the one schema."""
        body = json.dumps({"schema": json.dumps(_AVRO)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """Return the URL of a schema registry with one schema."""
    server = HTTPServer(("127.0.0.1", 0), _Registry)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def _decoder(registry: str, folder: Path, **settings: Any) -> None:
    """Decode a value by a decoder that has nothing in memory."""
    decoder = RegistryDecoder(RegistryConfig(urls=(registry,), **settings), str(folder))
    assert decoder.decode(b"\0" + struct.pack(">I", 1) + b"\x0e") == b'{"id":7}'
