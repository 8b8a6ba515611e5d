"""Adds partitions to a transaction, before the first record is written to them.

A client names one transaction (up to version 3). A broker names several at once (from version 4), and may only want to
verify that the partitions are already part of them.

KIP-98, KIP-360 (PRODUCER_FENCED from version 2), KIP-890 (the batched form, verification).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, int16, int32, int64, message, string, struct


@struct
class AddPartitionsToTxnTopic:
    """Partitions of a topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@struct
class AddPartitionsToTxnTransaction:
    """A transaction and the partitions to add to it; with `verify_only`, those that should already be in it."""

    transactional_id: Annotated[str, string]
    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int16]
    verify_only: Annotated[bool, boolean] = False
    topics: Annotated[list[AddPartitionsToTxnTopic], array] = []


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """The transactions: several from version 4; before that, the fields of a single one."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], array, "4+"] = []
    v3_and_below_transactional_id: Annotated[str, string, "0-3"] = ""
    v3_and_below_producer_id: Annotated[int, int64, "0-3"] = 0
    v3_and_below_producer_epoch: Annotated[int, int16, "0-3"] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], array, "0-3"] = []


@struct
class AddPartitionsToTxnPartitionResult:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    partition_error_code: Annotated[int, int16] = 0


@struct
class AddPartitionsToTxnTopicResult:
    """The results for one topic."""

    name: Annotated[str, string]
    results_by_partition: Annotated[list[AddPartitionsToTxnPartitionResult], array] = []


@struct
class AddPartitionsToTxnResult:
    """The results for one transaction."""

    transactional_id: Annotated[str, string]
    topic_results: Annotated[list[AddPartitionsToTxnTopicResult], array] = []


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """The results: of several transactions from version 4; before that, of the partitions of a single one."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16, "4+"] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], array, "4+"] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], array, "0-3"] = []
