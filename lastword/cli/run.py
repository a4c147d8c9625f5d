"""The commands that run append queries: `append` (files) and `run` (the service)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from lastword.cli.mistakes import usage_mistake
from lastword.cli.options import (
    Json,
    LogDirOption,
    Topic,
    config_pairs,
    configuration_file,
    connection_options,
    notes,
    open_log_dir,
    refuse_options,
    service_settings,
    tell,
)
from lastword.compaction.errors import UserError
from lastword.progress_bars import never_show
from lastword.service.signals import StopSignals
from lastword.storage.append.dead_letters import read_dead_letters
from lastword.topics.appending import InputFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.service.settings import Settings
    from lastword.storage.log.topic_log import TopicLog
    from lastword.streaming.append.source_settings import FileSource
    from lastword.topic import Topic as LogTopic
    from lastword.topics.appending import FileArguments

#: The settings of a source that are arguments of `Topic.append`.
_WORDS: Final = ("key", "value", "columns", "drop", "tombstone", "sequence", "sequence.as", "truncate", "timestamp", "on.null")
#: The options of a streaming query by parameter name.
_OF_A_QUERY: Final = {"on_corrupt_file": "--on-corrupt-file", "name": "--name", "follow": "--follow"}


def append(
    ctx: typer.Context,
    topic: Topic,
    files: Annotated[list[str] | None, typer.Argument(help="Parquet, Arrow, JSON or CSV files; - is standard input.")] = None,
    path: Annotated[str, typer.Option(help="Directory, file or glob of the files of a streaming query.")] = "",
    key: Annotated[list[str] | None, typer.Option(help="Key column. May be repeated.")] = None,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="json, csv, parquet, and of FILES arrow. Default: what a file begins with, or its name says; with --path json.",
        ),
    ] = "",
    value: Annotated[str, typer.Option(help="Value column. Default: all other columns as JSON.")] = "",
    columns: Annotated[list[str] | None, typer.Option(help="Column of the JSON value. May be repeated.")] = None,
    tombstone: Annotated[str, typer.Option(help="SQL condition for deletes, e.g. \"op = 'd'\".")] = "",
    sequence: Annotated[
        list[str] | None, typer.Option(help="SQL expression that orders the rows of a key: a late row changes nothing. May be repeated.")
    ] = None,
    sequence_as: Annotated[str, typer.Option(help="What a text of --sequence is compared as: number, time or text.")] = "",
    truncate: Annotated[str, typer.Option(help="SQL condition for rows that delete every key before them; needs --sequence.")] = "",
    envelope: Annotated[str, typer.Option(help="debezium or debezium-flat: the lines of JSON files are change events.")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="Column to omit from the JSON value. May be repeated.")] = None,
    timestamp: Annotated[str, typer.Option(help="Column of the record timestamp.")] = "",
    on_null: Annotated[str, typer.Option(help="keep: a column that is null keeps the value of the key's last record.")] = "null",
    schema: Annotated[str, typer.Option(help="Columns as SQL DDL. Default: keys and values as they stand in the file.")] = "",
    option: Annotated[
        list[str] | None, typer.Option(help="Option of the file format, e.g. encoding=ISO-8859-1, multiLine=true, sep=;. May be repeated.")
    ] = None,
    on_corrupt_file: Annotated[
        str, typer.Option(help="skip: a file that cannot be read becomes a dead letter that names it. fail: it ends the command.")
    ] = "skip",
    on_invalid: Annotated[
        str,
        typer.Option(
            help="What a rejected row does: dead-letter, or fail: nothing is appended. Default: fail for FILES, else dead-letter."
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the query; a query with the same name resumes where it stopped.")] = "append",
    follow: Annotated[bool, typer.Option("--follow", help="Keep running, and append new files as they arrive.")] = False,
    idempotency_key: Annotated[str | None, typer.Option(help="Append each of FILES once under this key and the file's name.")] = None,
    as_json: Json = False,
    log_dir: LogDirOption = "",
) -> None:
    """Append files without a JVM (append orders monday.parquet --key order_id), or new files by a query of Spark with --path.

    Each of FILES is one commit, whole or not at all. Without --key a Parquet or Arrow file holds the columns key and value. With --path
    each file is appended exactly once, also after a crash. Refused rows and files become dead letters, which the result counts; exit
    code 1 if there were some and nothing was appended.

    Example: lastword append orders monday.csv.gz --key order_id --tombstone "op = 'd'" --drop op
    """
    _check_input(files, path, idempotency_key, has_key=bool(key or envelope))
    texts = {"value": value, "tombstone": tombstone, "sequence.as": sequence_as, "truncate": truncate, "timestamp": timestamp}
    lists = {"key": key or [], "columns": columns or [], "sequence": sequence or [], "drop": drop or []}
    words: dict[str, Any] = {**texts, **lists, "on.null": on_null}
    source = {"name": name, "topic": topic, "envelope": envelope, "schema": schema, "options": config_pairs(option, "--option"), **words}
    if files:
        refuse_options(ctx, _OF_A_QUERY, "only with --path, which starts a query")
        file = _input_file(source, file_format, log_dir)
        grown, refused = _append_files(open_log_dir(log_dir).topic(topic), files, file, idempotency_key, on_invalid or "fail")
        _tell_result(topic, grown, refused, "", as_json=as_json)
        raise typer.Exit(1 if refused and not grown else 0)
    source |= {"format": file_format or "json", "path": path, "on.corrupt.file": on_corrupt_file}
    source |= {"on.invalid": on_invalid or "dead-letter", "trigger": "" if follow else "available-now"}
    grown, refused, is_stopped = _append_by_query(source, topic, log_dir)
    _tell_result(topic, grown, refused, "stopped; " if is_stopped else "", as_json=as_json)
    raise typer.Exit(1 if refused and not grown and not is_stopped else 0)


def _check_input(files: list[str] | None, path: str, idempotency_key: str | None, *, has_key: bool) -> None:
    """Raise an error unless the command line names either FILES or a --path, whose rows have a key."""
    if bool(files) == bool(path):
        allowed = "either FILES, or --path with --key"
        raise usage_mistake(name="FILES", value=" ".join(files or []) or "nothing", allowed=allowed)
    if path and idempotency_key is not None:
        allowed = "this option with FILES alone; with --path a query appends each file once"
        raise usage_mistake(name="--idempotency-key", value=idempotency_key, allowed=allowed)
    if path and not has_key:
        allowed = "at least one column of the files, which are the key: --key COLUMN; or --envelope"
        raise usage_mistake(name="--key", value="nothing", allowed=allowed)
    if files and files.count("-") > 1:
        raise usage_mistake(name="FILES", value="- -", allowed="standard input once, as it can be read once")


def _input_file(source: dict[str, Any], file_format: str, log_dir: str) -> InputFile:
    """Return how FILES are read, by the settings of a source."""
    given: FileArguments = {"format": file_format, "options": source["options"]}
    if not source["envelope"]:
        words = cast("FileArguments", {name.replace(".", "_"): source[name] for name in _WORDS})
        return InputFile(arguments={**given, **words, "schema": source["schema"]})
    settings = _check_source({**source, "format": file_format or "json", "path": "FILES"}, log_dir)
    checked = cast("FileSource", settings.sources[0])
    lines = "" if checked.are_records is None else "records" if checked.are_records else "values"
    return InputFile(arguments={**given, "lines": lines}, envelope=checked.events)


def _check_source(source: dict[str, Any], log_dir: str) -> Settings:
    """Return the settings of a service with one source; raise `InvalidConfiguration` with all that is wrong with it."""
    from lastword.service.settings import checked_settings  # noqa: PLC0415  pydantic takes a tenth of a second

    settings = {**service_settings(log_dir), "sources": [source], "http": {"listen": ""}}
    return checked_settings(settings, subject="the command line")


def _append_by_query(source: dict[str, Any], topic: str, log_dir: str) -> tuple[int, Counter[str], bool]:
    """Run the append query of a source; return how many records it brought, its dead letters by reason, and whether a signal stopped it."""
    from lastword.service.service import Service  # noqa: PLC0415  starts Spark; FILES need none

    checked = _check_source(source, log_dir)
    open_log_dir(log_dir).topic(topic)  # before Spark is started, which takes seconds
    with StopSignals() as signals:
        service = Service(checked, cleaning=False, store=connection_options(), signals=signals)
        signals.check(f"query {source['name']}")
        log = service.logs.topic(topic).log
        before, refused = sum(log.at().log_end_offsets), _count_refusals(log)
        service.run_until_signal()
        return sum(log.at().log_end_offsets) - before, _count_refusals(log) - refused, bool(signals.received)


def _tell_result(topic: str, grown: int, refused: Counter[str], stopped: str, *, as_json: bool) -> None:
    """Print how many records were appended, and how many rows became dead letters, by reason."""
    letters = f"; {sum(refused.values()):,} refused ({', '.join(refused)}): lastword dead-letters {topic}" if refused else ""
    facts = {"topic": topic, "records": grown, "refused": dict(refused)}
    tell(f"{stopped}appended {grown:,} records to {topic}{letters}", facts, as_json=as_json)


def _count_refusals(log: TopicLog) -> Counter[str]:
    """Return the number of dead letters of a topic by reason."""
    return Counter(str(dead_letter["reason"]) for dead_letter in read_dead_letters(log.paths.dead_letters, log.storage_options))


def _append_files(
    topic: LogTopic, files: Sequence[str], file: InputFile, idempotency_key: str | None, on_invalid: str
) -> tuple[int, Counter[str]]:
    """Append files, a commit each, and return how many records they brought, and how many dead letters by reason."""
    names = [name.rpartition("/")[2] for name in files]
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if idempotency_key is not None and twice:
        allowed = "files of different names, as a name tells what was appended before; append those of one name by separate commands"
        raise usage_mistake(name="FILES", value=", ".join(twice), allowed=allowed)
    for path in files:  # a file that cannot be read, or lacks a column, is named before anything is appended
        if path != "-":
            with file.open(topic.log, path):
                pass
    grown, refused, done = 0, Counter[str](), list[str]()
    for path, name in zip(files, names, strict=True):
        key = None if idempotency_key is None else f"{idempotency_key}/{name}"
        try:
            result = topic.append_file(
                sys.stdin.buffer if path == "-" else path,
                envelope=file.envelope,
                idempotency_key=key,
                on_invalid=on_invalid,
                **file.arguments,
            )
        except UserError as error:
            if not done:
                raise
            message = f"{error}\nappended before it, with {grown:,} records: {', '.join(done)}"
            raise UserError(message) from error
        done.append(path)
        grown += result.record_count
        refused.update(result.refused)
        if result.replayed:
            notes.print(f"{path} was appended before under {key}; nothing is appended", soft_wrap=True)
        for note in result.notes:
            notes.print(note, soft_wrap=True, markup=False, highlight=False)
    return grown, refused


def run(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file.", show_default="conf/lastword.toml")] = None,
) -> None:
    """Run the service: an append query for every source, the cleaner, and the tables. Without a source it needs no Java.

    Example: lastword run -c conf/lastword.toml.
    """
    from lastword.service.service import Service  # noqa: PLC0415  starts Spark
    from lastword.service.settings import load_settings  # noqa: PLC0415  as above

    before = configuration_file()
    if config is not None and before is not None and config != before:
        message = f"-c {before} and -c {config}: the service has one configuration file; give one of them"
        raise UserError(message)
    never_show()
    settings = load_settings(config or before or Path("conf/lastword.toml"))
    with StopSignals() as signals:
        service = Service(settings, store=connection_options(), signals=signals)
        signals.check("the service")
        service.run_until_signal()
