"""Hosts of their own on one machine: network namespaces, joined by a bridge that this machine is on too.

```
 this machine ── bridge 10.88.N.1 ──┬── host 10.88.N.2
                                    ├── host 10.88.N.3
                                    └── host 10.88.N.4        lost: its cable is pulled, its processes go on and nobody hears them
```

It takes Linux, iproute2 and the rights of root.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NETWORKS: Final = 250
_NAMES: Final = Path("/etc/netns")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607  the machine's own
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace with one address; without a name it is this machine."""

    name: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """Return what to put before a command line that runs there."""
        return ["ip", "netns", "exec", self.name] if self.name else []

    def pull_the_cable(self) -> None:
        """Let no packet in or out any more, without a word to anybody."""
        _ip("link", "set", self.name, "down")


class Network:
    """A bridge and the hosts on it; `address` is that of this machine."""

    def __init__(self) -> None:
        """Make the bridge, in a network that no other test run has."""
        self._bridge = f"lw{os.getpid()}"
        self.hosts: list[Host] = []
        _ip("link", "add", self._bridge, "type", "bridge")
        try:
            self._number = _free_network()
            self.address = f"10.88.{self._number}.1"
            _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
        except BaseException:
            self.remove()
            raise

    def host(self) -> Host:
        """Add a host."""
        number = len(self.hosts) + 2
        host = Host(f"{self._bridge}h{number}", f"10.88.{self._number}.{number}")
        _ip("netns", "add", host.name)
        self.hosts.append(host)
        _ip("link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("link", "set", host.name, "master", self._bridge, "up")
        _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host.name, "link", "set", device, "up")
        return host

    def named(self, names: Iterable[str]) -> dict[str, Host]:
        """Add a host of each name, by which all of them know each other; their machine's name is their own address."""
        hosts = {name: self.host() for name in names}
        for host in hosts.values():
            lines = ["127.0.0.1 localhost", f"{host.address} {socket.gethostname()}"]
            lines += [f"{other.address} {name}" for name, other in hosts.items()]
            folder = _NAMES / host.name  # what `ip netns exec` shows as /etc
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        return hosts

    def remove(self) -> None:
        """Remove hosts and bridge, as far as they are there; a device goes with its host."""
        for host in self.hosts:
            with suppress(AssertionError):
                _ip("netns", "delete", host.name)
            shutil.rmtree(_NAMES / host.name, ignore_errors=True)
        with suppress(AssertionError):
            _ip("link", "delete", self._bridge)


def _free_network() -> int:
    """Return the number of a network that no device of this machine is in."""
    shown = subprocess.run(["ip", "-4", "-o", "address"], capture_output=True, text=True, check=True).stdout  # noqa: S607  the machine's own
    taken = {int(number) for number in re.findall(r"10\.88\.(\d+)\.", shown)}
    return (
        next(number for number in range(os.getpid() % _NETWORKS, os.getpid() % _NETWORKS + _NETWORKS) if number % _NETWORKS not in taken)
        % _NETWORKS
    )


@contextmanager
def network() -> Iterator[Network]:
    """Make a network for as long as the block lasts; skip the test where this process may not, or nothing here can."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2, for hosts of their own (Debian: apt install iproute2)")
    tried = f"lw{os.getpid()}tried"
    try:
        _ip("netns", "add", tried)
        _ip("netns", "delete", tried)
        made = Network()
    except AssertionError as error:
        pytest.skip(f"needs network namespaces, which this machine does not give: {error}")
    try:
        yield made
    finally:
        made.remove()
