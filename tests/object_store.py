"""The object store of the tests that need no Spark: an S3 server, or Azurite where `LASTWORD_AZURE_SERVER` names it (`make azure`).

Azurite is Microsoft's own imitation of Azure Blob Storage. Tests name an object by `URI`, and reach it with `storage_options_of`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import urllib.request
from contextlib import contextmanager
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, stop_after_delay, wait_fixed

from tests import s3_server
from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

_AZURITE: Final = os.environ.get("LASTWORD_AZURE_SERVER")
IS_AZURE: Final = _AZURITE is not None
URI: Final = "az://bucket" if IS_AZURE else "s3://bucket"
#: The account that Azurite has, with a key that its documentation gives to everybody.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API: Final = "2021-08-06"


def storage_options_of(endpoint: str) -> dict[str, str]:
    """Return what delta-rs needs to reach the store of the tests, or a proxy before it."""
    if not IS_AZURE:
        return s3_server.storage_options_of(endpoint)
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{_ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
    }


@contextmanager
def running_store() -> Iterator[str]:
    """Yield the endpoint of a store with an empty bucket that runs for as long as the block."""
    if _AZURITE is None:
        with s3_server.running_store() as endpoint:
            yield endpoint
        return
    port = free_port()
    # On a disk it keeps each file open that it was asked for by a client which was killed.
    command = [_AZURITE, "--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--blobPort", str(port)]
    azurite = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  it is named by the tests
    try:
        _make_container(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        azurite.kill()
        azurite.wait()


def _make_container(endpoint: str) -> None:
    """Make the container `bucket` as soon as the server answers; obstore cannot."""
    path, date = f"/{_ACCOUNT}/bucket", formatdate(usegmt=True)
    signed = "PUT" + 12 * "\n" + f"x-ms-date:{date}\nx-ms-version:{_API}\n/{_ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()).decode()
    headers = {"x-ms-date": date, "x-ms-version": _API, "Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{endpoint}{path}?restype=container", method="PUT", headers=headers)  # noqa: S310  loopback
    for attempt in Retrying(stop=stop_after_delay(60), wait=wait_fixed(0.2), reraise=True):
        with attempt:
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
