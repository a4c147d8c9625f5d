"""The look-up of a late row's key: local files are scanned by Polars, those of an object store are read row group by row group."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from lastword import LogDir
from lastword.spark.object_store import storage_options
from lastword.storage.append.key_lookup import KeyLookup
from tests.s3_server import running_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lastword import ArrowTopic

_S3A: Final = "spark.hadoop.fs.s3a."
_PARTITIONS: Final = 2


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    """Return what reaches a store with an empty bucket."""
    with running_store() as endpoint:
        settings = {
            "access.key": "key",
            "secret.key": "secret",
            "endpoint": endpoint,
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
        }
        yield storage_options({f"{_S3A}{name}": value for name, value in settings.items()})


def _appends(seed: int) -> list[list[dict[str, Any]]]:
    """Return appends of which each row may be later, earlier or as old as what the log has of its key."""
    chance = random.Random(seed)
    return [
        [
            {"key": f"k{chance.randrange(9)}", "value": chance.choice([f"{number}", None]), "source_sequence": chance.randrange(60)}
            for _ in range(8)
        ]
        for number in range(6)
    ]


def _newest(topic: ArrowTopic, at_least: str) -> list[list[tuple[bytes, str, str]]]:
    """Return what the look-up of each partition finds of ten keys, one of which the log does not have."""
    log, keys = topic.log, pa.array([b"k%d" % number for number in range(10)], pa.binary())
    lookups = [KeyLookup.of(log.paths.log, log.storage_options, log.snapshot().files, partition) for partition in range(_PARTITIONS)]
    return [sorted(lookup.newest(keys, at_least).drop("time", "last").rows()) for lookup in lookups]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_late_rows_are_the_same_on_a_local_disk_and_on_an_object_store(tmp_path: Path, options: dict[str, str], seed: int) -> None:
    """Late rows, records and what the look-up itself finds, from each sequence on."""
    config = {"cleanup.policy": "compact"}
    places = (LogDir(str(tmp_path)), LogDir(f"s3a://bucket/lookup-{seed}", storage_options=options))
    topics = [logs.create_topic("fruit", partitions=_PARTITIONS, config=config) for logs in places]
    late = [[topic.append(rows).late for rows in _appends(seed)] for topic in topics]
    assert late[0] == late[1]
    assert sum(late[0]) > 0
    columns = ["partition", "offset", "key", "value"]
    local, remote = (topic.records().select(columns).to_pylist() for topic in topics)
    assert local == remote
    sequences = sorted({*topics[0].log.snapshot().files.max_sequence.tolist()})
    for at_least in sequences:
        on_disk, on_store = (_newest(topic, at_least) for topic in topics)
        assert on_disk == on_store, at_least
        assert all(newest >= at_least for found in on_disk for _, _, newest in found)
