"""A topic and a table that is kept in step with it, in a few words: `kept(tmp_path).append('{"id":1} 7')`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lastword import LogDir
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.storage.tables.table import MaterializedTable
from lastword.storage.tables.table_options import TableOptions
from lastword.storage.tables.table_rows import TableLayout
from tests.clocks import at
from tests.pictures import DAY_MS, T0
from tests.storage.tables.readers import read_polars

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

_CONFIG: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1d"}
KEY_DDL: Final = "id bigint"
#: Rows of files that some rows are deleted of: so few that one deleted row matters, so many that most are left.
MANY: Final = 20


@dataclass
class Kept:
    """A topic of rows `id`, `n` and a table of it; `table` is the engine that the methods use."""

    folder: Path
    value_ddl: str = "id bigint, n bigint"
    key_ddl: str = KEY_DDL
    is_key_text: bool = False
    history: bool = False
    record_columns: tuple[str, ...] = ()
    column_mapping: bool = True
    options: TableOptions = field(default_factory=TableOptions)
    partitions: int = 1
    name: str = "t"

    def __post_init__(self) -> None:
        """Make the topic."""
        self.topic: ArrowTopic = LogDir(self.folder / "log").create_topic(self.name, partitions=self.partitions, config=_CONFIG)
        self.location = str(self.folder / f"table of {self.name}".replace(" ", "_"))
        self.table = self.engine()

    def engine(self, options: TableOptions | None = None) -> MaterializedTable:
        """Return an engine as another process has it."""
        return MaterializedTable(self.topic.log, self.location, self.layout, options or self.options, {})

    def layout(self) -> TableLayout:
        """Return the columns as they are now."""
        columns = TableColumns(key=columns_of_ddl(self.key_ddl), is_key_text=self.is_key_text, value=columns_of_ddl(self.value_ddl))
        return TableLayout(columns=columns, record_columns=self.record_columns, history=self.history, column_mapping=self.column_mapping)

    @staticmethod
    def key(number: int) -> bytes:
        """Return the key of the row with an id."""
        return _json({"id": number})

    def append(self, *records: tuple[str | bytes | int, Any], partition: int = 0, time_ms: int = T0) -> None:
        """Append records (key, value): an int as key is that `id`, as value that `n`; a dict is an object; None is a tombstone."""
        keys, values = [], []
        for key, value in records:
            keys.append(_json({"id": key}) if isinstance(key, int) else key.encode() if isinstance(key, str) else key)
            row = {"id": key, "n": value} if isinstance(key, int) and (isinstance(value, int)) else value
            values.append(None if row is None else row if isinstance(row, bytes) else _json(row))
        count = len(keys)
        self.topic.append(
            pa.table(
                {
                    "key": pa.array(keys, pa.binary()),
                    "value": pa.array(values, pa.binary()),
                    "partition": pa.array([partition] * count, pa.int32()),
                    "timestamp": pa.array([time_ms] * count, pa.int64()),
                }
            )
        )

    def fill(self, count: int = MANY) -> None:
        """Append the rows 0, 1, 2 … with n = 0, and step."""
        self.append(*((number, 0) for number in range(count)))
        self.table.step()

    def clean(self, *, days: int = 0) -> None:
        """Clean the topic so many days later."""
        self.topic.roll()
        at(T0 + days * DAY_MS, self.topic).clean()

    def rows(self, columns: str = "id n") -> list[tuple[Any, ...]]:
        """Return columns of the table, in order, as Polars reads them."""
        return rows_of(read_polars(self.location), columns)


def rows_of(table: pa.Table, columns: str = "id n") -> list[tuple[Any, ...]]:
    """Return columns of rows, in order."""
    return sorted(zip(*(table.column(name).to_pylist() for name in columns.split()), strict=True), key=repr)


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
