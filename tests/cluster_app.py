"""The service as a process whose work all goes to executors, however little it is.

`python -m tests.cluster_app CONFIG REPORT` runs until it is told to stop; then it counts the records of each topic by `format("lastword")`
and writes them to REPORT as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lastword.service.service import Service
from lastword.service.settings import load_settings
from lastword.spark.object_store import storage_options
from lastword.storage.cleaning.limits import CleaningLimits
from lastword.storage.tables.table_options import TableLimits
from lastword.streaming.append import dataframes


def main(config: str, report: str) -> None:
    """Run the service."""
    dataframes.MAX_COLLECTED_BYTES = 0  # type: ignore[misc]
    settings = load_settings(Path(config))
    service = Service(settings)
    service.logs.cleaner.limits = CleaningLimits(spread_bytes=0)
    service.tables.limits = TableLimits(spread_bytes=0)
    service.run_until_signal()
    session = service.logs.session
    assert session is not None
    options = {f"storage.{name}": value for name, value in storage_options(settings.spark).items()}
    source = session.read.format("lastword").options(**options)
    counts = {name: source.load(f"{service.logs.location}/{name}").count() for name in service.logs.topics()}
    Path(report).write_text(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
