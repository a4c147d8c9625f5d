"""A kept table on an object store whose requests fail: each step is taken once, whatever the store says of it (TABLES A17)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import polars as pl
import pytest

from lastword.compaction.errors import CommitStateUnknown
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_options import TableOptions
from tests.failing_store import FailingStore
from tests.object_store import URI, running_store, storage_options_of
from tests.storage.tables.kept import Kept, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, FailingStore]]:
    """An S3 server, and a proxy before it."""
    with running_store() as endpoint:
        proxy = FailingStore(endpoint)
        try:
            yield endpoint, proxy
        finally:
            proxy.stop()


@pytest.mark.long
@pytest.mark.parametrize("vectors", [True, False], ids=["deletion vectors", "copy on write"])
def test_a_step_is_taken_once_whatever_a_store_says(tmp_path: Path, server: tuple[str, FailingStore], *, vectors: bool) -> None:
    """Its first or a later request fails, is done and fails, or is told to come again."""
    endpoint, proxy = server
    location = f"{URI}/{tmp_path.name}"
    sound, options = storage_options_of(endpoint), TableOptions(deletion_vectors=vectors)
    kept = Kept(tmp_path)

    def engine(given: dict[str, str]) -> MaterializedTable:
        return MaterializedTable(kept.topic.log, location, kept.layout, options, given)

    kept.append(*((number, 0) for number in range(5)))
    engine(sound).step()
    expected = dict.fromkeys(range(5), 0)
    number = 0
    for request in ("PUT", "GET"):
        for fault in ("lost", "done503", "503", "reset", "500"):
            for nth in (1, 2, 3, 4) if request == "PUT" else (1, 3, 6):
                number += 1
                kept.append((number % 5, number), (100 + number, number))
                expected |= {number % 5: number, 100 + number: number}
                failing = engine({**storage_options_of(proxy.endpoint), "max_retries": str(number % 2 * 2)})
                with proxy.failing(request, fault, nth), suppress(OSError, CommitStateUnknown):
                    failing.step()
                failing.step()
                found = pl.scan_delta(location, storage_options=sound).collect().to_arrow()
                assert dict(rows_of(found)) == expected, (request, fault, nth)
                assert len(found) == len(expected)
