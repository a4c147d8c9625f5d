"""A real Spark standalone master with two workers, and the service on them, as docs/run-on-a-cluster.md says; docker-compose.yml's wiring.

Python on the executors has the packages that the page names, and a lastword that cannot be imported: what works came from the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from lastword import LogDir
from lastword.spark.package import EXECUTOR_PACKAGES
from tests.airports import AIRPORTS, CHANGES, check_airports
from tests.distributions import needed
from tests.hosts import Host, Network, network
from tests.jvms import SPARK_ARCHIVE, jvm_options
from tests.processes import ROOT, free_port, running
from tests.s3_server import BUCKET, running_store, spark_settings_of, storage_options_of
from tests.scraped import samples
from tests.waiting import PATIENCE_SECONDS, until

_CONFIG = """{airports}
[http]
listen = "127.0.0.1:{port}"

[spark]
"spark.master" = "{master}"
"spark.pyspark.python" = "{python}"
"spark.driver.host" = "{driver}"
"spark.driver.memory" = "1g"
"spark.executor.memory" = "768m"
"spark.executor.cores" = "1"
"spark.cores.max" = "2"
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "2"
"spark.log.level" = "ERROR"
{more}
"""
#: How soon a host is lost that says nothing any more, by the driver and by the master.
_LOSES_HOSTS: Final = {
    "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104  the host's own network
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}
_MASTER_LOSES_HOSTS: Final = ("env", "SPARK_DAEMON_JAVA_OPTS=-Dspark.worker.timeout=20")


def _executors_python(folder: Path) -> str:
    """Make a Python environment with the packages that executors need, and a lastword that is no good; return its interpreter."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in needed(EXECUTOR_PACKAGES):
        for top in {file.parts[0] for file in distribution(name).files or [] if ".." not in file.parts}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(distribution(name).locate_file(top)))
    (packages / "lastword.py").write_text("raise ImportError('the lastword that is installed beside the executors')\n")
    python = str(folder / "bin" / "python")
    tried = subprocess.run([python, "-c", "import lastword"], cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    assert "the lastword that is installed beside the executors" in tried.stderr
    return python


def _environment() -> dict[str, str]:
    """Return the environment of every process; the JVMs of executors take their options from nowhere else."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}
    return {**kept, "JAVA_TOOL_OPTIONS": " ".join(jvm_options(SPARK_ARCHIVE))}


def _process(command: list[str], log: Path, folder: Path) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    return running(command, log, cwd=folder, environment=_environment())


def _answer(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  loopback
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()


def _json(url: str) -> Any:
    """Return what is answered, whatever its status; nothing while nobody listens, or shows a page of HTML as Spark when it begins."""
    try:
        return json.loads(_answer(url))
    except (OSError, ValueError):
        return None


@pytest.mark.timeout(900)
@pytest.mark.jvm
@pytest.mark.parametrize("on_s3", [False, pytest.param(True, marks=pytest.mark.s3)], ids=["disk", "S3"])
def test_the_service_does_the_demo_on_a_standalone_master_with_two_workers(tmp_path: Path, *, on_s3: bool) -> None:
    """Files in, appended, cleaned, read and made a table on executors, /readyz and /metrics answer, SIGTERM ends it with 0; exact.

    One worker is killed with its executor while files are read, and another comes. Log.dir and table lie on a disk, or on a real S3 server.
    """
    with running_store() if on_s3 else contextlib.nullcontext("") as endpoint:
        _demo(tmp_path, f"s3a://{BUCKET}/demo" if on_s3 else str(tmp_path), endpoint, None)


@pytest.mark.timeout(900)
@pytest.mark.jvm
def test_the_service_does_the_demo_on_hosts_of_their_own_one_of_which_is_lost(tmp_path: Path) -> None:
    """The same with the master and each worker on another host than the service; the cable of one is pulled in the middle.

    Its executor goes on, nobody hears it, and it may still write files on the disk that all share: they are in no commit.
    """
    with network() as hosts:
        _demo(tmp_path, str(tmp_path), "", hosts)


def _arrived(incoming: Path) -> Path:
    """Put the changes of the airports into a folder, in their order, and return it."""
    incoming.mkdir()
    for number, path in enumerate(CHANGES):
        os.utime(shutil.copy(path, incoming), (1_700_000_000 + number, 1_700_000_000 + number))
    return incoming


def _demo(tmp_path: Path, place: str, endpoint: str, hosts: Network | None) -> None:
    options = storage_options_of(endpoint) if endpoint else {}
    more = (spark_settings_of(endpoint) if endpoint else {}) | (_LOSES_HOSTS if hosts else {})
    spark = [*(_MASTER_LOSES_HOSTS if hosts else ()), str(Path(pyspark.__file__).parent / "bin" / "spark-class")]
    port, ui, http = free_port(), free_port(), free_port()

    def somewhere() -> Host:
        """Return a host to run a process on: a new one, or this machine."""
        return hosts.host() if hosts else Host("", "127.0.0.1")

    masters = somewhere()
    master, pages = f"spark://{masters.address}:{port}", f"http://{masters.address}:{ui}/json/"
    config = tmp_path / "lastword.toml"
    config.write_text(
        _CONFIG.format(
            airports=AIRPORTS.format(log_dir=f"{place}/data", incoming=_arrived(tmp_path / "incoming"), table=f"{place}/table", files=4),
            port=http,
            master=master,
            driver=hosts.address if hosts else "127.0.0.1",
            python=_executors_python(tmp_path / "python"),
            more="\n".join(f'"{name}" = "{value}"' for name, value in more.items()),
        )
    )
    start = ["org.apache.spark.deploy.master.Master", "--host", masters.address, "--port", str(port), "--webui-port", str(ui)]
    work = ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process([*masters.prefix, *spark, *start], tmp_path / "master.log", tmp_path))
        until(lambda: _json(pages), "the master does not answer")

        def worker(number: int) -> tuple[Host, subprocess.Popen[bytes]]:
            host = somewhere()
            command = [*host.prefix, *spark, *work, "--host", host.address, "--work-dir", str(tmp_path / f"worker-{number}"), master]
            return host, stack.enter_context(_process(command, tmp_path / f"worker-{number}.log", tmp_path))

        (lost, process), _ = worker(0), worker(1)
        until(lambda: (_json(pages) or {}).get("aliveworkers") == 2, "the workers do not come")
        run = [sys.executable, "-m", "tests.cluster_app", str(config), str(tmp_path / "report.json")]
        service = stack.enter_context(_process(run, tmp_path / "service.log", ROOT))

        def asked(page: str) -> dict[str, Any]:
            assert service.poll() is None, (tmp_path / "service.log").read_text()[-4000:]
            return _json(f"http://127.0.0.1:{http}/{page}") or {}

        def figures() -> dict[str, Any]:
            topics = asked("status.json").get("topics")
            return topics[0] if topics else {}

        until(lambda: asked("readyz").get("ok"), "the service does not get ready")
        workers = _json(pages)["workers"]
        assert [one["coresused"] for one in workers] == [1, 1], "an executor on each worker"

        def appended() -> int:
            return sum(one["report"]["log_end_offset"] for one in figures().get("partitions", ()))

        until(lambda: appended() >= 10_000, "nothing was appended")
        if hosts:
            lost.pull_the_cable()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        worker(2)
        until(lambda: appended() >= 100_000, "not all was appended after a worker was killed")
        until(lambda: len({one["partition"] for one in figures().get("receipts", ())}) == 4, "not every partition was cleaned")

        def counted() -> bool:
            """Tell whether each partition is counted as cleaned, a moment after its receipt can be read."""
            found = samples(f"http://127.0.0.1:{http}", "lastword_log_cleaner_cleanings_total")
            return [labels for labels, count in found if count >= 4] == [{"topic": "airports"}]

        until(counted, "the cleanings are not counted")
        topic, table = LogDir(f"{place}/data", storage_options=options).topic("airports"), f"{place}/table"
        topic.rebuild_table(table)  # its rows are written by executors
        until(lambda: "rebuild_ms" not in topic.log.decisions().targets[table], "the table is not written anew")
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_SECONDS) == 0, (tmp_path / "service.log").read_text()[-4000:]
    check_airports(topic, table, options)
    records = topic.records().num_rows
    assert json.loads((tmp_path / "report.json").read_text()) == {"airports": records}
