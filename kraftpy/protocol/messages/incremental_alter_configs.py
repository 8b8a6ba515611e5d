"""Changes single settings of resources.

KIP-339.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, int8, int16, int32, message, string, struct


@struct
class AlterableConfig:
    """A change: set (0), delete (1), append to a list (2), subtract from it (3)."""

    name: Annotated[str, string]
    config_operation: Annotated[int, int8]
    value: Annotated[str | None, string] = None


@struct
class AlterConfigsResource:
    """A resource and the changes to it."""

    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]
    configs: Annotated[list[AlterableConfig], array] = []


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """The changes, by resource."""

    resources: Annotated[list[AlterConfigsResource], array] = []
    validate_only: Annotated[bool, boolean] = False


@struct
class AlterConfigsResourceResponse:
    """The result for one resource."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]


@message(api_key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """The results, by resource."""

    throttle_time_ms: Annotated[int, int32] = 0
    responses: Annotated[list[AlterConfigsResourceResponse], array] = []
