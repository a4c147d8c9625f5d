"""Positions of change events in their source, as source sequences: one text each, of which the order and the identity are parts.

```
 @postgresql.shop:0001/00000000000024023128.1/00000000000024023400/6f1d22ab/3
  scope           epoch order               . identity             table and partition
                        of the commit       1 a change, 0 a row of a snapshot
```

* The **order** is compared, and only with that of another event of the same **scope** (the connector and its `source.name`): it is the
  position of the commit, nothing finer. Of events with one order the later arrival counts. Without an order arrival counts.
  `>` before it says that the order is not known, but not below that.
* The **epoch** stands before the order: a snapshot that lies below what was read begins a new one, as after a failover.
* The **identity** tells the events of one commit apart. It is compared with that of a TRUNCATE, which may be in the middle of a commit.
* The **table** stands for database, schema and table of the row; the **partition** is that of Kafka, empty if there is none.

Any other text is the sequence of a row that a user gave, or of an event before there were scopes: of no scope, and compared whole.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lastword.compaction.order.sequences import ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

_MARK: Final = "@"
#: No sequence of a scope is below this text; sequences of no scope may be.
FIRST_SCOPE: Final = _MARK
_FORM: Final = re.compile(r"(@[^:/]*:)(\d{4})/([^/]*)/([^/]*)/([^/]*)/([^/]*)")
_NUMBER_OF_ORDER: Final = re.compile(r"\b\d{20}\b")
_POLARS_FORM: Final = r"^(?<scope>@[^:/]*:)(?<epoch>\d{4})/(?<order>[^/]*)/(?<identity>[^/]*)/(?<table>[^/]*)/(?<partition>[^/]*)$"
#: What finds the scope of a source sequence, as a regular expression with one group.
SCOPE_FORM: Final = r"^(@[^:/]*:)\d{4}/[^/]*/[^/]*/[^/]*/[^/]*$"
#: The scope of an event that does not name its source, as a flat tombstone.
NO_SCOPE: Final = "@:"
#: What the scopes of PostgreSQL begin with.
POSTGRESQL: Final = ("@postgresql.", "@postgresql:")
#: The ends of the orders of a snapshot's row and of a change: at one position the row of the snapshot is older.
SNAPSHOT, CHANGE = ".0", ".1"
#: The end of the order of a deletion of what a snapshot lacks: before the rows of the snapshot.
SWEPT: Final = ".-"
#: What ends the highest sequence of each scope in the statistic of a file: below all that a sequence of a scope has.
_END: Final = "\t"
#: In the place of a scope: what is above all that a file of before such statistics may have, of scopes that it does not name.
UNNAMED_BELOW: Final = "?"
#: What stands before the floor of an event whose order is not known.
AT_LEAST: Final = ">"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """A position, by its parts; the order is empty if it is not known."""

    scope: str
    epoch: int = 1
    order: str = ""
    #: The lowest order that the event may have, where its order is not known.
    floor: str = ""
    identity: str = ""
    partition: str = ""
    table: str = ""

    @staticmethod
    def of(text: str) -> SourcePosition:
        """Return the parts of a source sequence; one of no scope is an order as it is."""
        parts = _FORM.fullmatch(text)
        if parts is None:
            return SourcePosition(scope="", order=text)
        scope, epoch, order, identity, table, partition = parts.groups()
        known, floor = ("", order[1:]) if order.startswith(AT_LEAST) else (order, "")
        return SourcePosition(scope=scope, epoch=int(epoch), order=known, floor=floor, identity=identity, partition=partition, table=table)

    @staticmethod
    def of_commit(commit: str) -> SourcePosition:
        """Return the scope, the epoch and the order of a text that `commit` returned."""
        return SourcePosition.of(f"{commit}///")

    @property
    def _epoch_of_scope(self) -> str:
        return f"{self.scope}{epoch_text(self.epoch)}"

    @property
    def text(self) -> str:
        """The source sequence."""
        if not self.scope:
            return self.order
        order = self.order or (f"{AT_LEAST}{self.floor}" if self.floor else "")
        return f"{self._epoch_of_scope}/{order}/{self.identity}/{self.table}/{self.partition}"

    @property
    def commit(self) -> str:
        """The scope, epoch and order as one text, to compare with other events of the scope; empty if the order is not known."""
        if not self.scope or not self.order:
            return self.order
        return f"{self._epoch_of_scope}/{self.order}"

    @property
    def exact(self) -> str:
        """The text `commit` and the identity, to compare events of one commit, too."""
        return f"{self.commit}/{self.identity}" if self.scope and self.order else self.order

    @property
    def reach(self) -> str:
        """The text to compare with the `commit` of an earlier record: an event is before that only if this is below it.

        A change of PostgreSQL is written behind all commits below its LSN, whatever the commit is that its connector says: one that begins
        again inside the first transaction which it reads takes a position in that for a commit.
        """
        if self.identity and self.scope.startswith(POSTGRESQL) and self.order.endswith(CHANGE):
            return max(self.commit, f"{self._epoch_of_scope}/{self.identity}{CHANGE}")
        return self.commit

    @property
    def in_table(self) -> str:
        """The text by which a row is compared with a TRUNCATE of its table.

        PostgreSQL locks the table for it, so what was written before it has a lower LSN, and what comes after it a higher one; the rows of
        a snapshot at its LSN were there before.
        """
        if self.identity and self.scope.startswith(POSTGRESQL):
            return f"{self._epoch_of_scope}/{self.identity}{SNAPSHOT if self.order.endswith(SNAPSHOT) else CHANGE}"
        return self.exact

    def with_order_of(self, commit: str) -> SourcePosition:
        """Return this position with the order of another one, by its text to compare; one without a scope gets that of the other, too."""
        other = SourcePosition.of_commit(commit)
        if not other.scope:
            return SourcePosition(scope="", order=commit)
        place = other if self.scope in {"", NO_SCOPE} else self
        return replace(self, scope=place.scope, epoch=other.epoch, order=other.order, floor="")


def epoch_text(epoch: int) -> str:
    """Return an epoch as it stands in a source sequence: four digits."""
    return f"{epoch:04}"


def scope_text(connector: str, *names: str) -> str:
    """Return the scope of a connector, its `source.name` and, of some, its database: `@postgresql.shop:`."""
    return f"{_MARK}{'.'.join(quote(name, safe='') for name in (connector, *names) if name)}:"


def shown_position(order: str) -> str:
    """Return an order for people: without the zeros before its numbers and the mark of a change at its end."""
    return _NUMBER_OF_ORDER.sub(lambda number: str(int(number[0])), order.removesuffix(CHANGE).removesuffix(SNAPSHOT))


def scope_name(scope: str) -> str:
    """Return the name under which people know a scope: `postgresql.shop`; the empty text for none."""
    return scope.removeprefix(_MARK).removesuffix(":")


@lru_cache(maxsize=1024)
def table_code(*names: str) -> str:
    """Return what stands for a table in a position: eight hexadecimal digits, of database, schema and table; empty if none is known."""
    return f"{zlib.crc32(chr(0).join(names).encode()):08x}" if any(names) else ""


def identity_text(*parts: object) -> str:
    """Return an identity of some parts; one that is not known is empty."""
    return ".".join("" if part is None else quote(str(part), safe=":") for part in parts).rstrip(".")


def scope_of(text: str) -> str:
    """Return the scope of a source sequence; the empty text for none."""
    return SourcePosition.of(text).scope


def is_order_of_event(text: str) -> bool:
    """Tell whether a change of PostgreSQL is ordered by its own LSN, as nothing is known of its commit."""
    position = SourcePosition.of(text)
    return bool(position.identity) and position.scope.startswith(POSTGRESQL) and position.order == f"{position.identity}{CHANGE}"


def is_after(text: str, other: str) -> bool:
    """Tell whether a source sequence is above another one of its scope; where that is not known it is not."""
    first, second = SourcePosition.of(text), SourcePosition.of(other)
    return first.scope == second.scope and first.commit > second.reach and bool(second.order)


def is_before(text: str, other: str) -> bool:
    """Tell whether an event at a source sequence is before that at another one of its scope, in an earlier commit or in the same one."""
    first, second = SourcePosition.of(text), SourcePosition.of(other)
    return first.scope == second.scope and first.exact < second.exact


def is_same_event(text: str, other: str) -> bool:
    """Tell whether two source sequences are of one event, which may have come again.

    An LSN tells an event of PostgreSQL by itself; the commit before it may not be known when it comes first.
    """
    first, second = SourcePosition.of(text), SourcePosition.of(other)
    if first.scope != second.scope or first.identity != second.identity:
        return False
    return first.order == second.order or (bool(first.identity) and first.scope.startswith(POSTGRESQL))


def is_before_truncate(text: str, truncated: str) -> bool:
    """Tell whether a record with a source sequence is older than a TRUNCATE of its table; a record without a position is older."""
    row, end = SourcePosition.of(text), SourcePosition.of(truncated)
    if end.scope and row.scope in {"", NO_SCOPE}:
        return True
    is_same_table = row.table == end.table or not (row.table and end.table)
    return row.scope == end.scope and is_same_table and row.in_table < end.in_table


def last_truncates(texts: Iterable[str]) -> tuple[str, ...]:
    """Return of some positions of TRUNCATEs the highest of each table."""
    last: dict[tuple[str, str], SourcePosition] = {}
    for position in map(SourcePosition.of, texts):
        place = position.scope, position.table
        if place not in last or position.in_table > last[place].in_table:
            last[place] = position
    return tuple(sorted(position.text for position in last.values()))


def highest_of_scopes(texts: pa.Array) -> dict[str, str]:
    """Return the highest of some source sequences by scope; null is left out. Those of no scope are under the empty text."""
    bounds = ends(texts)
    if bounds is None:
        return {}
    lowest, highest = bounds
    scope = scope_of(highest)
    if highest < FIRST_SCOPE or (scope and scope == scope_of(lowest)):  # all that sorts between has this scope, too
        return {scope: highest}
    given = pl.Series("text", texts, pl.String).drop_nulls()
    highest_of_scopes = _parts(given).group_by(pl.col("scope").fill_null("")).agg(pl.col("text").max())
    return dict(sorted(highest_of_scopes.iter_rows()))


def highest_text(highest: Mapping[str, str]) -> str:
    """Return the highest sequences of some scopes as one text, which is not below any of them, as a statistic of a file may be."""
    of_none = highest.get("", "")
    scoped = sorted((text for scope, text in highest.items() if scope), reverse=True)
    ended = "".join(f"{text}{_END}" for text in scoped)
    if scoped and scoped[0] > of_none:
        return f"{ended}{of_none}"
    return f"{of_none}{_END}{ended}" if scoped else of_none


@lru_cache(maxsize=2**16)
def parse_highest(text: str) -> Mapping[str, str]:
    """Return the highest sequences by scope of a text that `highest_text` returned; that of no scope is its first or its last.

    An older version wrote the highest of all alone: then it is under `UNNAMED_BELOW`, too.
    """
    if not text:
        return {}
    parts = text.split(_END)
    scoped = [scope_of(part) for part in parts]
    if scoped[0] and len(parts) == 1:
        return {scoped[0]: text, UNNAMED_BELOW: text}
    if scoped[0]:
        count = next(number for number, scope in enumerate(scoped) if not scope)
        named, of_none = parts[:count], _END.join(parts[count:])
    else:
        count = next(number for number, scope in enumerate([*scoped[-2::-1], ""]) if not scope) if not parts[-1] else 0
        named, of_none = parts[len(parts) - 1 - count : -1], _END.join(parts[: len(parts) - 1 - count]) if count else text
    of_scopes = {scope_of(part): part for part in named}
    return {**of_scopes, "": of_none} if of_none else of_scopes


def highest_of_scope(orders: Mapping[tuple[str, str], str], text: str) -> str:
    """Return the highest order of the scope that a source sequence is of; `orders` are by scope and partition. Empty for none."""
    scope = scope_of(text)
    return max((commit for (name, _), commit in orders.items() if name == scope), default="")


def place_name(scope: str, partition: str) -> str:
    """Return a scope and one of Kafka's partitions as one text, for the ledger."""
    return f"{scope}{partition}"


def parse_place(name: str) -> tuple[str, str]:
    """Return the scope and the partition of a text that `place_name` returned."""
    scope, colon, partition = name.rpartition(":")
    return f"{scope}{colon}", partition


def highest_by_place(texts: pa.Array, *, by: Literal["commit", "reach"] = "commit") -> dict[str, str]:
    """Return the highest order of some source sequences (null is left out), by `place_name`; without those whose order is not known.

    `by` "reach" a change of PostgreSQL counts with its own LSN, where that is above the commit before it.
    """
    positions = Positions.of(texts.drop_null())
    columns = {name: pl.Series(getattr(positions, name), dtype=pl.String) for name in ("scope", "partition", by)}
    rows = pl.DataFrame(columns).filter(pl.col(by) != "").group_by("scope", "partition").agg(pl.col(by).max())
    return {place_name(scope, partition): highest for scope, partition, highest in rows.iter_rows()}


def highest_of_each_place(*places: Mapping[str, str]) -> dict[str, str]:
    """Return the highest order of each place in any of some mappings."""
    highest: dict[str, str] = {}
    for orders in places:
        for place, commit in orders.items():
            highest[place] = max(commit, highest.get(place, ""))
    return dict(sorted(highest.items()))


def parts_of(texts: pa.Array) -> pl.DataFrame:
    """Return the parts of source sequences, a column each, and `text`; without a scope the parts but `order`, the text, are empty."""
    parts = _parts(pl.Series("text", texts, pl.String))
    empty = [pl.col(name).fill_null("") for name in ("scope", "epoch", "identity", "table", "partition")]
    return parts.with_columns(*empty, pl.col("order").fill_null(pl.col("text")))


def _parts(texts: pl.Series) -> pl.DataFrame:
    return texts.str.extract_groups(_POLARS_FORM).struct.unnest().with_columns(texts.alias("text"))


@dataclass(frozen=True, slots=True)
class Positions:
    """Source sequences by their parts, a column each: `commit` is compared, empty where the order is not known.

    `reach` is what an event has itself to be compared with the `commit` of an earlier record (`SourcePosition.reach`).
    """

    scope: pa.Array
    commit: pa.Array
    reach: pa.Array
    in_table: pa.Array
    partition: pa.Array
    table: pa.Array

    @staticmethod
    def of(texts: pa.Array) -> Positions:
        """Split source sequences (string, not null) into their parts."""
        given = pl.Series("text", texts if len(texts) else pa.array([], pa.string()), pl.String)
        if not given.str.starts_with(_MARK).any():
            nothing = pa.array(np.repeat("", len(given)).tolist(), pa.string())
            return Positions(nothing, texts, texts, texts, nothing, nothing)
        parts = _parts(given)
        is_scoped, order = pl.col("scope").is_not_null(), pl.col("order")
        has_order = (order != "") & ~order.str.starts_with(AT_LEAST)
        commit = pl.concat_str("scope", "epoch", pl.lit("/"), "order")
        is_of_postgresql = pl.any_horizontal(*(pl.col("scope").str.starts_with(begin) for begin in POSTGRESQL))
        is_written = is_of_postgresql & order.str.ends_with(CHANGE) & (pl.col("identity") != "")
        written = pl.concat_str("scope", "epoch", pl.lit("/"), "identity", pl.lit(CHANGE))
        rank = pl.when(order.str.ends_with(SNAPSHOT)).then(pl.lit(SNAPSHOT)).otherwise(pl.lit(CHANGE))
        made = parts.select(
            pl.col("scope").fill_null(""),
            pl.when(~is_scoped).then("text").when(has_order).then(commit).otherwise(pl.lit("")).alias("commit"),
            pl.when(~is_scoped)
            .then("text")
            .when(has_order & is_written & (written > commit))
            .then(written)
            .when(has_order)
            .then(commit)
            .otherwise(pl.lit(""))
            .alias("reach"),
            pl.when(~is_scoped)
            .then("text")
            .when(is_of_postgresql & has_order & (pl.col("identity") != ""))
            .then(pl.concat_str("scope", "epoch", pl.lit("/"), "identity", rank))
            .when(has_order)
            .then(pl.concat_str(commit, pl.lit("/"), "identity"))
            .otherwise(pl.lit(""))
            .alias("in_table"),
            pl.col("partition").fill_null(""),
            pl.col("table").fill_null(""),
        )
        return Positions(
            *(made[name].to_arrow().cast(pa.string()) for name in ("scope", "commit", "reach", "in_table", "partition", "table"))
        )


def commits_of_one_scope(texts: pa.Array) -> tuple[str, pa.Array] | None:
    """Return the common scope of source sequences and the commit part of each; None if they cannot be compared as texts.

    They can if all have one scope and orders of the same length, or if none has a scope. It is the fast path: None is no error.
    """
    first = texts[0].as_py()
    position = SourcePosition.of(first)
    if not position.scope:
        is_other = pc.or_(pc.starts_with(texts, _MARK), pc.equal(texts, ""))
        return None if pc.any(is_other).as_py() else ("", texts)
    end = len(position.commit.encode())
    if not end or not pc.all(pc.starts_with(texts, position.scope)).as_py():
        return None
    cut = pc.binary_slice(texts.cast(pa.binary()), 0, end + 1).cast(pa.string())
    is_alike = pc.and_(pc.ends_with(cut, "/"), pc.equal(pc.count_substring(cut, "/"), 2))
    if not pc.all(is_alike).as_py():
        return None
    return position.scope, pc.binary_slice(texts.cast(pa.binary()), 0, end).cast(pa.string())


def with_partitions(texts: pa.Array, partitions: pa.Array) -> pa.Array:
    """Add Kafka's partitions (string) at the end of the source sequences that have a scope."""
    is_scoped = pc.starts_with(texts, _MARK)
    if not pc.any(is_scoped).as_py():
        return texts
    made = pc.binary_join_element_wise(texts, pc.fill_null(partitions, ""), "")
    return made if pc.all(is_scoped).as_py() else pc.if_else(is_scoped, made, texts)


def with_commits(texts: pa.Array, at: NDArray[np.intp], commits: Sequence[str]) -> pa.Array:
    """Give the source sequences in the rows `at` the orders of other events, and return all of them."""
    given = texts.to_pylist()
    for row, commit in zip(at.tolist(), commits, strict=True):
        given[row] = SourcePosition.of(given[row]).with_order_of(commit).text
    return pa.array(given, pa.string())
