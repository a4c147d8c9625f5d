"""The configuration of docs/coming-from-merge.md, as it stands there, on rows out of order with deletions: the table is right."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl

from lastword import LogDir
from lastword.service.service import Service
from lastword.service.settings import load_settings
from tests.docs.blocks import DOCS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

_ROWS, _KEYS, _FILES = 2000, 300, 8


def _changes(chance: random.Random) -> list[dict[str, Any]]:
    """Return changes in the order in which they were made, a deletion now and then."""
    changes = []
    for number in range(_ROWS):
        is_deleted = chance.random() < 0.1
        changes.append(
            {
                "op": "d" if is_deleted else "u",
                "order_id": chance.randrange(_KEYS),
                "status": None if is_deleted else chance.choice(["new", "paid", "sent"]),
                "price": None if is_deleted else f"{chance.randrange(10_000) / 100:.2f}",
                "updated_at": f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
            }
        )
    return changes


def test_rows_out_of_order_become_the_right_table(spark: SparkSession, tmp_path: Path) -> None:
    """Newer rows lie in older files than older rows; a deleted key stays away; one line is no JSON, one has no time."""
    assert spark is not None
    chance = random.Random(7)
    changes = _changes(chance)
    truth = {change["order_id"]: change for change in changes}
    chance.shuffle(changes)
    (tmp_path / "incoming").mkdir()
    for number in range(_FILES):
        lines = [json.dumps(change) for change in changes[number::_FILES]]
        lines += ["{no json"] if number == 3 else ['{"op":"u","order_id":1,"status":"?"}'] if number == 4 else []
        (tmp_path / "incoming" / f"{number}.json").write_text("\n".join(lines), encoding="utf-8")
    text = (DOCS / "coming-from-merge.md").read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    at_once = 'name = "orders-files"\ntrigger = "available-now"\nmax.files.per.trigger = 2\n'
    config = tmp_path / "lastword.toml"
    config.write_text(text.replace('name = "orders-files"\n', at_once) + '\n[http]\nlisten = ""\n', encoding="utf-8")

    Service(load_settings(config)).run()

    rows = pl.read_delta(str(tmp_path / "tables" / "orders")).sort("order_id")
    expected = sorted((key, row["status"], Decimal(row["price"])) for key, row in truth.items() if row["op"] == "u")
    assert rows.select("order_id", "status", "price").rows() == expected
    assert {name: str(kind) for name, kind in rows.schema.items()} == {
        "_key": "Binary",
        "_partition": "Int32",
        "order_id": "Int64",
        "status": "String",
        "price": "Decimal(precision=10, scale=2)",
        "updated_at": "Datetime(time_unit='us', time_zone='UTC')",
    }
    letters = LogDir(tmp_path / "data").topic("orders").dead_letters()
    assert sorted(letters.column("reason").to_pylist()) == ["malformed", "no_sequence"]
