"""What a machine that loses its power may leave of a topic's files: an error that names the file, or a cache that is made anew. No JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from lastword import ArrowTopic, CorruptLog, LogDir, UserError
from lastword.storage.append.dead_letters import DeadLetters, replace_dead_letters
from lastword.storage.log import upkeep
from lastword.storage.log.limits import UpkeepLimits
from tests.clocks import at
from tests.pictures import T0, rows
from tests.storage.append.test_dead_letters import written_letters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

_EMPTY: Final = r"_delta_log/\d+\.json is empty: the machine stopped while it was written"


@pytest.fixture(name="topic")
def _topic(tmp_path: Path) -> ArrowTopic:
    """A topic with two records, a transaction, a registered reader, a dead letter, and the settings of a service."""
    logs = LogDir(tmp_path / "logs", settings={"log.retention.hours": 5})
    logs.keep_settings()
    topic = logs.create_topic("fruit", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    at(T0, topic).append(rows("a=1 b=1"))
    with at(T0, topic).transaction("loader") as transaction:
        transaction.append(rows("c=1"))
    letters = topic.log.paths.dead_letters
    replace_dead_letters(letters, {}, written_letters(letters, "q", 1, {"raw": "x"}), query_id="q", batch_id=1)
    return topic


def _newest_commit(topic: ArrowTopic, table: str) -> Path:
    return max(Path(topic.log.paths.root, table, "_delta_log").glob("*.json"))


def _again(topic: ArrowTopic) -> ArrowTopic:
    return LogDir(Path(topic.log.paths.root).parent).topic("fruit")


_READS: Final[Mapping[str, Callable[[ArrowTopic], object]]] = {
    "records": lambda topic: topic.records(),
    "latest": lambda topic: topic.latest(),
    "lazy": lambda topic: topic.scan_latest().collect(),
    "offsets": lambda topic: topic.offsets(),
    "append": lambda topic: topic.append(rows("d=1")),
    "clean": lambda topic: topic.clean(force=True),
    "verify": lambda topic: topic.verify(),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["opened anew", "open"])
def test_a_commit_of_the_log_that_is_empty_is_no_older_log(topic: ArrowTopic, *, is_open: bool) -> None:
    """Readers, appends, cleaning, `verify`: none goes on without what it held, whether it had the log open or not."""
    topic.records()
    at(T0, topic).append(rows("a=2"))
    newest = _newest_commit(topic, "log")
    newest.write_bytes(b"")
    for name, act in _READS.items():
        with pytest.raises(CorruptLog, match=_EMPTY):
            pytest.fail(f"{name}: {act(topic if is_open else _again(topic))}")
    newest.unlink()  # as the error says
    assert _again(topic).offsets()[0][2] == 4
    assert topic.append(rows("a=3")).ranges[0].first_offset == 4


def test_a_commit_of_the_dead_letters_that_is_empty_is_not_none(topic: ArrowTopic) -> None:
    """Reading, adding and expiring dead letters all notice a commit file that a power loss left empty."""
    letters = topic.log.paths.dead_letters
    _newest_commit(topic, "dead_letters").write_bytes(b"")
    more = written_letters(letters, "q", 2, {"raw": "y"})
    acts: list[Callable[[], object]] = [
        topic.dead_letters,
        DeadLetters(letters, {}).look,
        lambda: replace_dead_letters(letters, {}, more, query_id="q", batch_id=2),
    ]
    for act in acts:
        with pytest.raises(CorruptLog, match=_EMPTY):
            act()


_LEFT: Final = {"empty": b"", "half of it": b'{"format": 1, "part', "zeros": bytes(64), "no object": b"[1, 2]"}


@pytest.mark.parametrize("left", _LEFT.values(), ids=list(_LEFT))
def test_a_cache_that_was_cut_is_made_anew(topic: ArrowTopic, left: bytes) -> None:
    """Producer states and what Delta knows of its own checkpoint: the same answers without them."""
    expected = topic.records(include_control=True), topic.offsets()
    (Path(topic.log.paths.log, "_delta_log") / "_last_checkpoint").write_bytes(left)
    caches = [path for path in Path(topic.log.paths.producers).rglob("*") if path.is_file()]
    assert caches
    for path in caches:
        path.write_bytes(left)
    again = _again(topic)
    assert (again.records(include_control=True), again.offsets()) == expected
    assert upkeep.checkpoint(again.log, limits=UpkeepLimits(checkpoint_commits=1)) == again.log.snapshot().version
    with at(T0, again).transaction("loader") as transaction:
        transaction.append(rows("c=2"))
    assert again.verify().ok


@pytest.mark.parametrize("left", _LEFT.values(), ids=list(_LEFT))
def test_settings_of_the_service_that_were_cut_are_not_the_defaults(topic: ArrowTopic, left: bytes) -> None:
    """Retention by a default would delete what was to be kept."""
    settings = Path(topic.log.paths.root).parent / ".settings.json"
    settings.write_bytes(left)
    with pytest.raises(UserError, match=r"\.settings\.json is no JSON object .*start the service, which writes it anew"):
        _again(topic)


@pytest.mark.parametrize("left", [b"", b"PAR1", bytes(300)], ids=["empty", "begun", "zeros"])
def test_a_data_file_that_was_cut_is_named(topic: ArrowTopic, left: bytes) -> None:
    """No reader takes it for an empty one; a cleaning leaves it alone, and `verify` says which offsets are gone."""
    path = Path(topic.log.paths.log, str(topic.log.snapshot().files.path[0]))
    path.write_bytes(left)
    for act in (topic.records, topic.latest):
        with pytest.raises(CorruptLog, match=f"{path.name} cannot be read"):
            act()
    at(T0, topic).roll()
    assert at(T0, topic).clean(force=True) == []
    assert path.name in str(at(T0, topic).explain()[0].uncleanable_reason)
    assert "offsets 0 to 1 cannot be read" in topic.verify().problems[0]
