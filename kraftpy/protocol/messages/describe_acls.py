"""Lists ACL bindings.

KIP-140, prefixed patterns KIP-290. Codes are those of `security.acls`.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, message, string, struct


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    """A filter; null and ANY (1) select everything."""

    resource_type_filter: Annotated[int, int8]
    resource_name_filter: Annotated[str | None, string]
    pattern_type_filter: Annotated[int, int8] = 3
    principal_filter: Annotated[str | None, string]
    host_filter: Annotated[str | None, string]
    operation: Annotated[int, int8]
    permission_type: Annotated[int, int8]


@struct
class AclDescription:
    """One binding, without its pattern."""

    principal: Annotated[str, string]
    host: Annotated[str, string]
    operation: Annotated[int, int8]
    permission_type: Annotated[int, int8]


@struct
class DescribeAclsResource:
    """A pattern and its bindings."""

    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]
    pattern_type: Annotated[int, int8] = 3
    acls: Annotated[list[AclDescription], array] = []


@message(api_key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    """The bindings selected, by pattern."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    resources: Annotated[list[DescribeAclsResource], array] = []
