"""Decisions about a topic, without Spark: which cleanup.policy lets records be deleted by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lastword import LogDir, PolicyViolation
from tests.clocks import at
from tests.pictures import T0, log, rows

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("policy", "default", "allowed"),
    [
        ("compact", None, False),
        ("delete", None, True),
        ("compact,delete", None, True),
        ("delete,compact", None, True),
        (None, "compact", False),
        (None, "delete", True),
        ("", None, True),
    ],
)
def test_records_are_deleted_by_offset_unless_the_policy_is_compact_alone(
    tmp_path: Path, policy: str | None, default: str | None, *, allowed: bool
) -> None:
    """As in Kafka (POLICY_VIOLATION), whether the topic says so or the service; nothing is changed by a refusal."""
    settings = {} if default is None else {"log.cleanup.policy": default}
    topic = LogDir(str(tmp_path), settings=settings).create_topic("fruit", config={} if policy is None else {"cleanup.policy": policy})
    at(T0, topic).append(rows("a=1 b=1 c=1", timestamp_ms=T0))
    if allowed:
        assert at(T0, topic).delete_records({0: 1}) == {0: 1}
        return
    with pytest.raises(PolicyViolation, match=r"cleanup\.policy = compact does not allow .* tombstone .* purge; or set .*compact,delete"):
        topic.delete_records({0: 1})
    assert log(topic) == ["0 a=1", "1 b=1", "2 c=1"]
    topic.alter_config({"cleanup.policy": "compact,delete", "retention.ms": -1})
    assert at(T0, topic).delete_records({0: -1}) == {0: 3}
