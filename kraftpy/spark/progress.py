"""Commit a stream's progress in a consumer group, so that people and tools can watch its lag.

A stream continues from its checkpoint, never from these offsets. A failed commit is therefore only logged, and tried
again with a later offset, at most every `RETRY_AFTER_MS`.
"""

from __future__ import annotations

import contextlib
import logging
import time

from kraftpy.client.blocking.facade import BlockingAdmin
from kraftpy.protocol.errors import KafkaError
from kraftpy.spark.client_options import ClientOptions
from kraftpy.spark.lookup import admin_options
from kraftpy.spark.offsets import Offsets

logger = logging.getLogger("kraftpy.spark")

RETRY_AFTER_MS = 5_000
LONGEST_MS = 3_000
"""The longest that a commit may delay a batch."""


class GroupProgress:
    """Commits for a group without members. Not thread-safe."""

    def __init__(self, client: ClientOptions, group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._admin: BlockingAdmin | None = None
        self._committed: Offsets = {}
        self._not_before_ms = 0.0

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets that changed since the last call."""
        changed = {where: offset for where, offset in offsets.items() if self._committed.get(where) != offset}
        if not changed or _now_ms() < self._not_before_ms:
            return
        try:
            if self._admin is None:
                timeouts = {"default_api_timeout_ms": LONGEST_MS, "request_timeout_ms": LONGEST_MS}
                self._admin = BlockingAdmin(**{**admin_options(self._client), **timeouts})
            self._admin.alter_group_offsets(self._group_id, changed)
        except KafkaError as error:
            logger.warning("cannot commit offsets for group %r: %s", self._group_id, error)
            self._not_before_ms = _now_ms() + RETRY_AFTER_MS
            self.close()
        else:
            self._committed = dict(offsets)

    def close(self) -> None:
        """Close the connection."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(KafkaError):
                admin.close()


def _now_ms() -> float:
    return time.monotonic() * 1000
