"""Deletes the ACL bindings that filters select.

KIP-140, prefixed patterns KIP-290. Codes are those of `security.acls`.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int8, int16, int32, message, string, struct


@struct
class DeleteAclsFilter:
    """A filter; null and ANY (1) select everything."""

    resource_type_filter: Annotated[int, int8]
    resource_name_filter: Annotated[str | None, string]
    pattern_type_filter: Annotated[int, int8] = 3
    principal_filter: Annotated[str | None, string]
    host_filter: Annotated[str | None, string]
    operation: Annotated[int, int8]
    permission_type: Annotated[int, int8]


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    """The filters."""

    filters: Annotated[list[DeleteAclsFilter], array] = []


@struct
class DeleteAclsMatchingAcl:
    """A binding that was deleted."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]
    pattern_type: Annotated[int, int8] = 3
    principal: Annotated[str, string]
    host: Annotated[str, string]
    operation: Annotated[int, int8]
    permission_type: Annotated[int, int8]


@struct
class DeleteAclsFilterResult:
    """The bindings that one filter selected."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    matching_acls: Annotated[list[DeleteAclsMatchingAcl], array] = []


@message(api_key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    """A result for each filter, in the order of the request."""

    throttle_time_ms: Annotated[int, int32] = 0
    filter_results: Annotated[list[DeleteAclsFilterResult], array] = []
