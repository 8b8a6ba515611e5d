"""Lists the groups that a broker coordinates.

KIP-518 (filter by state), KIP-848 (filter by type).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int16, int32, message, string, struct


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """Asks for all groups, or only those in some states or of some types."""

    states_filter: Annotated[list[str], array(string), "4+"] = []  # KIP-518
    types_filter: Annotated[list[str], array(string), "5+"] = []  # KIP-848


@struct
class ListedGroup:
    """A group."""

    group_id: Annotated[str, string]
    protocol_type: Annotated[str, string] = ""
    group_state: Annotated[str, string, "4+", ignorable] = ""
    group_type: Annotated[str, string, "5+", ignorable] = ""


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that this broker coordinates."""

    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    error_code: Annotated[int, int16] = 0
    groups: Annotated[list[ListedGroup], array] = []
