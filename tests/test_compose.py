"""docker-compose.yml and Dockerfile, as far as that goes without Docker: what they name is there, and nothing is open to the network."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec.models import ComposeSpecification

from lastword.service.settings import load_settings
from lastword.spark.object_store import storage_options

_ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file, with its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load((_ROOT / "docker-compose.yml").read_text())
    return found


def test_it_is_a_compose_file(compose: dict[str, Any]) -> None:
    """By a model of the Compose Specification: unknown members and wrong types are errors."""
    assert set(ComposeSpecification.model_validate(compose).services or ()) == set(compose["services"])


def test_every_file_volume_and_service_that_is_named_is_there(compose: dict[str, Any]) -> None:
    """Mounted files, named volumes, dependencies; images by version."""
    services = compose["services"]
    assert {"kafka", "spark-master", "spark-worker-1", "spark-worker-2", "lastword", "store", "prometheus", "grafana"} <= set(services)
    for name, service in services.items():
        for mounted in service.get("volumes", ()):
            source = mounted.split(":")[0]
            assert (_ROOT / source).is_file() if source.startswith("./") else source in compose["volumes"], (name, source)
        assert set(service.get("depends_on", ())) <= set(services), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), (name, port)
        if "build" not in service:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name


def test_the_service_finds_in_the_network_what_its_configuration_names(compose: dict[str, Any]) -> None:
    """Hosts and ports of conf/compose/lastword.toml, of Prometheus and of Grafana are services; delta-rs uses the same store."""
    services = compose["services"]
    settings = load_settings(_ROOT / "conf" / "compose" / "lastword.toml")
    spark = settings.spark
    named = [spark["spark.master"], spark["spark.hadoop.fs.s3a.endpoint"], settings.sources[0].model_dump()["bootstrap_servers"]]
    named += yaml.safe_load((_ROOT / "conf" / "compose" / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ]
    named += [yaml.safe_load((_ROOT / "conf" / "compose" / "grafana" / "datasource.yml").read_text())["datasources"][0]["url"]]
    for address in named:
        assert re.sub(r"^\w+://|:\d+$", "", address) in services, address
    assert settings.http.listen.endswith(":9464")
    assert set(settings.topics) == {"orders"}
    assert services["lastword"]["ports"] == ["127.0.0.1:9464:9464"]
    assert storage_options(spark) == {
        "AWS_ENDPOINT_URL": "http://store:7070",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
        "aws_conditional_put": "etag",
    }
    assert json.loads((_ROOT / "conf" / "grafana-dashboard.json").read_text())["uid"] == "lastword"


def test_the_image_copies_what_is_there_and_does_not_run_as_root() -> None:
    """What .dockerignore lets through is what is copied."""
    lines = (_ROOT / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    assert all((_ROOT / name).exists() for name in copied)
    let_through = {line[1:] for line in (_ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_through
    assert [line for line in lines if line.startswith("USER")] == ["USER lastword"]
    assert any(line.startswith("HEALTHCHECK") for line in lines)


def test_options_of_delta_rs_are_those_of_spark() -> None:
    """Keys, endpoint with and without a scheme, nothing where Spark is told nothing."""
    s3a = "spark.hadoop.fs.s3a."
    assert storage_options({"spark.driver.memory": "1g"}) == {}
    found = storage_options({f"{s3a}access.key": "a", f"{s3a}secret.key": "b", f"{s3a}endpoint": "store:9000"})
    assert found["AWS_ENDPOINT_URL"] == "https://store:9000"
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"], "AWS_ALLOW_HTTP" in found) == ("a", "b", False)
    plain = storage_options({f"{s3a}endpoint": "store:9000", f"{s3a}connection.ssl.enabled": "false"})
    assert (plain["AWS_ENDPOINT_URL"], plain["AWS_ALLOW_HTTP"]) == ("http://store:9000", "true")
