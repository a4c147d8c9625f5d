"""The command `get`: one key, its records that the log still has, and where each of them is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lastword.cli import tables
from lastword.cli.options import Decode, Json, LogDirOption, Topic, find_registry, open_log_dir, out, print_json_lines
from lastword.cli.values import ValueReader
from lastword.compaction.errors import UserError
from lastword.text import printable
from lastword.topics.keys import KEY_RECORDS

if TYPE_CHECKING:
    from lastword.storage.reading.key_history import KeyHistory, KeyRecord

_SHOWN: Final = ("offset", "segment", "timestamp", "status", "section", "value")
_MOST_CHARACTERS: Final = 2_000


def get(
    topic: Topic,
    key: Annotated[str, typer.Argument(help='The key as text. A key of several columns as JSON, e.g. \'{"id": 7, "line": 1}\'.')],
    partition: Annotated[int | None, typer.Option("--partition", help="The partition, if the key stands in several.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many of its newest records are shown.")] = KEY_RECORDS,
    decode: Decode = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Show one key: its latest record, the older ones that the log still has, and where each of them is.

    Status: latest, superseded by a newer record, aborted with its transaction, open with its transaction, or waiting behind an open
    transaction. Section clean: below the cleaner checkpoint. Exit code 1 if the log has no record of the key.

    Example: lastword get fruit-prices grape
    """
    opened = open_log_dir(log_dir).topic(topic)
    reader = ValueReader.of(decode, opened.log, find_registry, as_json=as_json)
    history = opened.get(key, partition=partition, limit=limit)
    if history is None:
        where = "" if partition is None else f"partition {partition} of "
        message = f"{where}topic {topic} has no record of the key {printable(key, 200)!r}"
        raise UserError(message)
    if as_json:
        print_json_lines([_details(history, reader)])
        return
    for line in _summary(history, reader):
        out.print(line, soft_wrap=True, markup=False, highlight=False)
    rows = [_plain(record, reader) for record in history.records]
    marked = [{**row, "status": f"{row['status']}, deletes" if row["tombstone"] else row["status"]} for row in rows]
    out.print(tables.records_table(marked, _SHOWN, ""))
    if len(rows) < history.record_count:
        out.print(f"[dim]… {history.record_count - len(rows):,} older records. Use --limit for more than {limit}.[/dim]")


def _summary(history: KeyHistory, reader: ValueReader) -> list[str]:
    """Return the lines that say what the key is now, and how much of it is in the log."""
    key, latest = tables.shown_text(reader.key(history.key)), history.latest
    if latest is None:
        now = "no reader sees a record of it yet"
    elif latest.is_tombstone:
        now = "deleted"
    else:
        now = printable(tables.shown_text(reader.value(latest.value)), _MOST_CHARACTERS)
    count = f"{history.record_count:,} record{'s' if history.record_count > 1 else ''}"
    place = f"partition {history.partition}, {count} in the log, cleaner checkpoint {history.cleaner_checkpoint}"
    return [f"{printable(key, _MOST_CHARACTERS)}: {now}", f"  {history.topic}, {place}"]


def _details(history: KeyHistory, reader: ValueReader) -> dict[str, Any]:
    """Return a history as JSON has it."""
    return {
        "topic": history.topic,
        "key": reader.key(history.key),
        "partition": history.partition,
        "table_version": history.table_version,
        "cleaner_checkpoint": history.cleaner_checkpoint,
        "record_count": history.record_count,
        "latest": None if history.latest is None else _plain(history.latest, reader),
        "records": [_plain(record, reader) for record in history.records],
    }


def _plain(record: KeyRecord, reader: ValueReader) -> dict[str, Any]:
    """Return a record as a dict that JSON can represent."""
    row = {"offset": record.offset, "segment": record.segment, "timestamp": record.timestamp, "value": record.value}
    headers = [tables.plain_header({"key": name, "value": value}) for name, value in record.headers]
    return {
        **tables.plain(row, reader),
        "headers": headers,
        "producer_id": record.producer_id,
        "status": record.status.value,
        "tombstone": record.is_tombstone,
        "section": "clean" if record.is_clean else "dirty",
    }
