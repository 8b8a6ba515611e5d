"""The listener for monitors: where metrics and health are read over HTTP."""

from __future__ import annotations

import ipaddress
from typing import Final

from kraftpy.config.quorum import Address, parse_address

METRICS: Final = "kraftpy.metrics.listener"


def parse_metrics_listener(text: str) -> Address:
    """Parse `host:port`; port 0 picks any free one. The host has to be named. Raises ConfigError."""
    host, colon, port = text.strip().rpartition(":")
    if colon and port == "0":
        return Address(parse_address(METRICS, f"{host}:1").host, 0)
    return parse_address(METRICS, text.strip())


def warn_of_metrics(text: str | None) -> str | None:
    """Return a warning if other machines can read the metrics, else None."""
    if text is None:
        return None
    address = parse_metrics_listener(text)
    if address.host.lower() == "localhost":
        return None
    try:
        if ipaddress.ip_address(address.host).is_loopback:
            return None
    except ValueError:
        pass
    return (
        f"{METRICS}: anyone who can reach {address} may read the names of topics, groups and clients, and how much "
        "they send"
    )
