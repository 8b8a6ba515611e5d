"""Rounds of syncs: what comes while one runs shares the next, and each log's fate is its own."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from random import Random
from typing import Any

import pytest

from kraftpy.broker.containment import Complaints, Incidents
from kraftpy.broker.storage import group_commit as syncing
from kraftpy.broker.storage.group_commit import Rounds
from kraftpy.log.flushing import FlushJob
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import TopicPartition

BOUND_SECONDS = 20.0


class Job:
    """A `FlushJob` that syncs nothing; it waits to be let go, or fails."""

    def __init__(self, log: Log) -> None:
        disk = MemoryDisk()
        self._job = FlushJob(disk.root, log.end_offset)
        self._job.logs = [disk.root.open(f"{number}.log") for number in range(log.files)]
        self.log = log
        self.is_done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def run(self) -> None:
        assert self.log.may_go_on.wait(BOUND_SECONDS)
        if self.log.failure is not None:
            raise self.log.failure
        self.is_done = True


class Log:
    """A replica as the sync rounds see it."""

    def __init__(self, number: int, *, is_held: bool = False) -> None:
        self.topic_partition = TopicPartition("log", number)
        self.is_taken = False
        self.end_offset = 0
        self.synced_end_offset = 0
        self.may_go_on = threading.Event()
        self.failure: Exception | None = None
        self.refusal: KafkaError | None = None
        self.files = 0
        self.shortages = 0
        self.shortages_under_way = 0
        self.jobs: list[Job] = []
        self.is_under_way = False
        self.mistake: Exception | None = None
        if not is_held:
            self.may_go_on.set()

    def append(self) -> int:
        self.end_offset += 1
        return self.end_offset

    def begin_sync(self) -> Any:
        assert not self.is_under_way, "in two rounds at once"
        assert not self.is_taken
        if self.refusal is not None:
            raise self.refusal
        if self.mistake is not None and not self.jobs:
            mistake, self.mistake = self.mistake, None
            raise mistake
        if self.synced_end_offset >= self.end_offset:
            return None
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.is_under_way = True
        self.jobs.append(Job(self))
        return self.jobs[-1]

    def end_sync(self, job: FlushJob, failure: Exception | None) -> Exception | None:
        self.is_under_way = False
        if self.mistake is not None:
            mistake, self.mistake = self.mistake, None
            raise mistake
        if self.shortages_under_way:
            self.shortages_under_way -= 1
            return OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if failure is not None:
            self.refusal = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failure))
            return self.refusal
        self.synced_end_offset = max(self.synced_end_offset, job.end_offset)
        return None


def waiting_for(rounds: Rounds, log: Log, end_offset: int) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(rounds.wait(log, end_offset))


async def until_begun(log: Log, jobs: int = 1) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while len(log.jobs) < jobs:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)


async def outcomes(*tasks: asyncio.Task[None]) -> list[Any]:
    async with asyncio.timeout(BOUND_SECONDS):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_comes_while_a_round_runs_shares_the_next_one() -> None:
    rounds, first, second = Rounds("disk"), Log(1, is_held=True), Log(2)
    one = waiting_for(rounds, first, first.append())
    await until_begun(first)
    others = [waiting_for(rounds, log, log.append()) for log in (first, second) for _ in range(10)]
    await asyncio.sleep(0)
    assert rounds.waiting == 21
    first.may_go_on.set()
    assert await outcomes(one, *others) == [None] * 21
    assert rounds.rounds == 2
    assert (len(first.jobs), len(second.jobs), rounds.waiting) == (2, 1, 0)


async def test_a_mistake_about_one_log_is_its_own_and_the_rounds_go_on() -> None:
    """At the end and the start of a round waiters are woken, and none waits forever."""
    rounds, bad, good = Rounds("disk", Incidents(Complaints())), Log(1, is_held=True), Log(2)
    waiting = [waiting_for(rounds, bad, bad.append()), waiting_for(rounds, good, good.append())]
    await until_begun(bad)
    bad.mistake = ValueError("of ours")
    bad.may_go_on.set()
    found = await outcomes(*waiting)
    assert isinstance(found[0], KafkaError)
    assert found[1] is None
    assert (
        await outcomes(waiting_for(rounds, bad, bad.append()), waiting_for(rounds, good, good.append())) == [None] * 2
    )
    new = Log(3)
    new.mistake = ValueError("of ours")
    found = await outcomes(waiting_for(rounds, new, new.append()), waiting_for(rounds, good, good.append()))
    assert isinstance(found[0], KafkaError)
    assert found[1] is None
    assert await outcomes(waiting_for(rounds, new, new.append())) == [None]
    assert rounds.waiting == 0


async def test_what_is_synced_already_waits_for_nothing() -> None:
    rounds, log = Rounds("disk"), Log(1)
    await rounds.wait(log, log.append())
    await rounds.wait(log, 1)
    assert rounds.rounds == 1


async def test_a_failure_is_told_to_those_of_that_log_and_to_all_who_come_later() -> None:
    rounds, bad, good = Rounds("disk"), Log(1), Log(2)
    bad.failure = OSError(5, "Input/output error")
    found = await outcomes(waiting_for(rounds, bad, bad.append()), waiting_for(rounds, good, good.append()))
    assert isinstance(found[0], KafkaError)
    assert found[0].code is ErrorCode.KAFKA_STORAGE_ERROR
    assert found[1] is None
    bad.failure = None
    again = await outcomes(waiting_for(rounds, bad, bad.append()))
    assert isinstance(again[0], KafkaError)
    assert len(bad.jobs) == 1, "a failed sync is never tried again"


async def test_a_log_that_something_has_for_itself_is_synced_when_it_is_let_go() -> None:
    rounds, log, other = Rounds("disk"), Log(1), Log(2)
    log.is_taken = True
    waiting = waiting_for(rounds, log, log.append())
    assert await outcomes(waiting_for(rounds, other, other.append())) == [None], "it holds up nobody"
    assert not waiting.done()
    log.is_taken = False
    rounds.let_go(log)
    assert await outcomes(waiting) == [None]


async def test_records_that_are_cut_before_they_are_synced_are_not_called_synced() -> None:
    rounds, log = Rounds("disk"), Log(1)
    log.is_taken = True
    lost = waiting_for(rounds, log, log.append())
    await asyncio.sleep(0.01)
    log.end_offset, log.is_taken = 0, False
    rounds.let_go(log)
    found = await outcomes(lost)
    assert isinstance(found[0], KafkaError)
    assert found[0].code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_a_job_cannot_promise_any_more_is_synced_once_more() -> None:
    rounds, log = Rounds("disk"), Log(1, is_held=True)
    waiting = waiting_for(rounds, log, log.append())
    await until_begun(log)
    log.jobs[0].end_offset = 0  # a write that failed was cut off again meanwhile
    log.may_go_on.set()
    assert await outcomes(waiting) == [None]
    assert len(log.jobs) == 2


async def test_who_goes_away_holds_up_nobody() -> None:
    rounds, log = Rounds("disk"), Log(1, is_held=True)
    gone, waiting = waiting_for(rounds, log, log.append()), waiting_for(rounds, log, 1)
    await until_begun(log)
    gone.cancel()
    log.may_go_on.set()
    assert isinstance((await outcomes(gone, waiting))[0], asyncio.CancelledError)
    assert waiting.exception() is None


@pytest.mark.parametrize("seed", range(20))
async def test_everybody_is_told_and_nobody_too_early(seed: int) -> None:
    random = Random(seed)
    rounds, logs = Rounds("disk"), [Log(number) for number in range(5)]

    async def append_and_wait() -> None:
        log = random.choice(logs)
        end_offset = log.append()
        try:
            await rounds.wait(log, end_offset)
        except KafkaError:
            assert log.refusal is not None
        else:
            assert log.synced_end_offset >= end_offset

    waiting = []
    for _ in range(200):
        waiting.append(asyncio.get_running_loop().create_task(append_and_wait()))
        if random.random() < 0.3:
            await asyncio.sleep(0)
        log = random.choice(logs)
        if random.random() < 0.05:
            log.is_taken = not log.is_taken
            if not log.is_taken:
                rounds.let_go(log)
        if random.random() < 0.01:
            log.failure = OSError(5, "Input/output error")
    for log in logs:
        log.is_taken = False
        rounds.let_go(log)
    assert await outcomes(*waiting) == [None] * 200
    assert rounds.waiting == 0


async def test_a_sync_for_which_there_are_no_descriptors_is_made_later() -> None:
    """Nothing was synced, so nothing failed: waiters are not woken, and another log is not held up."""
    rounds, short, shorter, well = Rounds("disk"), Log(1), Log(2), Log(3)
    short.shortages = 2
    shorter.shortages_under_way = 2
    waiting = [waiting_for(rounds, log, log.append()) for log in (short, shorter, well)]
    assert await outcomes(*waiting) == [None] * 3
    assert (short.shortages, len(short.jobs)) == (0, 1)
    assert (shorter.shortages_under_way, len(shorter.jobs)) == (0, 3)


async def test_who_waits_for_descriptors_for_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncing, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(syncing, "_MOST_PAUSES", 5)
    rounds, log = Rounds("disk"), Log(1)
    log.shortages = 7
    [error] = await outcomes(waiting_for(rounds, log, log.append()))
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert await outcomes(waiting_for(rounds, log, log.append())) == [None], "it is tried on and on"


async def test_a_round_holds_few_files() -> None:
    """A round has as many logs as there are descriptors for; the others are in the next ones."""
    rounds = Rounds("disk", files_per_round=4)
    logs = [Log(number, is_held=True) for number in range(10)]
    for log in logs:
        log.files = 2
    waiting = [waiting_for(rounds, log, log.append()) for log in logs]
    await until_begun(logs[1])
    assert [len(log.jobs) for log in logs] == [1, 1, *[0] * 8]
    for log in logs:
        log.may_go_on.set()
    assert await outcomes(*waiting) == [None] * 10
    assert rounds.rounds == 5
