"""Waits for a condition, with a time limit and never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

from kraftpy.client import BlockingAdmin
from kraftpy.client.model import TopicInfo
from kraftpy.protocol.errors import ErrorCode, KafkaError

BOUND_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


def eventually(condition: Callable[[], object], expected: object = "", *, seconds: float = BOUND_SECONDS) -> None:
    """Poll the condition until it holds. Fails with `expected` after the time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, expected
        time.sleep(_PAUSE_SECONDS)


def sleep_until(moment: float) -> None:
    """Sleep until this time of the monotonic clock, for what ends by the clock, such as sessions."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)


def known_topics(admin: BlockingAdmin, *topics: str) -> dict[str, TopicInfo]:
    """The topics, once the broker that is asked knows all of them: brokers learn of a new one a moment apart."""
    deadline = time.monotonic() + BOUND_SECONDS
    while True:
        try:
            return {info.name: info for info in admin.describe_topics(topics)}
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)
