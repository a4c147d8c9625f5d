"""The commands that run append queries: `append` (files) and `run` (the service)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyarrow import feather

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
from lastword.compaction.errors import InvalidConfiguration, UserError, Violation
from lastword.service.signals import StopSignals
from lastword.storage.append.dead_letters import read_dead_letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lastword.storage.log.topic_log import TopicLog
    from lastword.topic import Topic as LogTopic

_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_MAGIC: Final = b"ARROW1"


#: The options of a streaming query by parameter name; files that hold key and value need none of them.
_OF_A_QUERY: Final = {
    "key": "--key",
    "file_format": "--format",
    "value": "--value",
    "tombstone": "--tombstone",
    "sequence": "--sequence",
    "truncate": "--truncate",
    "envelope": "--envelope",
    "drop": "--drop",
    "timestamp": "--timestamp",
    "schema": "--schema",
    "option": "--option",
    "on_corrupt_file": "--on-corrupt-file",
    "name": "--name",
    "follow": "--follow",
}


def append(
    ctx: typer.Context,
    topic: Topic,
    files: Annotated[list[Path] | None, typer.Argument(help="Parquet or Arrow files with the columns key and value.")] = None,
    path: Annotated[str, typer.Option(help="Directory, file or glob of the files of a streaming query.")] = "",
    key: Annotated[list[str] | None, typer.Option(help="Key column. May be repeated.")] = None,
    file_format: Annotated[str, typer.Option("--format", help="File format: json, csv or parquet.")] = "json",
    value: Annotated[str, typer.Option(help="Value column. Default: all other columns as JSON.")] = "",
    tombstone: Annotated[str, typer.Option(help="SQL condition for deletes, e.g. \"op = 'd'\".")] = "",
    sequence: Annotated[
        list[str] | None, typer.Option(help="SQL expression that orders the rows of a key: a late row changes nothing. May be repeated.")
    ] = None,
    truncate: Annotated[str, typer.Option(help="SQL condition for rows that delete every key before them; needs --sequence.")] = "",
    envelope: Annotated[str, typer.Option(help="debezium or debezium-flat: the lines of JSON files are change events.")] = "",
    drop: Annotated[list[str] | None, typer.Option(help="Column to omit from the JSON value. May be repeated.")] = None,
    timestamp: Annotated[str, typer.Option(help="Column of the record timestamp.")] = "",
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
    """Append Parquet or Arrow files that hold key and value (append fruit-prices monday.parquet), or new files by a query with --path.

    FILES are appended one commit each, without a JVM. With --path each file is appended exactly once, also after a crash. Refused rows and
    files become dead letters, which the result counts; exit code 1 if there were some and nothing was appended.

    Example: lastword append fruit-prices --path 'incoming/*.json' --key fruit --tombstone "op = 'd'" --drop op
    """
    _check_input(files, path, idempotency_key, has_key=bool(key or envelope))
    if files:
        refuse_options(ctx, _OF_A_QUERY, "only with --path: FILES hold the columns key and value, which are appended as they stand")
        grown, refused = _append_files(open_log_dir(log_dir).topic(topic), files, idempotency_key, on_invalid or "fail")
        _tell_result(topic, grown, refused, "", as_json=as_json)
        raise typer.Exit(1 if refused and not grown else 0)
    texts = {"name": name, "topic": topic, "format": file_format, "path": path, "value": value, "tombstone": tombstone}
    texts |= {"truncate": truncate, "envelope": envelope, "timestamp": timestamp, "schema": schema, "on.corrupt.file": on_corrupt_file}
    texts |= {"on.invalid": on_invalid or "dead-letter", "trigger": "" if follow else "available-now"}
    lists = {"key": key or [], "sequence": sequence or [], "drop": drop or []}
    grown, refused, is_stopped = _append_by_query({**texts, **lists, "options": config_pairs(option)}, topic, log_dir)
    _tell_result(topic, grown, refused, "stopped; " if is_stopped else "", as_json=as_json)
    raise typer.Exit(1 if refused and not grown and not is_stopped else 0)


def _check_input(files: list[Path] | None, path: str, idempotency_key: str | None, *, has_key: bool) -> None:
    """Raise an error unless the command line names either FILES or a --path, whose rows have a key."""
    subject = "the command line"
    if bool(files) == bool(path):
        allowed = "either FILES (Parquet or Arrow, with the columns key and value), or --path with --key"
        raise InvalidConfiguration(subject, [Violation(key="FILES", value=" ".join(map(str, files or [])) or "nothing", allowed=allowed)])
    if path and idempotency_key is not None:
        message = "--idempotency-key belongs to FILES: with --path a query appends each file once"
        raise UserError(message)
    if path and not has_key:
        allowed = "at least one column of the files, which are the key: --key COLUMN; or --envelope"
        raise InvalidConfiguration(subject, [Violation(key="--key", value="nothing", allowed=allowed)])


def _append_by_query(source: dict[str, Any], topic: str, log_dir: str) -> tuple[int, Counter[str], bool]:
    """Run the append query of a source; return how many records it brought, its dead letters by reason, and whether a signal stopped it."""
    settings = {**service_settings(log_dir), "sources": [source], "http": {"listen": ""}}
    from lastword.service.service import Service  # noqa: PLC0415  starts Spark; FILES need none
    from lastword.service.settings import checked_settings  # noqa: PLC0415  as above

    checked = checked_settings(settings, subject="the command line")
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


def _append_files(topic: LogTopic, files: Sequence[Path], idempotency_key: str | None, on_invalid: str) -> tuple[int, Counter[str]]:
    """Append files, a commit each, and return how many records they brought, and how many dead letters by reason."""
    twice = sorted(name for name, count in Counter(file.name for file in files).items() if count > 1)
    if idempotency_key is not None and twice:
        message = (
            f"--idempotency-key: several FILES are called {', '.join(twice)}, and would be taken for one; append them by separate commands"
        )
        raise UserError(message)
    tables = [(file, _read(file)) for file in files]  # a file that cannot be read is named before anything is appended
    grown, refused = 0, Counter[str]()
    for file, table in tables:
        key = None if idempotency_key is None else f"{idempotency_key}/{file.name}"
        result = topic.append(table, idempotency_key=key, on_invalid=on_invalid)
        grown += result.record_count
        refused.update(result.refused)
        if result.replayed:
            notes.print(f"{file} was appended before under {idempotency_key}/{file.name}; nothing is appended", soft_wrap=True)
    return grown, refused


def _read(file: Path) -> pa.Table:
    try:
        with file.open("rb") as stream:
            magic = stream.read(len(_ARROW_MAGIC))
        if magic.startswith(_PARQUET_MAGIC):
            return pq.ParquetFile(file).read()
        if magic == _ARROW_MAGIC:
            return feather.read_table(file)
    except (OSError, pa.ArrowException) as error:
        message = f"{file} cannot be read: {error}"
        raise UserError(message) from error
    message = f"{file} is neither a Parquet nor an Arrow file; for other formats use --path with --format and --key"
    raise UserError(message)


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
    settings = load_settings(config or before or Path("conf/lastword.toml"))
    with StopSignals() as signals:
        service = Service(settings, store=connection_options(), signals=signals)
        signals.check("the service")
        service.run_until_signal()
