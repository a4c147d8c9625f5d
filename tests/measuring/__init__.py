"""What Spark's Python workers need to be measured, beside what `[tool.coverage.run]` in pyproject.toml says.

`daemon/` is on the path of the workers; it holds one module, so that they can import nothing else of the tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_DAEMON = Path(__file__).with_name("daemon")


def measure_spark_workers(environment: MutableMapping[str, str], folder: Path) -> None:
    """Let every Spark session that is started from an environment start its Python workers by the daemon that saves their counts.

    `folder` gets Spark's configuration. Workers that plan a data source in Python have the path of the driver, others that of the session.
    """
    settings = {"spark.python.daemon.module": "measured_workers", "spark.executorEnv.PYTHONPATH": str(_DAEMON)}
    (folder / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    environment["SPARK_CONF_DIR"] = str(folder)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_DAEMON), environment.get("PYTHONPATH"))))
