"""`lastword.arrow` as a notebook imports it: without Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lastword
from tests.test_packaging import ROOT

_IMPORTED = "import sys, lastword.arrow; print(sorted({'pyspark', 'py4j', 'delta'} & set(sys.modules)))"


def test_importing_it_imports_no_pyspark() -> None:
    """So that no JVM can be started by it."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603

    assert done.stdout.strip() == "[]"


def test_the_public_names_of_lastword_are_imported_when_they_are_asked_for() -> None:
    """Each of them is there and is shown; a name that is not there is an AttributeError, as in any module."""
    assert set(lastword.__all__) <= set(dir(lastword))
    assert all(getattr(lastword, name) is not None for name in lastword.__all__)
    with pytest.raises(AttributeError, match="no attribute 'LogDirr'"):
        lastword.LogDirr  # type: ignore[attr-defined]  # noqa: B018
