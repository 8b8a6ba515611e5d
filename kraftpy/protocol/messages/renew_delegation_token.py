"""Renews a delegation token, which then expires later.

KIP-48. The HMAC is the token's password, and is not shown.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import bytestring, int16, int32, int64, message


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """The token, and the time from now at which it is to expire (-1 for the default)."""

    hmac: Annotated[bytes, bytestring]
    renew_period_ms: Annotated[int, int64]

    def __repr__(self) -> str:
        return f"RenewDelegationTokenRequest(renew_period_ms={self.renew_period_ms})"


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """The time at which the token expires, or an error."""

    error_code: Annotated[int, int16] = 0
    expiry_timestamp_ms: Annotated[int, int64] = 0
    throttle_time_ms: Annotated[int, int32] = 0
