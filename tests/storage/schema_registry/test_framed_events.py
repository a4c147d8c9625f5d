"""Change events that are framed for a schema registry, as they come from Debezium's Avro converter, in a log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lastword import Envelope, InvalidRecords, LogDir, RegistryConfig, RegistryDecoder
from tests.storage.schema_registry.registries import ENVELOPE, EVENT, Registry, avro_frame, running

if TYPE_CHECKING:
    from pathlib import Path


def test_framed_events_are_typed_by_the_schema_that_they_name(tmp_path: Path) -> None:
    """An id that the registry does not know refuses its event alone; what is known needs no registry."""
    topic = LogDir(tmp_path).create_topic("t", config={"cleanup.policy": "compact"})
    key_schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    registry = Registry()
    with running(registry) as url:
        value_id, key_id = registry.add(ENVELOPE), registry.add(key_schema)
        decoder = RegistryDecoder(RegistryConfig(urls=(url,), attempts=1), str(tmp_path / "t"))
        events = pa.table(
            {
                "key": pa.array([avro_frame(key_id, key_schema, {"id": 7}), b"\x00\x00\x00\x00\x63x"], pa.binary()),
                "value": pa.array([avro_frame(value_id, ENVELOPE, EVENT), None], pa.binary()),
            }
        )
        with pytest.raises(InvalidRecords, match=r"no_event: key: .*99"):
            topic.append(events, envelope=Envelope(), decoder=decoder)
        topic.append(events.slice(0, 1), envelope=Envelope(), decoder=decoder)
    (row,) = topic.latest().to_pylist()
    assert row["key"] == b'{"id":7}'
    value = json.loads(row["value"])
    assert (value["id"], value["price"], value["day"]) == (7, "-123.45", "2024-05-01")
    assert topic.append(events.slice(0, 1), envelope=Envelope(), decoder=decoder).record_count == 1  # the registry is gone


def test_no_events_are_appended_as_nothing(tmp_path: Path) -> None:
    """A table without rows says which columns there would be; nothing is committed, and nothing asked of a registry."""
    topic = LogDir(tmp_path).create_topic("t", config={"cleanup.policy": "compact"})
    events = pa.table({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})
    for kind in ("debezium", "debezium-flat"):
        result = topic.append(events, envelope=Envelope(kind=kind))
        assert (result.table_version, result.record_count, dict(result.refused)) == (None, 0, {})
    assert topic.log.snapshot().version == 0
