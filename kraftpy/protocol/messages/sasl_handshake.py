"""Chooses a SASL mechanism, before a client authenticates.

KIP-43, KIP-152 (from version 1 on, tokens travel in SaslAuthenticate; in version 0, bare).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, message, string


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeRequest:
    """The mechanism that the client wants."""

    mechanism: Annotated[str, string]


@message(api_key=17, versions="0-1", flexible="none")
class SaslHandshakeResponse:
    """Success or an error, and the mechanisms of the listener."""

    error_code: Annotated[int, int16] = 0
    mechanisms: Annotated[list[str], array(string)] = []
