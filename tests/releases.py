"""Which Spark runs the tests, for what only some of its releases have: `make against SPARK=4.0.5` runs them on another one."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import pytest

SPARK: Final = tuple(int(number) for number in version("pyspark").split(".")[:2])

#: On a test that streams from `format("lastword")`.
streams_of_the_format: Final = pytest.mark.skipif(SPARK < (4, 2), reason='format("lastword") streams on Spark 4.2')
