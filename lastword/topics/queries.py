"""Runs SQL over the topics of a log.dir without a JVM, by Polars: each topic is a table of its newest rows.

```
 select fruit, price from prices where price > 2       columns that the topic's sources have named, typed
 select key, value from "shop.carts"                    partition, key, value, headers, timestamp, offset of any other topic
```

A topic is opened when the query names it, at its newest version, and its rows are decoded as the query asks for them, some at a time.
"""

from __future__ import annotations

import re
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import polars as pl
from polars.io.plugins import register_io_source

from lastword.change_data.columns.table_columns import TableDecoder
from lastword.compaction.errors import LastwordError, UnknownTopic, UserError, check_text
from lastword.storage.reading.arrow_frames import latest_batches, scan_latest
from lastword.storage.reading.view import newest_view
from lastword.storage.tables.typed_rows import ColumnsUnknown, decode_batch, table_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lastword.storage.log.topic_log import TopicLog

_READS: Final = ("SELECT", "WITH", "EXPLAIN", "(")
#: What may stand before a statement: white space and comments.
_BEFORE: Final = re.compile(r"\A(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_UNKNOWN_TABLE: Final = re.compile(r"relation '(.+?)' was not found")
_UNKNOWN_COLUMN: Final = re.compile(r'unable to find column "(.+?)"; valid columns: \[(.*?)\]')
_MOST_CHARACTERS: Final = 300


def run_query(query: str, *, open_log: Callable[[str], TopicLog], topics: Callable[[], Sequence[str]], limit: int | None) -> pl.DataFrame:
    """Return the rows of a query, of `limit` rows at most.

    Raises `UserError` for a statement that does not read, for a query that is wrong and for a value that does not fit its column,
    `UnknownTopic` for a table that is no topic.
    """
    check_text("sql: query", query)
    _check_reads(query)
    frames: dict[str, pl.LazyFrame] = {}
    failures: list[LastwordError] = []
    while True:
        try:
            rows = pl.SQLContext(frames=frames, eager=False).execute(query)
            return (rows if limit is None else rows.head(limit)).collect(engine="streaming")
        except pl.exceptions.PolarsError as error:
            if failures:
                raise failures[0] from None
            name = _UNKNOWN_TABLE.search(str(error))
            if name is None or name[1] in frames:
                raise UserError(_describe(error)) from None
            known = topics()
            if name[1] not in known:
                raise UnknownTopic(_unknown(name[1], "topic", known)) from None
            frames[name[1]] = _scan_topic(open_log(name[1]), failures)


def _check_reads(query: str) -> None:
    """Raise `UserError` for a statement that is no query."""
    statement = _BEFORE.sub("", query, count=1)
    if not statement.upper().startswith(_READS):
        word = statement.split(maxsplit=1)[0][:40] if statement.strip() else "nothing"
        message = f"sql: {word}: allowed are queries, which begin with SELECT, WITH or EXPLAIN; nothing can be written"
        raise UserError(message)


def _scan_topic(log: TopicLog, failures: list[LastwordError]) -> pl.LazyFrame:
    """Return the newest rows of a topic as the table that they are, or as keys and values where no source has named its columns.

    Polars does not hand on what is raised while it reads: it is added to `failures`.
    """
    view = newest_view(log, "read_committed")
    try:
        decoder = TableDecoder(table_columns(log, None))
    except ColumnsUnknown:
        texts = (pl.col(name).map_batches(_decode_texts, return_dtype=pl.String, is_elementwise=True) for name in ("key", "value"))
        return scan_latest(view).with_columns(texts)

    def rows(columns: list[str] | None, predicate: pl.Expr | None, most: int | None, _: int | None) -> Iterator[pl.DataFrame]:
        left = sys.maxsize if most is None else most
        try:
            for records in latest_batches(view, ("partition", "offset", "key", "value")):
                for batch in decode_batch(records, decoder, topic=log.name):
                    frame = pl.DataFrame(batch)
                    frame = (frame if predicate is None else frame.filter(predicate)).head(left)
                    left -= frame.height
                    yield frame if columns is None else frame.select(columns)
                    if left == 0:
                        return
        except LastwordError as error:
            failures.append(error)
            raise

    return register_io_source(rows, schema=pl.DataFrame(decoder.schema.empty_table()).schema)


def _decode_texts(data: pl.Series) -> pl.Series:
    """Return bytes as text, those that are not UTF-8 as null."""
    try:
        return data.cast(pl.String)
    except pl.exceptions.PolarsError:
        return pl.Series(data.name, [_decode_utf8(value) for value in data.to_list()], pl.String)


def _decode_utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _unknown(name: str, what: str, known: Sequence[str]) -> str:
    """Return the message for a topic or a column that is not there."""
    near = get_close_matches(name, known, n=1)
    shown = ", ".join(known) or "none"
    return f"sql: {what} {name} does not exist{f'; did you mean {near[0]}?' if near else ''} (existing: {shown})"


def _describe(error: pl.exceptions.PolarsError) -> str:
    """Return the error message of Polars for a query, in one line."""
    column = _UNKNOWN_COLUMN.search(str(error))
    if column is not None:
        return _unknown(column[1], "column", re.findall(r'"([^"]+)"', column[2]))
    line = str(error).strip().split("\n", 1)[0].removeprefix("sql parser error: ")
    return f"sql: {line[:_MOST_CHARACTERS]}"
