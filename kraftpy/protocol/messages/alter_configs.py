"""Replaces all settings of a resource. Superseded by IncrementalAlterConfigs.

KIP-133.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, int8, int16, int32, message, string, struct


@struct
class AlterableConfig:
    """A setting and its value."""

    name: Annotated[str, string]
    value: Annotated[str | None, string] = None


@struct
class AlterConfigsResource:
    """A resource and the complete set of its new settings."""

    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]
    configs: Annotated[list[AlterableConfig], array] = []


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """The resources whose settings are replaced."""

    resources: Annotated[list[AlterConfigsResource], array] = []
    validate_only: Annotated[bool, boolean] = False


@struct
class AlterConfigsResourceResponse:
    """The result for one resource."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]


@message(api_key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """The results, by resource."""

    throttle_time_ms: Annotated[int, int32] = 0
    responses: Annotated[list[AlterConfigsResourceResponse], array] = []
