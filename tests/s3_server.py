"""An S3 server with an empty bucket, spoken to over HTTP: moto, or the server whose program `LASTWORD_S3_SERVER` names (`make s3`)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, stop_after_delay, wait_fixed

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


@contextmanager
def running_store() -> Iterator[str]:
    """Yield the endpoint of a server.

    It is a process of its own, as delta-rs holds the interpreter's lock while it asks. moto knows the API and is fast to start;
    versitygw is a server that people use, with folders of a disk as buckets.
    """
    program = os.environ.get("LASTWORD_S3_SERVER")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "buckets" / BUCKET).mkdir(parents=True)
        environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        command = (
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
            if program is None
            else [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", f"{folder}/buckets"]
        )
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        try:
            _wait_for_bucket(f"http://127.0.0.1:{port}", make_it=program is None)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


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
