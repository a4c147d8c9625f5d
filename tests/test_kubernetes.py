"""conf/kubernetes/lastword.yaml: valid by the schemas of Kubernetes, and in step with the Dockerfile and the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

import lastword
from lastword.service.settings import load_settings
from tests.lastword.status.standings import standing
from tests.lastword.status.test_pages import client

_ROOT: Final = Path(__file__).parents[1]
_OBJECTS: Final[dict[str, dict[str, Any]]] = {
    manifest["kind"]: manifest for manifest in yaml.safe_load_all((_ROOT / "conf" / "kubernetes" / "lastword.yaml").read_text())
}
_POD: Final[dict[str, Any]] = _OBJECTS["StatefulSet"]["spec"]["template"]["spec"]
_CONTAINER: Final[dict[str, Any]] = _POD["containers"][0]


@pytest.mark.parametrize("kind", _OBJECTS)
def test_each_object_is_valid_by_the_schemas_of_kubernetes(kind: str) -> None:
    """Unknown fields are errors, too. The newest release that the package of the schemas knows."""
    kubernetes_validate.validate(_OBJECTS[kind], kubernetes_validate.latest_version(), strict=True)


def test_the_configuration_is_one_that_the_service_takes(tmp_path: Path) -> None:
    """It is read from where the pod mounts it; log.dir is on the volume; the port is the one of the probes and of the Service."""
    file = tmp_path / _CONTAINER["args"][-1].rsplit("/", 1)[-1]
    file.write_text(_OBJECTS["ConfigMap"]["data"][file.name])
    settings = load_settings(file)
    mounts = {mount["name"]: mount["mountPath"] for mount in _CONTAINER["volumeMounts"]}

    assert _CONTAINER["args"] == ["lastword", "run", "-c", f"{mounts['config']}/{file.name}"]
    assert settings.log_dir.startswith(f"{mounts['data']}/")
    assert settings.http.listen == f"0.0.0.0:{_CONTAINER['ports'][0]['containerPort']}"
    assert _OBJECTS["Service"]["spec"]["ports"][0]["port"] == _CONTAINER["ports"][0]["containerPort"]
    assert _OBJECTS["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == "9464"


def test_the_pod_is_what_the_image_is() -> None:
    """The version of lastword, and the user of the Dockerfile, who is not root."""
    assert _CONTAINER["image"] == f"lastword:{lastword.__version__}"
    user = re.search(r"--uid (\d+) lastword", (_ROOT / "Dockerfile").read_text())
    assert user is not None
    assert _POD["securityContext"] == {"runAsNonRoot": True, "runAsUser": int(user[1]), "fsGroup": int(user[1])}


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_the_probes_ask_what_the_service_answers(probe: str) -> None:
    """A path that the service does not have would be 404."""
    answer = client(standing()).get(_CONTAINER[probe]["httpGet"]["path"])
    assert answer.status_code in {200, 503}
    assert "ok" in answer.json()


def test_one_service_runs_over_a_log_dir_and_ends_gracefully() -> None:
    """One replica, two minutes between SIGTERM and SIGKILL, as docker-compose.yml has it."""
    assert _OBJECTS["StatefulSet"]["spec"]["replicas"] == 1
    compose = yaml.safe_load((_ROOT / "docker-compose.yml").read_text())
    assert _POD["terminationGracePeriodSeconds"] == 60 * int(compose["services"]["lastword"]["stop_grace_period"].removesuffix("m"))
