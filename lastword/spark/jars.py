"""The jars beside pyspark's own: resolved into a folder when they are first needed, then given to Spark by `lastword.spark.session`.

`jars.lock` beside this module names every jar by its Maven coordinate and its sha256; nothing else decides what is loaded. It
has a set for each release of Spark (4.0, 4.1, 4.2); the pyspark that is installed says which. Dependencies of dependencies are not
followed: what is needed is listed. `resolve()` downloads what is missing with the Ivy that pyspark ships (no
Maven needed), checks the sha256 and moves each jar into the folder in one step, so that a jar that is there is whole and right. A session
that starts from the folder starts faster than one that resolves (`spark.jars.packages`), and without a network.

`spark_session()` calls `resolve()` by itself. To download beforehand, for an image or for a machine without a network:

    python -m lastword.spark.jars                    the jars of a Spark session
    python -m lastword.spark.jars --group s3         those of an S3 store
    python -m lastword.spark.jars --group broker     those of a Kafka broker, for the tests
    python -m lastword.spark.jars --group debezium   those of Debezium's engine, for `make torture`

The folder is $LASTWORD_JARS; else `.jars` in a checkout; else `jars` in the user's cache. Where nothing can be downloaded, copy a folder
from elsewhere. Proxies are the JVM's business (JAVA_TOOL_OPTIONS).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from xml.sax.saxutils import quoteattr

import platformdirs
import typer
from filelock import FileLock, Timeout

from lastword.compaction.errors import UserError
from lastword.progress_bars import show_where_seen
from lastword.spark.installation import PYSPARK, require_spark
from lastword.storage.progress import work

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK: Final = Path(__file__).with_name("jars.lock")
_SCRATCH: Final = ".resolving-"
_LOOK_SECONDS: Final = 0.1

#: No descriptors (the lock decides) and no checksum files (the lock has better ones): one request a jar.
_IVY_SETTINGS: Final = """\
<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
_IVY_MODULE: Final = """\
<ivy-module version="2.0">
  <info organisation="lastword" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
#: What Ivy complains of, the telling lines first.
_IVY_REASONS: Final = (r"Server access error.*", r"\b\S+Exception: .*", r"\bError: .*", r"\S+#\S+: not found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One line of the lock: a Maven coordinate and the sha256 of its jar."""

    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        """Return `organisation:name:version`."""
        return f"{self.organisation}:{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        """Return the name of the jar in the folder."""
        return f"{self.name}-{self.version}.jar"


def locked(group: str, spark: str | None = None) -> list[Jar]:
    """Return what `jars.lock` lists for a group (`spark`, `s3`, `broker`, `debezium`) and a release of Spark.

    By default it is the release of the pyspark that is installed. Raises `UserError` for a group that the lock does not have, for a Spark
    that lastword does not run on, and where there is none.
    """
    groups = tomllib.loads(_LOCK.read_text(encoding="utf-8"))
    if group not in groups:
        message = f"no jars are known as {group!r}: the groups are {', '.join(groups)}"
        raise UserError(message)
    listed: dict[str, Any] = groups[group]
    releases = [release for release, jars in listed.items() if isinstance(jars, dict)]
    if releases:
        if spark is None:
            require_spark(f"the jars of {group}: the choice between releases")
            spark = importlib.metadata.version(PYSPARK)
        release = ".".join(spark.split(".")[:2])
        if release not in releases:
            message = f"lastword does not run on Spark {spark}: install a pyspark of {', '.join(releases[:-1])} or {releases[-1]}"
            raise UserError(message)
        listed = listed[release]
    return [_jar(coordinate, sha256) for coordinate, sha256 in listed.items()]


def jar_folder() -> Path:
    """Return the folder of the jars, there or not: $LASTWORD_JARS, else `.jars` in a checkout, else `jars` in the user's cache."""
    chosen = os.environ.get("LASTWORD_JARS")
    if chosen:
        return Path(chosen)
    root = Path(__file__).resolve().parents[2]
    if _is_checkout(root):
        return root / ".jars"
    return Path(platformdirs.user_cache_dir("lastword")) / "jars"


def resolve(groups: tuple[str, ...] = ("spark",), folder: Path | None = None) -> list[Path]:
    """Download what is missing of the groups into a folder (default: `jar_folder()`) and return the paths of all their jars.

    A jar that is there is left alone; nothing missing costs no process and no network. Standard error shows the progress. One process
    downloads at a time; another waits for it. Raises `UserError` when there is no Java, when a jar cannot be downloaded or the folder not
    be written, or when a jar is not what the lock says; jars that were right stay.
    """
    folder = jar_folder() if folder is None else folder
    wanted = [jar for group in groups for jar in locked(group)]
    if _missing(wanted, folder):
        java = _java()
        with _alone(folder):
            missing = _missing(wanted, folder)
            if missing:
                _fetch(java, missing, folder, groups)
    return [folder / jar.file_name for jar in wanted]


def _missing(wanted: list[Jar], folder: Path) -> list[Jar]:
    return [jar for jar in wanted if not (folder / jar.file_name).is_file()]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from downloading into the folder, and remove what one that was killed left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _say(f"waiting for another process that downloads jars to {folder}")
            lock.acquire()
    except OSError as error:
        message = (
            f"cannot write the jars to {folder}: {error.strerror}; let LASTWORD_JARS name a folder that can be written, or that has them"
        )
        raise UserError(message) from None
    try:
        for left in folder.glob(f"{_SCRATCH}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        lock.release()


def _jar(coordinate: str, sha256: str) -> Jar:
    organisation, name, version = coordinate.split(":")
    return Jar(organisation=organisation, name=name, version=version, sha256=sha256)


def _is_checkout(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return False
    name: object = project.get("project", {}).get("name")
    return name == "lastword"


def _fetch(java: str, missing: list[Jar], folder: Path, groups: tuple[str, ...]) -> None:
    """Download jars into a scratch folder on the same file system, check them, move them."""
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder) as scratch_name:
        scratch = Path(scratch_name)
        said = _run_ivy(java, missing, scratch)
        absent: list[Jar] = []
        for jar in missing:
            downloaded = scratch / "lib" / jar.file_name
            if not downloaded.is_file():
                absent.append(jar)
                continue
            found = hashlib.sha256(downloaded.read_bytes()).hexdigest()
            if found != jar.sha256:
                message = f"{jar.coordinate} was downloaded with sha256 {found}, but jars.lock says {jar.sha256}: it is not used"
                raise UserError(message)
            downloaded.replace(folder / jar.file_name)
    if absent:
        many = _many(absent) if len(absent) > 1 else absent[0].coordinate
        command = " ".join(["python -m lastword.spark.jars", *(f"--group {group}" for group in groups if groups != ("spark",))])
        message = (
            f"cannot download {many} to {folder}: {said}. Try again with a network; without one, run `{command}` where there is one, "
            "with the same pyspark, copy the folder that it names here, and let LASTWORD_JARS name the copy"
        )
        raise UserError(message)


def _many(some: list[Jar]) -> str:
    return f"{len(some)} jar{'s' if len(some) > 1 else ''}"


def _say(line: str) -> None:
    """Write a plain line to standard error; standard output belongs to the program."""
    sys.stderr.write(f"lastword: {line}\n")
    sys.stderr.flush()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        message = f"no java {where}: install a Java 17 or 21 runtime and let JAVA_HOME name it"
        raise UserError(message)
    return java


def _run_ivy(java: str, wanted: list[Jar], scratch: Path) -> str:
    """Let Ivy download into `scratch/lib` and return its first complaint. Paths are relative: patterns give brackets a meaning."""
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.name)} rev={quoteattr(jar.version)} transitive='false'/>"
        for jar in wanted
    )
    (scratch / "settings.xml").write_text(_IVY_SETTINGS, encoding="utf-8")
    (scratch / "ivy.xml").write_text(_IVY_MODULE.format(dependencies=dependencies), encoding="utf-8")
    command = [java, "-jar", str(_ivy_jar()), "-settings", "settings.xml", "-ivy", "ivy.xml", "-cache", "cache"]
    command += ["-retrieve", "lib/[artifact]-[revision].[ext]"]
    answer = scratch / "ivy.log"
    with (
        answer.open("wb") as log,
        subprocess.Popen(command, cwd=scratch, stdout=log, stderr=subprocess.STDOUT) as ivy,  # noqa: S603  our own command line
    ):
        try:
            _watch(ivy, wanted, scratch)
        finally:
            ivy.kill()  # of a process that has ended: nothing
    answered = answer.read_text(encoding="utf-8", errors="replace")
    for reason in _IVY_REASONS:
        complaint = re.search(reason, answered)
        if complaint:
            return complaint.group().strip()
    return f"Ivy ended with exit code {ivy.returncode}"


def _watch(ivy: subprocess.Popen[bytes], wanted: list[Jar], scratch: Path) -> None:
    """Wait for Ivy, and say how many jars it downloads: one line, and on a terminal a bar."""
    _say(f"downloading {_many(wanted)} to {scratch.parent}")
    show_where_seen()
    known = 0
    with work("downloading", total=len(wanted), unit="jars") as advance:
        while True:
            done = ivy.poll() is not None
            downloaded = sum(1 for _ in (scratch / "cache").rglob("*.jar"))
            advance(downloaded - known)
            known = downloaded
            if done:
                return
            time.sleep(_LOOK_SECONDS)


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec(PYSPARK)
    for location in (pyspark.submodule_search_locations or []) if pyspark else []:
        for ivy in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return ivy
    message = "pyspark ships no Ivy here: install pyspark with its jars (`pip install pyspark`)"
    raise UserError(message)


def main(
    group: Annotated[list[str] | None, typer.Option(help="Which jars: spark, s3, broker, debezium; can be given more than once.")] = None,
) -> None:
    """Download the jars that lastword needs beside pyspark's own: for an image, or to be copied; else the first session does it."""
    groups = tuple(group or ["spark"])
    try:
        paths = resolve(groups)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(code=1) from None
    typer.echo(f"{len(paths)} jars ({', '.join(groups)}) in {jar_folder()}")


if __name__ == "__main__":
    typer.run(main)
