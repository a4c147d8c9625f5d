"""The status page of a service that runs, without Spark: records only if they are on, samples that outlive it."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lastword.service.service import Service
from lastword.service.settings import Settings
from tests.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def _running(folder: Path, **http: object) -> Iterator[tuple[Service, str]]:
    """Run a service with a topic, and give it and its address."""
    settings = {"log_dir": str(folder), "topics": {"fruit": {"partitions": 1}}, "http": {"listen": "127.0.0.1:0", **http}}
    service = Service(Settings.model_validate(settings))
    service.watcher.interval_seconds = 0.05
    server = service.serve()
    assert server is not None
    running = threading.Thread(target=service.run)
    running.start()
    try:
        until(lambda: service.watcher.standing.loaded and service.watcher.log_of("fruit") is not None)
        yield service, server.url
    finally:
        service.stop()
        running.join(PATIENCE_SECONDS)
        server.stop()


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310  our own
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_records_are_shown_if_the_setting_is_on_and_samples_outlive_the_service(tmp_path: Path) -> None:
    """The second service, at another port, has records off; it begins with the samples of the first, and leaves its file alone."""
    with _running(tmp_path, records=True) as (service, url):
        service.logs.topic("fruit").append([{"key": "lime", "value": "sour"}])
        status, page = _get(f"{url}/topics/fruit/records?look=key&key=lime")
        assert (status, "sour" in page) == (200, True)
        assert _get(f"{url}/topics/fruit/records?look=offset&offset=1")[0] == 400
        until(lambda: bool(service.watcher.history("fruit")))
    before = service.watcher.history("fruit")
    (file,) = (tmp_path / ".history").iterdir()
    content = file.read_bytes()
    with _running(tmp_path) as (service, url):
        assert service.watcher.history("fruit")[: len(before)] == before
        status, line = _get(f"{url}/topics/fruit/records")
        assert (status, line.startswith("records are not shown: http.records = false")) == (403, True)
        assert _get(f"{url}/topics/fruit")[0] == 200
    assert file.read_bytes() == content
    assert len(list((tmp_path / ".history").iterdir())) == 2
