"""Makes a group's committed offsets part of a transaction: the partition that stores them is added to it.

KIP-98, KIP-360 (PRODUCER_FENCED from version 2), KIP-890 (no longer needed from transactions v2 on).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import int16, int32, int64, message, string


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """Announces that offsets of a group are about to be committed in this transaction."""

    transactional_id: Annotated[str, string]
    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int16]
    group_id: Annotated[str, string]


@message(api_key=25, versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """Confirms that they may be committed, or says why not."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
