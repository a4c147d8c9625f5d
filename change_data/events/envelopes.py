"""Envelopes of change events: how a source is to be read, and what was read of it.

`lastword.change_data.events.debezium` reads events, `lastword.change_data.events.event_rows` makes them the input rows of an append.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import ddl_text
from lastword.change_data.events.event_keys import KeyFormat  # noqa: TC001  read at run time
from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.compaction.rows.input_columns import EventPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.change_data.columns.column_types import Column

Kind = Literal["debezium", "debezium-flat"]
Truncate = Literal["delete-all", "alert", "ignore"]
#: The connectors whose events say where they stand in their source.
Connector = Literal["", "postgresql", "mysql", "mariadb", "sqlserver", "db2", "oracle", "mongodb"]
#: What ExtractNewRecordState makes of deletions; empty: it is not said.
DeleteTombstoneHandling = Literal["", "drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"]
TimePrecision = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]

#: What an event is that becomes no row of the log.
TOMBSTONE, HEARTBEAT, SCHEMA_CHANGE, TRANSACTION, MESSAGE = "tombstone", "heartbeat", "schema_change", "transaction", "message"
#: The field of the flattened form that says a deletion; it is called so whatever prefix the other fields have.
DELETED: Final = "__deleted"
#: The fields of a block `source`, of any connector; and those of `transaction`.
_SOURCE_FIELDS: Final = (
    *("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "schema", "table", "collection"),
    *("txId", "lsn", "xmin", "origin", "origin_lsn", "server_id", "gtid", "file", "pos", "row", "thread", "query"),
    *("change_lsn", "commit_lsn", "event_serial_no", "scn", "commit_scn", "start_scn", "lcr_position", "rs_id", "ssn", "redo_thread"),
    *("user_name", "row_id", "start_ts_ms", "commit_ts_ms", "commit_ts", "ord", "order", "h", "lsid", "txnNumber", "wallTime"),
    *("keyspace", "shard", "vgtid", "cluster"),
)
#: The fields that `add.fields` of the flattened form usually names, where the source does not say which. Any other field is a column of the
#: row: one too many is seen, one too few is lost.
USUAL_ADDED_FIELDS: Final = frozenset(
    (
        *("op", "deleted", "ts_ms", "ts_us", "ts_ns", "connector", "db", "schema", "table", "collection"),
        *("txId", "lsn", "file", "pos", "row", "gtid", "change_lsn", "commit_lsn", "event_serial_no", "scn", "commit_scn", "ord"),
        *(f"source_{field}" for field in _SOURCE_FIELDS),
        *(f"transaction_{field}" for field in ("id", "total_order", "data_collection_order")),
    )
)
PLACEHOLDER: Final = "__debezium_unavailable_value"
#: What a placeholder begins with that is given as the hexadecimal text of its bytes.
_HEX: Final = "hex:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """How the events of a source are to be read.

    `key` names the columns of the row that are its key; none: the event's own key, whose serializer is `key_format`. `sequence` names
    fields of the event by path (`after.version`; of a flat event `version`) that order the events of a key, and a text among them is
    compared as `sequence_as` says: as text, number or time; none: the position of the commit that Debezium gives for the connector.
    `connector` is the connector of events that do not say it, as flat ones (`source.connector`). `scope` is the name of the source, in
    place of `source.name`: positions are compared with those of the same connector and name alone. Rows that a later snapshot lacks, as
    they were deleted while the connector did not follow the source, stay (`on_snapshot` keep), or are deleted when the snapshot is
    complete (replace, for sources whose snapshots are always of whole tables).

    `add_fields` are the fields that the connector adds to a flat event (`add.fields`: `op`, `source.lsn`, `source.lsn:name`); none: the
    usual ones. `prefix` is theirs (`add.fields.prefix`). `add_headers` and `headers_prefix` are the same of the headers of its record
    (`add.headers`, `add.headers.prefix`); a field of the value goes before a header. `delete_tombstone_handling_mode` is the connector's:
    with `rewrite-with-tombstone` a null value says nothing, as the deletion is the row before it, and else it is a deletion.

    `placeholder` is the connector's `unavailable.value.placeholder`. A column whose value the source left out, and that no earlier event
    of the key has, makes the event a dead letter, or is null (`unresolved`).

    `schema` gives the columns as SQL DDL (`id bigint, price decimal(20,10), at timestamp`), and the three modes are the connector's
    settings of these names, by which it encodes them. Without it the columns of an event that carries Connect's schema are known from
    there, and those of any other stay as they are. A value that does not fit its column makes the event a dead letter, or is null
    (`misfit`).

    Raises `InvalidConfiguration` naming each setting that is not allowed.
    """

    kind: Kind = "debezium"
    key: tuple[str, ...] = ()
    key_format: KeyFormat = ""
    sequence: tuple[str, ...] = ()
    sequence_as: Literal["", "text", "number", "time"] = ""
    connector: Connector = ""
    scope: str = ""
    truncate: Truncate = "delete-all"
    on_snapshot: Literal["keep", "replace"] = "keep"
    prefix: str = "__"
    add_fields: tuple[str, ...] = ()
    headers_prefix: str = "__"
    add_headers: tuple[str, ...] = ()
    delete_tombstone_handling_mode: DeleteTombstoneHandling = ""
    placeholder: str = PLACEHOLDER
    unresolved: Literal["dead-letter", "null"] = "dead-letter"
    schema: str = ""
    decimal_handling_mode: Literal["precise", "double", "string"] = "precise"
    time_precision_mode: TimePrecision = "adaptive"
    binary_handling_mode: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    misfit: Literal["dead-letter", "null"] = "dead-letter"

    def __post_init__(self) -> None:
        """Check the settings."""
        allowed = {name: get_args(hint) for name, hint in get_type_hints(type(self)).items() if get_origin(hint) is Literal}
        wrong = [
            Violation(key=name, value=str(getattr(self, name)), allowed=f"one of {', '.join(filter(None, choices))}")
            for name, choices in allowed.items()
            if getattr(self, name) not in choices
        ]
        wrong += _wrong_names(self) + _unused_settings(self)
        wrong += [
            Violation(key=name, value=repr(getattr(self, name)), allowed="a text")
            for name in ("schema", "prefix", "headers_prefix", "scope")
            if not isinstance(getattr(self, name), str)
        ]
        if not wrong:
            try:
                self.columns()
            except ValueError as error:
                wrong = [Violation(key="schema", value=self.schema, allowed=str(error))]
        try:
            placeholders_of(self)
        except (AttributeError, ValueError):
            wrong.append(Violation(key="placeholder", value=str(self.placeholder), allowed="text, or hex: and hexadecimal digits"))
        if wrong:
            subject = "the envelope"
            raise InvalidConfiguration(subject, wrong)

    @property
    def policy(self) -> EventPolicy:
        """What an append does with the events beyond their rows."""
        return EventPolicy(
            placeholders=placeholders_of(self),
            null_unresolved=self.unresolved == "null",
            replace_on_snapshot=self.on_snapshot == "replace",
            columns=ddl_text(self.columns()),
        )

    def columns(self) -> tuple[Column, ...]:
        """Return the columns that `schema` gives; none without one."""
        if not self.schema:
            return ()
        return columns_of_ddl(
            self.schema,
            decimal_handling_mode=self.decimal_handling_mode,
            time_precision_mode=self.time_precision_mode,
            binary_handling_mode=self.binary_handling_mode,
        )


def _wrong_names(envelope: Envelope) -> list[Violation]:
    """Return what is wrong with the lists of names of an envelope."""
    wrong = list[Violation]()
    for name in ("key", "sequence", "add_fields", "add_headers"):
        names: Any = getattr(envelope, name)
        is_list = isinstance(names, (tuple, list)) and all(isinstance(part, str) and part.strip(".: ") for part in names)
        if not is_list or len(set(names)) < len(names):
            wrong.append(Violation(key=name, value=str(names), allowed="a tuple of names, each once, e.g. ('id',)"))
    if not wrong:
        for name, names in (("add_fields", added_names(envelope)), ("add_headers", names_of_headers(envelope))):
            given = getattr(envelope, name)
            if len(names) < len(given):
                wrong.append(Violation(key=name, value=str(given), allowed="fields with a name of their own each"))
    return wrong


_WITH_POSITIONS: Final = "only without sequence: positions of the connector tell what a snapshot lacks"
_WITH_CONNECTOR: Final = "with source.connector beside source.commit_lsn, or with connector: several connectors have a commit_lsn"


def _unused_settings(envelope: Envelope) -> list[Violation]:
    """Return the settings of an envelope that would do nothing."""
    of_flat = (
        ("add_fields, prefix", envelope.add_fields, envelope.prefix),
        ("add_headers, headers_prefix", envelope.add_headers, envelope.headers_prefix),
        ("delete_tombstone_handling_mode", envelope.delete_tombstone_handling_mode, "__"),
    )
    origin, has_sequence = envelope.connector or envelope.scope, bool(envelope.sequence)
    fields = ", ".join(map(str, (*envelope.add_fields, *envelope.add_headers)))
    rules = [
        (name, names or prefix, bool(names) or prefix != "__", "only with kind='debezium-flat'; leave it out")
        for name, names, prefix in of_flat
        if envelope.kind != "debezium-flat"
    ]
    rules += [
        ("on_snapshot", envelope.on_snapshot, has_sequence and envelope.on_snapshot == "replace", _WITH_POSITIONS),
        ("connector, scope", origin, has_sequence and bool(origin), "only without sequence, which orders the events by itself"),
        ("sequence_as", envelope.sequence_as, bool(envelope.sequence_as) and not has_sequence, "only with sequence; leave it out"),
        ("add_fields, add_headers", fields, _is_lsn_ambiguous(envelope), _WITH_CONNECTOR),
        ("key_format", envelope.key_format, bool(envelope.key and envelope.key_format), "only without key: columns are the key then"),
    ]
    return [Violation(key=key, value=str(value), allowed=allowed) for key, value, is_unused, allowed in rules if is_unused]


def _is_lsn_ambiguous(envelope: Envelope) -> bool:
    """Tell whether flat events carry a `commit_lsn`, which several connectors have, and nothing that says which connector theirs is."""
    if not all(isinstance(name, str) for name in (*envelope.add_fields, *envelope.add_headers)):
        return False
    fields = {*added_names(envelope).values(), *names_of_headers(envelope).values()}
    return "source_commit_lsn" in fields and not ("source_connector" in fields or envelope.connector or envelope.sequence)


def added_names(envelope: Envelope) -> dict[str, str]:
    """Return the names in a flat event of the fields that `add_fields` lists, each with the field: {"__source_lsn": "source_lsn"}."""
    return _find_by_name(envelope.add_fields, envelope.prefix)


def names_of_headers(envelope: Envelope) -> dict[str, str]:
    """Return the names of the headers that `add_headers` lists, each with the field: {"__source_lsn": "source_lsn"}."""
    return _find_by_name(envelope.add_headers, envelope.headers_prefix)


def _find_by_name(entries: Sequence[str], prefix: str) -> dict[str, str]:
    pairs = (entry.strip().partition(":") for entry in entries)
    return {f"{prefix}{(new_name or field).replace('.', '_')}": field.replace(".", "_") for field, _, new_name in pairs}


class Learnt(NamedTuple):
    """The columns that the schema of an event names, the event's sequence, and its row number."""

    columns: tuple[Column, ...]
    sequence: str
    row: int


@dataclass(slots=True)
class Events:
    """The events of one batch as rows of a log, in the order of the batch.

    Of each row: `key` and `value` (null for a deletion), `sequence`, `row`, the number of its event in the batch, and `unresolved`: the
    names of the columns whose value the source left out because it did not change. `others` are the events that are no rows, by row number,
    and `refused` are events that cannot be read, with the reason. `positions` are the sequences of TRUNCATEs and of refused events, and
    `refused_keys` the canonical keys of refused events whose key can be read. `times` are the `source.ts_ms` of events that have one.
    """

    key: list[bytes | None] = field(default_factory=list)
    value: list[bytes | None] = field(default_factory=list)
    sequence: list[str] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    unresolved: list[tuple[str, ...]] = field(default_factory=list)
    others: dict[int, str] = field(default_factory=dict)
    positions: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    refused_keys: dict[int, bytes] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    #: The places, in the lists above, of flat tombstones without a position of their own.
    guessed: set[int] = field(default_factory=set)
    #: The columns that the schema of the event with the highest sequence names, that sequence, and the row of the event.
    learnt: Learnt | None = None

    def learn(self, columns: tuple[Column, ...], sequence: str, row: int) -> None:
        """Take note of the columns that an event's schema names."""
        if self.learnt is None or sequence >= self.learnt.sequence:
            self.learnt = Learnt(columns, sequence, row)

    def add(self, row: int, key: bytes | None, value: bytes | None, sequence: str, unresolved: tuple[str, ...] = ()) -> None:
        """Add a row of the log."""
        self.key.append(key)
        self.value.append(value)
        self.sequence.append(sequence)
        self.row.append(row)
        self.unresolved.append(unresolved)


def placeholders_of(envelope: Envelope) -> frozenset[bytes]:
    """Return the JSON texts that stand for a value that the source left out, in each encoding that Debezium has for it.

    Text, bytes (base64, hexadecimal), a map; an array of those, of one UUID, or of the placeholder's bytes as numbers and decimals.
    """
    octets = envelope.placeholder.encode()
    if envelope.placeholder.startswith(_HEX):
        octets = bytes.fromhex(envelope.placeholder.removeprefix(_HEX))
    text = octets.decode(errors="replace")
    encoded = [base64.b64encode(octets).decode(), base64.urlsafe_b64encode(octets).decode(), octets.hex()]
    digest = hashlib.md5(octets, usedforsecurity=False).digest()
    decimals = [base64.b64encode(bytes([octet])).decode() for octet in octets]
    lists: list[list[Any]] = [[element] for element in (text, *encoded, str(uuid.UUID(bytes=digest, version=3)))]
    values = [text, {text: text}, *encoded, *lists, list(octets), [float(octet) for octet in octets], decimals]
    return frozenset([*(msgspec.json.encode(value) for value in values), json.dumps(text).encode()])


def signs_of(envelope: Envelope) -> frozenset[bytes]:
    """Return texts of which a row contains one wherever it has one of the envelope's placeholders."""
    signs = {placeholder.strip(b'[]{}"').split(b'"')[0] for placeholder in placeholders_of(envelope)}
    return frozenset(signs | {sign.replace(b",", b", ") for sign in signs})
