"""The airports of the demo as a configuration of the service, and what has to come of them: for tests that run it as a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import polars as pl
from polars.testing import assert_frame_equal

from examples.airports.demo import newest_release
from tests.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword import ArrowTopic

#: The files of changes, in their order.
CHANGES: Final = sorted((ROOT / "examples" / "airports" / "changes").glob("*.json.gz"))
#: To be formatted with the `log_dir`, the folder `incoming`, the path of the `table` and how many `files` a micro-batch takes.
AIRPORTS: Final = """
log.dir = "{log_dir}"
log.cleaner.backoff.ms = "1s"

[topic.airports]
partitions = 4
cleanup.policy = "compact"
segment.bytes = "128KiB"

[[source]]
name = "airports-files"
topic = "airports"
format = "json"
path = "{incoming}"
key = ["icao"]
drop = ["op"]
tombstone = "op = 'd'"
schema = '''op string, icao string, iata string, name string, city string, subd string, country string, elevation double,
            lat double, lon double, tz string, lid string'''
max.files.per.trigger = {files}

[[table]]
topic = "airports"
path = "{table}"
every = 1
"""


def check_airports(topic: ArrowTopic, table: str, options: Mapping[str, str]) -> None:
    """Compare the newest records with the newest release, and the typed table with the topic; `options` reach its store."""
    latest = {row["key"].decode(): {"icao": row["key"].decode(), **json.loads(row["value"])} for row in topic.latest().to_pylist()}
    assert latest == newest_release()
    rows = topic.table()
    stored = pl.read_delta(table.replace("s3a://", "s3://"), storage_options=dict(options))
    assert_frame_equal(stored.select(rows.column_names), pl.DataFrame(rows), check_row_order=False)
