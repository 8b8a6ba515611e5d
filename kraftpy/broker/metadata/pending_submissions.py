"""The commands that this node has submitted to the metadata log and that are not decided yet.

    command -> submission [node, nonce, sequence, command] -> the quorum's leader -> applied on this node -> resolved

A submission is sent again, to the current leader, until it is applied on this node. Its nonce (new at each start) and
sequence let every node apply it once (`metadata.submissions`). A change of leader therefore costs a caller only time.

Invariant: at most `_MOST_PENDING` are in flight, fewer than the sequences that every node remembers.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kraftpy.metadata.decision import Applied, Decision
from kraftpy.metadata.submissions import SubmissionId, encode_submission
from kraftpy.ports import Clock
from kraftpy.protocol.errors import ErrorCode, KafkaError

_MOST_PENDING = 256
_RESEND_MS = 500


@dataclass(slots=True)
class _Pending:
    """A submission in flight."""

    data: bytes
    decided: asyncio.Future[Decision[Any]]
    sent_ms: int | None = None


class PendingSubmissions:
    """This node's submissions in flight. `send` passes one to the quorum's leader, if there is one."""

    def __init__(self, node_id: int, clock: Clock, send: Callable[[bytes], None]) -> None:
        self._node_id = node_id
        self._clock = clock
        self._send = send
        self._nonce = os.urandom(16)
        self._sequences = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._room = asyncio.Semaphore(_MOST_PENDING)

    def __len__(self) -> int:
        return len(self._pending)

    async def decided(self, command: bytes) -> Decision[Any]:
        """Submit an encoded command and return its decision. Raises KafkaError."""
        async with self._room:
            sequence = next(self._sequences)
            submission = SubmissionId(node_id=self._node_id, nonce=self._nonce, sequence=sequence)
            decided: asyncio.Future[Decision[Any]] = asyncio.get_running_loop().create_future()
            pending = self._pending[sequence] = _Pending(encode_submission(submission, command), decided)
            try:
                self._send_now(pending)
                return await decided
            finally:
                self._pending.pop(sequence, None)

    def _send_now(self, pending: _Pending) -> None:
        pending.sent_ms = self._clock.monotonic_ms()
        self._send(pending.data)

    def send_all(self) -> None:
        """Send every submission again: there is a new leader, or a new connection to it."""
        for pending in [*self._pending.values()]:
            self._send_now(pending)

    async def send_overdue(self) -> None:
        """Send each submission again after `_RESEND_MS` without a decision; this never returns."""
        while True:
            await asyncio.sleep(_RESEND_MS / 1000)
            now = self._clock.monotonic_ms()
            for pending in [*self._pending.values()]:
                if pending.sent_ms is None or now - pending.sent_ms >= _RESEND_MS:
                    self._send_now(pending)

    def resolve(self, applied: Applied, *, is_acted_on: bool) -> None:
        """Give the decision to its submitter, if that is this process."""
        submission = applied.submission
        if submission is None or submission.nonce != self._nonce:
            return
        pending = self._pending.get(submission.sequence)
        if pending is None or pending.decided.done():
            return
        if applied.is_duplicate:  # the decision came within a snapshot
            message = "The request was decided, but this broker does not know its result."
            pending.decided.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, message))
        elif not is_acted_on:
            message = "The request was decided, but this broker could not act on it yet."
            pending.decided.set_exception(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message))
        else:
            pending.decided.set_result(applied.decision)

    def fail_all(self, error: ErrorCode, message: str) -> None:
        """Fail every submission; each may still turn out to be decided."""
        for pending in self._pending.values():
            if not pending.decided.done():
                pending.decided.set_exception(KafkaError(error, message))
