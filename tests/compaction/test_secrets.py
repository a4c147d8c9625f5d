"""What messages, log lines and pages show of texts with secrets: everything else, and no secret."""

from __future__ import annotations

import logging

import pytest

from lastword.compaction.errors import UserError, Violation, first_line
from lastword.compaction.secrets import is_secret, without_secrets
from lastword.streaming.events import logger

_JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="hunter2";'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"kafka.sasl.jaas.config = {_JAAS!r}: unknown", "kafka.sasl.jaas.config = ***: unknown"),
        (f"Invalid value {_JAAS} for it", _JAAS.join(("Invalid value ", " for it")).replace('"hunter2"', "***")),
        ("login module password='hunter 2';", "login module password=***;"),
        ("http://ann:hunter2@registry:8081/subjects did not answer", "http://***@registry:8081/subjects did not answer"),
        ("s3a://KEY:hunter2@bucket/data", "s3a://***@bucket/data"),
        ("jdbc:postgresql://h/db?user=ann&password=hunter2&ssl=true", "jdbc:postgresql://h/db?user=ann&password=***&ssl=true"),
        ("https://a.blob.core.windows.net/c?sv=1&sig=hunter2&se=2", "https://a.blob.core.windows.net/c?sv=1&sig=***&se=2"),
        ("AWS_SECRET_ACCESS_KEY=hunter2, AWS_REGION=eu", "AWS_SECRET_ACCESS_KEY=***, AWS_REGION=eu"),
        (
            "spark.hadoop.fs.s3a.secret.key -> hunter: x, fs.s3a.secret.key=hunter2",
            "spark.hadoop.fs.s3a.secret.key -> hunter: x, fs.s3a.secret.key=***",
        ),
        ('{"ssl.truststore.password": "hunter2", "a": 1}', '{"ssl.truststore.password": ***, "a": 1}'),
        ("schema.registry.basic.auth.user.info: ann:hunter2", "schema.registry.basic.auth.user.info: ***"),
        ("Authorization: Basic YW5uOmh1bnRlcjI=", "Authorization: ***"),
        ("headers={'Authorization': 'Bearer hunter2'}", "headers={'Authorization': '***'}"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY----- : x", "*** : x"),
        ("fs.azure.account.key.ann.dfs.core.windows.net=hunter2==", "fs.azure.account.key.ann.dfs.core.windows.net=***"),
        ("ssl.key.password = ***: unknown", "ssl.key.password = ***: unknown"),
        ("DefaultEndpointsProtocol=https;AccountKey=hunter2;", "DefaultEndpointsProtocol=https;AccountKey=***;"),
    ],
)
def test_a_secret_in_a_text_is_hidden(text: str, shown: str) -> None:
    """By its name or its place: settings, options that an exception repeats, URLs, headers, keys."""
    assert without_secrets(text) == shown
    assert "hunter2" not in str(UserError(text))
    assert "hunter2" not in first_line(RuntimeError(text))


@pytest.mark.parametrize("text", ["--url file:///etc/passwd: allowed is http", "cannot read conf/token: no such file", "b/c.secret: 7"])
def test_the_end_of_a_path_is_no_name_of_a_secret(text: str) -> None:
    """What follows it is what a message says of the file."""
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "sasl.mechanism = PLAIN, security.protocol=SASL_SSL",
        "topic fruit, partition 0: offset 7; allowed is 0 to 2",
        "key = a, value = b, passed: 3, monkey=x",
        "retry at https://registry:8081/subjects: 503",
        "query made-up of topic fruit runs in another process (process 12)",
        "no secret",
    ],
)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    """Also one in which a name resembles a secret's."""
    assert without_secrets(text) == text


def test_settings_that_are_secrets_are_told_by_their_names() -> None:
    """Kafka's, Hadoop's, those of clouds and of schema registries."""
    secret = [
        "kafka.sasl.jaas.config",
        "ssl.key.password",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "fs.azure.sas.fixed.token",
        "fs.s3a.access.key",
    ]
    assert [name for name in secret if not is_secret(name)] == []
    assert [name for name in ("sasl.mechanism", "key", "tombstone", "bootstrap.servers", "segment.bytes") if is_secret(name)] == []
    assert (
        str(Violation(key="ssl.key.password", value="'hunter2'", allowed="write it elsewhere"))
        == "ssl.key.password = ***: write it elsewhere"
    )


def test_an_event_has_no_secret_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """Log events hide a secret under its own name and inside the text of an error."""
    with caplog.at_level(logging.INFO):
        logger("service").info("source failed", error=f"Invalid value {_JAAS}", password="hunter2", topic="fruit")  # noqa: S106
    assert "hunter2" not in caplog.text
    assert "topic=fruit" in caplog.text
