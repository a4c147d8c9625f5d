"""A table of events as the input of an append, and what an envelope tells an append to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lastword.change_data.events.envelopes import Envelope, placeholders_of
from lastword.change_data.events.event_rows import event_table
from lastword.compaction.errors import InvalidRecords
from lastword.compaction.rows.batches import BatchLimits
from lastword.compaction.rows.input_columns import EventPolicy

if TYPE_CHECKING:
    from lastword.change_data.columns.column_types import DataType

_EVENT = '{"op":"c","before":null,"after":{"id":%d},"source":{"lsn":%d}}'


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_table_is_read_in_batches_in_its_order(count: int) -> None:
    """An empty one has all columns, too."""
    keys, values = [f'{{"id":{number}}}' for number in range(count)], [_EVENT % (number, number) for number in range(count)]
    events = pa.table({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})
    rows = event_table(events, Envelope(), topic="t", limits=BatchLimits(batch_rows=3))
    assert [row["key"] for row in rows.to_pylist()] == [key.encode() for key in keys]
    assert {"source_sequence", "headers", "__event", "__refusal", "__unchanged"} <= set(rows.schema.names)


def test_a_table_without_a_value_is_refused() -> None:
    """By the name of the topic and the column."""
    with pytest.raises(InvalidRecords, match=r"topic t .*\n.*value"):
        event_table(pa.table({"key": ["a"]}), Envelope(), topic="t")


def test_a_decoder_reads_the_frames_first() -> None:
    """One batch after the other, as it asks a registry."""

    class _Decoded:
        def __init__(self, column: pa.Array) -> None:
            self.values, self.reasons, self.schemas = column, dict[int, str](), dict[int, object]()

    class _Decoder:
        def decode_column(self, column: pa.Array) -> _Decoded:
            return _Decoded(column)

        def data_type(self, schema_id: int, message: tuple[int, ...] = ()) -> DataType:
            raise AssertionError(schema_id, message)

    rows = event_table(pa.table({"key": ['{"id":1}'], "value": [_EVENT % (1, 1)]}), Envelope(), _Decoder(), topic="t")
    assert rows.column("value").to_pylist() == [b'{"id":1}']


def test_an_append_learns_its_policy_from_the_envelope() -> None:
    """What stands for columns that are left out, and three settings."""
    assert Envelope().policy == EventPolicy(placeholders=placeholders_of(Envelope()))
    policy = Envelope(unresolved="null", on_snapshot="replace", schema="id int, price decimal(10,2)").policy
    assert (policy.null_unresolved, policy.replace_on_snapshot, policy.columns) == (True, True, "id int, price decimal(10,2)")
