"""One set of settings for Spark and delta-rs: each setting of a store is translated, only tunes Spark's client, or is refused by name."""

from __future__ import annotations

import pytest

from lastword.compaction.errors import InvalidConfiguration
from lastword.spark.object_store import storage_options

_S3A = "spark.hadoop.fs.s3a."


def _s3(**settings: str) -> dict[str, str]:
    return {f"{_S3A}{key.replace('__', '-').replace('_', '.')}": value for key, value in settings.items()}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (_s3(encryption_algorithm="SSE-KMS", encryption_key="k"), {"AWS_SERVER_SIDE_ENCRYPTION": "aws:kms", "AWS_SSE_KMS_KEY_ID": "k"}),
        (_s3(server__side__encryption__algorithm="AES256"), {"AWS_SERVER_SIDE_ENCRYPTION": "AES256"}),
        (
            _s3(encryption_algorithm="SSE-C", encryption_key="k"),
            {"AWS_SERVER_SIDE_ENCRYPTION": "sse-c", "AWS_SSE_CUSTOMER_KEY_BASE64": "k"},
        ),
        (_s3(requester_pays_enabled="true"), {"AWS_REQUEST_PAYER": "true"}),
        (_s3(proxy_host="p", proxy_port="3128"), {"PROXY_URL": "http://p:3128"}),
        (_s3(aws_credentials_provider="org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"), {"AWS_SKIP_SIGNATURE": "true"}),
        ({f"{_S3A}endpoint": "a", f"{_S3A}bucket.logs.endpoint": "b"}, {"AWS_ENDPOINT_URL": "https://b"}),
        ({f"{_S3A}bucket.other.endpoint": "b"}, {}),
    ],
)
def test_what_changes_how_a_log_is_written_is_told_to_both(settings: dict[str, str], options: dict[str, str]) -> None:
    """Encryption, payment, proxies, anonymous access, and what holds for one bucket alone."""
    found = storage_options(settings, "s3a://logs/data")
    assert found == options | ({"aws_conditional_put": "etag"} if options else {})


@pytest.mark.parametrize(
    "key", ["connection.maximum", "threads.max", "fast.upload", "multipart.size", "retry.limit", "connection.timeout", "buffer.dir"]
)
def test_what_only_tunes_the_client_of_spark_is_let_through(key: str) -> None:
    """It changes nothing of what is written."""
    assert storage_options({f"{_S3A}{key}": "1"}, "s3a://logs/data") == {}


@pytest.mark.parametrize(
    ("location", "key", "value"),
    [
        ("s3a://logs/data", f"{_S3A}acl.default", "BucketOwnerFullControl"),
        ("s3a://logs/data", f"{_S3A}assumed.role.arn", "arn:hunter2"),
        ("s3://logs/data", f"{_S3A}encryption.algorithm", "CSE-KMS"),
        ("s3a://logs/data", f"{_S3A}aws.credentials.provider", "com.example.Vault"),
        ("s3a://logs/data", f"{_S3A}proxy.password", "hunter2"),
        ("s3a://logs/data", f"{_S3A}bucket.logs.create.storage.class", "glacier"),
        ("abfss://logs@ann.dfs.core.windows.net/data", "spark.hadoop.fs.azure.account.oauth2.client.secret", "hunter2"),
        ("gs://logs/data", "spark.hadoop.fs.gs.encryption.key", "hunter2"),
    ],
)
def test_a_setting_that_would_reach_spark_alone_is_refused_by_name_without_its_value(location: str, key: str, value: str) -> None:
    """Only for the store that holds the log.dir; for other stores Spark's settings are free."""
    with pytest.raises(InvalidConfiguration) as caught:
        storage_options({key: value}, location)
    assert [one.key for one in caught.value.violations] == [key.replace("bucket.logs.", "")]
    assert "hunter2" not in str(caught.value)
    assert storage_options({key: value}, "/data").keys() <= {"aws_conditional_put"}


def test_other_clouds_have_their_keys_from_spark_too() -> None:
    """An account's key, a service account's file."""
    azure = storage_options({"spark.hadoop.fs.azure.account.key.ann.dfs.core.windows.net": "k"}, "abfss://logs@ann.dfs.core.windows.net/d")
    assert azure == {"AZURE_STORAGE_ACCOUNT_NAME": "ann", "AZURE_STORAGE_ACCOUNT_KEY": "k"}
    google = storage_options({"spark.hadoop.google.cloud.auth.service.account.json.keyfile": "/k.json"}, "gs://logs/d")
    assert google == {"GOOGLE_SERVICE_ACCOUNT": "/k.json"}


@pytest.mark.parametrize(
    ("location", "key"),
    [
        ("abfss://logs@ann.dfs.core.windows.net/d", "spark.hadoop.fs.azure.read.request.size"),
        ("abfss://logs@ann.dfs.core.windows.net/d", "spark.hadoop.fs.azure.io.threads"),
        ("abfss://logs@ann.dfs.core.windows.net/d", "spark.sql.shuffle.partitions"),
        ("gs://logs/d", "spark.hadoop.fs.gs.http.connect.timeout"),
        ("gs://logs/d", "spark.hadoop.fs.AbstractFileSystem.gs.impl"),
        ("gs://logs/d", "spark.sql.shuffle.partitions"),
    ],
)
def test_what_only_tunes_the_client_of_another_cloud_is_let_through(location: str, key: str) -> None:
    """And what is about no store at all."""
    assert storage_options({key: "1"}, location) == {}
