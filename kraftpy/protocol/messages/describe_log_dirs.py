"""The contents of a broker's log directories, with sizes.

KIP-113, KIP-784 (an error for the whole response), KIP-827 (bytes of the volume), KIP-1066 (cordoned directories).
"""

from __future__ import annotations

from typing import Annotated

from kraftpy.protocol.schema import array, boolean, ignorable, int16, int32, int64, message, string, struct


@struct
class DescribableLogDirTopic:
    """Partitions of a topic."""

    topic: Annotated[str, string]
    partitions: Annotated[list[int], array(int32)] = []


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    """The partitions to describe, or null for all."""

    topics: Annotated[list[DescribableLogDirTopic] | None, array] = []


@struct
class DescribeLogDirsPartition:
    """A partition and its size."""

    partition_index: Annotated[int, int32]
    partition_size: Annotated[int, int64] = 0
    offset_lag: Annotated[int, int64] = 0
    is_future_key: Annotated[bool, boolean] = False


@struct
class DescribeLogDirsTopic:
    """A topic with partitions in the directory."""

    name: Annotated[str, string]
    partitions: Annotated[list[DescribeLogDirsPartition], array] = []


@struct
class DescribeLogDirsResult:
    """A directory: an error, or the partitions in it."""

    error_code: Annotated[int, int16] = 0
    log_dir: Annotated[str, string] = ""
    topics: Annotated[list[DescribeLogDirsTopic], array] = []
    total_bytes: Annotated[int, int64, "4+", ignorable] = -1  # KIP-827
    usable_bytes: Annotated[int, int64, "4+", ignorable] = -1
    is_cordoned: Annotated[bool, boolean, "5+", ignorable] = False  # KIP-1066


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """The broker's log directories."""

    throttle_time_ms: Annotated[int, int32] = 0
    error_code: Annotated[int, int16, "3+", ignorable] = 0
    results: Annotated[list[DescribeLogDirsResult], array] = []
