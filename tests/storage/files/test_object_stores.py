"""Storage options are those of delta-rs: each of them is sorted into those of obstore, ignored for a reason, or refused by name."""

from __future__ import annotations

import os
import sys
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from lastword import LogDir
from lastword.compaction.errors import UserError
from lastword.storage.files import object_stores
from lastword.storage.files.object_stores import open_store, put_object, read_object, store_settings
from tests.s3_server import running_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_S3: Final = {"aws_conditional_put": "etag", "aws_bucket": "bucket"}
_KEYS: Final = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
#: Options of the store, as they are given and as obstore has them.
_STORE: Final = (
    ("s3", "AWS_ACCESS_KEY_ID", "aws_access_key_id", "k"),
    ("s3", "access_key_id", "aws_access_key_id", "k"),
    ("s3", "AWS_SECRET_ACCESS_KEY", "aws_secret_access_key", "k"),
    ("s3", "AWS_SESSION_TOKEN", "aws_session_token", "t"),
    ("s3", "token", "aws_session_token", "t"),
    ("s3a", "AWS_REGION", "aws_region", "eu-west-1"),
    ("s3", "AWS_DEFAULT_REGION", "aws_default_region", "eu-west-1"),
    ("s3", "AWS_ENDPOINT_URL", "aws_endpoint", "http://localhost:1"),
    ("s3", "endpoint_url", "aws_endpoint", "http://localhost:1"),
    ("s3", "AWS_ENDPOINT", "aws_endpoint", "http://localhost:1"),
    ("s3", "AWS_ENDPOINT_URL_S3", "aws_endpoint", "http://localhost:1"),
    ("s3", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "aws_virtual_hosted_style_request", "false"),
    ("s3", "AWS_SERVER_SIDE_ENCRYPTION", "aws_server_side_encryption", "aws:kms"),
    ("s3", "AWS_SSE_KMS_KEY_ID", "aws_sse_kms_key_id", "k"),
    ("s3", "AWS_SSE_CUSTOMER_KEY_BASE64", "aws_sse_customer_key_base64", "k"),
    ("s3", "AWS_SSE_BUCKET_KEY_ENABLED", "aws_sse_bucket_key_enabled", "true"),
    ("s3", "AWS_REQUEST_PAYER", "aws_request_payer", "true"),
    ("s3", "AWS_SKIP_SIGNATURE", "aws_skip_signature", "true"),
    ("s3", "AWS_UNSIGNED_PAYLOAD", "aws_unsigned_payload", "true"),
    ("s3", "AWS_CHECKSUM_ALGORITHM", "aws_checksum_algorithm", "SHA256"),
    ("s3", "AWS_ROLE_ARN", "aws_role_arn", "arn"),
    ("s3", "AWS_ROLE_SESSION_NAME", "aws_role_session_name", "n"),
    ("s3", "AWS_WEB_IDENTITY_TOKEN_FILE", "aws_web_identity_token_file", "/token"),
    ("s3", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "aws_container_credentials_relative_uri", "/x"),
    ("s3", "AWS_METADATA_ENDPOINT", "aws_metadata_endpoint", "http://localhost:1"),
    ("s3", "AWS_IMDSV1_FALLBACK", "aws_imdsv1_fallback", "true"),
    ("s3", "AWS_DISABLE_TAGGING", "aws_disable_tagging", "true"),
    ("az", "AZURE_STORAGE_ACCOUNT_NAME", "azure_storage_account_name", "account"),
    ("az", "AZURE_STORAGE_ACCOUNT_KEY", "azure_storage_account_key", "a2V5"),
    ("az", "account_name", "account_name", "account"),
    ("az", "AZURE_STORAGE_SAS_TOKEN", "azure_storage_sas_token", "sv=1&sig=x"),
    ("abfss", "AZURE_STORAGE_CLIENT_ID", "azure_storage_client_id", "c"),
    ("abfs", "AZURE_TENANT_ID", "azure_tenant_id", "t"),
    ("az", "AZURE_USE_AZURE_CLI", "azure_use_azure_cli", "true"),
    ("gs", "GOOGLE_SERVICE_ACCOUNT_KEY", "google_service_account_key", '{"private_key": "k", "client_email": "e", "private_key_id": "i"}'),
    ("gs", "GOOGLE_SKIP_SIGNATURE", "google_skip_signature", "true"),
    ("gcs", "GOOGLE_BASE_URL", "google_base_url", "http://localhost:1"),
)
_CLIENT: Final = {
    "allow_http": "true",
    "allow_invalid_certificates": "true",
    "connect_timeout": "5s",
    "default_content_type": "application/json",
    "http1_only": "true",
    "http2_only": "false",
    "http2_keep_alive_interval": "5s",
    "http2_keep_alive_timeout": "5s",
    "http2_keep_alive_while_idle": "true",
    "http2_max_frame_size": "16384",
    "pool_idle_timeout": "15s",
    "pool_max_idle_per_host": "4",
    "proxy_ca_certificate": "pem",
    "proxy_excludes": "localhost",
    "proxy_url": "http://proxy:3128",
    "randomize_addresses": "true",
    "read_timeout": "10s",
    "timeout": "30s",
    "user_agent": "tests",
}
_RETRIES: Final = {
    "max_retries": ("3", {"max_retries": 3}),
    "retry_timeout": ("3m", {"retry_timeout": timedelta(minutes=3)}),
    "backoff_config.init_backoff": ("100ms", {"backoff": {"init_backoff": timedelta(milliseconds=100)}}),
    "backoff.max_backoff": ("1min 5s", {"backoff": {"max_backoff": timedelta(seconds=65)}}),
    "init_backoff": ("1s", {"backoff": {"init_backoff": timedelta(seconds=1)}}),
    "backoff_config.base": ("1.5", {"backoff": {"base": 1.5}}),
}
_URIS: Final = {
    "abfs": "abfs://bucket@account.dfs.core.windows.net",
    "abfss": "abfss://bucket@account.dfs.core.windows.net",
    "az": "az://bucket",
}
_NAMES: Final = {"s3": "aws_bucket", "s3a": "aws_bucket", "gs": "google_bucket", "gcs": "google_bucket"}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No options, profiles or credentials of the machine."""
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def _uri(scheme: str) -> str:
    return _URIS.get(scheme, f"{scheme}://bucket")


def _opened(scheme: str, options: dict[str, str]) -> None:
    """Open a store: obstore takes the options."""
    needed = {} if scheme not in {"s3", "az"} or "account_name" in options else {"azure_storage_account_name": "account", **_KEYS}
    open_store(f"{_uri(scheme)}/{uuid.uuid4()}", {**needed, **options})


@pytest.mark.parametrize(("scheme", "given", "name", "value"), _STORE)
def test_an_option_of_the_store_is_given_to_it(scheme: str, given: str, name: str, value: str) -> None:
    """In any case, with the prefix of the store or without; the bucket is always that of the URI."""
    settings = store_settings(_uri(scheme), {given: value})
    assert settings.config[name] == value
    assert settings.config[_NAMES.get(scheme, "azure_container_name")] == "bucket"
    assert (settings.client_options, settings.retry_config) == ({}, {})
    if given != "GOOGLE_SERVICE_ACCOUNT_KEY":  # this one is no key
        _opened(scheme, {given: value})


@pytest.mark.parametrize("written", ["{}", "AWS_{}"])
@pytest.mark.parametrize(("name", "value"), _CLIENT.items())
def test_an_option_of_the_http_client_is_given_to_it(name: str, value: str, written: str) -> None:
    """Among the options of the store it would end the process of obstore with a panic."""
    options = {written.format(name).upper() if written != "{}" else name: value}
    settings = store_settings("s3://bucket", options)
    assert (settings.client_options, settings.config) == ({name: value}, _S3)
    _opened("s3", options)


@pytest.mark.parametrize(("name", "value", "expected"), [(name, *pair) for name, pair in _RETRIES.items()])
def test_an_option_of_repeated_requests_is_given_as_obstore_has_it(name: str, value: str, expected: dict[str, Any]) -> None:
    """Numbers and durations, which delta-rs takes as text."""
    settings = store_settings("s3://bucket", {name: value})
    assert (settings.retry_config, settings.config) == (expected, _S3)
    _opened("s3", {name: value})


@pytest.mark.parametrize("name", sorted(object_stores._IGNORED))  # noqa: SLF001  each of them
@pytest.mark.parametrize("written", ["{}", "aws_{}", "AWS_{}"])
def test_an_option_that_says_nothing_of_a_conditional_put_is_ignored(name: str, written: str) -> None:
    """Options of locks, renames and the bucket, and those for delta-rs or Polars alone, do not matter for a commit."""
    options = {written.format(name) if written != "AWS_{}" else f"AWS_{name.upper()}": "x"}
    assert store_settings("s3://bucket", options).config == _S3
    _opened("s3", options)


def test_options_of_another_store_are_ignored() -> None:
    """A log.dir on one store is filled from another, with one set of options."""
    options = {"AWS_REGION": "r", "AZURE_STORAGE_ACCOUNT_NAME": "account", "GOOGLE_SKIP_SIGNATURE": "true"}
    assert store_settings("s3://bucket", options).config == {**_S3, "aws_region": "r"}
    assert store_settings("gs://bucket", options).config == {"google_skip_signature": "true", "google_bucket": "bucket"}
    expected = {"azure_storage_account_name": "account", "azure_container_name": "c"}
    assert store_settings("abfss://c@account.dfs.core.windows.net", options).config == expected


def test_an_option_that_is_given_twice_is_the_last_one() -> None:
    """By the settings of Spark, and by whoever opens the log.dir; the endpoint of S3 wins over that of all services."""
    twice = {"AWS_ENDPOINT_URL": "http://a:1", "aws_endpoint_url": "http://b:1"}
    assert store_settings("s3://bucket", twice).config["aws_endpoint"] == "http://b:1"
    general = {"AWS_ENDPOINT_URL_S3": "http://a:1", "AWS_ENDPOINT_URL": "http://b:1"}
    assert store_settings("s3://bucket", general).config["aws_endpoint"] == "http://a:1"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"AWS_REGOIN": "x"}, "'regoin' is not valid|'aws_regoin' is not valid"),
        ({"AWS_SKIP_SIGNATURE": "perhaps"}, 'failed to parse "perhaps" as boolean'),
        ({"timeout": "soon"}, 'failed to parse "soon" as Duration'),
        ({"allow_http": "perhaps"}, 'failed to parse "perhaps" as boolean'),
        ({"proxy_url": "::"}, "builder error"),
        ({"max_retries": "often"}, "max_retries = often: allowed is a whole number from 0 to 1000"),
        ({"max_retries": "-1"}, "max_retries = -1: allowed is a whole number from 0 to 1000"),
        ({"max_retries": "inf"}, "max_retries = inf: allowed is a whole number from 0 to 1000"),
        ({"retry_timeout": "5"}, "retry_timeout = 5: allowed is a duration"),
        ({"retry_timeout": "99999999999999h"}, "retry_timeout = 99999999999999h: allowed is a day at the most"),
        ({"backoff_config.base": "inf"}, "backoff_config.base = inf: allowed is a number above 0"),
        ({"backoff_config.base": "two"}, "backoff_config.base = two: allowed is a number"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_when_a_log_dir_is_opened(option: dict[str, str], message: str) -> None:
    """Before anything is asked of the store, and never by a panic."""
    for open_it in (lambda: open_store("s3://bucket", option), lambda: LogDir("s3://bucket/logs", storage_options=option)):
        with pytest.raises(UserError, match=message):
            open_it()


def _profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep keys as a profile."""
    file = tmp_path / "credentials"
    file.write_text("[mine]\naws_access_key_id = key\naws_secret_access_key = secret\n", encoding="utf-8")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))


@pytest.mark.parametrize(
    ("options", "is_used"),
    [
        ({}, False),
        ({"AWS_PROFILE": "mine"}, True),
        ({"AWS_PROFILE": "mine", **_KEYS}, False),
        ({"AWS_PROFILE": "mine", "AWS_ENDPOINT_URL": "http://localhost:1"}, False),
        ({"AWS_PROFILE": "mine", "AWS_ENDPOINT_URL": "http://localhost:1", "AWS_FORCE_CREDENTIAL_LOAD": "true"}, True),
        ({"AWS_PROFILE": "mine", "AWS_SKIP_SIGNATURE": "true"}, False),
        ({"AWS_IAM_ROLE_ARN": "arn", **_KEYS}, True),
        ({"AWS_S3_ASSUME_ROLE_ARN": "arn", "AWS_S3_ROLE_SESSION_NAME": "n"}, True),
    ],
)
def test_credentials_of_a_profile_or_a_role_are_found_by_boto3(options: dict[str, str], *, is_used: bool) -> None:
    """As delta-rs has it: keys win over a profile, a role over both; a store with an endpoint of its own takes keys."""
    settings = store_settings("s3://bucket", options)
    assert (settings.credential_provider is not None) == is_used
    assert not {name for name in settings.config if "profile" in name or "iam_role" in name or "assume" in name}


def test_profiles_of_the_machine_are_asked_when_there_are_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given by files or by the environment."""
    _profile(tmp_path, monkeypatch)
    assert store_settings("s3://bucket", {}).credential_provider is not None
    assert store_settings("s3://bucket", _KEYS).credential_provider is None
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert store_settings("s3://bucket", {}).credential_provider is not None


def test_a_profile_without_boto3_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a profile obstore asks the container and the instance for credentials."""
    monkeypatch.setitem(sys.modules, "botocore", None)
    for options in ({"AWS_PROFILE": "mine"}, {"AWS_IAM_ROLE_ARN": "arn"}):
        with pytest.raises(UserError, match="boto3, which finds its credentials, is not installed"):
            store_settings("s3://bucket", options)
    _profile(tmp_path, monkeypatch)
    assert store_settings("s3://bucket", {}).credential_provider is None


@pytest.mark.long
def test_objects_are_put_with_keys_a_profile_a_role_and_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each; without credentials the store is denied."""
    with running_store() as endpoint:
        place = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        forced = {**place, "AWS_FORCE_CREDENTIAL_LOAD": "true", "AWS_PROFILE": "mine"}
        role = {**forced, "AWS_IAM_ROLE_ARN": "arn:aws:iam::123456789012:role/writer"}
        _profile(tmp_path, monkeypatch)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        for number, options in enumerate(({**place, **_KEYS, "AWS_REGION": "us-east-1"}, forced, role)):
            for _ in _puts(f"s3://bucket/{number} ü", options):
                pass
        with pytest.raises(PermissionError, match=r"s3://bucket: .*nobody"):
            put_object("s3://bucket", {**forced, "AWS_PROFILE": "nobody"}, "a", b"1")
        with pytest.raises(PermissionError, match="neither the environment nor"):
            put_object("s3://bucket", {**place, "AWS_FORCE_CREDENTIAL_LOAD": "true", "AWS_EC2_METADATA_DISABLED": "true"}, "a", b"1")
        for name, value in {**place, **_KEYS, "AWS_REGION": "us-east-1", "AWS_BUCKET": "another"}.items():
            monkeypatch.setenv(name, value)
        for _ in _puts("s3a://bucket/environment", {}):
            pass


def _puts(location: str, options: dict[str, str]) -> Iterator[None]:
    """Put an object twice: the second is refused. Another that is larger than a part of a multipart upload is put as well."""
    put_object(location, options, "a/b", b"1")
    yield
    with pytest.raises(FileExistsError):
        put_object(location, options, "a/b", b"2")
    yield
    assert read_object(f"{location}/", options, "a/b") == b"1"
    with pytest.raises(FileNotFoundError):
        read_object(location, options, "a/c")
    put_object(location, options, "large", bytes(6 * 2**20))
