"""Keys and values of records as what a command prints.

| `--decode`             | a table for people                    | `--json`                                       |
|------------------------|---------------------------------------|------------------------------------------------|
| (none)                 | JSON on one line, else text           | text, whatever it holds                        |
| `utf8`                 | text as it stands                     | text                                           |
| `json`                 | JSON on one line, else text           | JSON as JSON, else text; keys that are objects |
| `base64`               | base64                                | base64                                         |
| `http://registry:8081` | frames of the registry as JSON        | frames of the registry as JSON                 |

Bytes that are not UTF-8 are {"base64": …}. Without `--decode` the type of a member of `--json` never depends on what a record holds.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lastword.change_data.registry.schemas import UndecodableFrame
from lastword.cli.mistakes import usage_mistake
from lastword.compaction.errors import InvalidConfiguration
from lastword.storage.schema_registry.client import RegistryConfig
from lastword.storage.schema_registry.decoder import RegistryDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from lastword.storage.log.topic_log import TopicLog

#: A text in JSON, which is kept, or white space.
_SPACE: Final = re.compile(r'("(?:\\.|[^"\\])*")|\s+')
_FORMATS: Final = ("utf8", "json", "base64")


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads the keys and values of a topic as `--decode` asks."""

    format: str
    registry: RegistryDecoder | None = None

    @staticmethod
    def of(decode: str | None, log: TopicLog, find_registry: Callable[[str], RegistryConfig | None], *, as_json: bool) -> ValueReader:
        """Return the reader of a command; raise `InvalidConfiguration` for what is neither a format nor the URL of a schema registry.

        `find_registry` returns the registry at a URL with its login, None for a URL without one.
        """
        if decode is None:
            return ValueReader("utf8" if as_json else "one line")
        if decode in _FORMATS:
            return ValueReader(decode)
        if decode.startswith(("http://", "https://")):
            try:
                config = replace(find_registry(decode) or RegistryConfig(urls=(decode,)), urls=(decode,), attempts=2)
            except InvalidConfiguration as error:
                wrong = error.violations[0]
                raise usage_mistake(name="--decode", value=wrong.value, allowed=wrong.allowed) from None
            return ValueReader("json", RegistryDecoder(config, log.paths.root, log.storage_options))
        allowed = f"allowed is {', '.join(_FORMATS)}, or the URL of a schema registry, such as http://localhost:8081"
        raise usage_mistake(name="--decode", value=decode, allowed=allowed)

    def value(self, data: bytes | None) -> Any:
        """Return a value as JSON's types; null as null."""
        return self._read(data, keep_scalars=False)

    def key(self, data: bytes | None) -> Any:
        """Return a key as JSON's types: one that is a number, say, stays text, as `007` and `7` are two keys."""
        return self._read(data, keep_scalars=True)

    def _read(self, data: bytes | None, *, keep_scalars: bool) -> Any:
        if data is None:
            return None
        data = self._decode_frame(bytes(data))
        if self.format == "base64":
            return base64.b64encode(data).decode("ascii")
        text = text_of(data)
        if self.format == "one line" and isinstance(text, str):
            return one_line(text)
        if self.format != "json" or not isinstance(text, str):
            return text
        parsed = json_of(text)
        return text if keep_scalars and not isinstance(parsed, (dict, list)) else parsed

    def _decode_frame(self, data: bytes) -> bytes:
        """Return a frame of the registry as JSON, and bytes that are no frame as they are."""
        if self.registry is None or not data.startswith(b"\0"):
            return data
        try:
            return self.registry.decode(data) or b""
        except UndecodableFrame:
            return data


def text_of(data: bytes) -> str | dict[str, str]:
    """Return bytes as text; those that are not UTF-8 as {"base64": …}."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def one_line(text: str) -> str:
    """Return JSON without the white space between its members, digit by digit as it was written; another text as it is."""
    return _SPACE.sub(r"\1", text) if "\n" in text and isinstance(json_of(text), (dict, list)) else text


def json_of(text: str) -> Any:
    """Return the value of JSON text; a text that is no JSON, or cannot be written as JSON again, as it is."""
    try:
        parsed = json.loads(text)
        json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()  # NaN or a lone surrogate cannot be written again
    except (ValueError, RecursionError):
        return text
    return parsed
