"""An object store whose n-th request fails: a proxy over HTTP in front of a real server, in a process of its own.

```
 delta-rs, Polars ──► proxy ──► S3 server        n-th GET, PUT, DELETE or listing:
                        │       503 SlowDown, 500, no answer, half of an answer, done and no answer, done and 503, late
```
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from tenacity import Retrying, stop_after_delay, wait_fixed

from tests.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is asked of a store; a HEAD counts as a GET.
REQUESTS: Final = ("GET", "LIST", "PUT", "DELETE")
#: What becomes of a request. `lost`: it is done and has no answer; `done503`: it is done and the answer is SlowDown.
FAULTS: Final = ("503", "500", "reset", "cut", "lost", "done503", "slow")
#: It is done, and the answer comes after a second.
LATE: Final = "late"
#: A request of any kind, and the put of a commit.
ANY: Final = "*"
COMMIT: Final = "COMMIT"
_BODIES: Final = {"503": b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>", "500": b""}
_CONTROL: Final = "/_failing"
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"})


class _Plan:
    """Which requests fail, and how many were seen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.request, self.fault, self.first, self.last = "", "", 0, -1
        self.seen = self.failed = 0

    def set(self, request: str, fault: str, first: int, last: int) -> None:
        with self.lock:
            self.request, self.fault, self.first, self.last, self.seen, self.failed = request, fault, first, last, 0, 0

    def fault_of(self, request: str, path: str) -> str:
        kinds = {request, ANY, COMMIT if request == "PUT" and "/_delta_log/" in path else request}
        with self.lock:
            if self.request not in kinds:
                return ""
            self.seen += 1
            if not self.first <= self.seen <= self.last:
                return ""
            self.failed += 1
            return self.fault


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    plan = _Plan()
    backend = ""

    def log_message(self, *_: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        """Answer a request, of whatever method."""
        with suppress(ConnectionError):
            super().handle_one_request()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith(_CONTROL):
            if self.command == "POST":
                self.plan.set(**json.loads(body))
            self._send(200, [], json.dumps({"seen": self.plan.seen, "failed": self.plan.failed}).encode())
            return
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        request = (
            "LIST"
            if "list-type" in query
            else "DELETE"
            if "delete" in query
            else {"HEAD": "GET", "POST": "PUT"}.get(self.command, self.command)
        )
        fault = self.plan.fault_of(request, self.path)
        if fault in _BODIES:
            self._send(int(fault), [("Content-Type", "application/xml")], _BODIES[fault])
            return
        if fault == "slow":
            time.sleep(0.3)
        if fault == "reset":
            self._reset()
            return
        status, headers, found = self._forwarded(body)
        if fault == LATE:
            time.sleep(1)
        if fault == "lost":
            self._reset()
        elif fault == "done503":
            self._send(503, [("Content-Type", "application/xml")], _BODIES["503"])
        elif fault == "cut" and found:
            self._send(status, headers, found, sent=len(found) // 2)
            self._reset()
        else:
            self._send(status, headers, found)

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.backend, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, *, sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        self.wfile.write(body[:sent])

    def _reset(self) -> None:
        """End the connection as a machine does that is gone."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RDWR)


class FailingStore:
    """A proxy that runs, in front of a server at `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        """Start it."""
        self._port = free_port()
        command = [sys.executable, "-m", "tests.failing_store", urllib.parse.urlsplit(endpoint).netloc, str(self._port)]
        self._process = subprocess.Popen(command, env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})  # noqa: S603
        self.endpoint = f"http://127.0.0.1:{self._port}"
        for attempt in Retrying(stop=stop_after_delay(30), wait=wait_fixed(0.1), reraise=True):
            with attempt:
                self._ask(None)

    @contextmanager
    def failing(self, request: str, fault: str, nth: int, *, last: int | None = None) -> Iterator[None]:
        """Let the `nth` request of a kind fail, or the `nth` to `last`, while the block runs."""
        self._ask({"request": request, "fault": fault, "first": nth, "last": nth if last is None else last})
        try:
            yield
        finally:
            self.failed = self._ask(None)["failed"]
            self._ask({"request": "", "fault": "", "first": 0, "last": -1})

    def _ask(self, plan: dict[str, Any] | None) -> dict[str, int]:
        data = None if plan is None else json.dumps(plan).encode()
        with urllib.request.urlopen(f"{self.endpoint}{_CONTROL}", data, timeout=30) as answer:  # noqa: S310  loopback
            found: dict[str, int] = json.loads(answer.read())
        return found

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


if __name__ == "__main__":
    _Proxy.backend = sys.argv[1]
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Proxy).serve_forever()
