"""No code is left that nothing in the product runs; vulture (configured in pyproject.toml) finds it.

`_OUTSIDE` names what is used from outside of the product's sources: the public API, names that a library prescribes, fields of rows and
records that are written as a whole, and what a template reads. A name that is no longer reported must leave the list.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

import pytest

from tests.test_tidy import ROOT

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

#: What vulture reports and is used all the same, by who uses it.
_OUTSIDE: Final = {
    "the public API": {
        "abort",
        "await_termination",
        "bootstrap",
        "create_auto_cdc_flow",
        "last_stable",
        "log_start",
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
    "a template": {"dirtiest"},
    "tests": {"forget_schemas", "last_failure", "point"},
    "tools": {"METRICS", "default_text", "doc"},
}


def test_the_product_has_no_code_that_only_tests_run() -> None:
    """What vulture reports is exactly what is used from outside."""
    done = subprocess.run(
        [sys.executable, "-m", "vulture", "--config", "pyproject.toml"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    reported = set(re.findall(r"unused \w+ '([^']+)'", done.stdout))

    assert reported == set().union(*_OUTSIDE.values()), done.stdout + done.stderr
