"""Options, consoles and output functions that the commands share."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.abc import MetaPathFinder
from itertools import islice
from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console

import lastword
from lastword.cli import tables
from lastword.cli.mistakes import COMMAND_LINE, STORAGE_OPTION
from lastword.compaction.errors import InvalidConfiguration, LastwordError, UserError, Violation
from lastword.compaction.secrets import HIDDEN
from lastword.log_dir import LogDir
from lastword.spark.object_store import storage_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from lastword.arrow_topic import ArrowTopic
    from lastword.cli.values import ValueReader
    from lastword.service.settings import Settings
    from lastword.storage.schema_registry.client import RegistryConfig

    #: Renders rows for a terminal, given the rows, the names of the columns and a title.
    Layout = Callable[[Sequence[dict[str, Any]], Sequence[str], str], RenderableType]


@dataclass
class _Connection:
    """What the options before the command say of the log.dir: the configuration file of the service, and options of the object store."""

    config: Path | None = None
    storage_options: dict[str, str] = field(default_factory=dict)
    #: Whether this process runs a single command and nothing else.
    owns_process: bool = False

    @cached_property
    def _settings(self) -> Settings | None:
        if self.config is None:
            return None
        from lastword.service.settings import load_settings  # noqa: PLC0415  pydantic takes a tenth of a second, which most commands save

        return load_settings(self.config)

    @property
    def spark(self) -> dict[str, str]:
        """The settings of a Spark session."""
        return {} if self._settings is None else dict(self._settings.spark)

    @property
    def listen(self) -> str | None:
        """The address of the service's HTTP server, "" for none; None without a configuration file."""
        return None if self._settings is None else self._settings.http.listen

    def registry(self, url: str) -> RegistryConfig | None:
        """Return the schema registry at a URL with the login of the source that names it; None if no source of the file does."""
        if self._settings is None:
            return None
        for source in self._settings.sources:
            config = source.registry() if source.format == "kafka" else None
            if config is not None and url.rstrip("/") in {known.rstrip("/") for known in config.urls}:
                return config
        return None

    def location(self, log_dir: str) -> str:
        """Return the log.dir of a command: `--log-dir`, else that of the configuration file, else `data`."""
        return log_dir or ("data" if self._settings is None else self._settings.log_dir)

    def options(self, log_dir: str) -> dict[str, str]:
        """Return what delta-rs needs to reach the object store of a command's log.dir."""
        return {**storage_options(self.spark, self.location(log_dir)), **self.storage_options}


_CONNECTION = _Connection()


def _print_version(is_asked: bool) -> None:
    """Print the version and end the command, if it is asked for."""
    if is_asked:
        typer.echo(f"lastword {lastword.__version__}")
        raise typer.Exit


def connection(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file of the service: its log.dir and store.")] = None,
    storage_option: Annotated[
        list[str] | None, typer.Option(help="Option of the object store, as in AWS_REGION=eu-west-1. May be repeated.", metavar="KEY=VALUE")
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Kafka's log compaction as a Spark Structured Streaming service on Delta Lake."""
    _CONNECTION.__dict__.pop("_settings", None)
    _CONNECTION.config = config
    _CONNECTION.storage_options = {key: str(value) for key, value in config_pairs(storage_option, STORAGE_OPTION).items()}


def own_this_process() -> None:
    """Note that this process runs a single command, so that settings of the whole process may be changed."""
    _CONNECTION.owns_process = True


class _NoPandas(MetaPathFinder):
    """Makes `import pandas` fail, as if pandas were not installed."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Raise `ModuleNotFoundError` for pandas, and leave every other module to those who find it."""
        if fullname == "pandas":
            raise ModuleNotFoundError(name=fullname)


def _hide_pandas() -> None:
    """Keep pyarrow from importing pandas with its first array, which takes a quarter of a second and serves to compare types."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def open_log_dir(log_dir: str, *, must_exist: bool = True) -> LogDir[ArrowTopic]:
    """Return the log.dir of a command, opened without Spark; raise `UserError` if it must exist and does not."""
    if _CONNECTION.owns_process:
        _hide_pandas()
    logs = LogDir(_CONNECTION.location(log_dir), storage_options=_CONNECTION.options(log_dir))
    if must_exist:
        logs.check_exists()
    return logs


def connection_options() -> dict[str, str]:
    """Return the options of the object store that stand before the command."""
    return dict(_CONNECTION.storage_options)


def service_address() -> str | None:
    """Return `http.listen` of the configuration file that the options before the command name; None without a file."""
    return _CONNECTION.listen


def find_registry(url: str) -> RegistryConfig | None:
    """Return the schema registry at a URL as the configuration file before the command has it; None if no source names the URL."""
    return _CONNECTION.registry(url)


def configuration_file() -> Path | None:
    """Return the configuration file that the options before the command name."""
    return _CONNECTION.config


def service_settings(log_dir: str) -> dict[str, Any]:
    """Return where a query of a command finds the log.dir, as settings of a service."""
    return {"log_dir": _CONNECTION.location(log_dir), "spark": {**_CONNECTION.spark, **QUIET}}


def _topics_beginning_with(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics for shell completion, from the log.dir that the incomplete command line names."""
    try:
        return [name for name in open_log_dir(ctx.params.get("log_dir") or "").topics() if name.startswith(incomplete)]
    except (LastwordError, OSError):
        return []


LogDirOption = Annotated[
    str, typer.Option("--log-dir", envvar="LASTWORD_LOG_DIR", help="Directory of the topics: a path or a URI.", show_default="data")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON Lines instead of text.")]
Config = Annotated[list[str] | None, typer.Option("--config", help="Topic setting, e.g. cleanup.policy=compact. May be repeated.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=_topics_beginning_with, show_default=False)]
AnyTopic = Annotated[
    str | None, typer.Argument(help="Name of the topic; all topics without it.", autocompletion=_topics_beginning_with, show_default=False)
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of rows.")]
Decode = Annotated[
    str | None,
    typer.Option(
        "--decode",
        help="Show keys and values as utf8, json or base64, or by the schema registry at this URL, with the login of the source that "
        "names it in the configuration file (lastword -c FILE …). Default: JSON on one line, and with --json text.",
        metavar="[utf8|json|base64|URL]",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; required where standard input is no terminal.")]
Partition = Annotated[int | None, typer.Option("--partition", help="Only this partition.")]
QUIET = {"spark.log.level": "ERROR"}
RECORD_SHOWN = ("partition", "offset", "timestamp", "key", "value")
_DEFAULT_LIMIT = 50

out = Console()
notes = Console(stderr=True)


def topics_to_list(log_dir: str, topic: str | None) -> list[ArrowTopic]:
    """Return the topic that a list command names, or all topics of the log.dir if it names none."""
    logs = open_log_dir(log_dir)
    return [logs.topic(topic)] if topic is not None else [logs.topic(name) for name in logs.topics()]


def list_by_topic(
    by_topic: Mapping[str, Sequence[Any]],
    table_of: Callable[[Any, str], Table],
    *,
    nothing: str,
    as_json: bool,
    remarks: Callable[[Any, str], Iterable[str]] = lambda _row, _topic: (),
) -> None:
    """Print a table for each topic that has rows, or each row as JSON with its topic; print `nothing` if no topic has rows.

    `by_topic` has dataclasses or dicts by topic; `table_of` makes the table of a topic, and `remarks` the lines about a row below it.
    """
    if as_json:
        for topic, rows in by_topic.items():
            print_json_lines({"topic": topic, **(row if isinstance(row, dict) else asdict(row))} for row in rows)
        return
    for topic, rows in by_topic.items():
        if rows:
            out.print(table_of(rows, topic))
        for line in (line for row in rows for line in remarks(row, topic)):
            out.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    if not any(by_topic.values()):
        out.print(f"{next(iter(by_topic)) if len(by_topic) == 1 else 'all topics'}: {nothing}", soft_wrap=True)


def tell(text: str, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a command: `text`, or `facts` as one line of JSON."""
    if as_json:
        print_json_lines([facts])
    else:
        out.print(text, soft_wrap=True)


def print_json_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each row as one line of JSON."""
    for row in rows:
        sys.stdout.write(json.dumps(row, default=str) + "\n")


def read_limit(limit: int | None, *, as_json: bool) -> int | None:
    """Return how many rows `show` takes at most, so that no more are read; None for all."""
    return limit if as_json else (limit or _DEFAULT_LIMIT) + 1


def show(
    rows: Iterable[dict[str, Any]],
    columns: tuple[str, ...],
    title: str,
    limit: int | None,
    reader: ValueReader,
    *,
    as_json: bool,
    layout: Layout = tables.records_table,
) -> None:
    """Print rows as a table of at most `limit` rows, or as JSON Lines (all rows if there is no limit)."""
    shown = (tables.plain(row, reader) for row in islice(rows, read_limit(limit, as_json=as_json)))
    print_rows(shown, columns, title, limit, as_json=as_json, layout=layout)


def print_rows(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[str],
    title: str,
    limit: int | None,
    *,
    as_json: bool,
    layout: Layout = tables.records_table,
) -> None:
    """Print rows that JSON can represent, as JSON Lines or as a table of `limit` rows; one row more says that there are more."""
    if as_json:
        for row in rows:
            sys.stdout.write(tables.json_line(row) + "\n")
        return
    most, shown = limit or _DEFAULT_LIMIT, list(rows)
    out.print(layout(shown[:most], columns, title))
    if len(shown) > most:
        out.print(f"[dim]… more rows exist. Use --limit for more than {most} rows, or --json for all.[/dim]")


def refuse_options(ctx: typer.Context, names: Mapping[str, str], because: str) -> None:
    """Raise `InvalidConfiguration` for each option of the command line that would do nothing; `names` are options by parameter name."""
    sources = {name: ctx.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        wrong = [Violation(key=names[name], value=str(ctx.params[name]), allowed=because) for name in given]
        raise InvalidConfiguration(COMMAND_LINE, wrong)


def is_interactive() -> bool:
    """Tell whether standard input is a terminal, so that a question can be answered."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before anything is deleted for good, unless `--yes` is given; raise `UserError` if the answer is no, or there is no terminal."""
    if yes:
        return
    if not is_interactive():
        message = f"{question} There is no terminal to ask at: add --yes to do it"
        raise UserError(message)
    if not typer.confirm(question, err=True):
        message = "nothing is deleted"
        raise UserError(message)


def config_pairs(config: list[str] | None, option: str = "--config") -> dict[str, object]:
    """Return the KEY=VALUE texts of an option as a mapping; `option` is its name.

    Raises `InvalidConfiguration` with each value that has no key or no `=`, or whose key another one has. Such a value is not shown of
    `--storage-option`: it may be a secret that was put into the wrong place.
    """
    pairs: dict[str, object] = {}
    violations = list[Violation]()
    for text in config or []:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            place = option if len(config or []) == 1 else f"{option} number {len(pairs) + len(violations) + 1}"
            violations.append(Violation(key=place, value=HIDDEN if option == STORAGE_OPTION else text, allowed="write KEY=VALUE"))
            continue
        if key.strip() in pairs:
            violations.append(Violation(key=key.strip(), value=value.strip(), allowed="give each key once"))
            continue
        pairs[key.strip()] = value.strip()
    if violations:
        raise InvalidConfiguration(COMMAND_LINE, violations)
    return pairs
