"""The command `purge`, which erases a key."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.mistakes import EXIT_FAILED, EXIT_FINDING, usage_mistake
from lastword.cli.options import (
    Json,
    LogDirOption,
    Topic,
    Yes,
    confirm,
    notes,
    open_log_dir,
    out,
    print_json_lines,
)
from lastword.compaction.errors import PurgeIncomplete
from lastword.compaction.moments import instant
from lastword.compaction.secrets import HIDDEN
from lastword.text import printable
from lastword.topics.purging import PurgeReceipt, before_as_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lastword.topic import Topic as LogTopic


def purge(
    topic: Topic,
    key: Annotated[str | None, typer.Option(help="Key as text (UTF-8).")] = None,
    key_base64: Annotated[str | None, typer.Option("--key-base64", help="Key as base64-encoded bytes.")] = None,
    before: Annotated[str | None, typer.Option(help="Erase only records older than this date or time (ISO 8601, UTC).")] = None,
    yes: Yes = False,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Erase a key from the log, registered tables, dead letters and all old files; the receipt proves that no file contains it.

    Exit code 1 means that the purge is incomplete: the output lists what remains or blocks it. Run the command again later. Exit code 3
    means that nothing was erased, because no file contained the key.

    Example: lastword purge fruit-prices --key grape --yes
    """
    wanted, before_ms = _key(key, key_base64), before_as_ms(before)
    receipt: PurgeReceipt | None = None
    remains: tuple[str, ...] = ()
    try:
        opened: LogTopic = open_log_dir(log_dir).topic(topic)
        until = "" if before is None else f" where it is older than {before}"
        confirm(f"Erase the key {printable(wanted.decode(errors='replace'), 60)!r} of topic {topic}{until} for good?", yes=yes)
        receipt = opened.purge(wanted, before=before_ms)
    except PurgeIncomplete as error:
        remains = tuple(error.remains)
    if as_json:
        details, was_found = (None, None) if receipt is None else (receipt.to_details(), receipt.was_found)
        print_json_lines([{"receipt": details, "found": was_found, "remains": list(remains)}])
    elif receipt is not None:
        for line in _receipt(receipt):
            out.print(line, soft_wrap=True, markup=False, highlight=False)
    else:
        notes.print(f"{topic}: the key is not erased yet:", soft_wrap=True, markup=False)
        for line in remains:
            notes.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    if receipt is None:
        raise typer.Exit(EXIT_FAILED)
    raise typer.Exit(0 if receipt.was_found else EXIT_FINDING)


def _key(text: str | None, encoded: str | None) -> bytes:
    """Return the key; raise `InvalidConfiguration` unless exactly one option names it."""
    if (text is None) == (encoded is None):
        given = "nothing" if text is None else "beside --key-base64"
        raise usage_mistake(name="--key", value=given, allowed="specify the key with either --key (text) or --key-base64 (bytes)")
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    try:
        return base64.b64decode(encoded or "", validate=True)
    except binascii.Error as error:
        raise usage_mistake(name="--key-base64", value=HIDDEN, allowed=f"invalid base64: {error}") from None


def _receipt(receipt: PurgeReceipt) -> Iterator[str]:
    """Return the lines that show a receipt."""
    if not receipt.was_found:
        yield f"{receipt.topic}: no file contains the key; nothing was erased ({receipt.files_searched:,} files were searched)"
        return
    searched = f"{receipt.files_searched:,} files were decoded, none contains it (table version {receipt.table_version})"
    yield f"{receipt.topic}: the key is erased; {searched}"
    for partition, offset in receipt.tombstones.items():
        yield f"  partition {partition}: superseded by the tombstone at offset {offset}, which was removed too"
    for partition, offset in receipt.kept.items():
        yield f"  partition {partition}: kept the record at offset {offset}, which is not older than {instant(receipt.before_ms or 0)}"
    records, letters, files = receipt.records_removed, receipt.dead_letters_removed, receipt.files_removed
    yield f"  removed: {records:,} records, {letters:,} dead letters, {files:,} old files"
    for target, rows in receipt.target_rows_removed.items():
        yield f"  removed from {target}: {rows:,} rows"
    for target in receipt.absent_targets:
        yield f"  not searched, no longer a table of this topic: {target}"
    for name in receipt.readers:
        yield f"  reader {name} had not read the tombstone and may still hold the key; it is notified when it resumes"
    if receipt.statistics_until_ms is None:
        yield "  no older table version contains it"
    else:
        until = instant(receipt.statistics_until_ms)
        yield f"  no older table version contains it, but statistics in Delta logs do until {until} or later:"
        yield from (f"    {path}" for path in receipt.statistics)
