"""Describes users' SCRAM credentials, without secrets.

KIP-554.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, message, string, struct


@struct
class UserName:
    """A user to describe."""

    name: Annotated[str, string]


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """The users; all for null, and for an empty list."""

    users: Annotated[list[UserName] | None, array] = None


@struct
class CredentialInfo:
    """A credential: 1 stands for SCRAM-SHA-256, 2 for SCRAM-SHA-512."""

    mechanism: Annotated[int, int8]
    iterations: Annotated[int, int32]


@struct
class DescribeUserScramCredentialsResult:
    """One user's credentials, or an error."""

    user: Annotated[str, string]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    credential_infos: Annotated[list[CredentialInfo], array] = []


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """The users' credentials."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    results: Annotated[list[DescribeUserScramCredentialsResult], array] = []
