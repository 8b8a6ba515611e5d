"""Writes transaction markers: sent by a transaction coordinator to the leaders of partitions.

KIP-98, KIP-890, KIP-1228 (the version of the transaction, which decides the epochs that the marker may follow).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int8, int16, int32, int64, message, string, struct


@struct
class WritableTxnMarkerTopic:
    """Partitions of a topic."""

    name: Annotated[str, string]
    partition_indexes: Annotated[list[int], array(int32)] = []


@struct
class WritableTxnMarker:
    """A transaction, its outcome, and the partitions it wrote to."""

    producer_id: Annotated[int, int64]
    producer_epoch: Annotated[int, int16]
    transaction_result: Annotated[bool, boolean]
    topics: Annotated[list[WritableTxnMarkerTopic], array] = []
    coordinator_epoch: Annotated[int, int32]
    transaction_version: Annotated[int, int8, "2+", ignorable] = 0  # KIP-1228


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest:
    """The markers for partitions that one broker leads."""

    markers: Annotated[list[WritableTxnMarker], array] = []


@struct
class WritableTxnMarkerPartitionResult:
    """The result for one partition."""

    partition_index: Annotated[int, int32]
    error_code: Annotated[int, int16] = 0


@struct
class WritableTxnMarkerTopicResult:
    """The results for one topic."""

    name: Annotated[str, string]
    partitions: Annotated[list[WritableTxnMarkerPartitionResult], array] = []


@struct
class WritableTxnMarkerResult:
    """The results for one marker."""

    producer_id: Annotated[int, int64]
    topics: Annotated[list[WritableTxnMarkerTopicResult], array] = []


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse:
    """The results, by marker."""

    markers: Annotated[list[WritableTxnMarkerResult], array] = []
