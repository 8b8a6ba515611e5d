"""The security of a client's connections, as data: TLS and a login. `login` builds it from options and applies it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.security.gssapi import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A SASL mechanism with its credentials: a name and password, a token, or a ticket. `repr` shows no secrets."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    is_by_token: bool = False
    """True if name and password are a delegation token's id and its HMAC in base64 (KIP-48)."""
    context: Callable[[str], Context] | None = field(default=None, repr=False)
    """Makes a GSSAPI context with the service on a host. Blocks and may raise KafkaError, as the context does."""
    token: Callable[[], str] | None = field(default=None, repr=False)
    """Gets a token for OAUTHBEARER. Blocks, and may raise KafkaError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The steps before a client's first request; none by default (PLAINTEXT)."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


PLAINTEXT = Security()
