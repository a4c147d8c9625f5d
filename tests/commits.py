"""Commits to a log that no append and no cleaning makes: rows as they are, whatever is wrong with them."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastword.storage.delta.commit import new_token
from lastword.storage.delta.history import CommitMetadata
from lastword.storage.delta.snapshot import APPEND_APP_ID, MAINTENANCE_APP_ID
from lastword.storage.files.data_files import DataFile
from lastword.storage.files.schema import DATA_SCHEMA, PLACE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from lastword.storage.delta.snapshot import LogSnapshot
    from lastword.storage.log.topic_log import TopicLog


def commit_append(log: TopicLog, rows: DataFrame, snapshot: LogSnapshot | None = None) -> int:
    """Append rows of the log table as they are; `snapshot` is what they were planned with (default: the newest)."""
    metadata = CommitMetadata(token=new_token(), kind="append")
    return log.commit(snapshot or log.snapshot(), family=APPEND_APP_ID, metadata=metadata, adds=_written(log, rows))


def commit_swap(log: TopicLog, rows: DataFrame, slices: Sequence[tuple[int, int]], *, kind: str = "clean") -> int:
    """Put rows in the place of slices (partition, slice) as a swap with a bug would."""
    snapshot = log.snapshot()
    files = snapshot.files
    removes = np.zeros(len(files.partition), dtype=np.bool_)
    for partition, slice_ in slices:
        removes |= (files.partition == partition) & (files.slice == slice_)
    metadata = CommitMetadata(token=new_token(), kind=kind)
    return log.commit(snapshot, family=MAINTENANCE_APP_ID, metadata=metadata, adds=_written(log, rows), removes=removes)


def _written(log: TopicLog, rows: DataFrame) -> list[DataFile]:
    """Write a file for each slice, its rows in the order in which they come."""
    table = rows.toArrow()
    places = list(zip(*(table.column(name).to_pylist() for name in PLACE_COLUMNS), strict=True))
    written = []
    for place in dict.fromkeys(places):
        data = table.filter(pa.array([one == place for one in places])).select(DATA_SCHEMA.names).cast(DATA_SCHEMA)
        partition, segment, slice_ = place
        path = f"partition={partition}/segment={segment}/slice={slice_}/part-{uuid.uuid4()}.parquet"
        file = Path(log.paths.log, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(data, file)
        offsets = pc.min_max(data.column("offset")).as_py()
        statistics = {
            "numRecords": len(data),
            "minValues": {"offset": offsets["min"]},
            "maxValues": {"offset": offsets["max"]},
            "nullCount": {name: data.column(name).null_count for name in ("offset", "timestamp", "producer_id")},
        }
        for name in ("timestamp", "appended_at", "delete_horizon", "producer_id"):
            found = pc.min_max(data.column(name).cast(pa.int64())).as_py()
            if found["min"] is not None:
                for side, bound in (("minValues", "min"), ("maxValues", "max")):
                    micros = found[bound]
                    moment = str(np.datetime64(micros, "us").astype("datetime64[ms]")) + "Z"
                    statistics[side][name] = micros if name == "producer_id" else moment  # type: ignore[index]
        written.append(
            DataFile(
                path=path,
                partition=partition,
                segment=segment,
                slice=slice_,
                size_bytes=file.stat().st_size,
                record_count=len(data),
                first_offset=offsets["min"],
                last_offset=offsets["max"],
                stats=json.dumps(statistics),
            )
        )
    return written
