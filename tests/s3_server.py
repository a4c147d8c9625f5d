"""An S3 server with an empty bucket, spoken to over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tenacity import Retrying, stop_after_delay, wait_fixed

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running_store() -> Iterator[str]:
    """Yield the endpoint of a server that takes the access key `key` and the secret key `secret`, and has the bucket `bucket`.

    LASTWORD_S3_ENDPOINT names one that runs already; else it is moto's, a process of its own, as delta-rs holds the interpreter's lock
    while it asks.
    """
    given = os.environ.get("LASTWORD_S3_ENDPOINT")
    if given:
        yield given
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        for attempt in Retrying(stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True):
            with attempt:
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT"), timeout=10).close()  # noqa: S310  loopback
        yield endpoint
    finally:
        server.kill()
        server.wait()
