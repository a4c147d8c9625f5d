"""The HTTP server of the service: /metrics, /healthz, /readyz, /status.json and the status page. Read-only; the watcher holds the data.

No request starts a Spark job, and only a look at records reads storage: in a thread of its own, within limits, and only if `http.records`
is on. Other pages are rendered at most once for each standing. Templates escape every value, and the page runs only its own script
(Content-Security-Policy), so keys may contain any bytes.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from prometheus_client import exposition
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from lastword.compaction.errors import LastwordError, UnknownTopic, UserError, first_line
from lastword.compaction.moments import instant
from lastword.status import charts, drawing, health
from lastword.status.listen import parse_listen
from lastword.status.metrics import registry_of
from lastword.status.records import InvalidRequest, LooksBusy
from lastword.status.samples import ALL_TOPICS
from lastword.status.topic_list import choose_topics
from lastword.status.topic_settings import describe_settings
from lastword.status.trends import compute_trends, throughput
from lastword.status.troubles import ago, duration, troubles
from lastword.storage.files.row_files import installed_version
from lastword.text import bytes_as_text, printable, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from lastword.status.records import RecordLooks
    from lastword.status.standing import Standing
    from lastword.status.watcher import Watcher

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SHOWN: Final = 200
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
#: The headers of the page of records, which may send its forms to the service itself.
_FORMS: Final = _HEADERS | {
    "Content-Security-Policy": _HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'")
}
_RECORDS_OFF: Final = "records are not shown: http.records = false in the configuration of the service (true shows them to everybody here)"
_PICTURE: Final = _HEADERS | {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


@dataclass(slots=True, kw_only=True)
class StatusApp:
    """The pages over one watcher. `heartbeat_ms` returns the time of the last heartbeat of the service."""

    watcher: Watcher
    now_ms: Callable[[], int]
    heartbeat_ms: Callable[[], int]
    only_loopback: bool = True
    #: Reads records for the page of records; None if `http.records` is off.
    looks: RecordLooks | None = None
    _pages: dict[str, tuple[Standing, str]] = field(default_factory=dict)
    _templates: Environment = field(init=False)

    def __post_init__(self) -> None:
        """Load the templates. They escape every value, and an unknown name is an error."""
        self._templates = Environment(
            loader=PackageLoader("lastword.status"), autoescape=select_autoescape(default=True), undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters.update(size=size, instant=instant, duration=duration, shown=display_text)

    def asgi(self) -> Starlette:
        """Return the application."""
        registry = registry_of(lambda: self.watcher.standing, lambda: self.readiness().ok, self.now_ms)

        def metrics(request: Request) -> Response:
            encode, content_type = exposition.choose_encoder(request.headers.get("accept", ""))
            return Response(encode(registry), headers={"Content-Type": content_type})

        hosts = ["localhost", "127.0.0.1", "::1", "[::1]"] if self.only_loopback else ["*"]
        return Starlette(
            routes=[
                Route("/", self._overview),
                Route("/topics/{name}", self._topic),
                Route("/topics/{name}/log.svg", self._picture),
                Route("/topics/{name}/records", self._records),
                Route("/status.json", self._json),
                Route("/metrics", metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Mount("/static", StaticFiles(packages=[("lastword.status", "static")])),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
            exception_handlers={404: self._not_found},
        )

    def readiness(self) -> health.Health:
        """Return the result of /readyz."""
        return health.ready(self.watcher.standing, heartbeat_ms=self.heartbeat_ms(), now_ms=self.now_ms())

    def _healthz(self, _request: Request) -> Response:
        return _health(health.alive(self.watcher.standing, heartbeat_ms=self.heartbeat_ms(), now_ms=self.now_ms()))

    def _readyz(self, _request: Request) -> Response:
        return _health(self.readiness())

    def _json(self, _request: Request) -> Response:
        page = self._cached_page("/status.json", lambda standing: status_json(standing, self.now_ms()))
        return Response(page, headers=_HEADERS | {"Content-Type": "application/json"})

    def _overview(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if not asked:
            return self._page("/", "overview.html", self._of_overview, headers=_FORMS)
        standing = self.watcher.standing
        try:
            values = self._of_overview(standing, asked)
        except InvalidRequest as error:
            return Response(f"{error}\n", status_code=400, headers=_HEADERS, media_type="text/plain")
        page = self._templates.get_template("overview.html").render(self._common(standing) | values)
        return HTMLResponse(page, headers=_FORMS)

    def _of_overview(self, standing: Standing, asked: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
        chosen = choose_topics(standing.topics, asked)
        histories = {topic.name: self.watcher.history(topic.name) for topic in chosen.topics}
        return {
            "chosen": chosen,
            "readers": [(topic, reader) for topic in standing.topics for reader in topic.readers],
            "trends": self._draw_trends(ALL_TOPICS),
            "sparklines": {name: _safe(charts.draw_sparkline(throughput(history))) for name, history in histories.items()},
        }

    def _draw_trends(self, topic: str) -> list[tuple[str, str]]:
        """Return the title and the chart of each trend of a topic, or of all topics together."""
        trends = compute_trends(self.watcher.history(topic))
        return [(trend.title, _safe(charts.draw_trend(trend))) for trend in trends]

    def _records(self, request: Request) -> Response:
        """Look at records; a mistake, or an error of the storage, is one line."""
        if self.looks is None:
            return Response(f"{_RECORDS_OFF}\n", status_code=403, headers=_HEADERS, media_type="text/plain")
        name, asked = request.path_params["name"], dict(request.query_params)
        look, error, status = None, "", 200
        try:
            look = self.looks.look(name, asked)
        except UnknownTopic:
            return self._not_found(request)
        except (InvalidRequest, LooksBusy) as mistake:
            error, status = str(mistake), 400 if isinstance(mistake, InvalidRequest) else 503
        except Exception as failure:  # noqa: BLE001  a file that is damaged, a disk or a store that does not answer
            error, status = str(failure) if isinstance(failure, LastwordError) else first_line(failure), 500
        values = {"name": name, "look": look, "asked": asked, "error": error, "limits": self.looks.limits}
        page = self._templates.get_template("records.html").render(self._common(self.watcher.standing) | values)
        return HTMLResponse(page, status_code=status, headers=_FORMS)

    def _topic(self, request: Request) -> Response:
        name = request.path_params["name"]
        if self.watcher.standing.topic(name) is None:
            return self._not_found(request)
        return self._page(f"/topics/{name}", "topic.html", lambda standing: self._of_topic(standing, name))

    def _of_topic(self, standing: Standing, name: str) -> dict[str, Any]:
        topic = standing.topic(name)
        if topic is None:  # deleted after the request arrived
            return {"topic": None}
        return {
            "topic": topic,
            "picture": _safe(drawing.draw_topic(topic, alone=False)),
            "trends": self._draw_trends(name),
            "removed": _safe(charts.draw_removals(topic.receipts)),
            "queries": [query for query in standing.queries if query.topic == name],
            "tables": [table for table in standing.tables if table.topic == name],
            "settings": describe_settings(topic.config, topic.overrides),
        }

    def _picture(self, request: Request) -> Response:
        topic = self.watcher.standing.topic(request.path_params["name"])
        if topic is None:
            return self._not_found(request)
        return Response(drawing.draw_topic(topic), headers=_PICTURE | {"Content-Type": "image/svg+xml; charset=utf-8"})

    def _not_found(self, request: Request, _error: Exception | None = None) -> Response:
        page = self._templates.get_template("not_found.html").render(self._common(self.watcher.standing) | {"path": request.url.path})
        return HTMLResponse(page, status_code=404, headers=_HEADERS)

    def _page(
        self, path: str, template: str, values: Callable[[Standing], dict[str, Any]], *, headers: Mapping[str, str] = _HEADERS
    ) -> Response:
        def render(standing: Standing) -> str:
            return self._templates.get_template(template).render(self._common(standing) | values(standing))

        return HTMLResponse(self._cached_page(path, render), headers=headers)

    def _cached_page(self, path: str, made: Callable[[Standing], str]) -> str:
        """Return the response of a path, rendered once for each standing."""
        standing = self.watcher.standing
        known = self._pages.get(path)
        if known is None or known[0] is not standing:
            known = standing, made(standing)
            self._pages = {at: page for at, page in self._pages.items() if page[0] is standing} | {path: known}
        return known[1]

    def _common(self, standing: Standing) -> dict[str, Any]:
        now_ms = self.now_ms()
        return {
            "standing": standing,
            "version": installed_version() or "unknown",
            "now_ms": now_ms,
            "ago": lambda moment_ms: ago(moment_ms, now_ms),
            "troubles": troubles(standing, now_ms),
            "shows_records": self.looks is not None,
            "bar": lambda partition: _safe(drawing.draw_bar(partition)),
        }


def _safe(picture: str) -> Markup:
    """Return a drawing for a template as it stands: ElementTree has escaped every text in it."""
    return Markup(picture)  # noqa: S704  it is made by ElementTree


def status_json(standing: Standing, now_ms: int) -> str:
    """Return a standing and its open issues as JSON; bytes as the page shows them."""
    fields = {**_fields(standing), "troubles": troubles(standing, now_ms)}
    return json.dumps(fields, default=lambda value: _fields(value) if dataclasses.is_dataclass(value) else display_text(value))


def _fields(value: Any) -> dict[str, Any]:
    return {attribute.name: getattr(value, attribute.name) for attribute in dataclasses.fields(value)}


def display_text(value: object) -> str:
    """Return a key or a message for a page: limited in length, without control characters, bytes that are not UTF-8 as base64."""
    if value is None:
        return "–"
    return bytes_as_text(value, _SHOWN) if isinstance(value, bytes) else printable(str(value), _SHOWN)


def _health(report: health.Health) -> Response:
    return JSONResponse({"ok": report.ok, "reasons": list(report.reasons)}, status_code=200 if report.ok else 503, headers=_HEADERS)


class StatusServer:
    """Serves a status application in its own thread until `stop`."""

    def __init__(self, app: StatusApp, listen: str) -> None:
        """Bind the address immediately; raise `UserError` if it is in use."""
        host, port = parse_listen(listen)
        app.only_loopback = host in _LOOPBACK
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
            self._socket.listen(128)
        except OSError as error:
            self._socket.close()
            message = f'http.listen = "{listen}": {error.strerror}; choose another address, or "" for none'
            raise UserError(message) from error
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        config = uvicorn.Config(app.asgi(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, name="status", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._socket.close()
