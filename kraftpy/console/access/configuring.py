"""Makes a console's access control from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from kraftpy.config import ConfigError
from kraftpy.config.console import ConsoleSettings
from kraftpy.config.quorum import Address
from kraftpy.console.access.settings import AccessSettings, OidcSettings
from kraftpy.security.acls import parse_super_users
from kraftpy.security.principal import Principal


def access_settings(
    settings: ConsoleSettings,
    client_options: Mapping[str, Any],
    address: Address,
    *,
    is_tls: bool,
    allow_changes: bool = False,
) -> AccessSettings:
    """Return the access control of a console that listens on an address. Raises ConfigError."""
    ways = settings["sign.in"]
    try:
        return AccessSettings(
            host=address.host,
            port=address.port,
            is_tls=is_tls,
            url=settings["url"],
            has_passwords="password" in ways,
            client_options=client_options,
            mechanism=settings["sasl.mechanism"],
            oidc=_oidc(settings) if "oidc" in ways else None,
            operators=_operators(settings),
            allow_changes=allow_changes,
            idle_seconds=settings["session.idle.ms"] / 1000,
            most_seconds=settings["session.max.ms"] / 1000,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _operators(settings: ConsoleSettings) -> frozenset[Principal]:
    try:
        return parse_super_users(settings["operators"])
    except ValueError as error:
        raise ConfigError(f"kraftpy.console.operators: {error}") from None


def _oidc(settings: ConsoleSettings) -> OidcSettings:
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise ConfigError(
            "kraftpy.console.sign.in has oidc, which needs the extra security (pip install 'kraftpy[security]')"
        )
    for name in ("issuer", "client.id"):
        if not settings[f"oidc.{name}"]:
            raise ConfigError(f"kraftpy.console.oidc.{name} is not set, but kraftpy.console.sign.in has oidc")
    try:
        return OidcSettings(
            issuer=settings["oidc.issuer"],
            client_id=settings["oidc.client.id"],
            client_secret=settings["oidc.client.secret"],
            scopes=settings["oidc.scopes"],
            name_claim=settings["oidc.name.claim"],
            role_claim=settings["oidc.role.claim"],
            operators=frozenset(settings["oidc.operators"]),
            viewers=frozenset(settings["oidc.viewers"]),
            trusted=settings["oidc.ssl.truststore.location"],
        )
    except ValueError as error:
        raise ConfigError(f"kraftpy.console.oidc: {error}") from None
