"""A client of a schema registry over HTTP: it reads schemas, and never registers one.

```
 round 1   url a ── refused            round 2   url a ── 503            round 3   url a ── 200  the schema
           url b ── 404, not known               url b ── 404  unknown
```

In each round every URL is asked once, beginning with the one that answered last. Between two rounds the client waits, longer each time. A
replica of a registry may not have read the newest schemas yet, so an id is unknown when it is not known in the second round either.

| answer | what follows |
|---|---|
| 200 with a schema | the schema |
| 404 with the registry's own error code (404xx) | `UnknownSchema`: the row becomes a dead letter |
| 401, 403 | `SchemaRegistryError` at once: no other URL is asked, as the credentials are the same |
| 408, 425, 429, 5xx, no connection, no answer in time | the next URL, then the next round, then `SchemaRegistryUnreachable` |
| anything else, also a 404 of another server | `SchemaRegistryError` at once |
"""

from __future__ import annotations

import base64
import http.client
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, Request, build_opener

import msgspec
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from lastword.change_data.registry.schemas import RegisteredSchema, SchemaRegistryError, UndecodableFrame
from lastword.compaction.errors import InvalidConfiguration, Violation

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
#: Rounds in which an id has to be missing before it is unknown.
_ROUNDS_UNTIL_UNKNOWN: Final = 2
_MAX_WAIT_S: Final = 5.0
_MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
_MAX_SHOWN: Final = 200
_MAX_ID: Final = 2**31 - 1
_NOT_FOUND: Final = 404
_TRANSIENT: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500
#: The registry's own error codes for a schema, a subject or a version that is not there: 40401, 40402, 40403 and so on.
_UNKNOWN_CODES: Final = range(40401, 40500)


class UnknownSchema(UndecodableFrame):
    """The registry does not know the schema id of a frame, or a schema that this one refers to."""


class SchemaRegistryUnreachable(SchemaRegistryError):
    """No URL of the registry answers, and the schema is not in the store."""


class _Transient(Exception):
    """An answer that may be another one in the next round."""


class _Missing(Exception):
    """What was asked for is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """Where a schema registry is and how to log in.

    It can be pickled, and its secrets are in no text that it makes.

    Attributes:
        urls: One or more `http://…` or `https://…`; a path is kept, so a context is a URL that ends with `/contexts/.name`.
        user: Name for basic authentication; for Confluent Cloud the API key.
        password: Password for basic authentication; for Confluent Cloud the API secret.
        token: Bearer token, instead of user and password.
        ca_file: PEM file with certificates to trust besides those of the system. Each executor reads it from its own disk.
        timeout_s: Seconds that one answer may be waited for.
        attempts: Rounds in which every URL is asked once.
        backoff_s: Upper limit, in seconds, of the wait after the first round; it doubles with each round, up to 5 seconds.
        unknown_s: Seconds until the registry is asked again for an id that it did not know.
    """

    urls: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout_s: float = 10.0
    attempts: int = 5
    backoff_s: float = 0.5
    unknown_s: float = 60.0

    def __post_init__(self) -> None:
        """Raise `InvalidConfiguration` if no registry can be reached with these values."""
        violations = [*self._url_violations(), *self._login_violations()]
        if self.attempts < 1:
            violations.append(Violation(key="attempts", value=str(self.attempts), allowed="allowed is a whole number from 1 on"))
        if self.timeout_s <= 0:
            violations.append(Violation(key="timeout_s", value=str(self.timeout_s), allowed="allowed are more than 0 seconds"))
        for name, seconds in (("backoff_s", self.backoff_s), ("unknown_s", self.unknown_s)):
            if seconds < 0:
                violations.append(Violation(key=name, value=str(seconds), allowed="allowed are 0 or more seconds"))
        if violations:
            subject = "the schema registry"
            raise InvalidConfiguration(subject, violations)
        object.__setattr__(self, "urls", tuple(url.strip().rstrip("/") for url in self.urls))

    def _url_violations(self) -> list[Violation]:
        given: object = self.urls
        if not isinstance(given, tuple) or not given:
            return [Violation(key="urls", value=type(given).__name__, allowed="a tuple of one or more URLs is required")]
        violations = []
        for url in self.urls:
            parts = urlsplit(url.strip())
            if "@" in url:
                shown = f"…@{url.rpartition('@')[2]}"
                violations.append(Violation(key="urls", value=shown, allowed="the login belongs in user and password, not in the URL"))
            elif parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
                violations.append(Violation(key="urls", value=repr(url), allowed="allowed is http://host:port or https://host:port"))
        return violations

    def _login_violations(self) -> list[Violation]:
        if (self.user is None) != (self.password is None):
            return [Violation(key="user", value=str(self.user), allowed="user and password are given together")]
        if self.user is not None and self.token is not None:
            return [Violation(key="token", value="(hidden)", allowed="user and password, or a token, not both")]
        if self.user is not None and ":" in self.user:
            return [Violation(key="user", value=self.user, allowed="a user's name has no colon")]
        return []

    def authorization(self) -> str | None:
        """Return the value of the header `Authorization`; None without a login."""
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.user is None:
            return None
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _Reference(msgspec.Struct):
    """A schema that another one imports: `name` is the Avro name, the URI of a `$ref`, or the path of the .proto file."""

    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename={"kind": "schemaType"}):
    """What the registry says of a schema; Avro is the type that goes without saying."""

    schema: str
    kind: str = "AVRO"
    references: list[_Reference] | None = None


class _Failure(msgspec.Struct):
    """What the registry says instead of an answer."""

    error_code: int | None = None
    message: str | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_FAILURE: Final = msgspec.json.Decoder(_Failure)


class RegistryClient:
    """Reads schemas from a registry."""

    def __init__(self, config: RegistryConfig) -> None:
        """Take the registry's configuration; nothing is connected yet."""
        self._config = config
        #: Number of the URL that answered last.
        self._first = 0

    def fetch(self, schema_id: int) -> RegisteredSchema:
        """Return a schema with all that it refers to.

        Args:
            schema_id: The id from a frame.

        Raises:
            UnknownSchema: The registry does not know it, or a schema that it refers to.
            SchemaRegistryUnreachable: No URL answers.
            SchemaRegistryError: The registry refuses the request, or the answer is not that of a schema registry.
        """
        what = f"schema {schema_id}"
        if not 0 <= schema_id <= _MAX_ID:
            message = f"{what}: no registry gives such an id"
            raise UnknownSchema(message)
        path = f"/schemas/ids/{schema_id}"
        answer = self._answer(path, what)
        text, suffix = answer.schema, ""
        if answer.kind == "PROTOBUF":
            text, suffix = self._answer(f"{path}?format=serialized", what).schema, "&format=serialized"
            self._check_serialized(text, what)
        references: dict[str, str] = {}
        self._add_references(answer, references, suffix, what)
        return RegisteredSchema(id=schema_id, kind=answer.kind, text=text, references=tuple(references.items()))

    def _check_serialized(self, text: str, what: str) -> None:
        """Raise an error if a registry answers with the text of a .proto file: that needs a compiler."""
        try:
            base64.b64decode(text, validate=True)
        except ValueError:
            url = self._config.urls[self._first]
            message = f"{what} is Protobuf, and {url} does not answer format=serialized, which is needed to read it"
            raise SchemaRegistryError(message) from None

    def _add_references(self, answer: _Answer, references: dict[str, str], suffix: str, what: str) -> None:
        """Add the schemas that an answer refers to, each behind those that it refers to itself."""
        for reference in answer.references or []:
            if reference.name in references:
                continue
            # A version that was deleted since is still needed to read what refers to it.
            path = f"/subjects/{quote(reference.subject, safe='')}/versions/{reference.version}?deleted=true{suffix}"
            imported = self._answer(path, f"{what}: its reference {reference.name} ({reference.subject}, version {reference.version})")
            references[reference.name] = ""  # registries allow no circles; one would end here
            self._add_references(imported, references, suffix, what)
            del references[reference.name]
            references[reference.name] = imported.schema

    def _answer(self, path: str, what: str) -> _Answer:
        """Return the registry's answer to a request, after as many rounds as it takes."""
        config = self._config
        rounds = Retrying(
            retry=retry_if_exception_type(_Transient),
            stop=stop_after_attempt(config.attempts),
            wait=wait_random_exponential(multiplier=config.backoff_s, max=max(config.backoff_s, _MAX_WAIT_S)),
            retry_error_callback=_give_up,
        )
        numbers = count(1)
        return rounds(lambda: self._round(path, what, last_of_unknown=next(numbers) >= min(_ROUNDS_UNTIL_UNKNOWN, config.attempts)))

    def _round(self, path: str, what: str, *, last_of_unknown: bool) -> _Answer:
        """Ask every URL once."""
        failures, missing = [], ""
        urls = self._config.urls
        for number in [*range(self._first, len(urls)), *range(self._first)]:
            try:
                answer = self._get(urls[number], path)
            except _Missing as error:
                missing = str(error)
                failures.append(missing)
            except _Transient as error:
                failures.append(str(error))
            else:
                self._first = number
                return answer
        if missing and last_of_unknown:
            message = f"{what} is not in the registry: {missing}"
            raise UnknownSchema(message)
        raise _Transient("; ".join(failures))

    def _get(self, url: str, path: str) -> _Answer:
        request = Request(url + path, headers={"Accept": _ACCEPT, "User-Agent": "lastword"})  # noqa: S310  http or https, as RegistryConfig checks
        authorization = self._config.authorization()
        if authorization is not None:
            request.add_unredirected_header("Authorization", authorization)  # a redirect to another host gets no login
        try:
            with self._opener.open(request, timeout=self._config.timeout_s) as response:
                body = response.read(_MAX_ANSWER_BYTES)
        except HTTPError as error:
            with error:
                raise _failure(url, error.code, _body_of(error)) from None
        except URLError as error:
            raise _no_connection(url, error.reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise _no_connection(url, error) from None
        try:
            return _ANSWER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            message = f"{url}: status 200, but the answer is not that of a schema registry ({error}); is it the registry's URL?"
            raise SchemaRegistryError(message) from None

    @cached_property
    def _opener(self) -> OpenerDirector:
        context = ssl.create_default_context()
        if self._config.ca_file is not None:
            try:
                context.load_verify_locations(self._config.ca_file)
            except (OSError, ssl.SSLError) as error:
                message = (
                    f"{self._config.ca_file} is not a readable PEM file of certificates ({error}); each executor needs it at this path"
                )
                raise SchemaRegistryError(message) from None
        return build_opener(HTTPSHandler(context=context))


def _give_up(state: RetryCallState) -> Any:
    """Raise what the last round met."""
    error = state.outcome.exception() if state.outcome is not None else None
    message = f"the schema registry does not answer (attempts: {state.attempt_number}): {error}"
    raise SchemaRegistryUnreachable(message)


def _body_of(error: HTTPError) -> bytes:
    try:
        return error.read(_MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException):
        return b""


def _failure(url: str, status: int, body: bytes) -> Exception:
    """Return what an answer with an error status means."""
    try:
        failure = _FAILURE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        failure = _Failure()
    says = f", the registry says {failure.message[:_MAX_SHOWN]!r}" if failure.message else ""
    text = f"{url}: status {status}{says}"
    if status == _NOT_FOUND and failure.error_code in _UNKNOWN_CODES:
        return _Missing(text)
    if status in _TRANSIENT or status >= _SERVER_ERROR:
        return _Transient(text)
    if status in {401, 403}:
        return SchemaRegistryError(f"{text}; check user and password, or the token, and what they may read")
    return SchemaRegistryError(f"{text}; is it the URL of a schema registry?")


def _no_connection(url: str, reason: object) -> Exception:
    """Return what a request without an answer means."""
    text = f"{url}: no answer ({reason or type(reason).__name__})"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return SchemaRegistryError(f"{url}: its certificate is not trusted ({reason.verify_message}); ca_file names one that is")
    return _Transient(text)
