"""The settings of the console's access control, as data; `kraftpy.config.console` reads them from texts.

Invariants, checked when they are made (ValueError):
- A console that listens beyond this machine demands a sign-in.
- Without a sign-in, everyone is a viewer, unless `allow_changes` makes everyone an operator.
- An identity provider is at an https URL; http is for one on this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from kraftpy.security.principal import Principal

EVERYONE: Final = "*"
"""Stands for every value of a role claim, even none."""
PASSWORD_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""The SASL mechanisms with a name and a password."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host: a loopback address, or localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def origin_of(url: str) -> str:
    """Return the origin of a URL as browsers write it: scheme, host, and a port that is not the scheme's own.

    Raises ValueError for a URL without a scheme of http or https, or without a host.
    """
    parts = urlsplit(url)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"expected a URL that begins with https:// or http://, not {url!r}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    is_usual = parts.port in (None, _DEFAULT_PORTS[parts.scheme])
    return f"{parts.scheme}://{host}" + ("" if is_usual else f":{parts.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """An OpenID Connect provider, and what its claims mean. `repr` shows no secrets."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    """None for a public client, which proves itself by PKCE alone."""
    scopes: tuple[str, ...] = ("openid", "profile")
    name_claim: str = "sub"
    role_claim: str = "groups"
    """The claim with the user's groups or roles; dots lead into nested claims."""
    operators: frozenset[str] = frozenset()
    """The values of the role claim that make an operator."""
    viewers: frozenset[str] = frozenset()
    """Those that make a viewer; a user with no value of either is not let in."""
    trusted: str | None = None
    """A PEM file with the authorities to trust for the provider's server; None for the system's."""

    def __post_init__(self) -> None:
        check_provider_url("the issuer", self.issuer)
        if "openid" not in self.scopes:
            raise ValueError("the scopes lack openid")
        if not self.client_id:
            raise ValueError("the client id is empty")
        if not self.operators and not self.viewers:
            raise ValueError("neither a role of viewers nor one of operators is named, so nobody would be let in")


def check_provider_url(what: str, url: str) -> None:
    """Check that a URL of an identity provider is safe from eavesdroppers. Raises ValueError."""
    origin = urlsplit(origin_of(url))
    if origin.scheme != "https" and not is_loopback(origin.hostname or ""):
        raise ValueError(f"{what} is not at an https URL: {url!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """The settings of one console's access control."""

    host: str = "127.0.0.1"
    """The address that the console listens on; empty for all."""
    port: int = 0
    """The port in the names of cookies, which browsers share among all ports of a host."""
    is_tls: bool = False
    url: str | None = None
    """The URL in the users' browsers, if it is another than that of the listener: behind a proxy, for example."""
    has_passwords: bool = False
    """True if users sign in with their names and passwords in the cluster."""
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The options with which a client of the cluster connects; a user's name and password are added to them."""
    mechanism: str = "SCRAM-SHA-512"
    """The SASL mechanism that tries a user's password."""
    oidc: OidcSettings | None = None
    operators: frozenset[Principal] = frozenset()
    """The operators among the users who sign in with a password."""
    allow_changes: bool = False
    """True if everyone is an operator, without a sign-in."""
    idle_seconds: float = 1_800.0
    most_seconds: float = 43_200.0

    def __post_init__(self) -> None:
        if self.url is not None:
            origin_of(self.url)
            if urlsplit(self.url).path not in ("", "/"):
                raise ValueError(f"the console is at the root of a host, and its URL has a path: {self.url!r}")
        if not self.has_sign_in and not is_loopback(self.host):
            raise ValueError(
                f"the console listens on {self.host or 'all addresses'}, beyond this machine, and so needs a sign-in"
            )
        if self.has_passwords and self.client_options.get("security_protocol") not in ("SASL_PLAINTEXT", "SASL_SSL"):
            raise ValueError("a sign-in with passwords needs a listener of the cluster with SASL_PLAINTEXT or SASL_SSL")
        if self.mechanism not in PASSWORD_MECHANISMS:
            raise ValueError(f"the mechanism is one of {', '.join(PASSWORD_MECHANISMS)}, not {self.mechanism}")
        if self.allow_changes and self.has_sign_in:
            raise ValueError("changes by everyone are allowed, although there is a sign-in: name the operators instead")

    def on_port(self, port: int) -> AccessSettings:
        """Return the settings of a console that listens on this port."""
        return replace(self, port=port)

    @property
    def has_sign_in(self) -> bool:
        """True if only users who have signed in see anything."""
        return self.has_passwords or self.oidc is not None

    @property
    def is_secure(self) -> bool:
        """True if browsers reach the console over TLS, its own or a proxy's."""
        return self.is_tls or (self.url is not None and self.url.startswith("https:"))
