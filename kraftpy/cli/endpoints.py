"""The check of `--metrics URL`, which `kraftpy top` and `kraftpy console` have."""

from __future__ import annotations

from collections.abc import Iterable

import click


def check_endpoints(endpoints: Iterable[str]) -> None:
    """Check that metrics endpoints are URLs. Raises UsageError."""
    for endpoint in endpoints:
        if not endpoint.startswith(("http://", "https://")):
            raise click.UsageError(f"--metrics {endpoint}: expected a URL such as http://127.0.0.1:9464/metrics")
