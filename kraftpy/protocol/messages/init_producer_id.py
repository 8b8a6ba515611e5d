"""Assigns a producer id and epoch, to idempotent and transactional producers.

KIP-98, KIP-360 (recovery after an error), KIP-588 (fencing), KIP-890 (transactions, second part).

Left out: version 6 (two-phase commit, KIP-939), which Kafka 4.3 does not advertise either.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import int16, int32, int64, message, string


@message(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdRequest:
    """Asks for a producer id; with a transactional id, also fences the earlier owner of it."""

    transactional_id: Annotated[str | None, string] = None
    transaction_timeout_ms: Annotated[int, int32] = 60000
    producer_id: Annotated[int, int64, "3+"] = -1  # KIP-360
    producer_epoch: Annotated[int, int16, "3+"] = -1


@message(api_key=22, versions="0-5", flexible="2+")
class InitProducerIdResponse:
    """The producer id and its epoch."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16] = 0
    producer_id: Annotated[int, int64] = -1
    producer_epoch: Annotated[int, int16] = -1
