"""Adds partitions to topics.

KIP-195, KIP-599 (quotas).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, int16, int32, message, string, struct


@struct
class CreatePartitionsAssignment:
    """The replicas of a new partition."""

    broker_ids: Annotated[list[int], array(int32)] = []


@struct
class CreatePartitionsTopic:
    """A topic, its new total number of partitions, and the replicas of the added ones."""

    name: Annotated[str, string]
    count: Annotated[int, int32]
    assignments: Annotated[
        list[CreatePartitionsAssignment] | None, array
    ] = []  # of the added ones; null: the brokers choose


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """The topics that get more partitions."""

    topics: Annotated[list[CreatePartitionsTopic], array] = []
    timeout_ms: Annotated[int, int32] = 60000
    validate_only: Annotated[bool, boolean] = False


@struct
class CreatePartitionsTopicResult:
    """The result for one topic."""

    name: Annotated[str, string]
    error_code: Annotated[int, int16] = 0
    error_message: Annotated[str | None, string] = None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """The results, by topic."""

    throttle_time_ms: Annotated[int, int32] = 0
    results: Annotated[list[CreatePartitionsTopicResult], array] = []
