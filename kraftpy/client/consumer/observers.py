"""The observers of the records that a consumer hands out: interceptors, and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kraftpy.client.interceptors import Interceptors, Records
from kraftpy.client.options import ConsumerOptions

if TYPE_CHECKING:
    from kraftpy.client.tracing import Tracing


class Observers:
    """The observers of one consumer; false if there are none."""

    def __init__(self, interceptors: Interceptors, tracing: Tracing | None, options: ConsumerOptions) -> None:
        self._interceptors = interceptors
        self._tracing = tracing
        self._client_id, self._group_id = options.client_id, options.group_id

    def __bool__(self) -> bool:
        return bool(self._interceptors) or self._tracing is not None

    def now_ns(self) -> int:
        """Return the time at which a call for records begins, as traces count it; 0 if there are none."""
        return 0 if self._tracing is None else self._tracing.now_ns()

    def consumed(self, records: Records, began_ns: int, *, is_batch: bool) -> Records:
        """Show records that are about to be handed out; return those that interceptors leave."""
        records = self._interceptors.on_consume(records)
        if self._tracing is not None:
            self._tracing.polled(records, began_ns, self._client_id, self._group_id, is_batch=is_batch)
        return records
