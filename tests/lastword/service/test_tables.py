"""The tables of the service, without Spark: each follows its topic; one that fails is tried again, later each time, and stops no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable

from lastword import LogDir, UserError
from lastword.service.table_settings import TableSettings
from lastword.service.tables import TableSupervisor
from tests.pictures import T0
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lastword import ArrowTopic
    from lastword.status.standing import TableStanding
    from lastword.storage.log.topic_log import TopicLog

_COMPACT = {"cleanup.policy": "compact"}


class _Service:
    """The supervisor of some tables over one log.dir, and a clock of its own."""

    def __init__(self, folder: Path, *blocks: dict[str, Any]) -> None:
        """Keep the tables of some blocks."""
        self.logs, self.seconds, self.folder = LogDir(folder / "data"), 0.0, folder
        self._known: dict[str, TopicLog] = {}
        self.tables = TableSupervisor(
            settings=[TableSettings.model_validate({"schema": "price int", **block}) for block in blocks],
            topics=self._topics,
            storage_options={},
            clock_ms=lambda: T0 + round(self.seconds * 1000),
            monotonic=lambda: self.seconds,
        )

    def _topics(self) -> dict[str, TopicLog]:
        self._known = {name: self._known.get(name) or self.logs.topic(name).log for name in self.logs.topics()}
        return self._known

    def topic(self, name: str, **prices: int | str | None) -> ArrowTopic:
        """Return a topic with some prices more."""
        topic = self.logs.topic(name) if name in self.logs.topics() else self.logs.create_topic(name, config=_COMPACT)
        values = {key: price if price is None or isinstance(price, str) else f'{{"price":{price}}}' for key, price in prices.items()}
        topic.append([{"key": key, "value": value} for key, value in values.items()])
        return topic

    def run(self, seconds: float = 11.0) -> list[TableStanding]:
        """Let time pass, do what is due, and return the states of the tables."""
        self.seconds += seconds
        self.tables.step()
        until(self._is_idle)
        return self.tables.standings()

    def _is_idle(self) -> bool:
        self.tables.step()
        return all(one.working is None for one in self.tables._tables.values())  # noqa: SLF001  what is in hand is nobody else's matter

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        return pl.read_delta(str(self.folder / path)).sort("_key").to_dicts()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., _Service]]:
    """Return what makes a service whose tables lie below one folder."""
    made = list[_Service]()

    def make(*blocks: dict[str, Any]) -> _Service:
        made.append(_Service(tmp_path, *({**block, "path": str(tmp_path / block["path"])} for block in blocks)))
        return made[-1]

    yield make
    for one in made:
        one.tables.stop()


def test_a_table_follows_its_topic(service: Callable[..., _Service]) -> None:
    """It is made, steps are taken when they are due, and the state says how far it is."""
    one = service({"topic": "fruit", "path": "prices"})
    one.topic("fruit", lime=1, kiwi=1)
    [state] = one.run()
    assert (state.topic, state.steps, state.written_rows, state.lag_offsets, state.message) == ("fruit", 1, 2, 0, "")
    one.topic("fruit", lime=2, kiwi=None)
    [state] = one.run(seconds=1)
    assert (state.steps, state.lag_offsets, state.lag_ms) == (1, 2, 1000)
    [state] = one.run()
    assert (state.steps, state.written_rows, state.deleted_rows, state.lag_offsets) == (2, 3, 2, 0)
    assert [row["price"] for row in one.rows("prices")] == [2]


def test_each_topic_of_a_pattern_has_a_table_also_one_that_comes_later(service: Callable[..., _Service]) -> None:
    """The whole name is matched; a topic that is deleted has none any more."""
    one = service({"topics.pattern": r"shop\..*", "path": "tables/{topic}"})
    one.topic("shop.orders", a=1)
    one.topic("workshop.orders", a=1)
    assert [state.topic for state in one.run()] == ["shop.orders"]
    one.topic("shop.items", b=2)
    assert sorted(state.topic for state in one.run()) == ["shop.items", "shop.orders"]
    assert [row["price"] for row in one.rows("tables/shop.items")] == [2]
    one.logs.delete_topic("shop.orders")
    assert [state.topic for state in one.run()] == ["shop.items"]


def test_a_table_that_fails_is_tried_again_and_the_others_go_on(service: Callable[..., _Service]) -> None:
    """Later each time; the message names the record; when the record is put right, the table goes on."""
    one = service({"topic": "bad", "path": "bad"}, {"topic": "good", "path": "good"})
    one.topic("bad", fig='{"price":"dear"}')
    one.topic("good", fig=1)
    bad, good = sorted(one.run(), key=lambda state: state.topic)
    assert (good.steps, good.message) == (1, "")
    assert (bad.failures, bad.retry_ms) == (1, T0 + 12_000)
    assert 'partition 0, offset 0, key fig: column price = "dear"' in bad.message
    bad, _ = sorted(one.run(seconds=2), key=lambda state: state.topic)
    assert (bad.failures, bad.retry_ms) == (2, T0 + 15_000)
    one.topic("bad", fig=3)
    bad, _ = sorted(one.run(), key=lambda state: state.topic)
    assert (bad.failures, bad.retry_ms, bad.message, bad.steps) == (0, None, "", 1)


def test_a_change_by_somebody_else_stops_a_table_until_it_is_written_anew(service: Callable[..., _Service]) -> None:
    """By the command or the method, while the service runs."""
    one = service({"topic": "fruit", "path": "prices"})
    topic = one.topic("fruit", lime=1, kiwi=1)
    one.run()
    DeltaTable(str(one.folder / "prices")).delete("price = 1")
    one.topic("fruit", fig=1)
    [state] = one.run()
    assert "was changed by somebody else: DELETE at version 1" in state.message
    topic.materialize(str(one.folder / "prices"), schema="price int", rebuild=True)
    [state] = one.run()
    assert (state.message, len(one.rows("prices"))) == ("", 3)


def test_a_paused_table_takes_no_step_until_it_is_resumed(service: Callable[..., _Service]) -> None:
    """Somebody else may change it then, as long as the rows stay."""
    one = service({"topic": "fruit", "path": "prices"})
    topic = one.topic("fruit", lime=1)
    one.run()
    topic.pause_table(str(one.folder / "prices"))
    one.topic("fruit", lime=2)
    [state] = one.run()
    assert (state.paused, state.steps, state.lag_offsets) == (True, 1, 1)
    DeltaTable(str(one.folder / "prices")).optimize.compact()
    topic.resume_table(str(one.folder / "prices"))
    [state] = one.run()
    assert (state.paused, state.steps, [row["price"] for row in one.rows("prices")]) == (False, 2, [2])


def test_at_the_end_all_tables_take_what_is_there(service: Callable[..., _Service]) -> None:
    """Whenever they are due; the first error is raised when each had its turn."""
    one = service({"topic": "bad", "path": "bad"}, {"topic": "good", "path": "good"})
    one.topic("good", fig=1)
    one.logs.create_topic("bad", config=_COMPACT)
    one.tables.finish()
    one.topic("bad", fig='{"price":"dear"}')
    one.topic("good", fig=2)
    with pytest.raises(UserError, match='column price = "dear"'):
        one.tables.finish()
    assert [row["price"] for row in one.rows("good")] == [2]


def test_a_topic_without_a_record_is_waited_for(service: Callable[..., _Service]) -> None:
    """No source has said what its columns are; with a record it is a mistake."""
    one = service({"topic": "fruit", "path": "prices", "schema": ""})
    one.logs.create_topic("fruit", config=_COMPACT)
    [state] = one.run()
    assert (state.message, state.failures) == ("", 0)
    one.topic("fruit", lime=1)
    [state] = one.run()
    assert "no source of the topic says which columns its rows have" in state.message
