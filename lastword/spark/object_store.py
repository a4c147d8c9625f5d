"""What delta-rs needs to reach an object store, derived from what Spark was told: one set of settings for both.

| Spark (Hadoop) | delta-rs |
|---|---|
| spark.hadoop.fs.s3a.access.key, secret.key, session.token | AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN |
| spark.hadoop.fs.s3a.endpoint, endpoint.region | AWS_ENDPOINT_URL, AWS_REGION |
| spark.hadoop.fs.s3a.path.style.access = true | AWS_VIRTUAL_HOSTED_STYLE_REQUEST = false |
| spark.hadoop.fs.s3a.connection.ssl.enabled = false | AWS_ALLOW_HTTP = true |
| spark.hadoop.fs.s3a.encryption.algorithm, encryption.key | AWS_SERVER_SIDE_ENCRYPTION, AWS_SSE_KMS_KEY_ID or AWS_SSE_CUSTOMER_KEY_BASE64 |
| spark.hadoop.fs.s3a.requester.pays.enabled = true | AWS_REQUEST_PAYER |
| spark.hadoop.fs.s3a.proxy.host, proxy.port | PROXY_URL |
| spark.hadoop.fs.s3a.aws.credentials.provider | known providers only; anonymous: AWS_SKIP_SIGNATURE |
| spark.hadoop.fs.s3a.bucket.NAME.… of the log.dir's bucket | as without bucket.NAME |
| spark.hadoop.fs.azure.account.key.ACCOUNT.dfs.core.windows.net | AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY |
| spark.hadoop.google.cloud.auth.service.account.json.keyfile | GOOGLE_SERVICE_ACCOUNT |

Without these settings both look for credentials where the cloud keeps them: the environment, the instance. What only tunes Spark's client
(pools, threads, buffers, retries) has no counterpart and is not needed. Any other setting of the store that holds the log.dir is refused by
name: Spark would write with it and delta-rs without, for example unencrypted.

A new log file is put only where there is none (`If-None-Match`), which is what makes two writers of one Delta table safe.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from lastword.compaction.errors import InvalidConfiguration, Violation
from lastword.compaction.secrets import HIDDEN
from lastword.spark.session import S3_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
}
_TRANSLATED: Final = {
    *_PLAIN,
    *("endpoint", "path.style.access", "connection.ssl.enabled", "encryption.algorithm", "encryption.key", "requester.pays.enabled"),
    *("proxy.host", "proxy.port", "proxy.ssl.enabled", "aws.credentials.provider", "impl"),
}
#: The names that Hadoop had for some of them before.
_FORMER: Final = {"server-side-encryption-algorithm": "encryption.algorithm", "server-side-encryption.key": "encryption.key"}
_ENCRYPTIONS: Final = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse", "SSE-C": "sse-c"}
#: Providers whose credentials delta-rs finds by itself: keys given here, the environment, a web identity, the instance.
_PROVIDERS: Final = {
    *("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider", "EnvironmentVariableCredentialsProvider"),
    *("IAMInstanceCredentialsProvider", "InstanceProfileCredentialsProvider", "WebIdentityTokenFileCredentialsProvider"),
    *("WebIdentityTokenCredentialsProvider", "ContainerCredentialsProvider", "EC2ContainerCredentialsProviderWrapper"),
    *("DefaultCredentialsProvider", "DefaultAWSCredentialsProviderChain", "AnonymousAWSCredentialsProvider"),
}
_ANONYMOUS: Final = "AnonymousAWSCredentialsProvider"
#: What only tunes the client of Spark.
_TUNING: Final = re.compile(
    r"attempts\.maximum|audit\.|block\.size|bucket\.probe|buffer\.dir|change\.detection\.|committer\.|connection\.(?!ssl)|create\.performance"
    r"|directory\.marker|downgrade\.|etag\.|executor\.|experimental\.|fast\.upload|input\.|list\.version|max\.total\.tasks|metadatastore"
    r"|multiobjectdelete|multipart\.|optimized\.copy|paging\.|performance\.|prefetch|readahead|retry\.|rename\.|select\.|socket\."
    r"|ssl\.channel\.mode|statistics|threads\.|user\.agent|vectored\.|analytics"
)
_AZURE: Final = "spark.hadoop.fs.azure."
_AZURE_KEY: Final = re.compile(r"account\.key\.(?P<account>[^.]+)\.(?:dfs|blob)\.core\.windows\.net")
_GOOGLE: Final = ("spark.hadoop.fs.gs.", "spark.hadoop.google.cloud.")
_GOOGLE_KEY_FILE: Final = "spark.hadoop.google.cloud.auth.service.account.json.keyfile"
_NOT_DANGEROUS: Final = re.compile(r"impl$|\.impl$|\.(?:timeout|retries|backoff|threads|buffer\S*|request\S*)$")


def storage_options(spark_settings: Mapping[str, str], location: str = "") -> dict[str, str]:
    """Return the options of delta-rs that say what `spark_settings` say of the store; nothing where they say nothing.

    Raises `InvalidConfiguration` for settings of the store of `location`, the log.dir, that delta-rs has no option for.
    """
    scheme = urlsplit(location).scheme
    options = _s3_options(_of_bucket(spark_settings, urlsplit(location).netloc), is_log_dir=scheme in {"s3", "s3a"})
    if scheme in {"abfs", "abfss", "az"}:
        options = _azure_options(spark_settings)
    elif scheme in {"gs", "gcs"}:
        options = _google_options(spark_settings)
    return options


def _of_bucket(spark_settings: Mapping[str, str], bucket: str) -> dict[str, str]:
    """Return the settings of S3A that hold for a bucket, without their prefix: its own win."""
    own = {key.removeprefix(S3_SETTINGS): value for key, value in spark_settings.items() if key.startswith(S3_SETTINGS)}
    general = {key: value for key, value in own.items() if not key.startswith("bucket.")}
    mine = {key.removeprefix(f"bucket.{bucket}."): value for key, value in own.items() if bucket and key.startswith(f"bucket.{bucket}.")}
    return {_FORMER.get(key, key): value for key, value in {**general, **mine}.items()}


def _s3_options(own: Mapping[str, str], *, is_log_dir: bool) -> dict[str, str]:
    if is_log_dir:
        _check_s3(own)
    options = {name: own[key] for key, name in _PLAIN.items() if key in own}
    secure = own.get("connection.ssl.enabled", "true").lower() != "false"
    if endpoint := own.get("endpoint"):
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{'https' if secure else 'http'}://{endpoint}"
        secure = not options["AWS_ENDPOINT_URL"].startswith("http://")
    if not secure:
        options["AWS_ALLOW_HTTP"] = "true"
    if own.get("path.style.access", "false").lower() == "true":
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "false"
    options |= _s3_extras(own)
    if options:
        options["aws_conditional_put"] = "etag"
    return options


def _s3_extras(own: Mapping[str, str]) -> dict[str, str]:
    """Return the options of encryption, payment, proxy and anonymous access."""
    options = dict[str, str]()
    if (algorithm := own.get("encryption.algorithm", "")) in _ENCRYPTIONS:
        options["AWS_SERVER_SIDE_ENCRYPTION"] = _ENCRYPTIONS[algorithm]
        if key := own.get("encryption.key"):
            options["AWS_SSE_CUSTOMER_KEY_BASE64" if algorithm == "SSE-C" else "AWS_SSE_KMS_KEY_ID"] = key
    if own.get("requester.pays.enabled", "false").lower() == "true":
        options["AWS_REQUEST_PAYER"] = "true"
    if host := own.get("proxy.host"):
        kind = "https" if own.get("proxy.ssl.enabled", "false").lower() == "true" else "http"
        options["PROXY_URL"] = f"{kind}://{host}:{own.get('proxy.port', '443' if kind == 'https' else '80')}"
    if _ANONYMOUS in own.get("aws.credentials.provider", ""):
        options["AWS_SKIP_SIGNATURE"] = "true"
    return options


def _check_s3(own: Mapping[str, str]) -> None:
    """Raise `InvalidConfiguration` with each setting of S3A that changes what is written, or by whom, and is not known here."""
    violations = []
    for key, value in own.items():
        if key not in _TRANSLATED and not _TUNING.match(key):
            violations.append(_unknown(f"{S3_SETTINGS}{key}"))
        elif key == "encryption.algorithm" and value not in {"", *_ENCRYPTIONS}:
            allowed = f"delta-rs writes with {', '.join(_ENCRYPTIONS)} alone"
            violations.append(Violation(key=f"{S3_SETTINGS}{key}", value=value, allowed=allowed))
        elif key == "aws.credentials.provider":
            names = [name.strip().rpartition(".")[2] for name in value.split(",") if name.strip()]
            unknown = [name for name in names if name not in _PROVIDERS]
            if unknown:
                allowed = f"delta-rs knows {', '.join(sorted(_PROVIDERS))}"
                violations.append(Violation(key=f"{S3_SETTINGS}{key}", value=value, allowed=allowed))
    _refuse(violations)


def _azure_options(spark_settings: Mapping[str, str]) -> dict[str, str]:
    options, violations = dict[str, str](), []
    for key, value in spark_settings.items():
        if not key.startswith(_AZURE):
            continue
        if found := _AZURE_KEY.fullmatch(key.removeprefix(_AZURE)):
            options |= {"AZURE_STORAGE_ACCOUNT_NAME": found["account"], "AZURE_STORAGE_ACCOUNT_KEY": value}
        elif not _NOT_DANGEROUS.search(key):
            violations.append(_unknown(key))
    _refuse(violations)
    return options


def _google_options(spark_settings: Mapping[str, str]) -> dict[str, str]:
    options, violations = dict[str, str](), []
    for key, value in spark_settings.items():
        if key == _GOOGLE_KEY_FILE:
            options["GOOGLE_SERVICE_ACCOUNT"] = value
        elif key.startswith(_GOOGLE) and not _NOT_DANGEROUS.search(key):
            violations.append(_unknown(key))
    _refuse(violations)
    return options


def _unknown(key: str) -> Violation:
    allowed = "Spark would heed it, and delta-rs, which writes the log, has no such option; leave it out, or use what the table of "
    return Violation(key=key, value=HIDDEN, allowed=f"{allowed}lastword.spark.object_store names")


def _refuse(violations: list[Violation]) -> None:
    if violations:
        subject = "the object store of the log.dir"
        raise InvalidConfiguration(subject, violations)
