"""A schema registry on loopback with the paths of the real ones, and frames as their serializers write them."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import fastavro

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

JSON = "application/vnd.schemaregistry.v1+json"


@dataclass
class Registry:
    """What a registry knows, how it behaves, and what it was asked."""

    #: By id: the answer of /schemas/ids/{id}; of Protobuf `serialized` is the base64 text for format=serialized.
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: By subject and version: the id.
    versions: dict[tuple[str, int], int] = field(default_factory=dict)
    login: str | None = None
    #: Statuses that the next requests get instead of an answer.
    failures: list[int] = field(default_factory=list)
    delay_s: float = 0.0
    #: Body of every answer with status 200, if it is no registry at all; and the status of one that knows no such path.
    body: bytes | None = None
    foreign_404: bool = False
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def add(self, schema: Any, *, kind: str = "AVRO", subject: str = "", **more: Any) -> int:
        """Register a schema under the next id."""
        schema_id = len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[schema_id] = {"schema": text, **({} if kind == "AVRO" else {"schemaType": kind}), **more}
        if subject:
            self.versions[subject, 1] = schema_id
        return schema_id

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        """Return status and body of an answer."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if len(parts) == 3 and parts[:2] == ["schemas", "ids"]:
            schema_id: int | None = int(parts[2])
        elif len(parts) == 4 and parts[0] == "subjects":
            schema_id = self.versions.get((parts[1], int(parts[3])))
        else:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if schema_id not in self.schemas:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        answer = dict(self.schemas[schema_id])
        serialized = answer.pop("serialized", None)
        return 200, {**answer, "schema": serialized} if query.get("format") == ["serialized"] and serialized else answer


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        registry = self.registry
        registry.requests.append(self.path)
        time.sleep(registry.delay_s)
        if registry.failures:
            self._send(registry.failures.pop(0), b"busy")
        elif registry.login is not None and self.headers.get("Authorization") != registry.login:
            self._send(401, b'{"error_code": 401, "message": "Unauthorized"}')
        elif registry.foreign_404:
            self._send(404, b"<html>nothing here</html>")
        elif registry.body is not None:
            self._send(200, registry.body)
        else:
            parts = urlsplit(self.path)
            status, body = registry.answer(parts.path, parse_qs(parts.query))
            self._send(status, json.dumps(body).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):  # the client did not wait
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name of the method that it takes the place of
        """Say nothing."""


@contextmanager
def running(registry: Registry, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve a registry on loopback; return its URL."""
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    registry.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    try:
        yield registry.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def header(schema_id: int) -> bytes:
    """Return what every frame begins with."""
    return b"\0" + schema_id.to_bytes(4, "big")


def avro_frame(schema_id: int, schema: Any, value: Any) -> bytes:
    """Return a value as Confluent's Avro serializer frames it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return header(schema_id) + stream.getvalue()


def basic(user: str, password: str) -> str:
    """Return the header of a login."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# What Debezium's Avro converter makes of a table: id bigint primary key, name text, price numeric(9,2), made timestamp, paid timestamptz,
# day date, weight real, size double precision, flag boolean not null default true, state an_enum, extra bytea, tags text[].
ROW: dict[str, Any] = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {
            "name": "price",
            "type": [
                "null",
                {
                    "type": "bytes",
                    "scale": 2,
                    "precision": 9,
                    "connect.version": 1,
                    "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
                    "connect.name": "org.apache.kafka.connect.data.Decimal",
                    "logicalType": "decimal",
                },
            ],
            "default": None,
        },
        {
            "name": "made",
            "type": ["null", {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}],
            "default": None,
        },
        {
            "name": "paid",
            "type": ["null", {"type": "string", "connect.version": 1, "connect.name": "io.debezium.time.ZonedTimestamp"}],
            "default": None,
        },
        {"name": "day", "type": ["null", {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}], "default": None},
        {"name": "weight", "type": ["null", "float"], "default": None},
        {"name": "size", "type": ["null", "double"], "default": None},
        {"name": "flag", "type": {"type": "boolean", "connect.default": True}, "default": True},
        {
            "name": "state",
            "type": [
                {
                    "type": "string",
                    "connect.version": 1,
                    "connect.parameters": {"allowed": "open,closed"},
                    "connect.default": "open",
                    "connect.name": "io.debezium.data.Enum",
                },
                "null",
            ],
            "default": "open",
        },
        {"name": "extra", "type": ["null", "bytes"], "default": None},
        {"name": "tags", "type": ["null", {"type": "array", "items": ["null", "string"]}], "default": None},
    ],
    "connect.name": "pg.shop.orders.Value",
}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "pg.shop.orders",
    "fields": [
        {"name": "before", "type": ["null", ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector.postgresql",
                "fields": [
                    {"name": "version", "type": "string"},
                    {"name": "connector", "type": "string"},
                    {"name": "name", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {
                        "name": "snapshot",
                        "type": [
                            {
                                "type": "string",
                                "connect.version": 1,
                                "connect.parameters": {"allowed": "true,first,last,false"},
                                "connect.default": "false",
                                "connect.name": "io.debezium.data.Enum",
                            },
                            "null",
                        ],
                        "default": "false",
                    },
                    {"name": "db", "type": "string"},
                    {"name": "sequence", "type": ["null", "string"], "default": None},
                    {"name": "ts_us", "type": ["null", "long"], "default": None},
                    {"name": "ts_ns", "type": ["null", "long"], "default": None},
                    {"name": "schema", "type": "string"},
                    {"name": "table", "type": "string"},
                    {"name": "txId", "type": ["null", "long"], "default": None},
                    {"name": "lsn", "type": ["null", "long"], "default": None},
                    {"name": "xmin", "type": ["null", "long"], "default": None},
                ],
                "connect.name": "io.debezium.connector.postgresql.Source",
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
    "connect.version": 2,
    "connect.name": "pg.shop.orders.Envelope",
}
ROW_VALUE: dict[str, Any] = {
    "id": 7,
    "name": "pear – é",
    "price": (-12345).to_bytes(2, "big", signed=True),
    "made": 1_714_564_800_123_456,
    "paid": "2024-05-01T12:00:00.000001Z",
    "day": 19844,
    "weight": 0.1,
    "size": 1.5,
    "flag": False,
    "state": "closed",
    "extra": b"\0\xff",
    "tags": ["a", None],
}
EVENT: dict[str, Any] = {
    "before": None,
    "after": ROW_VALUE,
    "source": {
        "version": "3.0.0.Final",
        "connector": "postgresql",
        "name": "pg",
        "ts_ms": 1_714_564_800_123,
        "snapshot": "false",
        "db": "shop",
        "sequence": '["1","2"]',
        "ts_us": 1_714_564_800_123_456,
        "ts_ns": 1_714_564_800_123_456_000,
        "schema": "shop",
        "table": "orders",
        "txId": 5,
        "lsn": 987_654_321,
        "xmin": None,
    },
    "op": "c",
    "ts_ms": 1_714_564_800_200,
}
