"""Terminal tables of records, topics, transactions and readers, and rows as JSON Lines."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lastword.cli.values import text_of
from lastword.compaction.moments import instant
from lastword.status.troubles import duration
from lastword.text import fold, printable, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from lastword.cli.values import ValueReader
    from lastword.compaction.producers import OpenTransaction
    from lastword.topics.description import TopicDescription, TopicSummary
    from lastword.topics.sources import SourceDescription
    from lastword.topics.tables import TableDescription, TableDetails

_WIDEST: Final = 60
_SHORT: Final = 24
#: Names of topics, readers and tables are folded to lines of so many characters.
_NAME: Final = 26
_MOST_OF_A_NAME: Final = 200
_MOST_OF_A_TEXT: Final = 400


def plain(row: dict[str, Any], reader: ValueReader) -> dict[str, Any]:
    """Return a row of the log as a dict that JSON can represent."""
    out: dict[str, Any] = {}
    for name, value in row.items():
        if name in {"key", "record_key"}:
            out[name] = reader.key(value)
        elif name == "value":
            out[name] = reader.value(value)
        elif name == "headers":
            out[name] = None if value is None else [plain_header(header) for header in value]
        elif isinstance(value, datetime):
            out[name] = value.astimezone(timezone.utc).isoformat(timespec="milliseconds")  # PySpark returns naive times in the local zone
        else:
            out[name] = value
    return out


def plain_header(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header as a dict that JSON can represent."""
    value = header["value"]
    return {"key": header["key"], "value": None if value is None else text_of(bytes(value))}


def typed(value: Any) -> Any:
    """Return a typed value as one that JSON can represent: times as ISO text, decimals as text, bytes as base64.

    JSON has no number for NaN and the infinities: they are the texts "NaN", "Infinity" and "-Infinity", as Spark and Protobuf write them.
    """
    if isinstance(value, dict):
        return {name: typed(field) for name, field in value.items()}
    if isinstance(value, (list, tuple)):
        return [typed(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def json_line(row: Any) -> str:
    """Return one line of JSON that any parser takes."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)


def records_table(rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str) -> Table:
    """Return a table of rows that fits a terminal: long values are cut, tombstones are marked, short columns are not cut."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    cells = [[_cell(name, row.get(name)) for name in columns] for row in rows]
    for number, name in enumerate(columns):
        widest = max([len(name), *(len(line[number]) for line in cells)])
        table.add_column(
            name,
            justify="right" if name in {"partition", "offset", "segment"} else "left",
            overflow="ellipsis",
            no_wrap=widest <= _SHORT or name == "key",
            min_width=min(widest, _SHORT) if name == "key" else None,
        )
    for line in cells:
        table.add_row(*line)
    return table


def letters_grid(rows: Sequence[dict[str, Any]], columns: Sequence[str], title: str) -> Group:
    """Return dead letters one below the other: time and reason, then a line for each column, folded at the width of the terminal."""
    parts: list[RenderableType] = [Text(title, style="italic")]
    for row in rows:
        stale = ", its key is stale" if row["stale"] else ""
        parts.append(Text(f"\n{row['refused_at'].replace('+00:00', 'Z')} {row['reason']}{stale}", style="bold"))
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name in columns:
            if row.get(name) is not None:
                grid.add_row(name, Text(printable(shown_text(row[name]), _MOST_OF_A_TEXT)))
        parts.append(Padding(grid, (0, 0, 0, 2)))
    return Group(*parts)


def shown_text(value: Any) -> str:
    """Return a value as people read it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_line(value)


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return Text("tombstone" if name == "value" else "", style="dim italic")
    return Text(printable(shown_text(value), _WIDEST))


def topics_table(topics: Sequence[TopicSummary], now_ms: int) -> Table:
    """Return topics as a table: partitions, records, size, and when the last append was."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("topic", "parts", "records", "size", "last append"):
        table.add_column(
            name, justify="left" if name in {"topic", "last append"} else "right", overflow="fold", no_wrap=name != "last append"
        )
    for topic in topics:
        if topic.error is not None:
            table.add_row(
                name_cell(topic.topic), "", "", "", Text(f"cannot be read: {printable(topic.error, _MOST_OF_A_NAME)}", style="red")
            )
            continue
        when = "never" if topic.last_append_ms is None else _moment_and_age(topic.last_append_ms, now_ms)
        table.add_row(name_cell(topic.topic), str(topic.partitions), f"{topic.records:,}", size(topic.size_bytes or 0), when)
    return table


def name_cell(name: str, width: int = _NAME) -> Text:
    """Return a name in lines that fit a table, broken behind its separators."""
    return Text(fold(printable(name, _MOST_OF_A_NAME), width))


def _moment_and_age(moment_ms: int, now_ms: int) -> str:
    """Return a moment to the second and how long ago it was."""
    return f"{second(moment_ms)}\n{duration(max(0, now_ms - moment_ms))} ago"


def second(moment_ms: float) -> str:
    """Return a moment to the second: `2026-01-31T12:00:00Z`."""
    return f"{instant(moment_ms).partition('.')[0]}Z" if instant(moment_ms) != "never" else "never"


def description_table(description: TopicDescription) -> Table:
    """Return the partitions of a topic as a table."""
    table = Table(
        title=f"{description.name}  {description.record_count:,} records, {size(description.size_bytes)}, table version "
        f"{description.table_version}",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        header_style="bold",
    )
    for name in ("part", "start\noffset", "stable\noffset", "end\noffset", "records", "size", "segments\n/ slices", "last\nsegment"):
        table.add_column(name, justify="left" if name.startswith("last") else "right", no_wrap=True)
    for partition in description.partitions:
        table.add_row(
            str(partition.partition),
            str(partition.log_start_offset),
            str(partition.last_stable_offset),
            str(partition.log_end_offset),
            f"{partition.record_count:,}",
            size(partition.size_bytes),
            f"{len(partition.segments)} / {sum(len(segment.slices) for segment in partition.segments)}",
            "" if not partition.segments else "active" if partition.active else "closed",
        )
    return table


def segments_table(description: TopicDescription, partitions: Sequence[int] | None = None) -> Table:
    """Return the segments of a topic, or of some of its partitions, as a table."""
    table = Table(
        title=f"{description.name}: segments", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold"
    )
    for name in ("partition", "segment", "offsets", "records", "size", "slices", "state"):
        table.add_column(name, justify="left" if name in {"offsets", "state"} else "right", no_wrap=True)
    for partition in description.partitions:
        for segment in partition.segments if partitions is None or partition.partition in partitions else ():
            active = partition.active and segment is partition.segments[-1]
            table.add_row(
                str(partition.partition),
                str(segment.label),
                f"{segment.first_offset} … {segment.last_offset}",
                f"{segment.record_count:,}",
                size(segment.size_bytes),
                str(len(segment.slices)),
                "active" if active else "closed",
            )
    return table


def transaction(row: OpenTransaction, now_ms: int) -> dict[str, Any]:
    """Return an open transaction as a dict that JSON can represent."""
    return {
        "producer_id": row.producer_id,
        "epoch": row.epoch,
        "transactional_id": row.transactional_id,
        "first_offsets": dict(sorted(row.first_offsets.items())),
        "since": instant(row.since_ms),
        "age_ms": now_ms - row.since_ms,
        "timeout_ms": row.timeout_ms,
        "hangs": row.hangs(now_ms),
    }


def transactions_table(found: list[dict[str, Any]], topic: str) -> Table:
    """Return open transactions as a table."""
    table = Table(title=f"{topic}: open transactions", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    for name in ("producer", "epoch", "transactional.id", "partition:\nfirst offset", "age", "timeout"):
        table.add_column(name, justify="left" if name in {"transactional.id", "partition:\nfirst offset"} else "right")
    for row in found:
        firsts = "\n".join(f"{partition}: {offset}" for partition, offset in row["first_offsets"].items())
        age = Text(f"{row['age_ms'] / 1000:.1f} s", style="red" if row["hangs"] else "")
        table.add_row(
            str(row["producer_id"]),
            str(row["epoch"]),
            name_cell(row["transactional_id"] or ""),
            firsts,
            age,
            f"{row['timeout_ms'] / 1000:.1f} s",
        )
    return table


def readers_table(found: list[dict[str, Any]], topic: str) -> Table:
    """Return registered readers as a table."""
    table = Table(title=f"{topic}: readers", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    for name in ("reader", "consumer\nlag", "last seen\nexpires", "partition:\noffset"):
        table.add_column(name, justify="right" if name == "consumer\nlag" else "left", no_wrap=name in {"consumer\nlag", "last seen"})
    for row in found:
        offsets = "\n".join(f"{partition}: {offset}" for partition, offset in enumerate(row["offsets"]))
        expires = Text(second(row["expires_ms"]), style="red" if row["expired"] else "")
        table.add_row(name_cell(row["name"], _NAME - 6), f"{row['lag']:,}", Text.assemble(second(row["seen_ms"]), "\n", expires), offsets)
    return table


def typed_tables_table(found: Sequence[TableDescription], topic: str) -> Table:
    """Return the typed tables of a topic as a table."""
    table = Table(title=f"{topic}: tables", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    for name in ("table", "state", "offsets behind", "last seen"):
        table.add_column(name, justify="right" if name == "offsets behind" else "left", overflow="fold")
    for row in found:
        state = Text("paused", style="yellow") if row.paused else Text("history" if row.history else "active")
        lag = "" if row.lag is None else f"{row.lag:,}"
        table.add_row(name_cell(row.path), state, lag, "" if row.seen_ms is None else second(row.seen_ms))
    return table


def typed_table_lines(table: TableDetails) -> Iterator[str]:
    """Yield the lines that describe a typed table."""
    state = "paused" if table.paused else "registration expired" if table.lag is None else f"{table.lag:,} offsets behind"
    yield f"{table.path}: {'history' if table.history else 'newest row of each key'}, {state}"
    if table.table_version < 0:
        yield "  not made yet"
        return
    yield f"  offsets: {', '.join(f'{partition}: {offset}' for partition, offset in enumerate(table.offsets)) or 'unknown'}"
    yield f"  version: {table.table_version}, deletion vectors: {'yes' if table.deletion_vectors else 'no'}"
    yield f"  rows: {table.rows:,} ({table.deleted_rows:,} more are marked as deleted) in {table.files:,} files, {table.size_bytes:,} bytes"
    for name, data_type in table.columns.items():
        yield f"  {printable(name, _WIDEST)}  {data_type if isinstance(data_type, str) else json.dumps(data_type)}"


def sources_table(found: Sequence[SourceDescription], topic: str) -> Table:
    """Return the sources of a topic as a table."""
    table = Table(title=f"{topic}: sources", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left", header_style="bold")
    for name in ("source", "state", "since", "epoch", "snapshots", "rows not\nin snapshot"):
        is_number = name in {"epoch", "snapshots", "rows not\nin snapshot"}
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name in {"source", "since", "state"})
    for row in found:
        state = Text("retired") if row.retired else Text("lower positions", style="red") if row.lower_positions else Text("active")
        since = "" if row.since_ms is None else second(row.since_ms)
        positions = {snapshot.position for snapshot in row.snapshots if snapshot.position}
        table.add_row(
            name_cell(row.name),
            state,
            since,
            str(row.epoch),
            str(len(positions)),
            f"{row.rows_not_in_snapshot:,}",
        )
    return table


def source_remarks(row: SourceDescription, topic: str) -> list[str]:
    """Return what is to be said of a source beside its row in a table, with what to do."""
    found, name = [], printable(row.name, _WIDEST)
    if row.lower_positions:
        found.append(
            f"{name}: late events are younger than the records above them (position {row.lower_positions}), as after a failover: "
            f"lastword sources new-epoch {topic} {name}, and then a snapshot"
        )
    if row.by_lsn:
        found.append(f"{name}: ordered by source.lsn alone, as its events have no source.sequence (add.fields = source.sequence)")
    if row.rows_not_in_snapshot:
        found.append(
            f"{name}: {row.rows_not_in_snapshot:,} rows are older than its newest snapshot, which lacks them; if it was of whole tables, "
            f"delete them: lastword sources sweep {topic} {name}"
        )
    if row.incomplete_snapshots:
        found.append(
            f"{name}: no change has come behind its snapshot yet in Kafka's partition {', '.join(row.incomplete_snapshots) or '-'}"
        )
    return found
