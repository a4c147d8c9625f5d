"""What a service shows at /metrics."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def samples(url: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Return the labels and the value of each series of a name; `url` is the service's."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:  # noqa: S310  loopback
        families = text_string_to_metric_families(answer.read().decode())
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == name]
