"""Where change events stand in their source: the position of their commit, by what each connector of Debezium says of it.

```
 connector             order: the position of the commit              identity: which event of the commit
 postgresql            commit_lsn, or else sequence[0]                lsn
 mysql, mariadb        number of the binlog's file, pos               row
 sqlserver, db2        commit_lsn                                     change_lsn, event_serial_no
 oracle                commit_scn, or else scn                        scn
 mongodb               ts_ms, ord, if they are the clusterTime        -
 cassandra             refused: its events have no order
 any other             none: the order of arrival counts
```

Read from the connectors of Debezium 3.6. A finer order than that of commits loses rows: PostgreSQL writes an INSERT before its unique
check, so it can have a lower LSN than the DELETE which it waited for. `sequence[0]` is the commit before that of the event.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from lastword.change_data.columns.column_values import timestamp_text
from lastword.change_data.columns.json_rows import NoEvent
from lastword.compaction.order.sequences import sequence_text
from lastword.compaction.order.source_positions import CHANGE, NO_SCOPE, SNAPSHOT, SourcePosition, identity_text, scope_text, table_code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lastword.change_data.events.envelopes import Envelope

_ANY: Final = msgspec.json.Decoder()
_TRAILING_NUMBER: Final = re.compile(r"(\d+)$")
_LSN_OF_SQL_SERVER: Final = re.compile(r"[0-9a-fA-F]+(?::[0-9a-fA-F]+)+")
#: The digits of each number in an order.
DIGITS: Final = 20
_LIMIT: Final = 10**DIGITS
_SECOND_MS: Final = 1000
_ZONED: Final = re.compile(r".*[T ].*(?:Z|[+-][0-9:]+)").fullmatch
_INSTANT_CHARACTERS: Final = len("2026-03-01T06:30:00.123456789")


class SourceBlock(msgspec.Struct):
    """What the block `source` says of the position of an event."""

    connector: Any = None
    name: Any = None
    db: Any = None
    schema: Any = None
    table: Any = None
    collection: Any = None
    snapshot: Any = None
    sequence: Any = None
    lsn: Any = None
    file: Any = None
    pos: Any = None
    row: Any = None
    commit_lsn: Any = None
    change_lsn: Any = None
    event_serial_no: Any = None
    scn: Any = None
    commit_scn: Any = None
    ts_ms: Any = None
    wallTime: Any = None  # noqa: N815  Debezium's name
    ord: Any = None


class _Place(NamedTuple):
    """An order, empty if it is not known, the identity, and whether a row `r` has the position of its whole snapshot.

    `is_first`: no commit is known before it, as before the first transaction that PostgreSQL's connector sends.
    """

    order: str = ""
    identity: str = ""
    is_of_snapshot: bool = True
    is_first: bool = False


_UNKNOWN: Final = _Place()
#: The sequence of an event that says nothing of its position.
NO_POSITION: Final = SourcePosition(scope=NO_SCOPE).text


def source_sequence(source: SourceBlock, op: Any, envelope: Envelope) -> str:
    """Return the sequence of an event at the position of its commit, without Kafka's partition; a snapshot's row is before a change there.

    Raises `NoEvent` for an event of a connector whose events have no order at all, or of one that cannot be told.
    """
    connector = _connector_of(source, envelope)
    if not connector and not envelope.scope:
        return NO_POSITION
    names = [envelope.scope] if envelope.scope else [_text(source.name), _text(source.db) if connector == "sqlserver" else ""]
    place, find = _UNKNOWN, _PLACES.get(connector)
    if find is not None:
        try:
            place = find(source, op)
        except (TypeError, ValueError, ArithmeticError, msgspec.DecodeError):  # no number, or one without end
            place = _UNKNOWN
    rank = SNAPSHOT if op == "r" and place.is_of_snapshot and source.snapshot != "incremental" else CHANGE
    return SourcePosition(
        scope=scope_text(connector, *names),
        order=f"{place.order}{rank}" if place.order else "",
        floor=f"{_number(0)}{CHANGE}" if place.is_first else "",
        identity=place.identity,
        table=table_code(_text(source.db), _text(source.schema), _text(source.table if source.collection is None else source.collection)),
    ).text


def _connector_of(source: SourceBlock, envelope: Envelope) -> str:
    """Return the name of the connector: as the event or the envelope says it, or by the fields that one connector alone has."""
    connector = _text(source.connector) or envelope.connector
    if connector == "cassandra":
        message = "source.connector cassandra: its events come in no order, from several nodes, so which is the newest cannot be told"
        raise NoEvent(message)
    if connector:
        return connector
    for name, fields in (("postgresql", ("lsn",)), ("mysql", ("file", "pos")), ("oracle", ("scn",)), ("mongodb", ("ord",))):
        if all(getattr(source, field) is not None for field in fields):
            return name
    if source.commit_lsn is not None:
        message = "commit_lsn without source.connector: say which connector it is (connector = sqlserver, db2 …), or add source.connector"
        raise NoEvent(message)
    return ""


def _text(given: Any) -> str:
    return given if isinstance(given, str) else "" if given is None else str(given)


def _number(given: Any) -> str:
    """Return a whole number, or a text of one, with all its digits; raise `ValueError` for another value."""
    number = int(given)
    if isinstance(given, (bool, float)) or not 0 <= number < _LIMIT:
        raise ValueError(given)
    return f"{number:0{DIGITS}}"


def _postgresql(source: SourceBlock, op: Any) -> _Place:
    identity = "" if source.lsn is None else _number(source.lsn)
    if source.commit_lsn is not None:
        return _Place(_number(source.commit_lsn), identity)
    if source.sequence is None:  # a flattened event, or one of an old version
        return _Place(identity, identity)
    sequence = _ANY.decode(source.sequence) if isinstance(source.sequence, str) else source.sequence
    if sequence[0] is not None:
        return _Place(_number(sequence[0]), identity, is_of_snapshot=False)
    return _Place(identity, identity) if op == "r" else _Place("", identity, is_first=bool(identity))


def _mysql(source: SourceBlock, op: Any) -> _Place:  # noqa: ARG001
    number = _TRAILING_NUMBER.search(source.file)
    if number is None:
        raise ValueError(source.file)
    return _Place(f"{_number(number[1])}.{_number(source.pos)}", _number(source.row or 0))


def _sqlserver(source: SourceBlock, op: Any) -> _Place:  # noqa: ARG001
    if not _LSN_OF_SQL_SERVER.fullmatch(source.commit_lsn):
        raise ValueError(source.commit_lsn)
    return _Place(source.commit_lsn.lower(), identity_text(source.change_lsn, source.event_serial_no))


def _oracle(source: SourceBlock, op: Any) -> _Place:  # noqa: ARG001
    scn = "" if source.scn is None else _number(source.scn)
    return _Place(scn if source.commit_scn is None else _number(source.commit_scn), scn)


def _mongodb(source: SourceBlock, op: Any) -> _Place:
    """Return the clusterTime of a change; `ts_ms` may be a wall clock, of the primary or, in a snapshot, of the connector."""
    ts_ms = int(source.ts_ms)
    is_cluster_time = source.wallTime != ts_ms and ts_ms % _SECOND_MS == 0
    if op == "r" or source.ord is None or not is_cluster_time:
        return _UNKNOWN
    return _Place(f"{_number(ts_ms)}.{_number(source.ord)}")


_PLACES: Final[Mapping[str, Callable[[SourceBlock, Any], _Place]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlserver": _sqlserver,
    "oracle": _oracle,
    "mongodb": _mongodb,
    "db2": _sqlserver,
}


def named_sequence(text: bytes, envelope: Envelope) -> str:
    """Return the sequence of an event by the fields that a source names by path; raise `NoEvent` for one that lacks a field.

    Of a deletion, which has no row `after`, the row `before` has the field; where it was left out there, the sequence is not known.
    """
    event, parts = _ANY.decode(text), []
    for path in envelope.sequence:
        names = path.split(".")
        value = _find(event, names)
        if value is None and names[0] == "after" and isinstance(event, Mapping) and event.get("after") is None:
            value = _find(event, ["before", *names[1:]])
            if value is None:
                return ""
        if value is None:
            message = f"sequence {path}: the event has none"
            raise NoEvent(message)
        parts.append(_order(path, value, envelope.sequence_as))
    try:
        return sequence_text(parts)
    except ValueError:
        message = f"sequence {', '.join(envelope.sequence)} = {parts}: allowed are numbers of up to 20 digits, and texts"
        raise NoEvent(message) from None


def _find(event: Any, names: Sequence[str]) -> Any:
    for name in names:
        event = event.get(name) if isinstance(event, Mapping) else None
    return event


def _order(path: str, value: Any, kind: str) -> Any:
    """Return a value of a sequence as what it is compared as; raise `NoEvent` for one that cannot be compared so."""
    if isinstance(value, (dict, list)):
        message = f"sequence {path} = {value!r}: allowed is a number, or with sequence.as a text, a number or a time"
        raise NoEvent(message)
    if not isinstance(value, str):
        return value
    if kind == "text":
        return value
    try:
        if kind == "number":
            return Decimal(value)
        if kind == "time":
            return _instant(value)
    except (ArithmeticError, ValueError):
        message = f"sequence {path} = {value!r}: it is no {kind}, as sequence.as says"
        raise NoEvent(message) from None
    message = f"sequence {path} = {value!r}: a text; say what it is compared as: sequence.as = number, time or text"
    raise NoEvent(message)


def _instant(text: str) -> str:
    """Return a date and time as a text that orders by its bytes, with nine digits behind the point of a second; of a zone, in UTC."""
    instant = timestamp_text("", "Z" if _ZONED(text) else "", text).removesuffix("Z")
    return instant.ljust(_INSTANT_CHARACTERS, "0")
