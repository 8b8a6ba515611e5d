"""Ends a transaction.

KIP-98, KIP-360 (PRODUCER_FENCED from version 2), KIP-890 (from version 5 the producer's epoch rises with every end).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import boolean, int16, int32, int64, message, string


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnRequest:
    """Commits or aborts the transaction."""

    transactional_id: Annotated[str, string]
    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int16]
    committed: Annotated[bool, boolean]


@message(api_key=26, versions="0-5", flexible="3+")
class EndTxnResponse:
    """Confirms that the outcome is decided. From version 5 it contains the producer id and epoch to use from now on."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    producer_id: Annotated[int, int64, "5+"] = -1
    producer_epoch: Annotated[int, int16, "5+"] = -1
