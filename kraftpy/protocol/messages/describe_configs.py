"""The settings of topics and brokers, and the source of each.

KIP-133, KIP-226 (synonyms and sources), KIP-569 (types and documentation).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, message, string, struct


@struct
class DescribeConfigsResource:
    """A resource, and the settings to describe, or null for all."""

    resource_type: Annotated[int, int8]  # 2 topic, 4 broker, 8 broker logger, 32 group
    resource_name: Annotated[str, string]
    configuration_keys: Annotated[list[str] | None, array(string)] = []  # null for all


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    """The resources to describe."""

    resources: Annotated[list[DescribeConfigsResource], array] = []
    include_synonyms: Annotated[bool, boolean] = False
    include_documentation: Annotated[bool, boolean, "3+"] = False


@struct
class DescribeConfigsSynonym:
    """One of the sources that could supply a setting, in order of precedence."""

    name: Annotated[str, string]
    value: Annotated[str | None, string] = None
    source: Annotated[int, int8] = 0


@struct
class DescribeConfigsResourceResult:
    """A setting: its value, type and source."""

    name: Annotated[str, string]
    value: Annotated[str | None, string] = None
    read_only: Annotated[bool, boolean] = False
    config_source: Annotated[int, int8] = -1
    is_sensitive: Annotated[bool, boolean] = False
    synonyms: Annotated[list[DescribeConfigsSynonym], array] = []  # KIP-226
    config_type: Annotated[int, int8, "3+", ignorable] = 0  # KIP-569
    documentation: Annotated[str | None, string, "3+", ignorable] = None


@struct
class DescribeConfigsResult:
    """The result for one resource: an error, or its settings."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    resource_type: Annotated[int, int8]
    resource_name: Annotated[str, string]
    configs: Annotated[list[DescribeConfigsResourceResult], array] = []


@message(api_key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    """The settings, by resource."""

    throttle_time_ms: Annotated[int, int32] = 0
    results: Annotated[list[DescribeConfigsResult], array] = []
