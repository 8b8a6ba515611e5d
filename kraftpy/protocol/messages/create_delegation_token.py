"""Creates a delegation token, which lets its bearer log in as its owner.

KIP-48, KIP-373. The HMAC is the token's password, and is not shown.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, bytestring, ignorable, int16, int32, int64, message, string, struct


@struct
class CreatableRenewers:
    """A principal that may renew the token."""

    principal_type: Annotated[str, string]
    principal_name: Annotated[str, string]


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """The token's owner (null for the sender's principal), its renewers and its longest lifetime (-1: the default)."""

    owner_principal_type: Annotated[str | None, string, "3+"] = None
    owner_principal_name: Annotated[str | None, string, "3+"] = None
    renewers: Annotated[list[CreatableRenewers], array] = []
    max_lifetime_ms: Annotated[int, int64]


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The token, or an error."""

    error_code: Annotated[int, int16] = 0
    principal_type: Annotated[str, string] = ""
    principal_name: Annotated[str, string] = ""
    token_requester_principal_type: Annotated[str, string, "3+", ignorable] = ""
    token_requester_principal_name: Annotated[str, string, "3+", ignorable] = ""
    issue_timestamp_ms: Annotated[int, int64] = 0
    expiry_timestamp_ms: Annotated[int, int64] = 0
    max_timestamp_ms: Annotated[int, int64] = 0
    token_id: Annotated[str, string] = ""
    hmac: Annotated[bytes, bytestring] = b""
    throttle_time_ms: Annotated[int, int32] = 0

    def __repr__(self) -> str:
        return f"CreateDelegationTokenResponse(error_code={self.error_code}, token_id={self.token_id!r})"
