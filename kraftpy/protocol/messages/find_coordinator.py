"""Finds the broker that coordinates a group or a transactional id; several at once from version 4.

KIP-98 (transactions), KIP-699 (several keys), KIP-890 (another retriable error), KIP-932 (share groups).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, ignorable, int8, int16, int32, message, string, struct


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """The keys: group ids, transactional ids, or share-group partitions."""

    key: Annotated[str, string, "0-3"] = ""
    key_type: Annotated[int, int8, "1+"] = 0  # 0 group, 1 transaction, 2 share group
    coordinator_keys: Annotated[list[str], array(string), "4+"] = []


@struct
class Coordinator:
    """The coordinator of one key, or an error."""

    key: Annotated[str, string]
    node_id: Annotated[int, int32] = -1
    host: Annotated[str, string] = ""
    port: Annotated[int, int32] = -1
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators: in single fields up to version 3, in a list from version 4."""

    throttle_time_ms: Annotated[int, int32, "1+", ignorable] = 0
    error_code: Annotated[int, int16, "0-3"] = 0
    error_message: Annotated[str | None, string, "1-3", ignorable] = None
    node_id: Annotated[int, int32, "0-3"] = 0
    host: Annotated[str, string, "0-3"] = ""
    port: Annotated[int, int32, "0-3"] = 0
    coordinators: Annotated[list[Coordinator], array, "4+"] = []
