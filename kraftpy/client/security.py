"""What a client does on a connection before it sends requests: TLS, and logging in. `login` makes and does it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A name and a password, to be proved by a mechanism. The password is not shown."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a client does before it sends requests. Nothing by default (PLAINTEXT)."""

    tls: ssl.SSLContext | None = None
    login: Login | None = None


PLAINTEXT = Security()
