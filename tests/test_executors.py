"""What executors get from the driver, and what they must have: the zip of lastword's code, and a list of packages."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.utils import canonicalize_name

from lastword.spark import session
from lastword.spark.package import EXECUTOR_PACKAGES, is_cluster, package
from tests.distributions import needed
from tests.processes import ROOT

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

#: The modules whose functions and classes Spark's tasks get.
_TASKS: Final = (
    "lastword.streaming.append.dataframes",
    "lastword.streaming.cluster",
    "lastword.storage.cleaning.offset_map",
    "lastword.storage.cleaning.small_files",
    "lastword.storage.cleaning.task",
    "lastword.storage.tables.bootstrap",
    "pyspark_lastword.readers",
)
_IMPORT: Final = """
import importlib, json, sys
modules = [importlib.import_module(name) for name in sys.argv[1:]]
installed = sorted({name.split(".")[0] for name, one in sys.modules.items() if "site-packages" in (getattr(one, "__file__", None) or "")})
print(json.dumps({"files": [one.__file__ for one in modules], "installed": installed}))
"""


def _imported(path: Path, folder: Path) -> Any:
    """Import what tasks import, from a zip, in a process of its own."""
    command = [sys.executable, "-c", _IMPORT, *_TASKS]
    return json.loads(subprocess.check_output(command, cwd=folder, env={"PYTHONPATH": str(path)}, text=True))  # noqa: S603


def test_tasks_can_import_all_from_the_zip_and_need_no_other_packages_than_are_named(tmp_path: Path) -> None:
    """Nor fewer; the page for clusters names them as well."""
    path = package(tmp_path / "code")
    found = _imported(path, tmp_path)
    assert [file.startswith(f"{path}/") for file in found["files"]] == [True] * len(_TASKS)
    homes = packages_distributions()
    used = {str(canonicalize_name(home)) for name in found["installed"] for home in homes.get(name, [])} - {"pyspark", "py4j"}
    assert set(EXECUTOR_PACKAGES) <= used <= needed(EXECUTOR_PACKAGES)
    page = (ROOT / "docs" / "run-on-a-cluster.md").read_text()
    assert all(f"`{name}`" in page and f" {name}==" in page for name in EXECUTOR_PACKAGES)


def test_the_command_writes_the_same_zip_each_time_and_prints_what_is_needed(tmp_path: Path) -> None:
    """`--py-files "$(python -m lastword.spark.package)"`, and `pip install $(… --needs)`."""

    def said(*words: str) -> str:
        command = [sys.executable, "-m", "lastword.spark.package", *words]
        return subprocess.check_output(command, cwd=ROOT, text=True).strip()  # noqa: S603

    first = Path(said(str(tmp_path / "one")))
    assert first == tmp_path / "one" / "lastword.zip"
    assert first.read_bytes() == package(tmp_path / "two").read_bytes()
    assert [one.split("==")[0] for one in said("--needs").split()] == list(EXECUTOR_PACKAGES)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", False),
        ("local[*]", False),
        ("local[2, 3]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://a:7077", True),
        ("yarn", True),
    ],
)
def test_only_local_masters_have_no_executors_besides_the_driver(master: str, *, expected: bool) -> None:
    """`local-cluster` starts processes of its own."""
    assert is_cluster(master) == expected


def test_the_python_of_executors_can_be_chosen_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark reads `spark.pyspark.python` under spark-submit alone; else PYSPARK_PYTHON, else the driver's path."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    assert session.executors_python({}) == "/elsewhere/python"
    assert session.executors_python({"spark.pyspark.python": "./executors/bin/python"}) == "./executors/bin/python"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert session.executors_python({}) == sys.executable
