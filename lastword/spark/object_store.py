"""What delta-rs needs to reach an object store, derived from what Spark was told: one set of settings for both.

| Spark (Hadoop S3A) | delta-rs |
|---|---|
| spark.hadoop.fs.s3a.access.key, secret.key, session.token | AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN |
| spark.hadoop.fs.s3a.endpoint, endpoint.region | AWS_ENDPOINT_URL, AWS_REGION |
| spark.hadoop.fs.s3a.path.style.access = true | AWS_VIRTUAL_HOSTED_STYLE_REQUEST = false |
| spark.hadoop.fs.s3a.connection.ssl.enabled = false | AWS_ALLOW_HTTP = true |

Without these settings both look for credentials where AWS keeps them: the environment, the instance. A new log file is put only where
there is none (`If-None-Match`), which is what makes two writers of one Delta table safe on S3 for delta-rs; for Spark, Delta's
`S3DynamoDBLogStore` does (`spark.delta.logStore.s3a.impl`), unless one driver alone writes, as lastword's service does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lastword.spark.session import S3_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLAIN: Final = {
    "access.key": "AWS_ACCESS_KEY_ID",
    "secret.key": "AWS_SECRET_ACCESS_KEY",
    "session.token": "AWS_SESSION_TOKEN",
    "endpoint.region": "AWS_REGION",
}


def storage_options(spark_settings: Mapping[str, str]) -> dict[str, str]:
    """Return the options of delta-rs that say what `spark_settings` say of S3; nothing where they say nothing."""
    own = {key.removeprefix(S3_SETTINGS): value for key, value in spark_settings.items() if key.startswith(S3_SETTINGS)}
    options = {name: own[key] for key, name in _PLAIN.items() if key in own}
    secure = own.get("connection.ssl.enabled", "true").lower() != "false"
    if endpoint := own.get("endpoint"):
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{'https' if secure else 'http'}://{endpoint}"
        secure = not options["AWS_ENDPOINT_URL"].startswith("http://")
    if not secure:
        options["AWS_ALLOW_HTTP"] = "true"
    if own.get("path.style.access", "false").lower() == "true":
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "false"
    if options:
        options["aws_conditional_put"] = "etag"
    return options
