"""Sets and removes quotas of users, client ids and IP addresses.

KIP-546.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, float64, int16, int32, message, string, struct


@struct
class EntityData:
    """A part of an entity; a name of null stands for the default."""

    entity_type: Annotated[str, string]
    entity_name: Annotated[str | None, string] = None


@struct
class OpData:
    """A quota to set or, with `remove`, to remove."""

    key: Annotated[str, string]
    value: Annotated[float, float64] = 0.0
    remove: Annotated[bool, boolean] = False


@struct
class EntryData:
    """An entity and the changes of its quotas."""

    entity: Annotated[list[EntityData], array] = []
    ops: Annotated[list[OpData], array] = []


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """The changes."""

    entries: Annotated[list[EntryData], array] = []
    validate_only: Annotated[bool, boolean] = False


@struct
class EntryResult:
    """The result of one entity's changes."""

    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None
    entity: Annotated[list[EntityData], array] = []


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """A result for each entity."""

    throttle_time_ms: Annotated[int, int32] = 0
    entries: Annotated[list[EntryResult], array] = []
