"""`make lint`: no code is left that nothing in the product runs; vulture (configured in pyproject.toml) finds it.

`_OUTSIDE` names what is used from outside of the product's sources: the public API, names that a library prescribes, fields of rows and
records that are written as a whole, and what a template reads. A name that is no longer reported must leave the list.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: What vulture reports and is used all the same, by who uses it.
_OUTSIDE: Final = {
    "the public API": {
        "abort",
        "await_termination",
        "create_auto_cdc_flow",
        "last_stable",
    },
    "Python and its libraries": {
        "__dir__",
        "__getattr__",
        "cls",
        "model_config",
        "oneof_index",
        "prec",
        "requested_schema",
        "should_exit",
        "trace",
    },
    "rows that are written as a whole, and times that are named by a text": {
        "ACCEPTED",
        "highest_expired_tombstone",
        "highest_removed_tombstone",
        "merge_ms",
        "segments_before",
    },
    "Spark": {
        "deserializeOffset",
        "equals",
        "getBatch",
        "getDefaultReadLimit",
        "getOffset",
        "implements",
        "initialOffset",
        "Java",
        "prepareForTriggerAvailableNow",
        "reportLatestOffset",
        "streamReader",
    },
    "notebooks": {"_repr_html_", "_repr_svg_"},
    "a template": {"later", "value_bytes"},
    "tests": {"forget_schemas", "hook", "last_failure"},
    "commands that are named by a text": {"retention"},
    "tools": {"METRICS"},
}


def main() -> int:
    """Compare what vulture reports with the list, print what differs, and return 1 if anything does."""
    command = [sys.executable, "-m", "vulture", "--config", "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  our own words
    reported, expected = set(re.findall(r"unused \w+ '([^']+)'", done.stdout)), set().union(*_OUTSIDE.values())
    for name in sorted(reported - expected):
        sys.stderr.write("".join(f"{line}\n" for line in done.stdout.splitlines() if f"'{name}'" in line))
    for name in sorted(expected - reported):
        sys.stderr.write(f"tools/dead_code.py: {name} is used now, or gone: remove it from the list\n")
    return int(reported != expected or not done.stdout)


if __name__ == "__main__":
    sys.exit(main())
