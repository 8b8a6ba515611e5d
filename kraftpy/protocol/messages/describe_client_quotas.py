"""Describes the quotas that are set for users, client ids and IP addresses.

KIP-546.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, float64, int8, int16, int32, message, string, struct


@struct
class ComponentData:
    """A type of entity, and which names match: 0 exactly `match`, 1 the default, 2 any."""

    entity_type: Annotated[str, string]
    match_type: Annotated[int, int8]
    match: Annotated[str | None, string] = None


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """The filter that entities have to match; all do if it is empty and not strict."""

    components: Annotated[list[ComponentData], array] = []
    strict: Annotated[bool, boolean] = False


@struct
class EntityData:
    """A part of an entity; a name of null stands for the default."""

    entity_type: Annotated[str, string]
    entity_name: Annotated[str | None, string] = None


@struct
class ValueData:
    """A quota."""

    key: Annotated[str, string]
    value: Annotated[float, float64]


@struct
class EntryData:
    """An entity and its quotas."""

    entity: Annotated[list[EntityData], array] = []
    values: Annotated[list[ValueData], array] = []


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """The entities that match; null after an error."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    entries: Annotated[list[EntryData] | None, array] = None
