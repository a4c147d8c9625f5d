"""The jars come by themselves when a session first needs them: whole, right, once, and with a message where they cannot come.

Ivy is a script here, in the place of `java`: it downloads nothing, and writes down each time that it is started.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from importlib.metadata import requires
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pyspark
import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

from lastword.compaction.errors import UserError
from lastword.spark import jars
from tests.progress import Shown, shown_work

#: Many of these take half a second or more; `make quick` leaves them to `make test`.
pytestmark = pytest.mark.long

#: What the scripts answer for a jar: its own name.
_NAMES: Final = ("delta-1.0.jar", "kafka-2.0.jar")
_LOCK: Final = "[spark]\n" + "".join(
    f'"org.example:{name[:-8]}:{name[-7:-4]}" = "{hashlib.sha256(name.encode()).hexdigest()}"\n' for name in _NAMES
)
_DOWNLOADS: Final = """\
sleep {seconds}
mkdir -p lib cache
for jar in $(sed -n "s/.*name='\\([^']*\\)' rev='\\([^']*\\)'.*/\\1-\\2.jar/p" ivy.xml | tr '\\n' ' '); do
    printf %s "$jar" > "lib/$jar"
    cp "lib/$jar" cache/
done
"""
_NO_NETWORK: Final = "echo '[ERROR] Server access error at url https://jars.example/delta-1.0.jar (java.net.UnknownHostException)'\n"
_RESOLVE: Final = """
import sys
from pathlib import Path
from lastword.spark import jars
jars._LOCK = Path(sys.argv[1])
print([path.read_text() for path in jars.resolve()])
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of the jars, not there yet; the lock has two jars for Spark."""
    (tmp_path / "jars.lock").write_text(_LOCK, encoding="utf-8")
    monkeypatch.setattr(jars, "_LOCK", tmp_path / "jars.lock")
    monkeypatch.setenv("LASTWORD_JARS", str(tmp_path / "jars"))
    _be_java(monkeypatch, tmp_path, _DOWNLOADS.format(seconds=0))
    return tmp_path / "jars"


def _be_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True, exist_ok=True)
    quoted = "'" + str(tmp_path / "starts").replace("'", "'\\''") + "'"
    # `-name='x'` of the descriptor is written with either quote.
    java.write_text(f'#!/bin/sh\necho started >> {quoted}\nsed -i "s/\\"/\'/g" ivy.xml\n{script}', encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))


def _starts(tmp_path: Path) -> int:
    started = tmp_path / "starts"
    return len(started.read_text(encoding="utf-8").splitlines()) if started.exists() else 0


def test_what_is_missing_is_downloaded_once_and_said_in_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error is no terminal here; standard output belongs to the program. What is there costs no process and no word."""
    assert [path.read_text(encoding="utf-8") for path in jars.resolve()] == list(_NAMES)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"lastword: downloading 2 jars to {folder}\n")

    (folder / _NAMES[0]).unlink()
    jars.resolve()
    assert capsys.readouterr().err == f"lastword: downloading 1 jar to {folder}\n"
    jars.resolve()
    said = capsys.readouterr()
    assert (said.out, said.err, _starts(tmp_path)) == ("", "", 2)


def test_a_bar_counts_the_jars(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind the line, where somebody sees it."""
    assert not folder.exists()
    with shown_work() as works:
        jars.resolve()

    assert works == [Shown(what="downloading", total=2, unit="jars", done=2, is_closed=True)]
    assert capsys.readouterr().err == f"lastword: downloading 2 jars to {folder}\n"


def test_of_two_processes_one_downloads_and_the_other_waits(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the end both have all jars."""
    _be_java(monkeypatch, tmp_path, _DOWNLOADS.format(seconds=2))
    command = [sys.executable, "-c", _RESOLVE, str(tmp_path / "jars.lock")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]  # noqa: S603
    said = [process.communicate(timeout=60) for process in both]

    assert [out.strip() for out, _ in said] == [str(list(_NAMES))] * 2
    assert _starts(tmp_path) == 1
    assert sorted(err for _, err in said) == [
        f"lastword: downloading 2 jars to {folder}\n",
        f"lastword: waiting for another process that downloads jars to {folder}\n",
    ]


def test_a_process_that_is_killed_leaves_no_jar_and_its_scratch_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next one neither waits for it nor trusts what it left."""
    _be_java(monkeypatch, tmp_path, "exec sleep 60\n")
    with subprocess.Popen([sys.executable, "-c", _RESOLVE, str(tmp_path / "jars.lock")], stderr=subprocess.PIPE) as process:  # noqa: S603
        until = time.monotonic() + 30
        while not _starts(tmp_path) and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
    assert [path.name for path in folder.glob("*.jar")] == []
    assert list(folder.glob(".resolving-*")) != []

    _be_java(monkeypatch, tmp_path, _DOWNLOADS.format(seconds=0))
    jars.resolve()
    assert list(folder.glob(".resolving-*")) == []


def test_without_a_network_one_message_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Why, how to get the jars elsewhere, and how to bring them here."""
    _be_java(monkeypatch, tmp_path, _NO_NETWORK)
    with pytest.raises(UserError) as told:
        jars.resolve()

    for words in ("2 jars", str(folder), "UnknownHostException", "python -m lastword.spark.jars", "copy the folder", "LASTWORD_JARS"):
        assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_without_java_the_message_names_the_releases_that_do(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And JAVA_HOME; a folder that has all jars needs no Java."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"no java in JAVA_HOME .*install a Java 17 or 21 .*JAVA_HOME"):
        jars.resolve()

    folder.mkdir()
    for name in _NAMES:
        (folder / name).write_text(name, encoding="utf-8")
    assert len(jars.resolve()) == 2


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LASTWORD_JARS chooses another one."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("LASTWORD_JARS", str(tmp_path / "file" / "jars"))
    with pytest.raises(UserError, match=r"cannot write the jars to .*file/jars: .*LASTWORD_JARS"):
        jars.resolve()


def test_a_jar_that_is_not_what_the_lock_says_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is refused when it is downloaded and when it is found later."""
    _be_java(monkeypatch, tmp_path, _DOWNLOADS.format(seconds=0) + "echo more >> lib/kafka-2.0.jar\n")
    for _ in range(2):
        with pytest.raises(UserError, match=r"org.example:kafka:2.0 was downloaded with sha256 .* it is not used"):
            jars.resolve()
    assert [path.name for path in folder.glob("*.jar")] == ["delta-1.0.jar"]


def test_the_lock_has_a_set_for_each_spark_and_the_installed_one_chooses() -> None:
    """Delta and the Kafka source are built for one minor release of Spark; Hadoop's S3A must be that of pyspark's Hadoop."""
    for release in ("4.0.5", "4.1.4", "4.2.0"):
        minor = release.rpartition(".")[0]
        chosen = {jar.name: jar.version for jar in jars.locked("spark", release)}
        assert f"delta-spark_{minor}_2.13" in chosen
        assert chosen["spark-sql-kafka-0-10_2.13"].startswith(f"{minor}.")
        assert "hadoop-aws" in {jar.name for jar in jars.locked("s3", release)}

    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    assert {jar.name: jar.version for jar in jars.locked("s3")}["hadoop-aws"] == hadoop.stem.removeprefix("hadoop-client-api-")
    assert jars.locked("spark") == jars.locked("spark", pyspark.__version__)


@pytest.mark.parametrize("release", ["3.5.9", "4.3.0", "5.0.0.dev1"])
def test_a_spark_that_is_not_supported_is_told_which_are(release: str) -> None:
    """Before anything is downloaded."""
    with pytest.raises(UserError, match=rf"does not run on Spark {release}: install a pyspark of 4\.0, 4\.1 or 4\.2"):
        jars.locked("spark", release)


def test_pip_installs_a_pyspark_that_there_are_jars_for_and_no_other() -> None:
    """The range of pyproject.toml and the sets of jars.lock are the same releases."""
    (range_,) = (line for line in requires("lastword") or [] if line.startswith("pyspark"))
    allowed = Requirement(range_).specifier

    def has_jars(release: str) -> bool:
        try:
            return bool(jars.locked("spark", release))
        except UserError:
            return False

    releases = [f"{major}.{minor}.1" for major in (3, 4, 5) for minor in range(8)]
    assert [one for one in releases if one in allowed] == [one for one in releases if has_jars(one)] != []


def test_a_session_asks_for_its_jars_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message of a failed download is that of `spark_session()`; with settings of an S3 store, its jars too."""
    monkeypatch.undo()
    monkeypatch.setenv("LASTWORD_JARS", str(folder))
    _be_java(monkeypatch, tmp_path, _NO_NETWORK)
    script = "import lastword; lastword.spark_session(settings={'spark.hadoop.fs.s3a.endpoint': 'http://127.0.0.1:9'})"
    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=dict(os.environ))  # noqa: S603

    assert failed.returncode == 1
    told = failed.stderr.splitlines()[-1]
    assert f"UserError: cannot download {len(jars.locked('spark')) + len(jars.locked('s3'))} jars" in told


def test_the_command_downloads_the_groups_that_it_is_given(folder: Path) -> None:
    """For an image, or to be copied; a group that is none is one line, and exit code 1."""
    app = typer.Typer()
    app.command()(jars.main)
    done = CliRunner().invoke(app, [])
    assert (done.exit_code, done.stdout) == (0, f"2 jars (spark) in {folder}\n")
    done = CliRunner().invoke(app, ["--group", "spark", "--group", "hive"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "error: no jars are known as 'hive': the groups are spark\n"


@pytest.mark.parametrize("found", [None, SimpleNamespace(submodule_search_locations=["/nonexistent"])], ids=["none", "without its jars"])
def test_a_pyspark_without_its_jars_is_named(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    """As `pyspark-client` is: Ivy, which downloads the others, comes with them."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: found)
    with pytest.raises(UserError, match="pyspark ships no Ivy here: install pyspark with its jars"):
        jars._ivy_jar()  # noqa: SLF001
