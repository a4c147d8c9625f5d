"""The reference pages of the documentation, from the code itself: nobody writes down a setting, a command or a metric twice.

```
 lastword.compaction.config.keys, lastword.streaming.append.source_settings, lastword.service.settings ─► settings_page()
 lastword.cli.app                                                 ─► commands_page()
 lastword.status.metrics                                      ─► metrics_page()
 lastword.__all__                                             ─► api_page()
 the locks of packages and jars                               ─► dependencies_page(), in tools.dependencies
```

A page is Markdown, kept in docs/reference so that it can be read without a build; `python -m tools.reference` writes the pages anew. Every
entry is a heading with the entry's own name as its anchor (`#segment.bytes`), by which tests compare both sides. The page of the API is
made when the site is built, as mkdocstrings shows the docstrings.
"""

from __future__ import annotations

import builtins
import importlib
import math
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from pydantic import BaseModel, SecretStr

import lastword
from lastword.cli.app import app
from lastword.compaction.config import keys as config_keys
from lastword.compaction.config.keys import Key, SettingType
from lastword.service.settings import Settings
from lastword.service.table_settings import TableSettings
from lastword.streaming.append import source_settings as sources
from tools.dependencies import dependencies_page

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic.fields import FieldInfo

ROOT: Final = Path(__file__).resolve().parents[1]
#: Where the pages lie.
PAGES: Final = ROOT / "docs" / "reference"
_METRICS_MODULE: Final = "lastword.status.metrics"
_METRIC_KINDS: Final = frozenset({"gauge", "counter", "histogram"})
_SOURCES: Final = (sources.FileSource, sources.KafkaSource, sources.RateSource)
#: What an entry of the service file is written as, and means; by the field of `Settings`.
_SERVICE_FILE: Final = {
    "log_dir": '`log.dir` | `"data"` | The directory of topics: a path or a URI. The environment variable `LASTWORD_LOG_DIR` wins over it.',
    "broker": "",
    "topics": "`[topic.NAME]` | none | A topic that is created at the start when it is not there: `partitions` (1) and any topic setting.",
    "sources": "`[[source]]` | none | One append query; [see below](#sources).",
    "tables": "`[[table]]` | none | One typed table, or one for each topic of a pattern; [see below](#tables).",
    "http": "`[http]` | on, at loopback | Metrics, health and the status page; [see below](#http). `LASTWORD_HTTP_LISTEN` wins over it.",
    "spark": '`[spark]` | none | Settings of the Spark application, in quotes: `"spark.driver.memory" = "2g"`.',
}
#: The sections of the API's page, beside results and errors.
_API: Final = {
    "Log directories and topics": ["LogDir", "Topic", "ArrowTopic", "SparkTopic"],
    "Transactions": ["Transaction", "SparkTransaction"],
    "Functions": ["spark_session", "copy_topic", "latest_sql"],
    "Sources": ["Mirror"],
}
_UNITS: Final[Mapping[SettingType, tuple[tuple[int, str], ...]]] = {
    SettingType.BYTES: ((config_keys.GIB, "GiB"), (config_keys.MIB, "MiB"), (config_keys.KIB, "KiB")),
    SettingType.MILLISECONDS: (
        (config_keys.DAY_MS, "d"),
        (config_keys.HOUR_MS, "h"),
        (config_keys.MINUTE_MS, "min"),
        (config_keys.SECOND_MS, "s"),
    ),
}


class ReferenceBroken(Exception):
    """The code does not have what a page is made from; the message says what and where."""


# --- settings ---------------------------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Return the page of every setting: of topics, of the service, of sources, and those of Kafka's that are refused."""
    return "\n".join(
        [
            "# Settings",
            "",
            "Made from the code by `python -m tools.reference`. Sizes and times are plain numbers or have a unit (`128MiB`, `12h`); a",
            "mistake is refused with every other mistake, and with the nearest right name for a misspelt one.",
            "",
            "Topic settings are given at creation (`--config key=value`, `[topic.NAME]` in the service file) and changed by",
            "`lastword topics alter`, also while the service runs. Service settings stand in the service file. A topic's own value comes",
            "before the service-wide one, that before the default.",
            "",
            "## Topic settings",
            "",
            *_keys(config_keys.TOPIC_KEYS.values()),
            "## Service settings",
            "",
            "The cleaner's and the service's own. Besides them the service file takes the service-wide name of every topic setting.",
            "",
            *_keys(config_keys.SERVICE_KEYS.values()),
            *_service_file(),
            *_source_settings(),
            *_tables(),
            "## Kafka's settings that are refused",
            "",
            "Each with the reason; a configuration that names one is not accepted silently.",
            "",
            "| setting | why not |",
            "|---|---|",
            *(f"| `{name}` | {reason} |" for name, reason in sorted(config_keys.REFUSED_KEYS.items())),
            "",
        ]
    )


def _keys(keys: Iterable[Key]) -> Iterator[str]:
    for key in keys:
        yield from _heading(key.name)
        yield from (key.doc, "", f"- default: {_default_of(key)}", f"- allowed: {key.allowed}")
        if key.synonyms:
            names = ", then ".join(f"`{one.name}`" for one in key.synonyms)
            yield f"- service-wide: {names}"
        yield ""


def _default_of(key: Key) -> str:
    return f"`{key.default_text}`{_in_words(key)}" if key.default_text else "empty"


def _in_words(key: Key) -> str:
    """Return a default with a unit behind it, when the number alone says little."""
    value = key.default
    if value in {config_keys.LONG_MAX, math.inf}:
        return " (no limit)"
    if isinstance(value, int) and value > 0:
        for size, unit in _UNITS.get(key.kind, ()):
            if value % size == 0:
                return f" ({value // size} {unit})"
    return ""


def _service_file() -> Iterator[str]:
    unknown = set(Settings.model_fields) - set(_SERVICE_FILE)
    if unknown:
        message = f"tools/reference.py does not say what {', '.join(sorted(unknown))} of lastword.service.settings.Settings is"
        raise ReferenceBroken(message)
    yield from (
        "## The service file",
        "",
        "`lastword run -c lastword.toml`; relative paths are relative to the folder of the file. Beside the settings above it has:",
        "",
    )
    yield from ("| entry | default | meaning |", "|---|---|---|")
    yield from (f"| {_SERVICE_FILE[name]} |" for name in Settings.model_fields if _SERVICE_FILE[name])
    yield ""
    for name, field in Settings.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from (f"### `[{name}]` {{ #{name} }}", "", (model.__doc__ or "").strip().splitlines()[0], "")
            yield from _fields_table(model, list(model.model_fields))


def _source_settings() -> Iterator[str]:
    common = set.intersection(*(set(model.model_fields) for model in _SOURCES)) - {"format"}
    yield from ("## Sources", "", "What every `[[source]]` has:", "")
    yield from _fields_table(_SOURCES[0], sorted(common, key=list(_SOURCES[0].model_fields).index))
    for model in _SOURCES:
        formats = typing.get_args(model.model_fields["format"].annotation)
        yield from (f"### {', '.join(formats)}", "", (model.__doc__ or "").strip().splitlines()[0], "")
        yield from _fields_table(model, [name for name in model.model_fields if name not in common and name != "format"])


def _tables() -> Iterator[str]:
    yield from ("## Tables", "", "What a `[[table]]` may say; [Keep a typed table](../tables.md) explains it.", "")
    yield from _fields_table(TableSettings, list(TableSettings.model_fields))


def _fields_table(model: type[BaseModel], names: list[str]) -> Iterator[str]:
    yield from ("| setting | type | default | meaning |", "|---|---|---|---|")
    for name in names:
        field = model.model_fields[name]
        if not field.description:
            message = f"{model.__name__}.{name} has no description"
            raise ReferenceBroken(message)
        default = "required" if field.is_required() else _shown(field.default)
        yield f"| `{_spelt(name, field)}` | {_type_of(field.annotation)} | {default} | {_cell(field.description)} |"
    yield ""


def _spelt(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _shown(value: object) -> str:
    if value is None or value in ("", [], {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type_of(annotation: Any) -> str:
    """Return a Python type as a word for a reader of TOML or of a command line."""
    words = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path", SecretStr: "text", types.NoneType: ""}
    if annotation in words:
        return words[annotation]
    inner = typing.get_args(annotation)
    match typing.get_origin(annotation):
        case typing.Literal:
            return " or ".join(f"`{one}`" for one in inner)
        case builtins.list:
            return f"list of {_type_of(inner[0])}"
        case builtins.dict:
            return "table"
        case types.UnionType | typing.Union:
            return " or ".join(filter(None, map(_type_of, inner)))
        case _:
            message = f"no words for the type {annotation}"
            raise ReferenceBroken(message)


# --- commands ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandHelp:
    """One command of the command line: its words (`topics create`), what it says of itself, its examples, arguments and options."""

    words: str
    text: str
    examples: tuple[str, ...]
    arguments: tuple[Any, ...]
    options: tuple[Any, ...]

    @property
    def usage(self) -> str:
        """Return the one line that shows how it is called."""
        arguments = [one.name.upper() + (" …" if one.nargs == -1 else "") for one in self.arguments]
        required = [f"{one.opts[0]} {one.name.upper()}" for one in self.options if one.required]
        return " ".join(["lastword", self.words, *arguments, *required, "[options]"])


def commands() -> list[CommandHelp]:
    """Return every command that `lastword` has, in alphabetical order."""
    return sorted(_commands(typer.main.get_command(app), ()), key=lambda one: one.words)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[CommandHelp]:
    inner = getattr(command, "commands", None)
    if inner is not None:
        for name, one in inner.items():
            yield from _commands(one, (*words, name))
        return
    text, examples = _without_examples(command.help or "")
    yield CommandHelp(
        words=" ".join(words),
        text=text,
        examples=examples,
        arguments=tuple(one for one in command.params if one.param_type_name == "argument"),
        options=tuple(one for one in command.params if one.param_type_name == "option"),
    )


def _without_examples(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a command's help into prose and the command lines of its examples."""
    prose, examples = [], []
    for paragraph in text.split("\n\n"):
        before, found, example = paragraph.partition("Example: ")
        if before.strip():
            prose.append(" ".join(before.split()))
        if found:
            examples.append(" ".join(example.split()).removesuffix("."))
    return "\n\n".join(prose), tuple(examples)


#: Members that a class has of one which is not public itself are shown with it.
_INHERITED: Final = {"Topic": ("    options:", "      inherited_members: true")}


def api_page() -> str:
    """Return the page of every public name, each as a directive from which mkdocstrings shows its docstrings and signatures."""
    named = {name: getattr(lastword, name) for name in lastword.__all__ if name != "__version__"}
    errors = [name for name, one in named.items() if isinstance(one, type) and issubclass(one, Exception)]
    listed = {*errors, *(name for names in _API.values() for name in names)}
    sections = {**_API, "Results, positions and settings": [name for name in named if name not in listed], "Errors": errors}
    lines = [
        "# Python API",
        "",
        "Made from the code when this site is built. Everything here is imported from `lastword`. What the topics of a `LogDir` take and",
        'return depends on how it was opened: `LogDir("data")` needs no Spark, `LogDir(spark, "data")` takes and returns DataFrames.',
        "",
    ]
    for title, names in sections.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [f"::: {named[name].__module__}.{name}", *_INHERITED.get(name, ()), ""]
    return "\n".join(lines)


def commands_page() -> str:
    """Return the page of every command with its arguments, options and examples."""
    lines = [
        "# Commands",
        "",
        "Made from the code by `python -m tools.reference`. `lastword COMMAND --help` says the same in a terminal.",
        "",
        "`lastword --version` prints the version. [Exit codes](../formats-and-stability.md#exit-codes): 0 done, 1 an error or a check that",
        "failed, 2 a wrong option or argument, 3 a finding of `top` or `purge`.",
        "",
        "Commands commit by themselves, beside a running service or without one. With `--json` a command prints JSON Lines. `--log-dir` is",
        "the directory of topics; `LASTWORD_LOG_DIR` sets it for all commands. Options in front of the command say how an object store is",
        "reached: `lastword --config lastword.toml COMMAND` takes log.dir and store from the configuration of the service,",
        "`lastword --storage-option KEY=VALUE COMMAND` gives an option of delta-rs. Without them the environment decides (`AWS_REGION` …).",
        "",
    ]
    for one in commands():
        lines += [*_heading(f"lastword {one.words}", one.words.replace(" ", "-"), level=2), one.text, "", "```text", one.usage, "```", ""]
        if one.arguments or one.options:
            lines += ["| argument or option | type | default | meaning |", "|---|---|---|---|"]
            lines += [_parameter(each) for each in (*one.arguments, *one.options)]
            lines += [""]
        for example in one.examples:
            lines += ["Example:", "", "```sh", example, "```", ""]
    return "\n".join(lines)


def _parameter(one: Any) -> str:
    is_option = one.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts)) if is_option else f"`{one.name.upper()}`"
    kind = "flag" if getattr(one, "is_flag", False) else _type_of(one.type_descriptor.annotation)
    default = "required" if one.required else ("off" if kind == "flag" else _shown(one.default))
    meaning = one.help or ""
    if one.envvar:
        meaning += f" Environment: `{one.envvar}`."
    return f"| {names} | {kind} | {default} | {_cell(meaning)} |"


# --- metrics ----------------------------------------------------------------------------------------------------------------------------


def metrics(place: str = _METRICS_MODULE) -> list[Any]:
    """Return every metric of a module: name, kind, labels, help. Raises `ReferenceBroken` when it does not have them as it should."""
    module = importlib.import_module(place)
    found = list(getattr(module, "METRICS", ()))
    if not found:
        message = f"{place} has no METRICS: a tuple of metrics with name, kind, labels and help"
        raise ReferenceBroken(message)
    for one in found:
        if not (one.name and one.help) or one.kind not in _METRIC_KINDS or isinstance(one.labels, str):
            message = f"{place}: {one!r}: a metric has a name, a kind ({', '.join(sorted(_METRIC_KINDS))}), labels and a help text"
            raise ReferenceBroken(message)
    return sorted(found, key=lambda one: str(one.name))


def metrics_page() -> str:
    """Return the page of every metric."""
    lines = [
        "# Metrics",
        "",
        "Made from the code by `python -m tools.reference`. What the service serves for Prometheus; [Runbooks](../runbooks.md) has the",
        "alerts.",
        "",
    ]
    for one in metrics():
        labels = ", ".join(f"`{label}`" for label in one.labels) or "none"
        lines += [*_heading(one.name), one.help, "", f"- kind: {one.kind}", f"- labels: {labels}", ""]
    return "\n".join(lines)


def _heading(name: str, anchor: str = "", *, level: int = 3) -> tuple[str, ...]:
    """Return the lines of a heading whose anchor is what it is about: as a tag, which a site and a forge both know."""
    return f'<a id="{anchor or name}"></a>', "", f"{'#' * level} `{name}`", ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def reference_pages() -> dict[str, str]:
    """Return the pages of docs/reference by their names there."""
    return {
        "settings.md": settings_page(),
        "commands.md": commands_page(),
        "metrics.md": metrics_page(),
        "dependencies.md": dependencies_page(),
    }


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name, text in reference_pages().items():
        (PAGES / name).write_text(f"{text.rstrip()}\n", encoding="utf-8")
