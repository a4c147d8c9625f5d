"""The Dockerfile without Docker: buildah builds it in a chroot on a base of Debian packages; its service runs from what was built.

The base stands for python:3.11-slim-bookworm. It gets the package sources and certificates of this machine, so that a machine behind a
mirror builds the image as one on the internet does (`make image`; as root, with buildah and debootstrap).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.processes import ROOT, running
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.image, pytest.mark.timeout(1_200)]

_TOOLS: Final = ("buildah", "debootstrap")
_BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
_IMAGE: Final = "localhost/lastword:test"
_HEALTH: Final = "http://127.0.0.1:9464/healthz"
#: What tells apt and pip of this machine where packages are.
_SOURCES: Final = (
    "etc/apt/sources.list",
    "etc/apt/sources.list.d",
    "etc/apt/apt.conf.d",
    "etc/pip.conf",
    "usr/local/share/ca-certificates",
)
_AIRPORTS: Final = (
    {"op": "c", "icao": "EDDF", "iata": "FRA", "country": "DE"},
    {"op": "c", "icao": "KJFK", "iata": "JFK", "country": "US"},
    {"op": "d", "icao": "EDDF"},
)


def _run(*command: str) -> str:
    """Run a command to its end and return its standard output; a failure shows the end of all that it wrote."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  tools of this test
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def _mirror() -> str:
    """Return the address that this machine has its Debian packages from."""
    lists = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in lists if file.suffix in {".list", ".sources"} and file.exists())
    address = re.search(r"^(?:URIs:|deb)\s.*?(https?://\S+)", text, re.MULTILINE)
    assert address, "no address in /etc/apt/sources.list or /etc/apt/sources.list.d"
    return address[1]


def _base(folder: Path) -> Path:
    """Make Debian with Python and the package sources of this machine in a folder, and return it."""
    _run("debootstrap", "--variant=minbase", "--include=ca-certificates,python3,python3-venv", "bookworm", str(folder), _mirror())
    for name in _SOURCES:
        here, there = Path("/") / name, folder / name
        if here.is_dir():
            shutil.copytree(here, there, dirs_exist_ok=True)
        elif here.exists():
            shutil.copy(here, there)
        else:
            there.unlink(missing_ok=True)
    _run("chroot", str(folder), "update-ca-certificates")
    (folder / "usr/bin/python").symlink_to("python3")
    return folder


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Build the image; yields the command that works with it. All is removed at the end."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"the image is built as root, with {' and '.join(_TOOLS)}; missing: {', '.join(missing) or 'root'}")
    folder = tmp_path_factory.mktemp("image")
    command = ("buildah", "--root", str(folder / "images"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")
    try:
        container = _run(*command, "from", "scratch").strip()
        _run(*command, "add", "--quiet", container, str(_base(folder / "base")), "/")
        _run(*command, "commit", "--quiet", "--rm", container, _BASE)
        _run(*command, "build", "--isolation", "chroot", "--pull-never", "--format", "docker", "--layers=false", "--tag", _IMAGE, ".")
        yield command
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _healthy() -> bool:
    try:
        with urllib.request.urlopen(_HEALTH, timeout=2) as answer:
            return bool(json.load(answer)["ok"])
    except OSError:
        return False


def test_the_image_runs_the_service_as_its_user(buildah: tuple[str, ...], tmp_path: Path) -> None:
    """Three files' lines become records, its health check passes, its commands read the log, and SIGTERM ends it with 0."""
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    (incoming / "airports.json").write_text("".join(f"{json.dumps(row)}\n" for row in _AIRPORTS), encoding="utf-8")
    container = _run(*buildah, "from", "--pull-never", _IMAGE).splitlines()[-1]
    image = json.loads(_run(*buildah, "inspect", "--type", "image", _IMAGE))["Docker"]["config"]
    assert image["User"] == "lastword"
    mounted = f"{incoming}:/opt/lastword/incoming:ro"
    run = (*buildah, "run", "--isolation", "chroot", "--hostname", "localhost", "--volume", mounted, container, "--")
    log = tmp_path / "service.log"
    with running([*run, *image["Entrypoint"], *image["Cmd"]], log) as service:
        until(_healthy, "the service is not healthy")
        until(lambda: "records=3" in log.read_text(errors="replace"), "the file was not appended")
        _run(*run, *image["Healthcheck"]["Test"][1:])
        latest = [json.loads(line) for line in _run(*run, "lastword", "latest", "airports", "--json").splitlines()]
        _run("pkill", "--signal", "TERM", "--session", str(service.pid), "--exact", "tini")
        assert service.wait(PATIENCE_SECONDS) == 0

    assert [record["key"] for record in latest] == ["KJFK"]
    assert "Traceback" not in log.read_text(errors="replace")
    assert _run(*run, "id", "--user").strip() == "10001"
