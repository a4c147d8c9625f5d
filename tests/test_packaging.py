"""What users install: the wheel alone, away from the checkout, with one import root, beside whatever else they have installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tools import distributions

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("lastword", "pyspark_lastword")
#: Real folders at the top of the checkout; `lastword/storage` and its like are links to them, and the only way to import them.
ROOMS: Final = distributions.ROOMS

_IMPORT_ALL: Final = """
import importlib, json, pkgutil, sys
import lastword, pyspark_lastword
found = {}
for package in (lastword, pyspark_lastword):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            found[module.name] = importlib.import_module(module.name).__file__
print(json.dumps({"modules": found, "bare": sorted({name.split(".")[0] for name in sys.modules} & set(sys.argv[1:]))}))
"""


def run(*command: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Run a Python command line in a folder and return its standard output; its standard error is the message of a failure."""
    inherited = {key: value for key, value in os.environ.items() if key not in {"LASTWORD_JARS", "PYTHONPATH"}}
    done = subprocess.run(  # noqa: S603
        command, cwd=cwd, env={**inherited, **(environment or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source: Path, kind: str, folder: Path) -> Path:
    """Build a wheel or an sdist of a source tree as `pip install` would, without the network."""
    run(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(source), cwd=folder)
    (built,) = (path for path in folder.iterdir() if path.name.startswith("lastword-") and path.is_file())
    return built


def files_of(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name, without its metadata; fails on a file that is packed twice."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        assert len(names) == len(set(names))
        return {name: archive.read(name) for name in names}


def tracked(*folders: str) -> set[str]:
    """Return the files below some folders of the checkout that git tracks; rooms as the paths that they have below `lastword/`."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()  # noqa: S603  git of the machine
    return {f"lastword/{name}" if name.split("/")[0] in ROOMS else name for name in listed if name and not (ROOT / name).is_symlink()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the checkout."""
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_one_import_root_and_every_file_once(wheel: Path) -> None:
    """`lastword`, and `pyspark_lastword`, a name that PySpark prescribes; all files that git tracks in them and in the rooms, no other."""
    files = files_of(wheel)

    assert {name.split("/")[0] for name in files} == set(PACKAGES)
    assert set(files) == tracked(*PACKAGES, *ROOMS)
    assert {"lastword/spark/jars.lock", "lastword/py.typed", "pyspark_lastword/py.typed"} <= set(files)


@pytest.mark.long
def test_sdist_and_wheel_are_the_same_bytes_wherever_and_whenever_they_are_built(wheel: Path, tmp_path: Path) -> None:
    """Of a copy with other times, permissions and another path; the wheel is built from the sdist, in spite of linked folders."""
    folders = [tmp_path / name for name in ("here", "there")]
    for folder in folders:
        folder.mkdir()
    built, again = distributions.build(ROOT, folders[0]), distributions.build(distributions.copy_checkout(ROOT, tmp_path), folders[1])

    assert [path.name.rpartition(".")[2] for path in built] == ["whl", "gz"]
    assert [path.read_bytes() for path in built] == [path.read_bytes() for path in again]
    assert built[0].read_bytes() == wheel.read_bytes()
    with tarfile.open(built[1]) as archive:
        assert [member.name for member in archive.getmembers() if member.issym() or member.islnk()] == []


def test_the_image_installs_the_same(wheel: Path, tmp_path: Path) -> None:
    """The Dockerfile copies all that a build needs: a wheel of these files alone is the wheel of the checkout."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    source = tmp_path / "image"
    source.mkdir()
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        *names, target = line.split()
        for name in names:
            place = source / (name if target == "./" else target)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, place)
    (tmp_path / "built").mkdir()

    assert files_of(build(source, "wheel", tmp_path / "built")) == files_of(wheel)


def _made_up(folder: Path) -> Path:
    """Return a wheel of a distribution that owns the names of our rooms, as a well-known data library owns `streaming`."""
    path = folder / "made_up-1.0-py3-none-any.whl"
    files = {f"{room}/__init__.py": f"OWNER = 'made-up {room}'\n" for room in ROOMS}
    files["made_up-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n"
    files["made_up-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files["made_up-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in [*files, "made_up-1.0.dist-info/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.mark.long
def test_pip_installs_it_beside_a_distribution_that_owns_the_names_of_our_rooms(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment, in either order: neither overwrites a file of the other, both work, and to remove ours leaves the other."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = str(home / ("Scripts" if os.name == "nt" else "bin") / "python")
    dependencies = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))}
    pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet")
    offline = ("install", "--no-index", "--no-deps", "--no-warn-conflicts", "--force-reinstall")
    owners = f"import {', '.join(ROOMS)}; print([{', '.join(f'{room}.OWNER' for room in ROOMS)}])"
    theirs = str([f"made-up {room}" for room in ROOMS])

    for order in ((_made_up(tmp_path), wheel), (wheel, _made_up(tmp_path))):
        for one in order:
            run(*pip, *offline, str(one), cwd=tmp_path)
        assert run(python, "-c", owners, cwd=tmp_path).strip() == theirs
    said = json.loads(run(python, "-c", _IMPORT_ALL, *ROOMS, cwd=tmp_path, environment=dependencies))
    assert {name.split(".")[1] for name in said["modules"] if name.startswith("lastword.")} >= set(ROOMS)
    assert {str(Path(path).is_relative_to(home)) for path in said["modules"].values()} == {"True"}
    assert said["bare"] == []
    run(*pip, "uninstall", "--yes", "lastword", cwd=tmp_path)
    assert run(python, "-c", owners, cwd=tmp_path).strip() == theirs


def test_away_from_the_checkout_the_jars_are_in_the_users_cache(wheel: Path, tmp_path: Path) -> None:
    """The lock of the jars came along; their folder is no longer the checkout's."""
    with zipfile.ZipFile(wheel) as archive:  # a wheel of plain Python is installed by unpacking it
        archive.extractall(tmp_path / "site")  # noqa: S202  our own
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
from lastword.spark.jars import jar_folder, locked
print(json.dumps({"jars": str(jar_folder()), "locked": len(locked("spark"))}))
"""
    said = json.loads(run(sys.executable, "-I", "-c", script, str(tmp_path / "site"), cwd=tmp_path))

    assert said["locked"] > 0
    assert Path(said["jars"]) != ROOT / ".jars"


#: What `pip install lastword` leaves out, by the names of the distributions and of what they install.
_OF_SPARK: Final = ("pyspark", "py4j", "delta", "delta_spark", "pandas")


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """Make an environment without Spark and pandas; return its Python, and the variables that show it the other packages and the wheel."""
    home, site = tmp_path_factory.mktemp("light"), tmp_path_factory.mktemp("site")
    venv.create(home, with_pip=False)
    for folder in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for entry in folder.iterdir():
            name = entry.name.split("-")[0].split(".")[0]
            if name not in {*_OF_SPARK, "lastword"} and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)  # noqa: S202  our own
    return str(home / ("Scripts" if os.name == "nt" else "bin") / "python"), {"PYTHONPATH": str(site), "JAVA_HOME": "/nonexistent"}


def test_spark_is_an_extra(wheel: Path) -> None:
    """`pip install lastword` brings neither Spark nor pandas; `lastword[spark]` brings both."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    needed = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]

    assert "Provides-Extra: spark" in lines
    of_spark = {re.split(r"[<>=~ ;]", line)[0] for line in needed if "extra == 'spark'" in line}
    assert of_spark == {"pyspark", "delta-spark", "pandas"}
    assert not of_spark & {re.split(r"[<>=~ ;]", line)[0] for line in needed if "extra ==" not in line}


_WITHOUT_SPARK: Final = f"""
{distributions.CHECK}
for name in lastword.__all__:
    try:
        getattr(lastword, name)
    except ImportError as error:
        print(f"ImportError: {{error}}")
try:
    lastword.spark_session()
except lastword.UserError as error:
    print(f"UserError: {{error}}")
"""


def test_without_spark_a_log_is_written_cleaned_and_read(light: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """And what needs Spark says so, and how to install it."""
    python, environment = light
    found, *missing = run(python, "-c", _WITHOUT_SPARK, cwd=tmp_path, environment=environment).splitlines()

    assert found == distributions.CHECKED
    line = "needs Spark, which is not installed: pip install 'lastword[spark]'; where a cluster has a pyspark of its own, use that"
    names = ("AutoCdcFlow", "SparkBootstrap", "SparkTopic")  # `SparkTransaction` imports no pyspark, only `SparkTopic` makes one
    assert missing == [*(f"ImportError: lastword.{name} {line}" for name in names), f"UserError: spark_session() {line}"]


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("lastword", "append", "t", "--path", "incoming", "--key", "id"), "a streaming query"),
        (("lastword", "run", "-c", "lastword.toml"), "a streaming query"),
        (("lastword.spark.jars",), "the jars of spark: the choice between releases"),
    ],
    ids=["append --path", "run", "jars"],
)
def test_a_command_that_needs_spark_says_so(light: tuple[str, dict[str, str]], tmp_path: Path, command: Sequence[str], what: str) -> None:
    """In one line, with exit code 1, before it does anything; what needs none works."""
    python, environment = light
    (tmp_path / "lastword.toml").write_text('log.dir = "data"\n[[source]]\nname = "s"\ntopic = "t"\nformat = "rate"\n')
    run(python, "-m", "lastword", "topics", "create", "t", cwd=tmp_path, environment=environment)
    variables = {**os.environ, **environment}
    done = subprocess.run([python, "-m", *command], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)  # noqa: S603

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {what} needs Spark, which is not installed: pip install 'lastword[spark]'")
    assert len(done.stderr.splitlines()) == 1


def test_no_module_imports_a_room_by_its_bare_name() -> None:
    """A bare `import storage` in the checkout would make a second module of each file, with classes and locks of its own."""
    said = json.loads(run(sys.executable, "-c", _IMPORT_ALL, *ROOMS, cwd=ROOT))

    assert len(said["modules"]) > 100
    assert said["bare"] == []


@pytest.mark.parametrize("line", [line for room in ROOMS for line in (f"import {room}", f"from {room} import schema")])
def test_lint_refuses_the_bare_name_of_a_room(line: str) -> None:
    """In code, tests, examples and tools alike."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--stdin-filename", "tests/test_made_up.py", "-"],
        cwd=ROOT,
        input=f"{line}\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "import it from `lastword`" in done.stdout
