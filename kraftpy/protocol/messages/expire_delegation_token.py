"""Changes the time at which a delegation token expires, or removes the token.

KIP-48. The HMAC is the token's password, and is not shown.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import bytestring, int16, int32, int64, message


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """The token, and the time from now at which it is to expire (negative for at once)."""

    hmac: Annotated[bytes, bytestring]
    expiry_time_period_ms: Annotated[int, int64]

    def __repr__(self) -> str:
        return f"ExpireDelegationTokenRequest(expiry_time_period_ms={self.expiry_time_period_ms})"


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """The time at which the token expires, or an error."""

    error_code: Annotated[int, int16] = 0
    expiry_timestamp_ms: Annotated[int, int64] = 0
    throttle_time_ms: Annotated[int, int32] = 0
