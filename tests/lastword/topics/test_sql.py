"""SQL over topics: each is a table of its newest rows. No JVM."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lastword import LogDir, UnknownTopic, UserError
from lastword.change_data.columns.connect_schema import columns_of_ddl
from lastword.change_data.columns.table_columns import TableColumns
from lastword.cli import app as cli
from lastword.storage.ledger.table_columns import keep_columns

if TYPE_CHECKING:
    from pathlib import Path

    from lastword import ArrowTopic

_COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture(name="logs")
def _logs(tmp_path: Path) -> LogDir[ArrowTopic]:
    """Return a log.dir with a topic whose columns are known, and one of keys and values."""
    logs = LogDir(tmp_path)
    orders = logs.create_topic("shop.orders", config=_COMPACT)
    columns = TableColumns(key=columns_of_ddl("id bigint"), value=columns_of_ddl("id bigint, price decimal(10,2)"))
    keep_columns(orders.log.ledger, columns.as_details(), now_ms=0)
    for price in ("0.50", "1.50"):
        orders.append([{"key": f'{{"id":{row}}}', "value": f'{{"id":{row},"price":"{price}"}}'} for row in range(3)])
    orders.append([{"key": '{"id":1}', "value": None}])
    logs.create_topic("fruit", config=_COMPACT).append([{"key": "lime", "value": "2"}, {"key": b"\xff", "value": b"\xfe"}])
    return logs


@pytest.mark.parametrize("name", ['"shop.orders"', "shop.orders", "`shop.orders`"])
def test_a_topic_with_known_columns_is_a_typed_table(logs: LogDir, name: str) -> None:
    """It has the newest rows; a name with dots may be quoted."""
    rows = logs.sql("select id, price + 1 as more from NAME where id > 0 order by id".replace("NAME", name))

    assert rows.to_dicts() == [{"id": 2, "more": Decimal("2.50")}]


def test_any_other_topic_has_keys_and_values_as_text(logs: LogDir) -> None:
    """Null where they are not UTF-8, beside partition, headers, timestamp and offset."""
    assert logs.sql('select key, value, "offset" from fruit order by "offset"').rows() == [("lime", "2", 0), (None, None, 1)]
    assert logs.sql("select * from fruit").columns == ["partition", "key", "value", "headers", "timestamp", "offset"]


def test_topics_are_joined(logs: LogDir) -> None:
    """Also by a common table expression and a subquery."""
    query = (
        "with f as (select cast(value as bigint) as v from fruit where value is not null) select id from shop.orders o join f on f.v = o.id"
    )
    assert logs.sql(query).rows() == [(2,)]
    assert logs.sql("select count(*) from (select id from shop.orders) x").rows() == [(2,)]


def test_only_topics_that_the_query_names_are_opened(logs: LogDir, tmp_path: Path) -> None:
    """A topic that cannot be read is no matter to a query about another one."""
    log = next((tmp_path / "fruit/log/_delta_log").glob("*1.json"))
    log.write_text("no json")

    assert logs.sql("select count(*) from shop.orders -- fruit").rows() == [(2,)]
    with pytest.raises(Exception, match=r".+"):
        logs.sql("select * from fruit")


def test_a_limit_ends_the_reading(logs: LogDir) -> None:
    """Rows behind it are not decoded: here the last one would not fit."""
    logs.topic("shop.orders").append([{"key": '{"id":9}', "value": '{"id":9,"price":"dear"}'}])

    assert logs.sql("select id from shop.orders limit 1").rows() == [(0,)]
    assert logs.sql("select id from shop.orders", limit=1).rows() == [(0,)]


def test_a_value_that_does_not_fit_is_named(logs: LogDir) -> None:
    """As by `table`: topic, partition, offset, key, column and value."""
    logs.topic("shop.orders").append([{"key": '{"id":9}', "value": '{"id":9,"price":"dear"}'}])

    with pytest.raises(UserError, match=r"shop\.orders.*offset 7.*price.*dear"):
        logs.sql("select * from shop.orders")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from shop.order", "topic shop.order does not exist; did you mean shop.orders? (existing: fruit, shop.orders)"),
        ("select prise from shop.orders", "column prise does not exist; did you mean price? (existing: id, price)"),
        ("delete from fruit", "delete: allowed are queries"),
        ("/* x */ -- y\n insert into fruit values (1)", "insert: allowed are queries"),
        ("with t as (select 1) delete from fruit", "unsupported"),
        ("drop table fruit", "drop: allowed are queries"),
        ("", "nothing: allowed are queries"),
        ("select 1; select 2", "one (and only one) statement"),
        ("select * from fruit where", "Expected: an expression"),
    ],
)
def test_a_wrong_query_is_one_line(logs: LogDir, query: str, message: str) -> None:
    """The message names the value and what is allowed; nothing is changed."""
    with pytest.raises(UserError) as raised:
        logs.sql(query)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert logs.topic("fruit").offsets()[0].log_end == 2


def test_an_unknown_topic_is_its_own_error(logs: LogDir) -> None:
    """As where a topic is opened by name."""
    with pytest.raises(UnknownTopic):
        logs.sql("select * from nothing_like_it")


def test_the_command_prints_a_table_or_json_lines(logs: LogDir) -> None:
    """With strict JSON types, and a limit."""

    def run(*words: str) -> Any:
        return CliRunner(env={"LASTWORD_LOG_DIR": logs.location}).invoke(cli.app, ["sql", *words])

    lines = run("select id, price from shop.orders order by id", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"id": 0, "price": "1.50"}, {"id": 2, "price": "1.50"}]
    shown = run("select id, price from shop.orders order by id", "--limit", "1").stdout
    assert "0   1.50" in shown
    assert "more rows exist" in shown
    assert isinstance(run("update fruit set value = 1").exception, UserError)
