"""The commands `lastword transactions`: list, describe and end open transactions."""

from __future__ import annotations

import typer

from lastword import clock
from lastword.cli import tables
from lastword.cli.options import (
    AnyTopic,
    Json,
    LogDirOption,
    Topic,
    list_by_topic,
    open_log_dir,
    out,
    print_json_lines,
    tell,
    topics_to_list,
)
from lastword.compaction.errors import UserError

transactions_app = typer.Typer(help="List, describe and end open transactions.", no_args_is_help=True)


@transactions_app.command("list")
def transactions_list(topic: AnyTopic = None, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """List the open transactions, oldest first: producer, partitions, age. Example: lastword transactions list fruit-prices."""
    now_ms = clock.now_ms()
    by_topic = {
        opened.name: [tables.transaction(transaction, now_ms) for transaction in opened.open_transactions()]
        for opened in topics_to_list(log_dir, topic)
    }
    list_by_topic(by_topic, tables.transactions_table, nothing="no open transactions", as_json=as_json)


@transactions_app.command("describe")
def transactions_describe(topic: Topic, producer_id: int, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """Show an open transaction and the offsets that it holds back. Example: lastword transactions describe fruit-prices 4."""
    log = open_log_dir(log_dir).topic(topic)
    now_ms = clock.now_ms()
    mine = [tables.transaction(transaction, now_ms) for transaction in log.open_transactions() if transaction.producer_id == producer_id]
    if not mine:
        message = f"topic {topic}: producer {producer_id} has no open transaction; lastword transactions list {topic} shows them"
        raise UserError(message)
    partitions = {partition.partition: partition for partition in log.describe().partitions}
    held = [
        {
            "partition": partition,
            "first_offset": first,
            "last_stable_offset": partitions[partition].last_stable_offset,
            "log_end_offset": partitions[partition].log_end_offset,
            "held_back": partitions[partition].log_end_offset - first,
        }
        for partition, first in mine[0]["first_offsets"].items()
    ]
    if as_json:
        print_json_lines([{**mine[0], "partitions": held}])
        return
    out.print(tables.transactions_table(mine, topic))
    for each in held:
        out.print(
            f"  partition {each['partition']}: {each['held_back']} offsets from {each['first_offset']} on are held back "
            f"from read_committed readers and the cleaner; last stable offset {each['last_stable_offset']}"
        )


@transactions_app.command("abort")
def transactions_abort(topic: Topic, producer_id: int, as_json: Json = False, log_dir: LogDirOption = "") -> None:
    """End the open transaction of a producer, and fence the producer. Example: lastword transactions abort fruit-prices 4."""
    result = open_log_dir(log_dir).topic(topic).abort_transaction(producer_id)
    partitions, version = sorted(result.ranges), result.table_version
    text = f"ended the transaction of producer {producer_id} in {len(partitions)} partitions, at table version {version}"
    tell(text, {"topic": topic, "producer_id": producer_id, "partitions": partitions, "table_version": version}, as_json=as_json)
