"""The command line: the verbs of the API, for people and for pipes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from compaction.errors import InvalidConfiguration, LastwordError, UserError, Violation
from lastword import cleaning_rendering, cli_operate, cli_purge, cli_readers, clock, rendering, requests
from lastword.cli_options import (
    ANSWER_SECONDS,
    QUIET,
    RECORD_SHOWN,
    Config,
    Decode,
    Json,
    Limit,
    LogDirOption,
    Partition,
    Timeout,
    Topic,
    notes,
    out,
    show,
    tell,
    with_spark,
)
from lastword.cli_requests import carried_out
from lastword.copying import copy_topic
from lastword.explanation import PartitionReport
from lastword.log_dir import LogDir
from lastword.service import Service
from lastword.settings import checked_settings, load_settings

app = typer.Typer(name="lastword", help="The last word on every key: a compacted changelog on Delta Lake.", no_args_is_help=True)
topics_app = typer.Typer(help="Create, list, describe, alter, delete and copy topics.", no_args_is_help=True)
queries_app = typer.Typer(help="The streaming queries that a topic knows.", no_args_is_help=True)
transactions_app = typer.Typer(help="Open transactions: list, describe, end.", no_args_is_help=True)
app.add_typer(topics_app, name="topics")
app.add_typer(queries_app, name="queries")
app.add_typer(transactions_app, name="transactions")
app.add_typer(cli_readers.readers_app, name="readers")
for command in (cli_readers.latest, cli_readers.changes, cli_readers.materialize, cli_purge.purge, cli_operate.top, cli_operate.plot):
    app.command()(command)


def main() -> None:
    """Run the command line; a user's mistake is one message on standard error and exit code 1."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    for noisy in ("py4j", "pyspark", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        app()
    except LastwordError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@topics_app.command("create")
def topics_create(
    name: str,
    partitions: Annotated[int, typer.Option(help="How many; fixed for ever.")] = 1,
    config: Config = None,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Create a topic.

    Example: lastword topics create fruit-prices --partitions 4 --config cleanup.policy=compact --config segment.bytes=128MiB
    """
    LogDir(None, log_dir).create_topic(name, partitions=partitions, config=_pairs(config))
    text = f"created topic {name} with {partitions} partition{'s' if partitions > 1 else ''}"
    tell(text, {"topic": name, "partitions": partitions}, as_json=as_json)


@topics_app.command("list")
def topics_list(as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """List the topics. Example: lastword topics list --json."""
    for name in LogDir(None, log_dir).topics():
        sys.stdout.write(f"{json.dumps({'topic': name})}\n" if as_json else f"{name}\n")


@topics_app.command("describe")
def topics_describe(
    name: str,
    segments: Annotated[bool, typer.Option("--segments", help="Every segment too.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Show partitions, segments, sizes, offsets, record counts and settings; reads no record.

    Example: lastword topics describe fruit-prices --segments
    """
    description = LogDir(None, log_dir).topic(name).describe()
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(description)) + "\n")
        return
    out.print(rendering.description_table(description))
    if segments:
        out.print(rendering.segments_table(description))
    for key, value in description.config.items():
        if key in description.overrides:
            out.print(f"  {key} = {value}")
    if description.mirror:
        out.print(f"  mirror of {description.mirror['source']} (query {description.mirror['query']})")


@topics_app.command("alter")
def topics_alter(
    name: str,
    config: Config = None,
    delete_config: Annotated[list[str] | None, typer.Option("--delete-config", help="A setting to take away.")] = None,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Change settings; a running service sees them at its next micro-batch.

    Example: lastword topics alter fruit-prices --config segment.ms=12h --delete-config retention.ms
    """
    changes: dict[str, object] = {**_pairs(config), **dict.fromkeys(delete_config or [])}
    topic = LogDir(None, log_dir).topic(name)
    topic.alter_config(changes)
    tell(f"altered topic {name}", {"topic": name, "overrides": dict(topic.log.decisions().overrides)}, as_json=as_json)


@topics_app.command("delete")
def topics_delete(name: str, timeout: Timeout = ANSWER_SECONDS, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Delete a topic; its files go after file.delete.delay.ms. Example: lastword topics delete fruit-prices."""
    carried_out(requests.DeleteTopic(topic=name), log_dir, timeout)
    tell(f"deleted topic {name}", {"topic": name}, as_json=as_json)


@topics_app.command("copy")
def topics_copy(
    source: str,
    target: str,
    partitions: Annotated[int, typer.Option(help="How many the copy has.")] = 1,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Copy a topic into a new one with another number of partitions; every record is hashed anew.

    Example: lastword topics copy fruit-prices fruit-prices-16 --partitions 16
    """
    with notes.status(f"copying {source} to {target}"):
        result = copy_topic(with_spark(log_dir), source, target, partitions=partitions)
    facts = {"source": source, "target": target, "records": result.record_count}
    tell(f"copied {result.record_count:,} records of {source} to {target}", facts, as_json=as_json)


@queries_app.command("list")
def queries_list(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """List the streaming queries that a topic knows. Example: lastword queries list fruit-prices."""
    for name, query_id in LogDir(None, log_dir).topic(topic).describe().queries.items():
        sys.stdout.write(f"{json.dumps({'query': name, 'id': query_id})}\n" if as_json else f"{name}  {query_id}\n")


@queries_app.command("forget")
def queries_forget(topic: Topic, name: str, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Let a query whose checkpoint is gone start anew: its source's rows come again.

    Example: lastword queries forget fruit-prices files
    """
    LogDir(None, log_dir).topic(topic).forget_query(name)
    tell(f"forgot query {name} of topic {topic}", {"topic": topic, "query": name}, as_json=as_json)


@transactions_app.command("list")
def transactions_list(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """List the open transactions, oldest first: producer, partitions, age. Example: lastword transactions list fruit-prices."""
    found = [rendering.transaction(one, clock.now_ms()) for one in with_spark(log_dir).topic(topic).open_transactions()]
    if as_json:
        for one in found:
            sys.stdout.write(json.dumps(one) + "\n")
    elif found:
        out.print(rendering.transactions_table(found, topic))
    else:
        out.print(f"{topic}: no open transaction")


@transactions_app.command("describe")
def transactions_describe(topic: Topic, producer_id: int, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Show an open transaction and what it holds back in each partition. Example: lastword transactions describe fruit-prices 4."""
    one = with_spark(log_dir).topic(topic)
    found = [rendering.transaction(open_one, clock.now_ms()) for open_one in one.open_transactions() if open_one.producer_id == producer_id]
    if not found:
        message = f"topic {topic}: producer {producer_id} has no open transaction; lastword transactions list {topic} shows them"
        raise UserError(message)
    partitions = {each.partition: each for each in one.describe().partitions}
    held = [
        {
            "partition": partition,
            "first_offset": first,
            "last_stable_offset": partitions[partition].last_stable_offset,
            "log_end_offset": partitions[partition].log_end_offset,
            "held_back": partitions[partition].log_end_offset - first,
        }
        for partition, first in found[0]["first_offsets"].items()
    ]
    if as_json:
        sys.stdout.write(json.dumps({**found[0], "partitions": held}) + "\n")
        return
    out.print(rendering.transactions_table(found, topic))
    for each in held:
        out.print(
            f"  partition {each['partition']}: {each['held_back']} offsets from {each['first_offset']} on are held back "
            f"from read_committed readers and the cleaner; last stable offset {each['last_stable_offset']}"
        )


@transactions_app.command("abort")
def transactions_abort(
    topic: Topic, producer_id: int, timeout: Timeout = ANSWER_SECONDS, as_json: Json = False, log_dir: LogDirOption = "data"
) -> None:
    """End the open transaction of a producer and fence it. Example: lastword transactions abort fruit-prices 4."""
    result = carried_out(requests.AbortTransaction(topic=topic, producer_id=producer_id), log_dir, timeout)
    count, version = len(result["partitions"]), result["table_version"]
    text = f"ended the transaction of producer {producer_id} in {count} partitions, at table version {version}"
    tell(text, {"topic": topic, "producer_id": producer_id, **result}, as_json=as_json)


@app.command()
def records(
    topic: Topic,
    limit: Limit = None,
    decode: Decode = "utf8",
    partition: Partition = None,
    from_offset: Annotated[int, typer.Option(help="Only offsets from here on.")] = 0,
    control: Annotated[bool, typer.Option("--control", help="Control rows too.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Show the rows of the log in order. Example: lastword records fruit-prices --limit 20 --decode json."""
    rows = with_spark(log_dir).topic(topic).records(include_control=control).where(f"offset >= {from_offset}")
    if partition is not None:
        rows = rows.where(f"partition = {partition}")
    shown = (*RECORD_SHOWN, "control") if control else RECORD_SHOWN
    show(rows.orderBy("partition", "offset"), shown, f"{topic}: records", limit, decode, as_json=as_json)


@app.command("dead-letters")
def dead_letters(topic: Topic, limit: Limit = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Show the rows that a stream brought and the log refused. Example: lastword dead-letters fruit-prices --limit 5."""
    rows = with_spark(log_dir).topic(topic).dead_letters().orderBy("refused_at")
    shown = ("refused_at", "source", "reason", "detail", "key", "value", "raw")
    show(rows, shown, f"{topic}: dead letters", limit, "utf8", as_json=as_json)


@app.command()
def roll(
    topic: Topic,
    partition: Partition = None,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Close the active segments. Example: lastword roll fruit-prices --partition 0."""
    for one, offset in LogDir(None, log_dir).topic(topic).roll(partition).items():
        facts = {"topic": topic, "partition": one, "offset": offset}
        tell(f"partition {one}: the next segment begins at offset {offset}", facts, as_json=as_json)


@app.command()
def clean(
    topic: Topic,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, rows and bytes by reason, and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Whatever the dirty ratio; lifts quarantine.")] = False,
    as_json: Json = False,
    timeout: Timeout = ANSWER_SECONDS,
    log_dir: LogDirOption = "data",
) -> None:
    """Clean what is eligible: superseded records, aborted ones, expired tombstones and markers go.

    Beside a running service it does the work. Exit code 1 when a partition cannot be cleaned.

    Example: lastword clean fruit-prices --dry-run
    """
    if dry_run:
        one = with_spark(log_dir).topic(topic)
        receipts = [receipt.to_details() for receipt in one.preview_clean(force=force)]
        reports = one.explain(force=force)
    else:
        result = carried_out(requests.Clean(topic=topic, force=force), log_dir, timeout)
        receipts, reports = result["receipts"], [PartitionReport(**report) for report in result["reports"]]
    failed = any(report.uncleanable_reason for report in reports)
    if as_json:
        for receipt in receipts:
            sys.stdout.write(json.dumps(receipt) + "\n")
    elif receipts:
        out.print(cleaning_rendering.receipts_table(receipts, f"{topic}: {'would be cleaned' if dry_run else 'cleaned'}"))
        if dry_run and (more := cleaning_rendering.first_round_only(receipts, reports)):
            out.print(more)
    if not as_json and (failed or not receipts):
        out.print(cleaning_rendering.explanation_table(reports, f"{topic}: {'left' if receipts else 'nothing to clean'}", clock.now_ms()))
    raise typer.Exit(1 if failed else 0)


@app.command()
def explain(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Say for each partition whether the cleaner would take it, or what holds it back and until when; writes no record.

    Example: lastword explain fruit-prices
    """
    now_ms = clock.now_ms()
    reports = LogDir(None, log_dir, session_settings=QUIET).topic(topic).explain(now_ms)
    if as_json:
        for one in reports:
            sys.stdout.write(json.dumps(dataclasses.asdict(one)) + "\n")
    else:
        out.print(cleaning_rendering.explanation_table(reports, f"{topic}: what would be cleaned", now_ms))


@app.command()
def receipts(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Show what the cleaner has done, oldest first. Example: lastword receipts fruit-prices --partition 0."""
    found = [one.to_details() for one in LogDir(None, log_dir).topic(topic).receipts(partition)]
    if as_json:
        for one in found:
            sys.stdout.write(json.dumps(one) + "\n")
    else:
        out.print(cleaning_rendering.receipts_table(found, f"{topic}: cleanings"))


@app.command()
def pause(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Pause cleaning and retention; a running service heeds it at its next round. Example: lastword pause fruit-prices --partition 0."""
    for one, count in LogDir(None, log_dir).topic(topic).pause(partition).items():
        facts = {"topic": topic, "partition": one, "pauses": count}
        tell(f"partition {one}: paused {count} time{'s' if count > 1 else ''}", facts, as_json=as_json)


@app.command()
def resume(topic: Topic, partition: Partition = None, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Take one pause away. Example: lastword resume fruit-prices."""
    for one, count in LogDir(None, log_dir).topic(topic).resume(partition).items():
        facts = {"topic": topic, "partition": one, "pauses": count}
        tell(f"partition {one}: {f'still paused {count} times' if count else 'goes on'}", facts, as_json=as_json)


@app.command()
def retention(topic: Topic, as_json: Json = False, timeout: Timeout = ANSWER_SECONDS, log_dir: LogDirOption = "data") -> None:
    """Delete the segments that log start, retention.bytes and retention.ms allow to go. Example: lastword retention fruit-prices."""
    gone = carried_out(requests.ApplyRetention(topic=topic), log_dir, timeout)
    if as_json:
        for one in gone:
            sys.stdout.write(json.dumps(one) + "\n")
        return
    for one in gone:
        why = ", ".join(sorted({segment["reason"] for segment in one["segments"]}))
        freed = rendering.size(sum(segment["size_bytes"] for segment in one["segments"]))
        count, start = len(one["segments"]), one["log_start_offset"]
        out.print(f"partition {one['partition']}: {count} segments, {freed} ({why}); the log starts at offset {start}")
    if not gone:
        out.print(f"{topic}: nothing to delete")


@app.command("delete-records")
def delete_records(
    topic: Topic,
    before: Annotated[list[str], typer.Argument(help="PARTITION:OFFSET, e.g. 0:1500; offset -1 is the log end.")],
    timeout: Timeout = ANSWER_SECONDS,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Delete the records below an offset, for all readers and for ever. Example: lastword delete-records fruit-prices 0:1500 1:-1."""
    pairs: dict[int, int] = {}
    for text in before:
        partition, _, offset = text.partition(":")
        try:
            pairs[int(partition)] = int(offset)
        except ValueError:
            subject = "the command line"
            raise InvalidConfiguration(subject, [Violation(key="delete-records", value=text, allowed="PARTITION:OFFSET")]) from None
    for one in carried_out(requests.DeleteRecords(topic=topic, before=pairs), log_dir, timeout):
        text = f"partition {one['partition']}: the log starts at offset {one['log_start_offset']}"
        tell(text, {"topic": topic, **one}, as_json=as_json)


@app.command()
def verify(topic: Topic, as_json: Json = False, log_dir: LogDirOption = "data") -> None:
    """Check the invariants of a log; exit code 1 when one is broken. Example: lastword verify fruit-prices."""
    report = with_spark(log_dir).topic(topic).verify()
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(report)) + "\n")
    else:
        out.print(f"{topic}: {report.record_count:,} records at table version {report.table_version}: ", end="")
        out.print("every invariant holds" if report.ok else "\n".join(["", *report.problems]))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def append(
    topic: Topic,
    path: Annotated[str, typer.Option(help="The directory or glob of files.")],
    key: Annotated[list[str], typer.Option(help="A column of the key; may be repeated.")],
    file_format: Annotated[str, typer.Option("--format", help="json, csv or parquet.")] = "json",
    value: Annotated[str, typer.Option(help="The value's column; else all others as JSON.")] = "",
    tombstone: Annotated[str, typer.Option(help="A SQL condition for deletes, e.g. \"op = 'd'\".")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out of the JSON value.")] = None,
    timestamp: Annotated[str, typer.Option(help="The record time's column.")] = "",
    schema: Annotated[str, typer.Option(help="The columns as SQL DDL; else inferred once.")] = "",
    name: Annotated[str, typer.Option(help="The query's name: the same name goes on where it stopped.")] = "append",
    follow: Annotated[bool, typer.Option("--follow", help="Stay and take new files as they come.")] = False,
    as_json: Json = False,
    log_dir: LogDirOption = "data",
) -> None:
    """Append files that were not appended before; each once, also after a crash.

    Example: lastword append fruit-prices --path 'incoming/*.json' --key fruit --tombstone "op = 'd'" --drop op
    """
    source: dict[str, Any] = {
        "name": name,
        "topic": topic,
        "format": file_format,
        "path": path,
        "key": key,
        "value": value,
        "tombstone": tombstone,
        "drop": drop or [],
        "timestamp": timestamp,
        "schema": schema,
        "trigger": "" if follow else "available-now",
    }
    settings = {"log_dir": log_dir, "sources": [source], "http": {"listen": ""}, "spark": {"spark.log.level": "ERROR"}}
    service = Service(checked_settings(settings, subject="the command line"), cleaning=False)
    log = service.logs.topic(topic).log
    before = sum(log.log_end_offsets())
    service.run_until_signal()
    grown = sum(log.log_end_offsets()) - before
    tell(f"appended {grown:,} records to {topic}", {"topic": topic, "records": grown}, as_json=as_json)


@app.command()
def run(config: Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")] = Path("conf/lastword.toml")) -> None:
    """Run the service: an append query for every source, and the cleaner. Example: lastword run -c conf/lastword.toml."""
    Service(load_settings(config)).run_until_signal()


def _pairs(config: list[str] | None) -> dict[str, object]:
    pairs: dict[str, object] = {}
    violations = []
    for text in config or []:
        key, separator, value = text.partition("=")
        if not separator:
            violations.append(Violation(key=text, value="nothing", allowed="write key=value"))
        pairs[key.strip()] = value.strip()
    if violations:
        subject = "the command line"
        raise InvalidConfiguration(subject, violations)
    return pairs
