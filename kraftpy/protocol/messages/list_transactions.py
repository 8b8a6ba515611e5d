"""Lists the transactional ids that a broker coordinates.

KIP-664, KIP-994 (by duration), KIP-1152 (by a pattern for the id).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsRequest:
    """Filters: by state, by producer id, by minimum duration, or by a pattern for the id."""

    state_filters: Annotated[list[str], array(string)] = []
    producer_id_filters: Annotated[list[int], array(int64)] = []
    duration_filter: Annotated[int, int64, "1+"] = -1
    transactional_id_pattern: Annotated[str | None, string, "2+"] = None


@struct
class TransactionState:
    """One transactional id."""

    transactional_id: Annotated[str, string]
    producer_id: Annotated[int, int64] = -1
    transaction_state: Annotated[str, string] = ""


@message(api_key=66, versions="0-2", flexible="0+")
class ListTransactionsResponse:
    """The transactional ids found."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    unknown_state_filters: Annotated[list[str], array(string)] = []
    transaction_states: Annotated[list[TransactionState], array] = []
