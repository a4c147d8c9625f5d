"""`verify` is asked when something is broken, so broken files are an answer, not an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pictures import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword import LogDir


def test_files_that_cannot_be_read_are_named_with_their_offsets(spark: SparkSession, logs: LogDir) -> None:
    """One is gone, one is cut, and one is whole but for its pages."""
    topic = logs.create_topic("fruit")
    for picture in ("lime=1 kiwi=1", "lime=2", "kiwi=2"):
        topic.append(rows(spark, picture))
    assert topic.verify().ok
    gone, cut, garbled = (Path(topic.log.paths.log, str(path)) for path in topic.log.snapshot().files.path)
    whole = garbled.read_bytes()
    garbled.write_bytes(whole[:4] + bytes(200) + whole[204:])
    garbled.with_name(f".{garbled.name}.crc").unlink()
    report = topic.verify()
    assert len(report.problems) == 1
    assert report.problems[0].startswith("the records cannot be read, so they were not checked:")
    assert garbled.name in report.problems[0]

    garbled.write_bytes(whole)
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:100])
    report = topic.verify()

    assert len(report.problems) == 2
    assert report.problems[0].startswith("partition 0: offsets 0 to 1 cannot be read, in partition=0/segment=0/slice=0/")
    assert report.problems[1].startswith("partition 0: offsets 2 to 2 cannot be read, in partition=0/segment=0/slice=2/")
    logs.delete_topic("fruit")
