"""Searches a replica's log by time, in steps between which others run.

The replica may have lost its leadership or its log between two steps. Then the search ends with the error that a new
request would get; it never returns an offset of another leadership.
"""

from __future__ import annotations

from kraftpy.broker.replication.replica import Replica
from kraftpy.log import time_search
from kraftpy.log.results import TimestampAndOffset
from kraftpy.log.segment import CorruptSegment
from kraftpy.log.work import Work
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import Millis, Offset


def search_timestamp(replica: Replica, timestamp: Millis, end_offset: Offset) -> Work[TimestampAndOffset | None]:
    """Return the work that finds the first record of that time or later, before `end_offset`.

    Raises KafkaError as `Replica.read` does, and NOT_LEADER_OR_FOLLOWER if the log is lost between two steps.
    """
    return _checked(replica, time_search.search_timestamp(replica.log, timestamp, end_offset=end_offset))


def search_max_timestamp(replica: Replica) -> Work[TimestampAndOffset | None]:
    """Return the work that finds the first record with the largest timestamp. Raises as `search_timestamp`."""
    return _checked(replica, time_search.search_max_timestamp(replica.log))


def _checked(replica: Replica, work: Work[TimestampAndOffset | None]) -> Work[TimestampAndOffset | None]:
    log, leadership = replica.log, replica.leadership
    try:
        step = next(work)
        while True:
            result = yield step
            if replica.is_offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{replica.topic_partition} is offline")
            is_lost = log is not replica.log or log.is_closed or replica.operations.is_truncating
            if is_lost or replica.leadership != leadership:
                message = f"{replica.topic_partition} is led by another broker"
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
            step = work.send(result)
    except StopIteration as done:
        found: TimestampAndOffset | None = done.value
        return found
    except OSError as error:
        raise replica.errors.failed("read", error) from error
    except CorruptSegment as damage:
        raise replica.errors.damaged(damage) from damage
