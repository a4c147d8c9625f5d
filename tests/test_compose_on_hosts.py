"""docker-compose.yml without Docker: each service's command on a host of its own, by its name, from the environment that it is given.

```
 store   kafka   spark-master   spark-worker-1   spark-worker-2   lastword   prometheus        a network namespace each
   └───────┴───────────┴──────────────┴────────────────┴─────────────┴───────────┘             they know each other by these names
```

What an image has at a place of its own lies elsewhere here: pyspark, the folders of volumes, the files that are mounted. Kafka's image is
replaced by the same main class with the settings of the environment, Grafana is left out (`make s3`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
import pytest
import yaml

from lastword import LogDir
from lastword.spark.jars import resolve
from tests.hosts import network
from tests.orders_app import RECORDS
from tests.processes import ROOT, running
from tests.s3_server import storage_options_of
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from tests.hosts import Host

_CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
_STARTED: Final = ("store", "kafka", "spark-master", "spark-worker-1", "spark-worker-2", "lastword")


def _expanded(value: str) -> str:
    """Return a value of the file with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


class _Services:
    """The services of the file, and where on this machine is what their images have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
        self.places = {
            "/opt/lastword/.venv/lib/python3.11/site-packages/pyspark": str(Path(pyspark.__file__).parent),
            "/opt/lastword/work": str(folder / "work"),
            "/buckets": str(folder / "buckets"),
            "/etc/prometheus": str(folder / "prometheus"),
            "=/prometheus": f"={folder / 'samples'}",
        }
        (folder / "buckets" / "lastword").mkdir(parents=True)

    def environment(self, name: str) -> dict[str, str]:
        """Return what the file gives to a service, beside what every process here has."""
        given = {key: _expanded(value) for key, value in self.file[name].get("environment", {}).items()}
        return {**os.environ, **given, "HOME": str(self.folder)}

    def command(self, name: str) -> list[str]:
        """Return the command of a service with the places of this machine."""
        command = self.file[name]["command"]
        words = shlex.split(command) if isinstance(command, str) else list(command)
        for there, here in self.places.items():
            words = [word.replace(there, here) for word in words]
        return words

    def kafka(self) -> tuple[list[str], list[str]]:
        """Return how the storage of the broker is formatted, and how it is started: its image makes settings of its environment."""
        given = self.file["kafka"]["environment"]
        settings = {key.removeprefix("KAFKA_").lower().replace("_", "."): value for key, value in given.items()}
        settings |= {"log.dirs": str(self.folder / "kafka"), "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"}
        file = self.folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        java = [
            f"{os.environ['JAVA_HOME']}/bin/java",
            "-Xmx512m",
            "-cp",
            os.pathsep.join(str(jar.resolve()) for jar in resolve(("broker",))),
        ]
        return [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={_CLUSTER_ID}", f"--config={file}"], [
            *java,
            "kafka.Kafka",
            str(file),
        ]

    def mount(self, name: str) -> None:
        """Copy the files that a service mounts to where its command looks for them."""
        for mounted in self.file[name]["volumes"]:
            source, target, *_ = mounted.split(":")
            if source.startswith("./"):
                place = Path(target.replace("/etc/prometheus", self.places["/etc/prometheus"]))
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)

    def running(self, name: str, host: Host, command: list[str]) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a service on its host for as long as the block lasts."""
        return running([*host.prefix, *command], self.folder / f"{name}.log", environment=self.environment(name))


def _answer(url: str) -> str:
    """Return what is answered; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  a host of this test
            return str(answer.read().decode())
    except OSError:
        return ""


def _listens(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=1):
        return True
    return False


@pytest.mark.s3
@pytest.mark.jvm
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_services_of_the_compose_file_find_each_other_and_keep_the_topic(tmp_path: Path) -> None:
    """Orders of the Kafka topic come to the log on the store, by executors; Prometheus scrapes the service; SIGTERM ends it with 0."""
    program = os.environ.get("LASTWORD_S3_SERVER")
    if program is None:
        pytest.skip("needs an S3 server: make s3")
    services = _Services(tmp_path)
    with network() as made, ExitStack() as stack:
        hosts = made.named([*_STARTED, "prometheus", "orders"])

        def start(name: str, command: list[str]) -> subprocess.Popen[bytes]:
            return stack.enter_context(services.running(name, hosts[name], command))

        start("store", [program, "--quiet", *services.command("store")])
        store = f"http://{hosts['store'].address}:7070"
        until(lambda: _answer(f"{store}/health"), "the store does not answer")
        form, run = services.kafka()
        subprocess.run(form, check=True, capture_output=True)  # noqa: S603  ours
        start("kafka", run)
        until(lambda: _listens(hosts["kafka"].address, 9092), "the broker does not listen")
        orders = [*hosts["orders"].prefix, sys.executable, "-m", "tests.orders_app", "kafka:9092"]
        subprocess.run(orders, cwd=ROOT, check=True, timeout=PATIENCE_SECONDS)  # noqa: S603  ours
        for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
            start(name, services.command(name))
        pages = f"http://{hosts['spark-master'].address}:8080/json/"
        until(lambda: json.loads(_answer(pages) or "{}").get("aliveworkers") == 2, "the workers do not come")
        program, *words = services.command("lastword")
        assert program == "lastword"
        service = start("lastword", [sys.executable, "-m", "lastword", *words])
        web = f"http://{hosts['lastword'].address}:9464"
        until(lambda: _answer(f"{web}/healthz"), "the service does not answer")
        logs = LogDir("s3a://lastword/topics", storage_options=_options(store, services))
        until(lambda: _log_ends(logs) == RECORDS, "the orders do not come to the log")
        until(lambda: json.loads(_answer(f"{web}/readyz") or "{}").get("ok"), "the service does not get ready")
        if shutil.which("prometheus"):
            services.mount("prometheus")
            start("prometheus", ["prometheus", *services.command("prometheus")])
            query = f"http://{hosts['prometheus'].address}:9090/api/v1/query?query=up"
            until(lambda: '"1"' in _answer(query), "Prometheus does not scrape the service")
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_SECONDS) == 0
        latest = {row["key"].decode(): json.loads(row["value"])["n"] for row in logs.topic("orders").latest().to_pylist()}
        assert latest == {f"order-{number % 20}": number for number in range(RECORDS)}


def _options(store: str, services: _Services) -> dict[str, str]:
    """Return what delta-rs needs, with the login of the file."""
    given = services.environment("lastword")
    return {**storage_options_of(store), **{key: given[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}}


def _log_ends(logs: LogDir[Any]) -> int:
    return sum(ends.log_end for ends in logs.topic("orders").offsets().values()) if "orders" in logs.topics() else 0
