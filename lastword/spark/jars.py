"""The jars beside pyspark's own: resolved once into a folder, then handed to Spark by `spark.jars`.

`jars.lock` beside this module names every jar by its Maven coordinate and its sha256; nothing else decides what is loaded. Dependencies
of dependencies are not followed: what is needed is listed. `resolve()` downloads what is missing with the Ivy that pyspark ships (no
Maven needed), checks the sha256 and moves each jar into the folder in one step, so that a jar that is there is whole and right. A session
that starts from the folder starts faster than one that resolves (`spark.jars.packages`), and without a network.

    python -m lastword.spark.jars                    the jars of a Spark session
    python -m lastword.spark.jars --group broker     those of a Kafka broker, for the tests

The folder is $LASTWORD_JARS; else `.jars` in a checkout; else `jars` in the user's cache. Where nothing can be downloaded, copy a folder
from elsewhere. Proxies are the JVM's business (JAVA_TOOL_OPTIONS).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from xml.sax.saxutils import quoteattr

import platformdirs
import typer

from lastword.compaction.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LOCK: Final = Path(__file__).with_name("jars.lock")

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


def locked(group: str) -> list[Jar]:
    """Return what `jars.lock` lists for a group (`spark`, `broker`). Raises `UserError` for a group that it does not have."""
    groups = tomllib.loads(_LOCK.read_text(encoding="utf-8"))
    if group not in groups:
        message = f"no jars are known as {group!r}: the groups are {', '.join(groups)}"
        raise UserError(message)
    return [_jar(coordinate, sha256) for coordinate, sha256 in groups[group].items()]


def jar_folder() -> Path:
    """Return the folder of the jars, there or not: $LASTWORD_JARS, else `.jars` in a checkout, else `jars` in the user's cache."""
    chosen = os.environ.get("LASTWORD_JARS")
    if chosen:
        return Path(chosen)
    root = Path(__file__).resolve().parents[2]
    if _is_checkout(root):
        return root / ".jars"
    return Path(platformdirs.user_cache_dir("lastword")) / "jars"


def jars(group: str = "spark") -> list[Path]:
    """Return the paths of a group's jars, in the lock's order. Raises `UserError` when one of them has not been resolved yet."""
    folder = jar_folder()
    wanted = locked(group)
    missing = [jar for jar in wanted if not (folder / jar.file_name).is_file()]
    if missing:
        option = "" if group == "spark" else f" --group {group}"
        message = (
            f"{len(missing)} of the {len(wanted)} {group} jars are not in {folder} (the first: {missing[0].coordinate}): "
            f"run `python -m lastword.spark.jars{option}` once"
        )
        raise UserError(message)
    return [folder / jar.file_name for jar in wanted]


def resolve(groups: tuple[str, ...] = ("spark",), folder: Path | None = None) -> list[Path]:
    """Download what is missing of the groups into a folder (default: `jar_folder()`) and return the paths of all their jars.

    A jar that is there is left alone; nothing missing costs no process and no network. Raises `UserError` when there is no Java, when a
    jar cannot be downloaded, or when one is not what the lock says; jars that were right stay.
    """
    folder = jar_folder() if folder is None else folder
    wanted = {group: locked(group) for group in groups}
    for group_jars in wanted.values():
        missing = [jar for jar in group_jars if not (folder / jar.file_name).is_file()]
        if missing:
            _fetch(missing, folder)
    return [folder / jar.file_name for group_jars in wanted.values() for jar in group_jars]


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


def _fetch(missing: list[Jar], folder: Path) -> None:
    """Download jars into a scratch folder on the same file system, check them, move them."""
    java = _java()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".resolving-", dir=folder) as scratch_name:
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
        many = f"{len(absent)} jars" if len(absent) > 1 else absent[0].coordinate
        message = f"cannot download {many}: {said}; check the network, then run `python -m lastword.spark.jars` again"
        raise UserError(message)


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
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)  # noqa: S603  our own command line
    for reason in _IVY_REASONS:
        complaint = re.search(reason, done.stdout + done.stderr)
        if complaint:
            return complaint.group().strip()
    return f"Ivy ended with exit code {done.returncode}"


def _ivy_jar() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    for location in (pyspark.submodule_search_locations or []) if pyspark else []:
        for ivy in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return ivy
    message = "pyspark ships no Ivy here: install pyspark with its jars (`pip install pyspark`)"
    raise UserError(message)


def main(
    group: Annotated[list[str] | None, typer.Option(help="Which jars: spark, broker; can be given more than once.")] = None,
) -> None:
    """Download the jars that lastword needs beside pyspark's own, once."""
    groups = tuple(group or ["spark"])
    try:
        paths = resolve(groups)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(code=1) from None
    typer.echo(f"{len(paths)} jars ({', '.join(groups)}) in {jar_folder()}")


if __name__ == "__main__":
    typer.run(main)
