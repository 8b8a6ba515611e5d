"""The listener for monitors: where metrics and health are read over HTTP or HTTPS, and by whom.

Its TLS settings are those of a listener named METRICS: `listener.name.metrics.ssl.keystore.location` and so on, and
where these are missing, the plain ones. As for Kafka's listeners with SASL, the plain `ssl.client.auth` does not apply
if monitors log in.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from kraftpy.config.quorum import Address, parse_address
from kraftpy.config.settings import ConfigError

if TYPE_CHECKING:
    from kraftpy.config.broker import BrokerConfig
    from kraftpy.config.security import TlsSettings

METRICS: Final = "kraftpy.metrics.listener"
USERS: Final = "kraftpy.metrics.users.file"
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


def metrics_tls(config: BrokerConfig) -> TlsSettings | None:
    """Return the TLS settings of the listener for monitors; None if it has no TLS. Raises ConfigError."""
    text = config.kraftpy_metrics_listener
    if text is None or not text.strip().startswith(_HTTPS):
        return None
    if any(listener.name == LISTENER for listener in config.listeners):
        raise ConfigError(f"{METRICS}: a listener for clients is named {LISTENER}, and would share its TLS settings")
    from kraftpy.config.security import tls_of

    tls = tls_of(config.given, LISTENER, has_login=config.kraftpy_metrics_users_file is not None)
    if tls.keys is None:
        raise ConfigError(
            f"{METRICS} is https, but neither listener.name.metrics.ssl.keystore.location nor .key is set"
        )
    return tls


def warn_of_metrics(config: BrokerConfig) -> str | None:
    """Return a warning if other machines can read the metrics, or the passwords of monitors, else None."""
    text = config.kraftpy_metrics_listener
    if text is None:
        return None
    address = parse_metrics_listener(text)
    if _is_loopback(address.host):
        return None
    tls, has_login = metrics_tls(config), config.kraftpy_metrics_users_file is not None
    if has_login and tls is None:
        return f"{METRICS}: anyone on the way to {address} may read the passwords of monitors: use https://"
    if has_login or (tls is not None and tls.client_auth == "required"):
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
