"""The security of a client's connections: TLS and a login, both before the first request. `login` carries them out."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kraftpy.security.gssapi import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A name and a password, or a token, or a ticket, to be proved by a mechanism. Nothing secret is shown."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    is_by_token: bool = False
    """Whether they are a delegation token's id and, in base64, its HMAC (KIP-48)."""
    context: Callable[[str], Context] | None = field(default=None, repr=False)
    """Makes a context of GSSAPI with the service on a host. Blocks, and may raise KafkaError, as the context does."""
    token: Callable[[], str] | None = field(default=None, repr=False)
    """Gets the token of OAUTHBEARER. Blocks, and may raise KafkaError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The steps before a client sends requests; none by default (PLAINTEXT)."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


PLAINTEXT = Security()
