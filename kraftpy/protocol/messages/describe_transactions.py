"""The state of transactions, from the coordinator of their transactional ids.

KIP-664.
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, int16, int32, int64, message, string, struct


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsRequest:
    """The transactional ids to describe."""

    transactional_ids: Annotated[list[str], array(string)] = []


@struct
class TopicData:
    """Partitions of a topic that are in the transaction and have no marker yet."""

    topic: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class TransactionState:
    """One transactional id, or an error."""

    error_code: Annotated[int, int16] = 0
    transactional_id: Annotated[str, string]
    transaction_state: Annotated[str, string] = ""
    transaction_timeout_ms: Annotated[int, int32] = 0
    transaction_start_time_ms: Annotated[int, int64] = -1
    producer_id: Annotated[int, int64] = -1
    producer_epoch: Annotated[int, int16] = -1
    topics: Annotated[list[TopicData], array] = []


@message(api_key=65, versions="0", flexible="0+")
class DescribeTransactionsResponse:
    """The described transactions."""

    throttle_time_ms: Annotated[int, int32] = 0
    transaction_states: Annotated[list[TransactionState], array] = []
