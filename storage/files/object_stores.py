"""Object stores as obstore reaches them: an object is put only where there is none.

Storage options are those of delta-rs, which reads the store with them; `store_settings` alone sorts them into those of obstore:

| option, in any case, with or without the store's prefix (aws_, azure_, google_) | is |
|---|---|
| `allow_http`, `timeout`, `proxy_url` … | of the HTTP client |
| `max_retries`, `retry_timeout`, `backoff_config.init_backoff` … | how often and how long a request is repeated |
| `aws_profile`, `aws_iam_role_arn` …, or files in `~/.aws`, and no keys | credentials that boto3 finds |
| `aws_s3_locking_provider`, `aws_s3_allow_unsafe_rename` … | ignored; `_IGNORED` says why |
| with the prefix of another store | ignored: it is for another location |
| any other | of the store; `UserError` if the store has no such option |
"""

from __future__ import annotations

import errno
import math
import os
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import obstore
from obstore.exceptions import BaseError
from obstore.store import from_url

from lastword.compaction.errors import UserError, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from obstore.store import ObjectStore

_PREFIXES: Final = {"s3": "aws_", "s3a": "aws_", "abfs": "azure_", "abfss": "azure_", "az": "azure_", "gs": "google_", "gcs": "google_"}
#: What names the bucket. It is always given: obstore prefers an option, or the environment, to the bucket of the URI.
_BUCKETS: Final = {"aws_": "bucket", "azure_": "container_name", "google_": "bucket"}
_CLIENT: Final = frozenset(
    [
        *("allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only", "http2_only"),
        *("http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_max_frame_size"),
        *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses"),
        *("read_timeout", "timeout", "user_agent"),
    ]
)
#: obstore has 32 bits for it; more than a day is a mistake.
_MAX_RETRIES: Final = 1000
_MAX_SECONDS: Final = 24 * 60 * 60
_BACKOFF: Final = ("init_backoff", "max_backoff", "base")
_IGNORED: Final = frozenset(
    [
        # The bucket is that of the URI.
        *("bucket", "bucket_name", "container_name", "google_bucket_name"),
        # How a writer without conditional puts keeps others away. delta-rs asks no lock table since 1.6, and nothing is renamed or copied.
        *("s3_locking_provider", "s3_allow_unsafe_rename", "copy_if_not_exists", "mount_allow_unsafe_rename"),
        *("endpoint_url_dynamodb", "region_dynamodb", "access_key_id_dynamodb", "secret_access_key_dynamodb", "session_token_dynamodb"),
        *("delta_dynamo_table_name", "delta_dynamo_billing_mode", "delta_dynamo_max_elapsed_request_time"),
        # `LogDirFiles` refuses any but etag, which is set for each put here.
        "conditional_put",
        # How many requests delta-rs makes at once; one put is one request.
        *("object_store_concurrency_limit", "concurrency_limit"),
        # The clients that delta-rs had before object_store; it reads these names no more.
        *("s3_pool_idle_timeout_seconds", "sts_pool_idle_timeout_seconds", "s3_get_internal_server_error_retries", "s3_addressing_style"),
        # The credential chain of delta-rs. Here the instance is asked last, when nothing else has credentials.
        *("force_credential_load", "ec2_metadata_disabled", "ec2_metadata_timeout"),
        # Polars' own, of frames that read the log.
        *("file_cache_ttl", "retry_timeout_ms", "retry_init_backoff_ms", "retry_max_backoff_ms", "retry_base_multiplier"),
    ]
)
#: Other names of the same option. The last one wins, as it does in the store's client.
_ALIASES: Final = (("endpoint_url", "endpoint"), ("endpoint_url_s3", "endpoint"), ("token", "session_token"))
_SPAN: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|ms|s|m|h)[a-z]*\s*")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What obstore takes, sorted: options of the store, of its HTTP client, of repeated requests, and who finds credentials."""

    config: dict[str, str]
    client_options: dict[str, str] = field(default_factory=dict)
    retry_config: dict[str, Any] = field(default_factory=dict)
    credential_provider: Callable[[], Any] | None = None


def store_settings(uri: str, storage_options: Mapping[str, str]) -> StoreSettings:
    """Sort the storage options of delta-rs for the store of a URI.

    Raises `UserError` for a value that cannot be read, and for credentials that only boto3 finds where it is not installed.
    """
    scheme, _, rest = uri.partition("://")
    prefix = _PREFIXES[scheme]
    others = tuple(set(_PREFIXES.values()) - {prefix})
    given = {name.lower(): str(value) for name, value in storage_options.items() if not name.lower().startswith(others)}
    own = {name.removeprefix(prefix): value for name, value in given.items()}
    provider = _aws_credentials(own) if prefix == "aws_" else None
    client, retry = _client_options(own, prefix), _retry_config(own)
    for name in _IGNORED & own.keys():
        del own[name]
    bare = set[str]()
    if prefix == "aws_":
        for other, name in _ALIASES:
            own |= {name: own.pop(other)} if other in own else {}
        own["conditional_put"] = "etag"
    else:
        bare = set(given)  # of Azure and Google, obstore knows these names without a prefix alone
    config = {name if name in bare else f"{prefix}{name}": value for name, value in own.items()}
    config[f"{prefix}{_BUCKETS[prefix]}"] = rest.partition("/")[0].partition("@")[0]
    return StoreSettings(config=config, client_options=client, retry_config=retry, credential_provider=provider)


def open_store(location: str, storage_options: Mapping[str, str]) -> ObjectStore:
    """Return the store of a location, the same for each location in its bucket. Raises `UserError` for an option that it does not take."""
    scheme, _, rest = location.partition("://")
    return _open_bucket(f"{scheme}://{rest.partition('/')[0]}", tuple(storage_options.items()))


def put_object(location: str, storage_options: Mapping[str, str], path: str, content: bytes) -> None:
    """Put an object below a location if there is none at its path.

    Raises `OSError` when it was not put, or the outcome is unknown. `FileExistsError` means that there is an object; it may be this one,
    put by a request whose reply was lost.
    """
    try:
        obstore.put(open_store(location, storage_options), _key(location, path), content, mode="create", use_multipart=False)
    except obstore.exceptions.AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, "there is an object", f"{location}/{path}") from error
    except BaseError as error:
        raise _fault(location, error) from error


def read_object(location: str, storage_options: Mapping[str, str], path: str) -> bytes:
    """Return an object. Raises `FileNotFoundError` when there is none, and another `OSError` when the store gives no answer."""
    try:
        return bytes(obstore.get(open_store(location, storage_options), _key(location, path)).bytes())
    except BaseError as error:
        raise _fault(location, error) from error


def _key(location: str, path: str) -> str:
    """Return the name of an object in its bucket; delta-rs names tables by URIs with encoded characters."""
    prefix = unquote(location.partition("://")[2].partition("/")[2]).strip("/")
    return f"{prefix}/{path}" if prefix else path


def _fault(location: str, error: BaseError) -> OSError:
    denied = isinstance(error, (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError))
    message = f"{location}: {_message_of(error)}"
    return OSError(errno.EACCES if denied else errno.EIO, message)


def _message_of(error: Exception) -> str:
    """Return the message of an error of obstore in one line, without the Rust value that follows it."""
    return in_one_line(error).partition(" Debug source:")[0]


@lru_cache(maxsize=64)
def _open_bucket(uri: str, storage_options: tuple[tuple[str, str], ...]) -> ObjectStore:
    settings = store_settings(uri, dict(storage_options))
    arguments: dict[str, Any] = {"config": settings.config}
    arguments |= {"client_options": settings.client_options, "retry_config": settings.retry_config}
    if settings.credential_provider is not None:
        arguments["credential_provider"] = settings.credential_provider
    try:
        return from_url(re.sub("^gcs:", "gs:", uri), **arguments)
    except (BaseError, ValueError, TypeError) as error:
        message = f"the storage options of {uri} cannot be used: {_message_of(error)}"
        raise UserError(message) from error


def _client_options(own: dict[str, str], prefix: str) -> dict[str, str]:
    """Take the options of the HTTP client out of a store's own; obstore does not read the environment for them, as delta-rs does."""
    given = {name: own.pop(name, os.environ.get(f"{prefix}{name}".upper())) for name in sorted(_CLIENT)}
    return {name: value for name, value in given.items() if value}


def _retry_config(own: dict[str, str]) -> dict[str, Any]:
    """Take the options of repeated requests out of a store's own."""
    backoff: dict[str, Any] = {}
    for name in _BACKOFF:
        for written in (name, f"backoff.{name}", f"backoff_config.{name}"):
            if written in own:
                backoff[name] = _number(written, own.pop(written)) if name == "base" else _duration(written, own.pop(written))
    config: dict[str, Any] = {"backoff": backoff} if backoff else {}
    if "max_retries" in own:
        config["max_retries"] = _count("max_retries", own.pop("max_retries"))
    if "retry_timeout" in own:
        config["retry_timeout"] = _duration("retry_timeout", own.pop("retry_timeout"))
    return config


def _count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) > _MAX_RETRIES:
        message = f"storage option {name} = {value}: allowed is a whole number from 0 to {_MAX_RETRIES}"
        raise UserError(message)
    return int(value)


def _number(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        message = f"storage option {name} = {value}: allowed is a number above 0"
        raise UserError(message)
    return number


def _duration(name: str, value: str) -> timedelta:
    spans = list(_SPAN.finditer(value))
    if not spans or "".join(span[0] for span in spans) != value:
        message = f"storage option {name} = {value}: allowed is a duration, such as 500ms, 30s, 3m"
        raise UserError(message)
    seconds = sum(float(span["count"]) * _SECONDS[span["unit"]] for span in spans)
    if seconds > _MAX_SECONDS:
        message = f"storage option {name} = {value}: allowed is a day at the most"
        raise UserError(message)
    return timedelta(seconds=seconds)


def _aws_credentials(own: dict[str, str]) -> Callable[[], Any] | None:
    """Take the options of profiles and roles out of a store's own; return what finds their credentials, None where obstore does.

    As delta-rs does it: a store with an endpoint of its own takes keys alone; keys win over a profile, and a role over both.
    """
    profile, role = _option(own, "profile"), _option(own, "iam_role_arn", "s3_assume_role_arn")
    session_name = _option(own, "iam_role_session_name", "s3_role_session_name") or "lastword"
    for name in ("profile", "iam_role_arn", "s3_assume_role_arn", "iam_role_session_name", "s3_role_session_name"):
        own.pop(name, None)
    has_endpoint = _option(own, "endpoint_url_s3", "endpoint_url", "endpoint") is not None
    is_forced = _option(own, "force_credential_load", "s3_locking_provider") is not None
    if (has_endpoint and not is_forced) or own.get("skip_signature", "").lower() == "true":
        return None
    if role is None and (_option(own, "access_key_id") or not (profile or _has_profiles())):
        return None
    if find_spec("botocore") is not None:
        return _BotoCredentials(own, profile=profile, role=role, session_name=session_name)
    if profile is None and role is None:
        return None
    given = f"aws_iam_role_arn = {role}" if role else f"aws_profile = {profile}"
    message = f"storage option {given}: boto3, which finds its credentials, is not installed"
    raise UserError(message)


def _option(own: Mapping[str, str], *names: str) -> str | None:
    """Return the first of some options of S3 that is given or in the environment, and not empty; None when none is."""
    return next((value for name in names if (value := own.get(name) or os.environ.get(f"AWS_{name.upper()}"))), None)


def _has_profiles() -> bool:
    home = Path("~/.aws").expanduser()
    files = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"), os.environ.get("AWS_CONFIG_FILE", home / "config")
    return any(Path(file).is_file() for file in files)


class _BotoCredentials:
    """Credentials of a profile or a role. boto3 keeps them and renews them in time, so obstore is told that they are old already."""

    def __init__(self, own: Mapping[str, str], *, profile: str | None, role: str | None, session_name: str) -> None:
        self._own, self._profile, self._role, self._session_name = dict(own), profile, role, session_name
        self._chosen: Any = None

    def __call__(self) -> dict[str, Any]:
        self._chosen = self._chosen or self._choose()
        keys = self._chosen.get_frozen_credentials()
        return {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "token": keys.token, "expires_at": _LONG_AGO}

    def _choose(self) -> Any:
        from botocore import credentials, session  # noqa: PLC0415  only where a profile or a role is used

        chain = session.Session(profile=self._profile)
        if "region" in self._own:
            chain.set_config_variable("region", self._own["region"])
        if "access_key_id" in self._own:
            token = self._own.get("session_token", self._own.get("token"))
            chain.set_credentials(self._own["access_key_id"], self._own.get("secret_access_key"), token)
        own = chain.get_credentials()
        if own is None:
            message = "neither the environment nor ~/.aws nor this machine has credentials for AWS"
            raise PermissionError(message)
        if self._role is None:
            return own
        names = {"RoleSessionName": self._session_name}
        fetcher = credentials.AssumeRoleCredentialFetcher(chain.create_client, own, self._role, extra_args=names)
        return credentials.DeferredRefreshableCredentials(method="assume-role", refresh_using=fetcher.fetch_credentials)
