"""What is wrong with a configuration file, in words: the block, the setting, its value, what is allowed, and what was probably meant.

```
 pydantic says   sources.0.json.key         'id'    list_type           Input should be a valid list
 the file says   source orders: key       = 'id':   allowed is a list, as ["id"]
```
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from lastword.compaction.errors import Violation
from lastword.compaction.secrets import HIDDEN, is_secret
from lastword.service.table_settings import TableSettings
from lastword.streaming.append.source_settings import FileSource, KafkaSource, RateSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic_core import ErrorDetails

#: How settings of a Kafka client begin that are often written without `options.kafka.`.
_OF_KAFKA_CLIENT: Final = ("sasl.", "ssl.", "security.")
_KAFKA, _SPARK = "kafka.", "spark."
#: Blocks of the file by the name of a list of settings: what a block is called, and the settings by which it is known.
_BLOCKS: Final = {"sources": ("source", ("name", "topic")), "tables": ("table", ("topic", "topics.pattern", "path"))}
_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    **dict.fromkeys(("json", "csv", "parquet"), FileSource),
    "kafka": KafkaSource,
    "rate": RateSource,
    "tables": TableSettings,
}
#: Blocks whose names are often misspelt, and how they are written.
_MISNAMED: Final = {
    "sources": "[[source]], once for each source",
    "tables": "[[table]], once for each table",
    "topics": "[topic.NAME] for each topic",
}
#: The settings below [http].
_OF_HTTP: Final = ["listen", "records"]
#: Names under which people look for `log.dir`.
_NAMES_OF_LOG_DIR: Final = frozenset({"logdir", "log_dir", "log-dir", "log.dirs", "dir", "path"})


def violation_of(error: ErrorDetails, values: Mapping[str, Any]) -> Violation:
    """Return what one of pydantic's errors says of the `values` of a configuration file.

    The value of a setting that is not known is shown only if its name is like that of a setting which is no secret: it may be a password.
    """
    if error["type"] == "extra_forbidden":
        return _unknown(error, values)
    wording: Callable[[ErrorDetails], tuple[str, str]] = _WORDINGS.get(error["type"], _in_pydantic_words)
    value, allowed = wording(error)
    place = _place(error, values)
    if error["type"] == "union_tag_invalid":
        place = f"{place}: format"
    elif error["type"] == "union_tag_not_found":
        place, value, allowed = f"{place}: format", "nothing", f"allowed are {', '.join(name for name in _MODELS if name != 'tables')}"
    return Violation(key=place, value=value, allowed=allowed)


def find_misplacement(key: str, value: object) -> Violation | None:
    """Return what is wrong with a key of the file's head that belongs elsewhere, or is meant for another one; None if that is not known.

    The value is shown where it is the path of a log.dir: else it may be a password.
    """
    if key in _NAMES_OF_LOG_DIR:
        return Violation(key=key, value=shown_value(value), allowed="unknown; did you mean log.dir?")
    allowed = _home_of(key)
    return None if allowed is None else Violation(key=key, value=HIDDEN, allowed=allowed)


def _home_of(key: str) -> str | None:
    """Return where a setting of the head of the file belongs, or which block is meant; None if that is not known."""
    if key.startswith("fs."):
        return f"a setting of Hadoop: write spark.hadoop.{key} below [spark]"
    if home := _home_of_foreign(key):
        return home if key.startswith(_SPARK) else f"{home} in its [[source]]"
    block = _MISNAMED.get(key.split(".", maxsplit=1)[0])
    return None if block is None else f"unknown; did you mean {block}?"


def _home_of_foreign(key: str) -> str | None:
    """Return where a setting of Spark or of the Kafka client belongs; None for any other setting."""
    if key.startswith(_SPARK):
        return "a setting of Spark: write it below [spark]"
    if key.startswith((_KAFKA, *_OF_KAFKA_CLIENT)):
        return f"an option of the Kafka client: write options.kafka.{key.removeprefix(_KAFKA)}"
    return None


def _unknown(error: ErrorDetails, values: Mapping[str, Any]) -> Violation:
    """Return where a setting that is not known may belong, or which one is meant."""
    place, key, value = _place(error, values), str(error["loc"][-1]), HIDDEN
    model = next((_MODELS[str(part)] for part in error["loc"] if part in _MODELS), None)
    names = _OF_HTTP if model is None else [field.alias or name for name, field in model.model_fields.items()]
    nearest = get_close_matches(key.replace("_", ".").lower(), names, n=1)
    if home := _home_of_foreign(key):
        allowed = home
    elif nearest:
        allowed = f"unknown; did you mean {nearest[0]}?"
        value = HIDDEN if is_secret(nearest[0]) else shown_value(error["input"])
    elif "options" in names:
        allowed = "unknown; further options of Spark's reader stand below options"
    else:
        allowed = f"unknown; known are {', '.join(names)}"
    return Violation(key=place, value=value, allowed=allowed)


def _place(error: ErrorDetails, values: Mapping[str, Any]) -> str:
    """Return the block and the name of a setting as the file has them: `source orders: key`."""
    head, *rest = error["loc"]
    if head == "topics" and rest:
        name, *keys = (str(part) for part in rest)
        return ": ".join([f"topic {name}", *([".".join(keys)] if keys else [])])
    if head not in _BLOCKS or not rest:
        return ".".join(str(part) for part in error["loc"])
    block, names = _BLOCKS[str(head)]
    number = int(rest[0])
    given = values[str(head)][number]
    name = next((given[name] for name in names if isinstance(given, dict) and isinstance(given.get(name), str)), f"{number + 1}")
    keys = [str(part) for part in rest[1:] if part not in _MODELS and not isinstance(part, int)]
    return ": ".join([f"{block} {name}", *([".".join(keys)] if keys else [])])


def shown_value(value: object) -> str:
    """Return a value as a message shows it; a table not at all, as there may be a password in it."""
    return "{…}" if isinstance(value, (dict, BaseModel)) else repr(value)


def _in_pydantic_words(error: ErrorDetails) -> tuple[str, str]:
    return shown_value(error["input"]), error["msg"].removeprefix("Value error, ")


def _missing(error: ErrorDetails) -> tuple[str, str]:
    model = next((_MODELS[str(part)] for part in error["loc"] if part in _MODELS), None)
    fields = {} if model is None else {field.alias or name: field.description for name, field in model.model_fields.items()}
    meaning = fields.get(str(error["loc"][-1]))
    return "nothing", f"it must be given: {meaning}" if meaning else "it must be given"


def _of_choices(error: ErrorDetails) -> tuple[str, str]:
    """Word an error of a value that is not among the allowed texts; pydantic names them in quotes, the last one behind `or`."""
    context = error.get("ctx", {})
    given = context.get("tag", error["input"])
    quoted = str(context.get("expected", context.get("expected_tags", "")))
    names = [part.strip().strip("'") for part in quoted.replace(" or ", ", ").split(", ")]
    small = {name.lower(): name for name in names if name}
    nearest = get_close_matches(str(given).lower(), small, n=1)
    meant = f"; did you mean {small[nearest[0]]}?" if nearest else ""
    none = ", or an empty text" if "" in names else ""
    return shown_value(given), f"allowed are {', '.join(name for name in names if name)}{none}{meant}"


def _of_form(form: str) -> Callable[[ErrorDetails], tuple[str, str]]:
    """Return the wording of an error of a value that has not the form that it must have."""
    return lambda error: (shown_value(error["input"]), form.format(**error.get("ctx", {}), value=_example(error["input"])))


def _example(value: object) -> str:
    return f'"{value}"' if isinstance(value, (str, int, float)) else '"…"'


_NUMBER: Final = _of_form("allowed is a number")
_WHOLE: Final = _of_form("allowed is a whole number")
_WORDINGS: Final[Mapping[str, Callable[[ErrorDetails], tuple[str, str]]]] = {
    "missing": _missing,
    "literal_error": _of_choices,
    "union_tag_invalid": _of_choices,
    "list_type": _of_form("allowed is a list, as [{value}]"),
    "string_type": _of_form("allowed is a text, in quotes"),
    "dict_type": _of_form("allowed is a table of settings"),
    **dict.fromkeys(("bool_type", "bool_parsing"), _of_form("allowed are true and false")),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), _WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), _NUMBER),
    "greater_than_equal": _of_form("allowed is a number from {ge} on"),
    "greater_than": _of_form("allowed is a number above {gt}"),
}
