"""Golden files: what others read or store, kept under `tests/goldens` and compared with what the code writes today.

```
 pytest tests/stability                       compares; a difference is shown as a unified diff
 pytest tests/stability --rewrite-goldens     writes the files anew: review the diff of the commit
```

Values that differ from run to run have names in the files, by the rules of `named` and of nothing else. The clock of a golden stands still
(`frozen_clock`), so most times are what they are.
"""

from __future__ import annotations

import difflib
import json
import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import lastword

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDENS: Final = Path(__file__).parent / "goldens"

#: Members of JSON objects whose numbers depend on the encoder of a file, or on how fast the machine is. Zero and null stay.
_MEASURED: Final = (
    (re.compile(r"(.*_)?bytes(_before|_after)?|size|cleanable_ratio"), "<size>"),
    (re.compile(r"index_ms|total_ms"), "<duration>"),
    (re.compile(r"crc32"), "<checksum>"),
)
_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")
_VERSION: Final = re.compile(rf"(?<![\d.]){re.escape(lastword.__version__)}(?![\d.])")
#: What Delta's library says of itself, and a digest of names of files.
_ENGINE: Final = re.compile(r"(?<=delta-rs[.:]py-)[\d.]+")
_DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")
#: Milliseconds since the epoch, as Delta's commits have them.
_EPOCH_MS: Final = re.compile(r"\b\d{13}\b")
_MONTH_MS: Final = 30 * 24 * 3_600_000


class Golden:
    """Compares texts with golden files, or writes the files."""

    def __init__(self, folder: Path, *, rewrite: bool, goldens: Path = GOLDENS) -> None:
        """Name `folder` in what is compared `<folder>`; write the files in `goldens` instead of comparing with them with `rewrite`."""
        self._folder, self._rewrite, self._goldens = folder, rewrite, goldens

    def check(self, name: str, content: Any) -> None:
        """Compare content with the golden file of a name: a text as it is, anything else as JSON."""
        text = content if isinstance(content, str) else json.dumps(_members_named(content), indent=2, ensure_ascii=False)
        path, text = self._goldens / name, f"{named(text, self._folder).rstrip()}\n"
        if self._rewrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        kept = path.read_text(encoding="utf-8") if path.exists() else ""
        assert kept == text, difference(name, kept, text)


def difference(name: str, kept: str, text: str) -> str:
    """Return a unified diff, and how to accept it."""
    lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), f"tests/goldens/{name}", "what the code writes", lineterm="", n=3)
    hint = "If the change is meant: pytest --rewrite-goldens, and docs/formats-and-stability.md says what it means for others."
    return "\n".join(["", *lines, "", hint])


def named(text: str, folder: Path) -> str:
    """Return a text with names in the place of the folder of a test, UUIDs, the version, and times by the wall clock."""
    text = _UUID.sub("<uuid>", text.replace(str(folder), "<folder>"))
    text = _DIGEST.sub("<digest>", _ENGINE.sub("<version>", text))
    return _EPOCH_MS.sub(_time_named, _VERSION.sub("<version>", text))


def files(folder: str) -> set[str]:
    """Return the names of the golden files in a folder, without their endings."""
    return {path.stem for path in (GOLDENS / folder).iterdir()}


@contextmanager
def frozen_clock(moment_ms: int) -> Iterator[Clock]:
    """Let `lastword.clock`, the one reader of the wall clock, stand at a moment; the clock can be moved."""
    clock = Clock(moment_ms)
    with patch.object(time, "time_ns", lambda: clock.now_ms * 1_000_000):
        yield clock


class Clock:
    """The clock of a golden."""

    def __init__(self, now_ms: int) -> None:
        """Stand at a moment."""
        self.now_ms = now_ms


def _time_named(found: re.Match[str]) -> str:
    return "<time>" if _is_of_today(int(found[0])) else found[0]


def _is_of_today(number: float) -> bool:
    return abs(number - time.time() * 1000) < _MONTH_MS


def _members_named(value: Any, name: str = "") -> Any:
    """Return JSON with names in the place of numbers that were measured, or that are a time by the wall clock."""
    if isinstance(value, dict):
        return {key: _members_named(member, name if _place_of(name) else str(key)) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_members_named(member, name) for member in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if _is_of_today(value):
        return "<time>"
    return (_place_of(name) or value) if value or name.endswith("_ms") else value


def _place_of(name: str) -> str | None:
    return next((place for pattern, place in _MEASURED if pattern.fullmatch(name)), None)
