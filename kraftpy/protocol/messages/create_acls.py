"""Creates ACL bindings.

KIP-140, prefixed patterns KIP-290. Codes are those of `security.acls`.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, message, string, struct


@struct
class AclCreation:
    """A binding to create."""

    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]
    resource_pattern_type: Annotated[int, int8] = 3
    principal: Annotated[str, string]
    host: Annotated[str, string]
    operation: Annotated[int, int8]
    permission_type: Annotated[int, int8]


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    """The bindings."""

    creations: Annotated[list[AclCreation], array] = []


@struct
class AclCreationResult:
    """The result of one creation."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    """A result for each binding, in the order of the request."""

    throttle_time_ms: Annotated[int, int32] = 0
    results: Annotated[list[AclCreationResult], array] = []
