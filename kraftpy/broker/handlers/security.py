"""SaslHandshake (17), SaslAuthenticate (36): requests of authentication where there is nothing to authenticate.

While a client proves who it is, `security.authentication` answers these. They get here on a listener without SASL, or
when the client has authenticated and its session does not expire. KIP-152, KIP-368.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from kraftpy.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from kraftpy.broker.request import RequestContext


async def sasl_handshake(
    broker: object, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Refuse: it is too late to choose a mechanism, or there is none."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


async def sasl_authenticate(
    broker: object, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """Refuse: nobody was asked for this token."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
