"""Creates, replaces and deletes SCRAM credentials of users.

KIP-554. A password travels salted and hashed, but the hash is as good as the password to an eavesdropper: use TLS.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, bytestring, int8, int16, int32, message, string, struct


@struct
class ScramCredentialDeletion:
    """A credential to delete."""

    name: Annotated[str, string]
    mechanism: Annotated[int, int8]


@struct
class ScramCredentialUpsertion:
    """A credential to create or to replace."""

    name: Annotated[str, string]
    mechanism: Annotated[int, int8]
    iterations: Annotated[int, int32]
    salt: Annotated[bytes, bytestring]
    salted_password: Annotated[bytes, bytestring]

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """The changes; a user may be named once."""

    deletions: Annotated[list[ScramCredentialDeletion], array] = []
    upsertions: Annotated[list[ScramCredentialUpsertion], array] = []


@struct
class AlterUserScramCredentialsResult:
    """The result for one user."""

    user: Annotated[str, string]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """The results, one for each user."""

    throttle_time_ms: Annotated[int, int32] = 0
    results: Annotated[list[AlterUserScramCredentialsResult], array] = []
