"""Carries a token of a SASL mechanism.

KIP-152, KIP-368 (from version 1 on, the answer tells how long the session lasts).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import bytestring, ignorable, int16, int64, message, string


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """The client's token, which may be a secret and is not shown."""

    auth_bytes: Annotated[bytes, bytestring]

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The broker's token, or the reason why authentication failed."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    auth_bytes: Annotated[bytes, bytestring] = b""
    session_lifetime_ms: Annotated[int, int64, "1+", ignorable] = 0
    """Milliseconds until the client has to authenticate again; 0 for never."""
