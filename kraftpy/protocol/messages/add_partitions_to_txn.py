"""Make partitions part of a transaction, before the first record is written to them.

Clients ask for one transaction (up to version 3), brokers for several at once (from version 4), and may only ask
whether the partitions are part of it already.

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
    """A transaction, and what becomes part of it; with `verify_only` what should be."""

    transactional_id: Annotated[str, string]
    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int16]
    verify_only: Annotated[bool, boolean] = False
    topics: Annotated[list[AddPartitionsToTxnTopic], array] = []


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    """Several transactions from version 4, the fields of one before."""

    transactions: Annotated[list[AddPartitionsToTxnTransaction], array, "4+"] = []
    v3_and_below_transactional_id: Annotated[str, string, "0-3"] = ""
    v3_and_below_producer_id: Annotated[int, int64, "0-3"] = 0
    v3_and_below_producer_epoch: Annotated[int, int16, "0-3"] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], array, "0-3"] = []


@struct
class AddPartitionsToTxnPartitionResult:
    """What came of one partition."""

    partition_index: Annotated[int, int32]
    partition_error_code: Annotated[int, int16] = 0


@struct
class AddPartitionsToTxnTopicResult:
    """A topic."""

    name: Annotated[str, string]
    results_by_partition: Annotated[list[AddPartitionsToTxnPartitionResult], array] = []


@struct
class AddPartitionsToTxnResult:
    """A transaction."""

    transactional_id: Annotated[str, string]
    topic_results: Annotated[list[AddPartitionsToTxnTopicResult], array] = []


@message(api_key=24, versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    """Several transactions from version 4, the partitions of one before."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16, "4+"] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], array, "4+"] = []
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], array, "0-3"] = []
