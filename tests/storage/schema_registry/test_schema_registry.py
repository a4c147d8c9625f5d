"""The registry, the store of schemas and the decoder: what is asked, what is kept, and what happens when the registry is not well."""

from __future__ import annotations

import copy
import datetime as dt
import ipaddress
import json
import pickle
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lastword.change_data.registry.formats import WriterSchema
from lastword.change_data.registry.schemas import RegisteredSchema, SchemaRegistryError, UndecodableFrame
from lastword.compaction.errors import InvalidConfiguration
from lastword.storage.schema_registry.client import RegistryClient, RegistryConfig, SchemaRegistryUnreachable, UnknownSchema
from lastword.storage.schema_registry.decoder import RegistryDecoder, UnknownIds, forget_schemas
from lastword.storage.schema_registry.store import SchemaStore
from tests.storage.schema_registry.registries import Registry, avro_frame, basic, header, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORD = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
#: Nobody listens there.
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests learned, and keep loopback away from a proxy."""
    monkeypatch.setenv("no_proxy", "*")
    forget_schemas()


@pytest.fixture(name="registry")
def _registry() -> Iterator[Registry]:
    registry = Registry()
    with running(registry):
        yield registry


def config_of(*urls: str, **more: Any) -> RegistryConfig:
    """Return a configuration that loses no time."""
    return RegistryConfig(urls=urls, **{"timeout_s": 5.0, "attempts": 3, "backoff_s": 0.01, **more})


def test_a_schema_is_fetched_once_and_then_needs_no_registry(registry: Registry, tmp_path: Path) -> None:
    """One request for all frames of an id; after a restart none, and none by another executor."""
    schema_id = registry.add(RECORD)
    frames = [avro_frame(schema_id, RECORD, {"id": number}) for number in range(3)]
    decoder = RegistryDecoder(config_of(registry.url), str(tmp_path))
    assert [decoder.decode(frame) for frame in frames] == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
    assert registry.requests == ["/schemas/ids/1"]

    forget_schemas()
    again = pickle.loads(pickle.dumps(decoder))  # noqa: S301  our own
    registry.failures = [500] * 9
    assert again.decode(frames[2]) == b'{"id":2}'
    assert registry.requests == ["/schemas/ids/1"]
    assert [path.name for path in (tmp_path / "schemas").iterdir()] == ["1.json"]


def test_the_store_may_be_a_uri(registry: Registry, tmp_path: Path) -> None:
    """As a log.dir may be."""
    schema_id = registry.add(RECORD)
    decoder = RegistryDecoder(config_of(registry.url), (tmp_path / "a folder").as_uri())
    assert decoder.decode(avro_frame(schema_id, RECORD, {"id": 1})) == b'{"id":1}'
    forget_schemas()
    assert decoder.decode(avro_frame(schema_id, RECORD, {"id": 2})) == b'{"id":2}'
    assert registry.requests == ["/schemas/ids/1"]


def test_a_column_has_values_reasons_and_schemas(registry: Registry, tmp_path: Path) -> None:
    """A frame that cannot be decoded is a reason, not an error; null stays null."""
    schema_id = registry.add(RECORD)
    frame = avro_frame(schema_id, RECORD, {"id": 5})
    column = pa.chunked_array(
        [[frame, None], [b"{}", header(77) + b"\2", frame[:5], b"\0\0", b"", b"\1" * 20, frame + b"x"]], pa.large_binary()
    )
    decoded = RegistryDecoder(config_of(registry.url), str(tmp_path)).decode_column(column)
    assert decoded.values.type == pa.binary()
    assert decoded.values.to_pylist() == [b'{"id":5}', *[None] * 8]
    assert decoded.schemas == {0: WriterSchema(1)}
    assert list(dict.fromkeys(decoded.schemas.values())) == [WriterSchema(1)]
    assert decoded.reasons == {
        2: "the frame begins with byte 0x7b, not with the magic byte 0 of a schema registry",
        3: f"schema 77 is not in the registry: {registry.url}: status 404, the registry says 'Schema not found'",
        4: "schema 1: the payload ends too early",
        5: "the frame is cut: 2 bytes, and 5 are its magic byte and schema id",
        6: "the frame is cut: 0 bytes, and 5 are its magic byte and schema id",
        7: "the frame names its schema by a GUID (magic byte 1); only ids are read (magic byte 0)",
        8: "schema 1: 1 bytes are left behind the value",
    }


def test_null_is_no_frame(tmp_path: Path) -> None:
    """Nothing is asked for it."""
    assert RegistryDecoder(config_of(NOWHERE), str(tmp_path)).decode(None) is None


def test_an_unknown_id_is_not_asked_for_with_every_row(registry: Registry, tmp_path: Path) -> None:
    """A replica may lag, so it is asked in two rounds; then not again for a while."""
    frame = avro_frame(1, RECORD, {"id": 1})
    decoder, again = (RegistryDecoder(config_of(registry.url, unknown_s=seconds), str(tmp_path)) for seconds in (60.0, 0.0))
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="schema 1 is not in the registry"):
            decoder.decode(frame)
    assert len(registry.requests) == 2
    with pytest.raises(UnknownSchema):
        again.decode(frame)
    registry.add(RECORD)
    assert again.decode(frame) == b'{"id":1}'


def test_an_unknown_id_is_remembered_for_some_seconds() -> None:
    """It is asked for again when they are over, not a moment earlier."""
    now = [100.0]
    ids = UnknownIds(60.0, clock=lambda: now[0])
    ids.add(1, "schema 1 is not in the registry")
    now[0] = 159.9
    with pytest.raises(UnknownSchema, match="schema 1 is not in the registry"):
        ids.check(1)
    ids.check(2)
    now[0] = 160.0
    ids.check(1)


@pytest.mark.parametrize(("max_ids", "remembered"), [(3, [1, 2, 3]), (2, [3])])
def test_unknown_ids_are_forgotten_when_there_are_too_many(max_ids: int, remembered: list[int]) -> None:
    """Garbage has any number of ids."""
    ids = UnknownIds(60.0, max_ids=max_ids)
    for schema_id in (1, 2, 3):
        ids.add(schema_id, "unknown")
    known = []
    for schema_id in (1, 2, 3):
        try:
            ids.check(schema_id)
        except UnknownSchema:
            known.append(schema_id)
    assert known == remembered


def test_ids_that_no_registry_gives_are_not_asked_for(registry: Registry, tmp_path: Path) -> None:
    """An id has 31 bits."""
    with pytest.raises(UnknownSchema, match="no registry gives such an id"):
        RegistryDecoder(config_of(registry.url), str(tmp_path)).decode(b"\0\xff\xff\xff\xff1")
    assert registry.requests == []


def test_a_replica_that_lags_is_not_the_last_word(registry: Registry) -> None:
    """One URL does not know the id yet, the other one does; it is asked first from then on."""
    schema_id = registry.add(RECORD)
    behind = Registry()
    with running(behind):
        client = RegistryClient(config_of(behind.url, registry.url))
        assert client.fetch(schema_id).kind == "AVRO"
        assert client.fetch(schema_id).text == json.dumps(RECORD)
    assert len(behind.requests) == 1


def test_the_next_url_answers_when_one_is_down(registry: Registry) -> None:
    """In the same round, without a wait."""
    schema_id = registry.add(RECORD)
    assert RegistryClient(config_of(NOWHERE, registry.url, attempts=1)).fetch(schema_id).id == schema_id


@pytest.mark.parametrize("status", [503, 500, 429, 408])
def test_a_busy_registry_is_asked_again(registry: Registry, status: int) -> None:
    """Twice busy, then fine."""
    schema_id = registry.add(RECORD)
    registry.failures = [status, status]
    assert RegistryClient(config_of(registry.url)).fetch(schema_id).id == schema_id
    assert len(registry.requests) == 3


def test_a_registry_that_stays_busy_is_unreachable(registry: Registry, tmp_path: Path) -> None:
    """The error names URL and status, and stops a whole column: it is no fault of the rows."""
    registry.failures = [503] * 9
    frame = avro_frame(1, RECORD, {"id": 1})
    with pytest.raises(SchemaRegistryUnreachable, match=rf"does not answer \(attempts: 3\): {registry.url}: status 503"):
        RegistryDecoder(config_of(registry.url), str(tmp_path)).decode_column(pa.array([frame]))


def test_a_slow_registry_is_unreachable(registry: Registry) -> None:
    """It has `timeout_s` for an answer."""
    registry.add(RECORD)
    registry.delay_s = 0.4
    with pytest.raises(SchemaRegistryUnreachable, match="timed out"):
        RegistryClient(config_of(registry.url, timeout_s=0.05, attempts=2)).fetch(1)


def test_a_registry_that_is_down_stops_the_stream_only_for_new_schemas(tmp_path: Path) -> None:
    """What is in the store is decoded."""
    SchemaStore(str(tmp_path), {}, [NOWHERE]).write(RegisteredSchema(id=1, kind="AVRO", text=json.dumps(RECORD)))
    decoder = RegistryDecoder(config_of(NOWHERE, attempts=1), str(tmp_path))
    assert decoder.decode(avro_frame(1, RECORD, {"id": 1})) == b'{"id":1}'
    with pytest.raises(SchemaRegistryUnreachable, match=r"does not answer \(attempts: 1\): http://127.0.0.1:9: no answer"):
        decoder.decode(avro_frame(2, RECORD, {"id": 1}))


def test_a_login_is_sent_and_never_shown(registry: Registry, tmp_path: Path) -> None:
    """Not in repr, not in messages, not in a pickled error."""
    schema_id = registry.add(RECORD)
    registry.login = basic("key", "s3cr€t")
    good = config_of(registry.url, user="key", password="s3cr€t")  # noqa: S106
    assert RegistryClient(good).fetch(schema_id).id == schema_id
    bad = config_of(registry.url, user="key", password="wr0ng")  # noqa: S106
    with pytest.raises(SchemaRegistryError) as caught:
        RegistryDecoder(bad, str(tmp_path)).decode(avro_frame(schema_id, RECORD, {"id": 1}))
    assert str(caught.value).startswith(f"{registry.url}: status 401, the registry says 'Unauthorized'; check user and password")
    assert registry.requests[1:] == ["/schemas/ids/1"], "asked once: the password does not get better"
    for text in (repr(good), repr(bad), str(caught.value), pickle.dumps(caught.value).decode("latin-1"), repr(RegistryDecoder(good, "/x"))):
        assert "s3cr" not in text
        assert "wr0ng" not in text
    assert pickle.loads(pickle.dumps(good)) == good  # noqa: S301  our own


def test_a_token_is_sent(registry: Registry) -> None:
    """As Confluent Cloud takes it."""
    schema_id = registry.add(RECORD)
    registry.login = "Bearer abc.def"
    config = config_of(registry.url, token="abc.def")  # noqa: S106
    assert "abc.def" not in repr(config)
    assert RegistryClient(config).fetch(schema_id).id == schema_id


def test_something_else_that_answers_is_no_registry(registry: Registry) -> None:
    """A wrong URL must not make dead letters of all rows."""
    registry.foreign_404 = True
    with pytest.raises(SchemaRegistryError, match="status 404; is it the URL of a schema registry"):
        RegistryClient(config_of(registry.url)).fetch(1)
    registry.foreign_404 = False
    with pytest.raises(SchemaRegistryError, match=r"status 404, the registry says 'HTTP 404 Not Found'; is it the URL"):
        RegistryClient(config_of(f"{registry.url}/api/wrong")).fetch(1)
    registry.body = b"<html>welcome</html>"
    with pytest.raises(SchemaRegistryError, match="status 200, but the answer is not that of a schema registry"):
        RegistryClient(config_of(registry.url)).fetch(1)
    registry.body, registry.failures = None, [418]
    with pytest.raises(SchemaRegistryError, match="status 418"):
        RegistryClient(config_of(registry.url)).fetch(1)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"urls": ()}, "a tuple of one or more URLs is required"),
        ({"urls": "http://a"}, "a tuple of one or more URLs is required"),
        ({"urls": ("ftp://a",)}, "allowed is http://host:port or https://host:port"),
        ({"urls": ("http://user:pa55@host",)}, "urls = …@host: the login belongs in user and password, not in the URL"),
        ({"urls": ("user:pa55@host",)}, "urls = …@host: the login belongs in user and password, not in the URL"),
        ({"user": "u"}, "user and password are given together"),
        ({"password": "pa55"}, "user and password are given together"),
        ({"user": "u", "password": "pa55", "token": "pa55"}, "user and password, or a token, not both"),
        ({"user": "u:v", "password": "pa55"}, "a user's name has no colon"),
        ({"timeout_s": 0}, "timeout_s = 0: allowed are more than 0 seconds"),
        ({"attempts": 0}, "attempts = 0: allowed is a whole number from 1 on"),
        ({"backoff_s": -1}, "backoff_s = -1: allowed are 0 or more seconds"),
    ],
)
def test_what_cannot_work_is_refused_at_once(more: dict[str, Any], text: str) -> None:
    """And the password is not in the message."""
    with pytest.raises(InvalidConfiguration) as caught:
        RegistryConfig(**{"urls": ("http://a",), **more})
    assert text in str(caught.value)
    assert "pa55" not in str(caught.value)


def test_a_certificate_file_that_is_not_there_has_a_message(tmp_path: Path) -> None:
    """Each executor needs it at the same path."""
    with pytest.raises(SchemaRegistryError, match=r"ca\.pem is not a readable PEM file"):
        RegistryClient(config_of("https://127.0.0.1:9", ca_file=str(tmp_path / "ca.pem"))).fetch(1)


def test_a_registry_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    """It is trusted with `ca_file` only; without, the error says so and does not try again."""
    certificate = _certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    registry = Registry()
    schema_id = registry.add(RECORD)
    with running(registry, tls=context):
        assert RegistryClient(config_of(registry.url, ca_file=str(certificate))).fetch(schema_id).id == schema_id
        with pytest.raises(SchemaRegistryError, match="its certificate is not trusted") as caught:
            RegistryClient(config_of(registry.url)).fetch(schema_id)
    assert not isinstance(caught.value, SchemaRegistryUnreachable)


def _certificate(folder: Path) -> Path:
    """Write a key and a certificate for 127.0.0.1 that signs itself."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415  comes with moto
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "registry")])
    start = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + dt.timedelta(days=36500))
    certificate = builder.add_extension(alternative, critical=False).sign(key, hashes.SHA256())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "registry.pem"
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def test_references_are_fetched_in_the_order_of_their_need(registry: Registry) -> None:
    """A reference may have references; a subject's name may have any character; a deleted version counts."""
    registry.add({"type": "enum", "name": "x.State", "symbols": ["A"]}, subject="ns/state value")
    registry.add(
        {"type": "record", "name": "x.Inner", "fields": [{"name": "state", "type": "State"}]},
        subject="inner",
        references=[{"name": "x.State", "subject": "ns/state value", "version": 1}],
    )
    outer = registry.add(
        {"type": "record", "name": "x.Outer", "fields": [{"name": "one", "type": "x.Inner"}]},
        references=[{"name": "x.Inner", "subject": "inner", "version": 1}, {"name": "x.State", "subject": "ns/state value", "version": 1}],
    )
    schema = RegistryClient(config_of(registry.url)).fetch(outer)
    assert [name for name, _ in schema.references] == ["x.State", "x.Inner"]
    assert registry.requests[2] == "/subjects/ns%2Fstate%20value/versions/1?deleted=true"


def test_a_reference_that_is_missing_makes_the_schema_unknown(registry: Registry) -> None:
    """The message names it."""
    schema_id = registry.add(RECORD, references=[{"name": "x.State", "subject": "state", "version": 3}])
    with pytest.raises(UnknownSchema, match=r"schema 1: its reference x.State \(state, version 3\) is not in the registry"):
        RegistryClient(config_of(registry.url)).fetch(schema_id)


def test_a_corrupt_file_of_the_store_is_fetched_again(registry: Registry, tmp_path: Path) -> None:
    """A schema file that is cut, changed, of another format or of another registry is replaced."""
    schema_id = registry.add(RECORD)
    frame, decoder = avro_frame(schema_id, RECORD, {"id": 1}), RegistryDecoder(config_of(registry.url), str(tmp_path))
    decoder.decode(frame)
    path = tmp_path / "schemas" / "1.json"
    good = path.read_bytes()
    kept = json.loads(good)
    changed = copy.deepcopy(kept)
    changed["body"]["schema"] = '"string"'
    for bad in (b"", good[:-9], b"[]", json.dumps(changed).encode(), json.dumps({**kept, "crc32": None}).encode()):
        path.write_bytes(bad)
        forget_schemas()
        requests = len(registry.requests)
        assert decoder.decode(frame) == b'{"id":1}'
        assert len(registry.requests) == requests + 1
        assert path.read_bytes() == good


def test_files_of_another_registry_or_format_do_not_count(tmp_path: Path) -> None:
    """Ids of two registries mean different schemas; a registry with a further URL is the same one."""
    schema = RegisteredSchema(id=3, kind="JSON", text="{}", references=(("a", "{}"),))
    store = SchemaStore(str(tmp_path), {}, ["http://a", "http://b"])
    store.write(schema)
    assert store.read(3) == schema
    assert SchemaStore(str(tmp_path), {}, ["http://b", "http://c"]).read(3) == schema
    assert SchemaStore(str(tmp_path), {}, ["http://c"]).read(3) is None
    assert store.read(4) is None
    (tmp_path / "schemas" / "4.json").write_bytes((tmp_path / "schemas" / "3.json").read_bytes())
    assert store.read(4) is None


def test_a_store_that_cannot_be_written_is_no_reason_to_fail(registry: Registry, tmp_path: Path) -> None:
    """The registry has the schema."""
    (tmp_path / "schemas").write_text("in the way")
    schema_id = registry.add(RECORD)
    assert RegistryDecoder(config_of(registry.url), str(tmp_path)).decode(avro_frame(schema_id, RECORD, {"id": 1})) == b'{"id":1}'


def test_a_schema_that_cannot_be_read_makes_its_rows_dead_letters(registry: Registry, tmp_path: Path) -> None:
    """The stream goes on."""
    registry.add("<xsd/>", kind="XML")
    registry.add({"type": "record", "name": "Row", "fields": [{"name": "id", "type": "Missing"}]})
    registry.add("{", kind="AVRO")
    registry.add("syntax …", kind="PROTOBUF", serialized="bm8=")
    decoder = RegistryDecoder(config_of(registry.url), str(tmp_path))
    decoded = decoder.decode_column(pa.array([header(number) + b"\0" for number in (1, 2, 3, 4)]))
    assert decoded.reasons[0] == "schema 1 cannot be read: its type is XML; AVRO, JSON and PROTOBUF can be read"
    assert decoded.reasons[1] == "schema 2 cannot be read: the type 'Missing' is not defined before it is used"
    assert decoded.reasons[2].startswith("schema 3 cannot be read: the schema is no JSON")
    assert decoded.reasons[3].startswith("schema 4 cannot be read: the schema is no serialized file descriptor")
    with pytest.raises(UndecodableFrame, match="schema 1 cannot be read"):
        decoder.data_type(1)
    broken = registry.add({"$ref": "#/nowhere"}, kind="JSON")
    assert decoder.decode(header(broken) + b"{}") == b"{}", "its rows can be read all the same"
    with pytest.raises(UndecodableFrame, match=r"schema 5: .*leads nowhere"):
        decoder.data_type(broken)


def test_a_registry_that_has_protobuf_only_as_text_is_an_error(registry: Registry) -> None:
    """All rows would be dead letters."""
    schema_id = registry.add('syntax = "proto3"; message Row { int32 x = 1; }', kind="PROTOBUF")
    with pytest.raises(SchemaRegistryError, match=f"schema 1 is Protobuf, and {registry.url} does not answer format=serialized"):
        RegistryClient(config_of(registry.url)).fetch(schema_id)


def test_json_of_a_registry_is_taken_as_it_is(registry: Registry, tmp_path: Path) -> None:
    """Spaces and the order of fields stay; what is no JSON is refused."""
    schema = {
        "type": "object",
        "title": "shop.Key",
        "properties": {
            "b": {"connect.index": 1, "oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int32"}]},
            "a": {"connect.index": 0, "type": "string", "description": "first"},
        },
    }
    schema_id = registry.add(schema, kind="JSON")
    decoder = RegistryDecoder(config_of(registry.url), str(tmp_path))
    text = '{ "b": 1.0, "a": "é" }'.encode()
    assert decoder.decode(header(schema_id) + text) == text
    assert str(decoder.data_type(schema_id)) == "struct<a: string, b: int>"
    for bad in (b"", b"{", b'{"a": "\xff"}', b'{"a": 1} {}'):
        with pytest.raises(UndecodableFrame, match="schema 1: the payload is no JSON"):
            decoder.decode(header(schema_id) + bad)


def test_an_answer_that_breaks_off_is_still_an_answer_by_its_status() -> None:
    """What it says besides is only for people, and is not waited for longer than an answer."""
    asked = threading.Event()

    class Cut(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"half")
            asked.wait(30)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(SchemaRegistryUnreachable, match="status 503"):
                RegistryClient(config_of(f"http://127.0.0.1:{server.server_port}", attempts=1, timeout_s=0.2)).fetch(1)
        finally:
            asked.set()
            server.shutdown()
