"""SASL's mechanism PLAIN (RFC 4616): a name and a password in clear text, one message from the client.

The identity to act as must be absent or the name itself (CVE-2017-12610). Passwords are compared in constant time, also
for unknown names.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from kraftpy.security.failures import AuthenticationFailed, InvalidCredentials


def plain_message(username: str, password: str) -> bytes:
    """Return the message that logs a client in."""
    return b"\0".join((b"", username.encode(), password.encode()))


def check_plain(message: bytes, passwords: Mapping[str, str]) -> str:
    """Return the name that a client's message proves. Raises AuthenticationFailed."""
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise InvalidCredentials("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != 3:
        raise InvalidCredentials(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}")
    identity, name, password = parts
    if not name:
        raise InvalidCredentials("Authentication failed: username not specified")
    if not password:
        raise InvalidCredentials("Authentication failed: password not specified")
    expected = passwords.get(name)
    # For an unknown name, compare with a text that is never a password: these contain no NUL.
    is_right = hmac.compare_digest((expected or "\0").encode(), password.encode())
    if not is_right or not expected:
        raise AuthenticationFailed("Authentication failed: Invalid username or password")
    if identity not in ("", name):
        raise AuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    return name
