"""How a table is kept, and what was done to it: values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lastword.compaction.errors import UserError
from lastword.storage.tables.table_properties import check_properties
from lastword.storage.tables.upkeep import MergeLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.compaction.read_positions import Position

ON_TYPE_CHANGE: Final = ("rebuild", "fail")
#: Spark's modes of parsing.
TABLE_MODES: Final = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """How much a table takes at a time. A step holds `chunk_rows` records or `chunk_bytes` of them, and `index_bytes` of keys.

    A bootstrap that reads `spread_bytes` of the log's files or more runs on the executors of a cluster, if there is one.
    """

    chunk_rows: int = 250_000
    chunk_bytes: int = 128 * 2**20
    index_bytes: int = 512 * 2**20
    spread_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """How a table is kept.

    `mode`: a value that does not fit its column ends the step (FAILFAST), is null (PERMISSIVE), or makes its record a dead letter of the
    topic: the table then has no row of the key (DROPMALFORMED). `partition_by` are the partition columns of a table when it is made, or
    written anew; none: it stays as it is. `deletion_vectors`: without them a step
    writes each file again that loses rows, and any Delta reader reads the table; a table that is there keeps the way in which it was made,
    until it is written anew. `on_type_change`: a column whose type changes makes the table be written again in one commit (rebuild), or
    ends the step (fail). `properties` are Delta's of the table when it is made.
    """

    isolation: str = "read_committed"
    mode: str = "FAILFAST"
    partition_by: tuple[str, ...] = ()
    deletion_vectors: bool = True
    on_type_change: str = "rebuild"
    max_offsets_per_step: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    limits: TableLimits = field(default_factory=TableLimits)
    upkeep: MergeLimits = field(default_factory=MergeLimits)

    def __post_init__(self) -> None:
        """Check the values."""
        if self.mode not in TABLE_MODES:
            message = f"mode = {self.mode!r}: allowed is {', '.join(TABLE_MODES[:-1])} or {TABLE_MODES[-1]}"
            raise UserError(message)
        check_properties(self.properties)
        if self.on_type_change not in ON_TYPE_CHANGE:
            message = f"on_type_change = {self.on_type_change!r}: allowed is {' or '.join(ON_TYPE_CHANGE)}"
            raise UserError(message)
        if self.max_offsets_per_step is not None and self.max_offsets_per_step < 1:
            message = f"max_offsets_per_step = {self.max_offsets_per_step}: allowed is 1 or more"
            raise UserError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStep:
    """What one commit did: `kind` is bootstrap, rebuild or step; where the table is then, how many rows came and went.

    `misfit_rows` of its records had a value that did not fit: null in its row, or the record is a dead letter.
    """

    kind: str
    table_version: int
    position: Position
    written_rows: int
    deleted_rows: int
    misfit_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpkeep:
    """What an upkeep did: how many files became fewer ones, and how many were deleted that no reader needs."""

    merged_files: int = 0
    deleted_files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What an erasure did: rows that left the table, files deleted and searched, and what could not be searched or deleted (`left`)."""

    rows: int = 0
    removed_files: int = 0
    searched_files: int = 0
    left: tuple[str, ...] = ()
