"""A stream's progress as a consumer group's: committed offsets, for whoever watches lag.

The offsets are for people and their tools: a stream goes on from its checkpoint, never from here. So what fails is
logged, and tried again with a later offset, at most every `RETRY_AFTER_MS`.
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
"""A commit may not hold a batch up for longer."""


class GroupProgress:
    """Commits for a group without members. Not for several threads."""

    def __init__(self, client: ClientOptions, group_id: str) -> None:
        self._client = client
        self._group_id = group_id
        self._admin: BlockingAdmin | None = None
        self._committed: Offsets = {}
        self._not_before_ms = 0.0

    def commit(self, offsets: Offsets) -> None:
        """Commit what has changed since the last time."""
        changed = {where: offset for where, offset in offsets.items() if self._committed.get(where) != offset}
        if not changed or _now_ms() < self._not_before_ms:
            return
        try:
            if self._admin is None:
                timeouts = {"default_api_timeout_ms": LONGEST_MS, "request_timeout_ms": LONGEST_MS}
                self._admin = BlockingAdmin(**{**admin_options(self._client), **timeouts})
            self._admin.alter_group_offsets(self._group_id, changed)
        except KafkaError as error:
            logger.warning("offsets were not committed to group %r: %s", self._group_id, error)
            self._not_before_ms = _now_ms() + RETRY_AFTER_MS
            self.close()
        else:
            self._committed = dict(offsets)

    def close(self) -> None:
        """Hang up."""
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(KafkaError):
                admin.close()


def _now_ms() -> float:
    return time.monotonic() * 1000
