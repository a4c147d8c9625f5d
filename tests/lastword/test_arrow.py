"""`lastword.arrow` as a notebook imports it: without Spark."""

from __future__ import annotations

import subprocess
import sys

from tests.test_packaging import ROOT

_IMPORTED = "import sys, lastword.arrow; print(sorted({'pyspark', 'py4j', 'delta'} & set(sys.modules)))"


def test_importing_it_imports_no_pyspark() -> None:
    """So that no JVM can be started by it."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603

    assert done.stdout.strip() == "[]"
