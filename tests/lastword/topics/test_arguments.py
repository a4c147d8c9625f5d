"""Arguments that name keys, partitions and columns: one or several; what names none is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lastword import ArrowTopic, Envelope, LogDir, RegistryDecoder, UserError, latest_sql
from lastword.compaction.errors import InvalidConfiguration
from lastword.storage.schema_registry.client import RegistryConfig
from lastword.streaming.reading.tail import TailOptions
from lastword.topics.arguments import read_columns, read_key, read_keys, read_offsets_by_partition, read_partitions
from lastword.topics.positions import starting_position
from tests.pictures import rows


@pytest.fixture
def topic(tmp_path: Path) -> ArrowTopic:
    """Return a topic with three keys in two partitions; one of them is bytes that are no text."""
    topic = LogDir(str(tmp_path / "data")).create_topic("fruit", partitions=2, config={"cleanup.policy": "compact,delete"})
    topic.append(rows("lime=1 grape=2", partition=0))
    topic.append([{"key": b"\xff", "value": b"3", "partition": 1}])
    return topic


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (None, None),
        ("lime", [b"lime"]),
        ("größe", ["größe".encode()]),
        ("", [b""]),
        (b"lime", [b"lime"]),
        (bytearray(b"\xff"), [b"\xff"]),
        (memoryview(b"lime"), [b"lime"]),
        ([], []),
        (["lime", b"\xff"], [b"lime", b"\xff"]),
        (("lime",), [b"lime"]),
        ({"lime"}, [b"lime"]),
        ((key for key in ["lime", "fig"]), [b"lime", b"fig"]),
        (np.array(["lime"]), [b"lime"]),
        (pl.Series(["lime"]), [b"lime"]),
        (pd.Series(["lime"]), [b"lime"]),
        (pa.array(["lime"]), [b"lime"]),
        (pa.chunked_array([[b"\xff"]]), [b"\xff"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_keys_are_a_text_bytes_or_a_list_of_those(keys: Any, wanted: list[bytes] | None) -> None:
    """A text is no list of characters, and bytes are no list of numbers."""
    assert read_keys(keys) == wanted


@pytest.mark.parametrize(
    "keys", [1, [1], {"id": 1}, [{"id": 1}], [None], [True], 1.5, [["lime"]], pa.array([1]), object()], ids=lambda keys: type(keys).__name__
)
def test_what_is_no_key_is_refused_by_name(topic: ArrowTopic, keys: Any) -> None:
    """By every method that takes keys; `bytes(3)` would be three zero bytes."""
    methods: list[Any] = [topic.latest, topic.table, topic.scan_latest, lambda **given: topic.collect_latest(lambda frame: frame, **given)]
    for method in methods:
        arguments = {"schema": "v string"} if method == topic.table else {}
        with pytest.raises(UserError, match=r"keys = .*: allowed is a text .*, bytes, or a list of those"):
            method(keys=keys, **arguments)


@pytest.mark.parametrize("key", [1, None, {"id": b"1"}, ["lime"], 3.0], ids=repr)
def test_a_purge_refuses_what_is_no_key(topic: ArrowTopic, key: Any) -> None:
    """Purging 3 would erase the key of three zero bytes."""
    with pytest.raises(UserError, match=r"key = .*: allowed is"):
        topic.purge(key)
    assert read_key("lime") == b"lime"
    with pytest.raises(UserError, match=r"key = '\\ud800': a lone surrogate is no character of UTF-8; allowed is"):
        topic.purge("\ud800")


def test_one_key_one_partition_and_one_column_need_no_list(topic: ArrowTopic) -> None:
    """The methods return what the lists of one element return."""
    assert topic.latest(keys="lime").equals(topic.latest(keys=["lime"]))
    assert topic.latest(keys=b"\xff")["value"].to_pylist() == [b"3"]
    assert topic.latest(partitions=1)["key"].to_pylist() == [b"\xff"]
    assert topic.latest(columns="key").column_names == ["key"]
    assert topic.records(partitions=0, columns="offset")["offset"].to_pylist() == [0, 1]
    assert topic.scan_latest(keys="lime", columns="value").collect()["value"].to_list() == [b"1"]
    assert [len(batch) for batch in topic.record_batches(partitions=1, columns=["key"])] == [1]


def test_partitions_and_columns_that_are_none_are_refused(topic: ArrowTopic) -> None:
    """Also a partition that the topic does not have, by the methods that take one."""
    for partitions in ("0", b"0", ["0"], [True], True, {0: 1}, [0.5], 1.0):
        with pytest.raises(UserError, match=r"partitions = .*: allowed is the number of a partition"):
            read_partitions(partitions)
    assert read_partitions(np.array([0, 1])) == [0, 1]
    for columns in (1, [1], {"key": 1}, b"key", []):
        with pytest.raises(UserError, match="allowed is the name of a column"):
            read_columns(columns)
    methods: list[Any] = [topic.roll, topic.pause, topic.resume, topic.receipts]
    for method in methods:
        for partition in ("0", True, 1.5, 2, -1):
            with pytest.raises(UserError, match=r"topic fruit has no partition .*: allowed is 0 to 1"):
                method(partition)


def test_offsets_by_partition_are_a_mapping_of_numbers(topic: ArrowTopic) -> None:
    """A list, a text and a text as a number are refused before anything is deleted."""
    for before in (5, [5], "0:5", {"0": 5}, {0: "5"}, {0: True}, None):
        with pytest.raises(UserError, match="before"):
            topic.delete_records(before)  # type: ignore[arg-type]
    assert read_offsets_by_partition({0: 5}, argument="before") == {0: 5}
    for vector in (5, b"{}", object(), True):
        with pytest.raises(UserError, match="begin = "):
            topic.changes(vector, {0: 1, 1: 0})  # type: ignore[arg-type]


def test_arguments_that_would_do_nothing_are_refused(topic: ArrowTopic) -> None:
    """A decoder without events, an expiration without a reader, two places to begin at."""
    decoder = RegistryDecoder(RegistryConfig(urls=("http://localhost:1",)), topic.log.paths.root)
    with pytest.raises(UserError, match="a decoder decodes change events; give their envelope"):
        topic.append([{"key": "a", "value": "1"}], decoder=decoder)
    with pytest.raises(UserError, match="decoder = 'registry': allowed is a RegistryDecoder"):
        topic.append([{"key": "a", "value": "1"}], envelope=Envelope(), decoder="registry")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="reader_expiration_ms = 5: only with the name of a reader"):
        TailOptions(reader_expiration_ms=5)
    with pytest.raises(UserError, match="starting_offsets = latest and starting_timestamp = 5: give one of them"):
        starting_position(topic.log, "latest", 5, "read_committed")
    assert starting_position(topic.log, "earliest", 0, "read_committed").offsets == (0, 0)
    assert Envelope().kind == "debezium"


def test_a_reader_begins_at_a_moment_or_at_a_position_of_as_many_partitions(topic: ArrowTopic) -> None:
    """A moment without a time zone is in UTC."""
    [first] = {row["timestamp"] for row in topic.records(partitions=0, columns="timestamp").to_pylist()}
    later = first + timedelta(milliseconds=1)
    for moment, offsets in ((first, (0, 0)), (later, (2, 1)), (later.replace(tzinfo=None), (2, 1)), (first.replace(year=1999), (0, 0))):
        assert starting_position(topic.log, "earliest", moment, "read_committed").offsets[0] == offsets[0]
    position = topic.bootstrap().position
    assert starting_position(topic.log, position, None, "read_committed") == position
    with pytest.raises(UserError, match="topic fruit: a position of 1 partitions; the topic has 2"):
        starting_position(topic.log, replace(position, offsets=(0,)), None, "read_committed")


def test_a_schema_is_ddl_as_a_text_and_an_isolation_is_one_of_two(topic: ArrowTopic) -> None:
    """Other values are refused by `table` and by the SQL query for other engines."""
    with pytest.raises(UserError, match="topic fruit: schema = 5: allowed is SQL DDL as a text"):
        topic.table(schema=5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="isolation 'committed': allowed is read_committed or read_uncommitted"):
        latest_sql("fruit", isolation="committed")


def test_a_log_dir_and_a_topic_say_where_they_are(topic: ArrowTopic) -> None:
    """In a shell of Python."""
    root = topic.log.paths.root
    assert repr(topic) == f"ArrowTopic('fruit', '{root}')"
    assert repr(LogDir(Path(root).parent)) == f"LogDir('{Path(root).parent}')"
