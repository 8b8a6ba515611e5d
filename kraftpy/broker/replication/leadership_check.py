"""Whether this broker still leads a partition, asked of its followers: for answers that must not be out of date.

A leader that is cut off goes on believing in its leadership until it hears of another. What it knows may by then be
older than what its successor has acknowledged. So before it answers from what it knows, it makes sure that at a moment
after it was asked every replica that may be elected still followed it in this leader epoch.

A follower says so with a Fetch that it sent after it had been given an answer that was sent after that moment: requests
of a session come one after the other, and each stands for all partitions of the session. Who takes part in another
epoch drops the partition from its session, or names the new epoch. A follower that waits for records is answered at
once, with nothing, so that it asks again. Once it has confirmed a question it waits for records as ever, however long
others take.

Replicas that may be elected are those of the maximal ISR. Where the ISR is smaller than min.insync.replicas others may
be (KIP-966), and a follower that has died is in the ISR for some seconds yet. Then the metadata quorum is asked: a
command that changes nothing comes behind whatever was decided before, so who leads still once it is acted upon here led
when it was made. That costs a write of the quorum; one command stands for all that wait for one.

Left out: what metadata alone decides, as an unclean election, where all followers confirm.
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
    """One that waits for followers."""

    def __init__(self, replica: Replica) -> None:
        self.key: PartitionKey = replica.news_key
        self.leader_epoch = replica.leader_epoch
        self.confirmed: set[BrokerId] = set()
        self.answered: set[int] = set()
        """Sessions that were given an answer since."""
        self.changed = asyncio.Event()


class Confirmations:
    """What waits to be confirmed, of all partitions."""

    def __init__(self, catch_up: Callable[[], Awaitable[None]], follower_wait_ms: int) -> None:
        """`catch_up` returns once all is acted upon here that was decided before it was called, or raises KafkaError.
        Followers wait `follower_wait_ms` for records, so for that long each may be silent with good reason."""
        self._catch_up = catch_up
        self._follower_wait_ms = follower_wait_ms
        self._open: dict[_Question, None] = {}
        self._catching_up = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        """The number of the last time that this broker has caught up, and of the last that was begun."""

    def is_awaited(self, key: PartitionKey, session: Session | None) -> bool:
        """Whether this follower of that partition is to be answered at once, since its word is still missing."""
        return session is not None and any(
            question.key == key and session.follower_id not in question.confirmed for question in self._open
        )

    def asked(self, session: Session | None) -> None:
        """A follower's request has come in, and its session has been moved on."""
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
        """A follower's request is answered now."""
        if session is not None:
            for question in self._open:
                question.answered.add(session.id)

    async def confirm(self, replica: Replica, leadership: int, deadline: float) -> bool:
        """Whether this broker led the partition when it was called, still in this leadership; False at the deadline,
        in the event loop's time, and where it leads no longer."""
        leading = replica.leading
        if leading is not None and replica.leadership == leadership and leading.state.replicas == (leading.broker_id,):
            return True
        loop = asyncio.get_running_loop()
        question = _Question(replica)
        self._open[question] = None
        quorum: asyncio.Task[bool] | None = None
        is_quorum_to_be_asked = leading is not None and leading.is_under_min_isr
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
                if not missing and not leading.is_under_min_isr:
                    return True
                if loop.time() >= deadline:
                    return False
                if quorum is None and is_quorum_to_be_asked:
                    is_quorum_to_be_asked = False
                    quorum = asyncio.create_task(self._is_up_to_date(deadline), name="asks the quorum who leads")
                    quorum.add_done_callback(lambda _: question.changed.set())
                replica.nudge_followers()
                question.changed.clear()
                try:
                    async with asyncio.timeout_at(min(deadline, loop.time() + _LOOK_AGAIN_S)):
                        await question.changed.wait()
                except TimeoutError:
                    is_quorum_to_be_asked = True
        finally:
            del self._open[question]
            if quorum is not None:
                quorum.cancel()

    async def confirm_each(self, led: Iterable[tuple[Replica, int]], max_wait_ms: int) -> list[bool]:
        """The same of several, for a client that waits `max_wait_ms`; at least as long as followers wait."""
        wait_ms = max(max_wait_ms, self._follower_wait_ms)
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        return await asyncio.gather(*(self.confirm(replica, leadership, deadline) for replica, leadership in led))

    async def _is_up_to_date(self, deadline: float) -> bool:
        """Whether all is acted upon here that was decided before this was called; False where that is not known in
        time."""
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
