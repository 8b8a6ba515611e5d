"""Pages of metrics as tests read them: over HTTP, parsed by prometheus-client's own parsers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def get(port: int, path: str, accept: str = "*/*") -> tuple[int, str, str]:
    """Return the status, the content type and the text."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers["content-type"], response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read().decode()


def health(port: int, path: str) -> tuple[int, dict[str, Any]]:
    status, content_type, text = get(port, path)
    assert content_type == "application/json"
    return status, json.loads(text)


class Scraped:
    """One page."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.types = {}
        self.samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in families:
            self.types[family.name] = family.type
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                known = self.samples.setdefault(sample.name, {})
                assert labels not in known, (sample.name, labels)
                known[labels] = sample.value

    def of(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels; there has to be one."""
        found = [
            value
            for each, value in self.samples.get(name, {}).items()
            if all(dict(each).get(label) == value for label, value in labels.items())
        ]
        assert found, (name, labels)
        return sum(found)

    def labels(self, name: str) -> set[str]:
        return {label for each in self.samples.get(name, {}) for label, _ in each}


def scraped(port: int, *, openmetrics: bool = False) -> Scraped:
    status, content_type, text = get(port, "/metrics", OPEN_METRICS if openmetrics else "*/*")
    assert status == 200
    if openmetrics:
        assert content_type.startswith("application/openmetrics-text")
        return Scraped(parse_openmetrics(text))
    assert content_type.startswith("text/plain; version=0.0.4")
    return Scraped(parse_prometheus(text))
