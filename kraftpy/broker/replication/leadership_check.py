"""Checks with a partition's followers that this broker still leads it, for answers that must not be stale.

A leader that is cut off keeps believing in its leadership until it hears of another leader. By then its knowledge may
be older than what its successor has acknowledged. So before it answers from what it knows, it makes sure that every
replica that may be elected still followed it in this leader epoch, at a moment after the question.

A follower confirms this with a Fetch that it sent after receiving a response that was sent after that moment: requests
of a session are sequential, and each one covers all partitions of the session. A follower that takes part in another
epoch drops the partition from its session, or names the new epoch. A follower that waits for records is answered at
once, without records, so that it asks again. Once it has confirmed a question, it waits for records as usual, however
long others take.

The replicas that may be elected are those of the maximal ISR. If the ISR is smaller than min.insync.replicas, others
may be elected too (KIP-966), and a follower that has died stays in the ISR for some seconds. Then the metadata quorum
is asked: a command that changes nothing follows everything decided before it, so a broker that is still the leader when
the command is applied here was the leader when it was made. That costs a write of the quorum; one command serves all
questions that wait for one.

Left out: changes that the metadata makes alone, such as an unclean election, while all followers confirm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from kraftpy.protocol.errors import KafkaError
from kraftpy.types import BrokerId

if TYPE_CHECKING:
    from kraftpy.broker.replication.fetch_sessions import PartitionKey, Session
    from kraftpy.broker.replication.replica import Replica

_LOOK_AGAIN_S: Final = 0.1


class _Question:
    """A question that waits for followers."""

    def __init__(self, replica: Replica) -> None:
        self.key: PartitionKey = replica.session_key
        self.leader_epoch = replica.leader_epoch
        self.confirmed: set[BrokerId] = set()
        self.answered: set[int] = set()
        """Sessions that received a response since the question."""
        self.changed = asyncio.Event()


class Confirmations:
    """The open questions about all partitions."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]], follower_wait_ms: int) -> None:
        """`catch_up` returns once everything decided before the call is applied here, or raises KafkaError.

        Followers wait `follower_wait_ms` for records, so each may be silent for that long with good reason.
        """
        self._catch_up = catch_up
        self._follower_wait_ms = follower_wait_ms
        self._open: dict[_Question, None] = {}
        self._catching_up = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        """The number of the last catch-up that ended; `_begun` is that of the last that began."""

    def is_awaited(self, key: PartitionKey, session: Session | None) -> bool:
        """Return whether to answer this follower at once, because its confirmation of the leadership is missing."""
        return session is not None and any(
            question.key == key and session.follower_id not in question.confirmed for question in self._open
        )

    def asked(self, session: Session | None) -> None:
        """Handle a follower's request, which has advanced its session."""
        if session is None:
            return
        for question in self._open:
            partition = session.partitions.get(question.key)
            if (
                session.id in question.answered
                and session.follower_id not in question.confirmed
                and partition is not None
                and partition.current_leader_epoch == question.leader_epoch
            ):
                question.confirmed.add(BrokerId(session.follower_id))
                question.changed.set()

    def answered(self, session: Session | None) -> None:
        """Handle the response to a follower's request, which is sent now."""
        if session is not None:
            for question in self._open:
                question.answered.add(session.id)

    async def confirm(self, replica: Replica, leadership: int, deadline: float) -> bool:
        """Return whether this broker still leads the partition in this leadership, as of this call or later.

        Returns False if it does not, or if that is unknown at the deadline, in the event loop's time.
        """
        leading = replica.leading
        if leading is not None and replica.leadership == leadership and leading.state.replicas == (leading.broker_id,):
            return True
        loop = asyncio.get_running_loop()
        question = _Question(replica)
        self._open[question] = None
        quorum: asyncio.Task[bool] | None = None
        must_ask_quorum = leading is not None and leading.is_under_min_insync_replicas
        try:
            while True:
                leading = replica.leading
                if leading is None or replica.leadership != leadership:
                    return False
                if quorum is not None and quorum.done():
                    if quorum.result():
                        return True
                    quorum = None
                missing = leading.maximal_isr - question.confirmed - {leading.broker_id}
                if not missing and not leading.is_under_min_insync_replicas:
                    return True
                if loop.time() >= deadline:
                    return False
                if quorum is None and must_ask_quorum:
                    must_ask_quorum = False
                    quorum = asyncio.create_task(self._is_up_to_date(deadline), name="ask the quorum for the leader")
                    quorum.add_done_callback(lambda _: question.changed.set())
                replica.change_reports.send()  # nothing has changed, but followers must ask again
                question.changed.clear()
                try:
                    async with asyncio.timeout_at(min(deadline, loop.time() + _LOOK_AGAIN_S)):
                        await question.changed.wait()
                except TimeoutError:
                    must_ask_quorum = True
        finally:
            del self._open[question]
            if quorum is not None:
                quorum.cancel()

    async def confirm_each(self, led: Iterable[tuple[Replica, int]], max_wait_ms: int) -> list[bool]:
        """Confirm several, for a client that waits `max_wait_ms`; wait at least as long as followers do."""
        wait_ms = max(max_wait_ms, self._follower_wait_ms)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        return await asyncio.gather(*(self.confirm(replica, leadership, deadline) for replica, leadership in led))

    async def _is_up_to_date(self, deadline: float) -> bool:
        """Return whether everything decided before this call is applied here; False if unknown at the deadline."""
        begun = self._begun
        try:
            async with asyncio.timeout_at(deadline), self._catching_up:
                if self._ended <= begun:
                    self._begun = number = self._begun + 1
                    await self._catch_up()
                    self._ended = number
        except (TimeoutError, KafkaError):
            return False
        return True
