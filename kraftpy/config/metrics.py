"""The listener for monitors: where metrics and health are read over HTTP or HTTPS.

Its TLS settings are those of a listener named METRICS (`security.metrics_tls`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final

from kraftpy.config.quorum import Address, parse_address

METRICS: Final = "kraftpy.metrics.listener"
USERS: Final = "kraftpy.metrics.users.file"
OPEN_HEALTH: Final = "kraftpy.metrics.open.health"
LISTENER: Final = "METRICS"
"""The name of the listener whose TLS settings apply."""
_HTTPS: Final = "https://"


def parse_metrics_listener(text: str) -> Address:
    """Parse `host:port`, with http:// or https:// or without; port 0 picks any free one. Raises ConfigError."""
    text = text.strip().removeprefix("http://").removeprefix(_HTTPS)
    host, colon, port = text.rpartition(":")
    if colon and port == "0":
        return Address(parse_address(METRICS, f"{host}:1").host, 0)
    return parse_address(METRICS, text)


def is_https(text: str | None) -> bool:
    """Return whether there is a listener, and it has TLS."""
    return text is not None and text.strip().startswith(_HTTPS)


def url_on_this_machine(text: str | None, port: int, *, asks_for_login: bool) -> str | None:
    """Return the URL at which programs on this machine read the metrics of a listener that is open on a port.

    None without a listener, and if more than the URL is needed: a login, or the authorities to trust.
    """
    if text is None or is_https(text) or asks_for_login:
        return None
    host = parse_metrics_listener(text).host
    try:
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "::1" if address.version == 6 else "127.0.0.1"
    except ValueError:
        pass  # a name
    return f"http://{Address(host, port)}/metrics"


def why_without_effect(name: str, given: Collection[str]) -> str | None:
    """Explain why a setting of the listener has no effect besides those that are given; None if it has one."""
    if name in (USERS, OPEN_HEALTH) and METRICS not in given:
        return f"{METRICS} is not set"
    if name == OPEN_HEALTH and USERS not in given:
        return f"{USERS} is not set, so that no login is asked for"
    return None


def why_metrics_are_exposed(text: str | None, *, has_login: bool, proves_clients: bool) -> str | None:
    """Return a warning if other machines can read the metrics, or the passwords of monitors, else None.

    `proves_clients`: monitors have to show a certificate.
    """
    if text is None:
        return None
    address = parse_metrics_listener(text)
    if _is_loopback(address.host):
        return None
    if has_login and not is_https(text):
        return f"{METRICS}: anyone on the way to {address} may read the passwords of monitors: use https://"
    if has_login or proves_clients:
        return None
    return (
        f"{METRICS}: anyone who can reach {address} may read the names of topics, groups and clients, and how much "
        "they send"
    )


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
