"""What users install: the wheel alone, away from the checkout, without another distribution in its way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lastword", "pyspark_lastword", "streaming", "storage", "checkpoints", "compaction")


def run(*command: str, cwd: Path) -> str:
    """Run a Python command line somewhere and return what it prints; what it complains of is the test's message."""
    environment = {key: value for key, value in os.environ.items() if key != "LASTWORD_JARS"}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    (built,) = folder.glob("lastword-*.whl")
    return built


def test_the_wheel_holds_our_packages_and_their_data_and_nothing_else(wheel: Path) -> None:
    """Top-level names are the six packages; the lock of the jars and the marker of typed packages are in."""
    names = zipfile.ZipFile(wheel).namelist()

    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert "lastword/jars.lock" in names
    assert [f"{package}/py.typed" in names for package in PACKAGES] == [True] * len(PACKAGES)


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Every package is imported from where the wheel went, and the jars' folder is no longer the checkout's."""
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:  # a wheel of plain Python is installed by unpacking it
        archive.extractall(target)
    script = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
from lastword.jars import jar_folder, locked
where = {name: importlib.import_module(name).__file__ for name in sys.argv[2:]}
print(json.dumps({"where": where, "jars": str(jar_folder()), "locked": len(locked("spark"))}))
"""
    said = json.loads(run("-I", "-c", script, str(target), *PACKAGES, cwd=tmp_path))

    assert said["where"] == {package: str(target / package / "__init__.py") for package in PACKAGES}
    assert said["locked"] > 0
    assert Path(said["jars"]) != ROOT / ".jars"


def test_no_other_distribution_provides_a_package_of_our_names() -> None:
    """Plain names can collide; who installs such a distribution beside lastword would get one of the two."""
    providers = packages_distributions()
    others = {package: set(providers.get(package, [])) - {"lastword"} for package in PACKAGES}

    assert others == {package: set() for package in PACKAGES}
