"""Copying a topic: the way to another number of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lastword.compaction.errors import UserError
from lastword.log_dir import LogDir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lastword.topic import Topic

_COLUMNS: Final = ("key", "value", "headers", "timestamp")
#: About how many bytes of rows are in memory, and in a commit, at once.
_CHUNK_BYTES: Final = 128 * 2**20


def copy_topic(logs: LogDir[Topic], source: str, target: str, *, partitions: int) -> int:
    """Create `target` with the configuration of `source`, append all its data records, hashed anew, and return how many; needs no Spark.

    Records keep key, value, headers and timestamp; offsets begin at 0. A key had one partition in `source`, so its records keep their
    order. Tombstones come along; what was aborted does not. The records are those of one table version, appended in commits of about 128
    MiB. Raises `UserError` while a transaction is open, whose records nobody can judge yet, `TopicExists` when there is a topic `target`,
    and `InvalidRecords` when the log holds records that today's configuration refuses (keyless ones from before the policy was compact,
    say); there is no topic `target` then.
    """
    here = LogDir(logs.location, storage_options=logs.storage_options, clock=logs.clock)
    origin = here.topic(source)
    undecided = ", ".join(
        f"producer {one.producer_id} ({one.transactional_id or 'no transactional.id'})" for one in origin.open_transactions()
    )
    if undecided:
        message = f"topic {source}: open transactions of {undecided}: commit or abort them first (lastword transactions list {source})"
        raise UserError(message)
    copy = logs.create_topic(target, partitions=partitions, config=origin.log.decisions().overrides)
    try:
        return sum(copy.append(rows).record_count for rows in _chunks(origin.record_batches(isolation="read_committed", columns=_COLUMNS)))
    except BaseException:
        logs.delete_topic(target)
        raise


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held, held_bytes = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
