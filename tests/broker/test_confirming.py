"""A leader that asks its followers whether it still leads: whose word counts, and which words do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from lone_replicas import TOPIC_ID, lead, lone_replica

from kraftpy.broker.replication.fetch_sessions import FetchedPartition, PartitionKey, Session
from kraftpy.broker.replication.leadership_check import Confirmations
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.waiting import ChangedKeys
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import Millis

KEY = ("", TOPIC_ID, 0)
EPOCH = 5


def _replica(*isr: int, replicas: tuple[int, ...] = (1, 2, 3), min_insync_replicas: int = 1) -> Replica:
    replica = lead(lone_replica(), *isr, replicas=replicas, leader_epoch=EPOCH, min_insync_replicas=min_insync_replicas)
    replica.leadership = 7
    return replica


def _session(number: int, follower: int, epoch: int = EPOCH) -> Session:
    partition = FetchedPartition(
        topic="",
        topic_id=TOPIC_ID,
        partition=0,
        fetch_offset=0,
        max_bytes=1,
        current_leader_epoch=epoch,
        last_fetched_epoch=-1,
    )
    return Session(
        id=number,
        epoch=1,
        uses_topic_ids=True,
        partitions={KEY: partition},
        created_at=Millis(0),
        used_at=Millis(0),
        follower_id=follower,
    )


async def _out_of_reach() -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER, "the quorum is out of reach")


def _confirmations(catch_up: Callable[[], Awaitable[None]] = _out_of_reach) -> Confirmations:
    return Confirmations(catch_up, 500)


async def _asks(confirmations: Confirmations, replica: Replica, seconds: float = 30.0) -> asyncio.Task[bool]:
    """A question that is open when this returns."""
    deadline = asyncio.get_running_loop().time() + seconds
    task = asyncio.create_task(confirmations.confirm(replica, 7, deadline))
    await asyncio.sleep(0)
    return task


def _again(confirmations: Confirmations, session: Session) -> None:
    """The follower has an answer, and asks again."""
    confirmations.answered(session)
    confirmations.asked(session)


async def test_it_leads_when_all_in_sync_say_so() -> None:
    confirmations = _confirmations()
    task = await _asks(confirmations, _replica(1, 2, 3))
    assert confirmations.is_awaited(KEY, _session(10, 2))
    assert not confirmations.is_awaited(("", b"topic", 1), _session(10, 2))
    _again(confirmations, _session(10, 2))
    await asyncio.sleep(0.01)
    assert not task.done(), "one of two"
    _again(confirmations, _session(11, 3))
    assert await task
    assert not confirmations.is_awaited(KEY, _session(10, 2))


async def test_who_has_confirmed_is_not_asked_again_while_others_are_waited_for() -> None:
    """Otherwise it would fetch as often as the network lets it, while the others are silent."""
    confirmations, replica = _confirmations(), _replica(1, 2, 3)
    task = await _asks(confirmations, replica, seconds=0.3)
    quick = _session(10, 2)
    _again(confirmations, quick)
    await asyncio.sleep(0)
    assert not confirmations.is_awaited(KEY, quick)
    assert confirmations.is_awaited(KEY, _session(11, 3))
    nudges: ChangedKeys[PartitionKey] = ChangedKeys()
    replica.change_reports.add(nudges)
    for _ in range(100):
        _again(confirmations, quick)
        await asyncio.sleep(0)
    assert not len(nudges), "it says nothing new"
    assert not await task


async def test_who_has_no_session_cannot_confirm_and_is_not_hurried() -> None:
    confirmations = _confirmations()
    task = await _asks(confirmations, _replica(1, 2), seconds=0.2)
    assert not confirmations.is_awaited(KEY, None)
    assert not await task


async def test_nobody_else_has_the_partition() -> None:
    assert await _confirmations().confirm(_replica(1, replicas=(1,)), 7, 0.0)


async def test_who_is_not_in_sync_is_not_asked() -> None:
    confirmations = _confirmations()
    task = await _asks(confirmations, _replica(1, 2))
    _again(confirmations, _session(10, 2))
    assert await task


async def test_a_request_that_may_be_from_before_the_question_proves_nothing() -> None:
    confirmations = _confirmations()
    session = _session(10, 2)
    confirmations.answered(session)
    task = await _asks(confirmations, _replica(1, 2), seconds=0.2)
    confirmations.asked(session)  # it may have been on its way
    confirmations.asked(None)
    confirmations.answered(None)
    assert not await task


async def test_an_answer_of_another_session_proves_nothing() -> None:
    confirmations = _confirmations()
    task = await _asks(confirmations, _replica(1, 2), seconds=0.2)
    confirmations.answered(_session(10, 2))
    confirmations.asked(_session(11, 2))
    assert not await task


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
async def test_who_follows_in_another_epoch_proves_nothing(epoch: int) -> None:
    confirmations = _confirmations()
    task = await _asks(confirmations, _replica(1, 2), seconds=0.2)
    _again(confirmations, _session(10, 2, epoch))
    assert not await task


async def test_who_has_left_the_partition_proves_nothing() -> None:
    confirmations = _confirmations()
    task = await _asks(confirmations, _replica(1, 2), seconds=0.2)
    session = _session(10, 2)
    confirmations.answered(session)
    session.partitions.clear()
    confirmations.asked(session)
    assert not await task


class _Quorum:
    """A quorum that decides when the test asks for it."""

    def __init__(self) -> None:
        self._asked: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._asked)

    async def catch_up(self) -> None:
        self._asked.append(asyncio.get_running_loop().create_future())
        await self._asked[-1]

    async def asked(self, number: int = 1) -> asyncio.Future[None]:
        """Wait for the first, second, ... request and return the future that answers it."""
        async with asyncio.timeout(10):
            while len(self._asked) < number:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.001)
        return self._asked[number - 1]


def _short_of_replicas() -> Replica:
    return _replica(1, min_insync_replicas=2)


async def test_where_too_few_are_in_sync_the_quorum_is_asked() -> None:
    quorum = _Quorum()
    task = await _asks(_confirmations(quorum.catch_up), _short_of_replicas())
    (await quorum.asked()).set_result(None)
    assert await task


async def test_where_a_follower_is_silent_the_quorum_is_asked() -> None:
    quorum = _Quorum()
    task = await _asks(_confirmations(quorum.catch_up), _replica(1, 2, 3))
    (await quorum.asked()).set_result(None)
    assert await task


async def test_where_followers_answer_the_quorum_is_left_in_peace() -> None:
    quorum = _Quorum()
    confirmations = _confirmations(quorum.catch_up)
    task = await _asks(confirmations, _replica(1, 2))
    _again(confirmations, _session(10, 2))
    assert await task
    assert not len(quorum)


async def test_a_follower_that_answers_after_all_is_enough() -> None:
    quorum = _Quorum()
    confirmations = _confirmations(quorum.catch_up)
    task = await _asks(confirmations, _replica(1, 2))
    asked = await quorum.asked()
    _again(confirmations, _session(10, 2))
    assert await task
    await asyncio.sleep(0)
    assert asked.cancelled(), "nobody waits for it any more"


async def test_a_leadership_that_the_quorum_has_ended_is_not_confirmed() -> None:
    quorum, replica = _Quorum(), _short_of_replicas()
    task = await _asks(_confirmations(quorum.catch_up), replica)
    asked = await quorum.asked()
    replica.leadership = 8
    asked.set_result(None)
    assert not await task


async def test_a_quorum_that_says_nothing_confirms_nothing() -> None:
    quorum = _Quorum()
    task = await _asks(_confirmations(quorum.catch_up), _short_of_replicas(), seconds=0.2)
    assert not await task
    assert len(quorum) == 1


async def test_a_quorum_without_a_leader_is_asked_again_and_not_all_the_time() -> None:
    quorum = _Quorum()

    async def refuse() -> None:
        while True:
            (await quorum.asked(len(quorum) + 1)).set_exception(KafkaError(ErrorCode.NOT_CONTROLLER, "nobody leads"))

    refusing = asyncio.create_task(refuse())
    task = await _asks(_confirmations(quorum.catch_up), _short_of_replicas(), seconds=0.5)
    assert not await task
    assert 2 <= len(quorum) <= 10
    refusing.cancel()


async def test_one_command_stands_for_all_that_wait_for_one_and_for_none_that_asked_later() -> None:
    quorum = _Quorum()
    confirmations = _confirmations(quorum.catch_up)
    first = await _asks(confirmations, _short_of_replicas())
    asked = await quorum.asked()
    later = [await _asks(confirmations, _short_of_replicas()) for _ in range(5)]
    await asyncio.sleep(0.01)
    asked.set_result(None)
    assert await first
    second = await quorum.asked(2)
    assert not any(task.done() for task in later), "what was asked before they came tells them nothing"
    second.set_result(None)
    assert await asyncio.gather(*later) == [True] * 5
    assert len(quorum) == 2


async def test_who_waits_for_another_ones_command_makes_its_own_where_that_is_refused() -> None:
    quorum = _Quorum()
    confirmations = _confirmations(quorum.catch_up)
    tasks = [await _asks(confirmations, _short_of_replicas()) for _ in range(3)]
    (await quorum.asked()).set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "not decided"))
    (await quorum.asked(2)).set_result(None)
    assert await tasks[1]
    assert await tasks[2]
    (await quorum.asked(3)).set_result(None)
    assert await tasks[0], "it asks again"


async def test_several_partitions_are_asked_about_at_once() -> None:
    confirmations = _confirmations()
    led = [(_replica(1, replicas=(1,)), 7), (_replica(1, 2), 7)]
    task = asyncio.create_task(confirmations.confirm_each(led, 0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    _again(confirmations, _session(10, 2))
    assert await task == [True, True]


async def test_a_leadership_that_ends_is_not_confirmed() -> None:
    confirmations = _confirmations()
    replica = _replica(1, 2)
    task = await _asks(confirmations, replica)
    replica.leadership = 8
    _again(confirmations, _session(10, 2))
    assert not await task


async def test_who_leaves_the_isr_meanwhile_is_waited_for_no_more() -> None:
    confirmations = _confirmations()
    replica = _replica(1, 2, 3)
    task = await _asks(confirmations, replica)
    _again(confirmations, _session(10, 2))
    assert replica.leading is not None
    replica.leading.maximal_isr = frozenset((1, 2))
    assert await task
