"""An S3 server with an empty bucket, spoken to over HTTP: moto, or the server whose program `LASTWORD_S3_SERVER` names (`make s3`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, stop_after_delay, wait_fixed

from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The login that every server of the tests takes, and the bucket that it has.
ACCESS_KEY: Final = "key"
SECRET_KEY: Final = "secret"  # noqa: S105  of a server that lives as long as a test
BUCKET: Final = "bucket"


def storage_options_of(endpoint: str) -> dict[str, str]:
    """Return what delta-rs needs to reach a server of the tests."""
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def spark_settings_of(endpoint: str) -> dict[str, str]:
    """Return what Spark, and a service by its configuration, needs to reach a server of the tests."""
    s3a = "spark.hadoop.fs.s3a."
    return {
        f"{s3a}endpoint": endpoint,
        f"{s3a}endpoint.region": "us-east-1",
        f"{s3a}path.style.access": "true",
        f"{s3a}access.key": ACCESS_KEY,
        f"{s3a}secret.key": SECRET_KEY,
    }


class S3Server:
    """A server, as a process of its own: delta-rs holds the interpreter's lock while it asks.

    moto knows the API and is fast to start, but forgets all when it is killed; versitygw is a server that people use, with folders of a
    disk as buckets.
    """

    def __init__(self, folder: Path) -> None:
        """Start it, with its buckets in a folder, and wait until it answers."""
        self._program, self._folder = os.environ.get("LASTWORD_S3_SERVER"), folder
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        (folder / "buckets" / BUCKET).mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """Start it, or start it again."""
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        command = (
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
            if self._program is None
            else [self._program, "--quiet", "--port", f"127.0.0.1:{self._port}", "posix", f"{self._folder}/buckets"]
        )
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            _wait_for_bucket(self.endpoint, make_it=self._program is None)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait()

    def freeze(self, *, frozen: bool) -> None:
        """Let it answer nobody, or go on."""
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)


@contextmanager
def running_store() -> Iterator[str]:
    """Yield the endpoint of a server that runs for as long as the block."""
    with tempfile.TemporaryDirectory() as folder:
        server = S3Server(Path(folder))
        try:
            yield server.endpoint
        finally:
            server.kill()


def _wait_for_bucket(endpoint: str, *, make_it: bool) -> None:
    """Ask until the server answers; moto takes a bucket from everybody, versitygw refuses a request without a login (403)."""
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT" if make_it else "HEAD")  # noqa: S310  loopback
    for attempt in Retrying(stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True):
        with attempt:
            try:
                urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
            except urllib.error.HTTPError as error:
                if make_it or error.code != 403:
                    raise
