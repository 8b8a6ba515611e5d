"""Describes the delegation tokens that the principal may see.

KIP-48, KIP-373. The HMAC is a token's password, and is not shown.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, bytestring, ignorable, int16, int32, int64, message, string, struct


@struct
class DescribeDelegationTokenOwner:
    """An owner whose tokens are asked for."""

    principal_type: Annotated[str, string]
    principal_name: Annotated[str, string]


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """The owners; null for all."""

    owners: Annotated[list[DescribeDelegationTokenOwner] | None, array]


@struct
class DescribedDelegationTokenRenewer:
    """A principal that may renew a token."""

    principal_type: Annotated[str, string]
    principal_name: Annotated[str, string]


@struct
class DescribedDelegationToken:
    """A token."""

    principal_type: Annotated[str, string]
    principal_name: Annotated[str, string]
    token_requester_principal_type: Annotated[str, string, "3+", ignorable] = ""
    token_requester_principal_name: Annotated[str, string, "3+", ignorable] = ""
    issue_timestamp: Annotated[int, int64]
    expiry_timestamp: Annotated[int, int64]
    max_timestamp: Annotated[int, int64]
    token_id: Annotated[str, string]
    hmac: Annotated[bytes, bytestring]
    renewers: Annotated[list[DescribedDelegationTokenRenewer], array]

    def __repr__(self) -> str:
        return f"DescribedDelegationToken(token_id={self.token_id!r}, principal_name={self.principal_name!r})"


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """The tokens, or an error."""

    error_code: Annotated[int, int16] = 0
    tokens: Annotated[list[DescribedDelegationToken], array] = []
    throttle_time_ms: Annotated[int, int32] = 0
