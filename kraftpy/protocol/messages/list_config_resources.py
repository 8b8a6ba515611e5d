"""Lists the resources that have settings: topics, brokers, groups and more.

KIP-1142. Version 0, of KIP-714, lists client metrics only.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int8, int16, int32, message, string, struct


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """The types of resources to list."""

    resource_types: Annotated[list[int], array(int8), "1+"] = []  # empty for all types


@struct
class ConfigResource:
    """A resource that has settings, or may have."""

    resource_name: Annotated[str, string]
    resource_type: Annotated[int, int8, "1+", ignorable] = 16


@message(api_key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """The resources."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    config_resources: Annotated[list[ConfigResource], array] = []
