"""The partitions of a broker, opened, deleted and tried again at the same time."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from kraftpy.broker.broker import Broker
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.metadata.controller import Controller
from kraftpy.broker.runtime import SystemClock
from kraftpy.broker.storage import disk as disks
from kraftpy.config import load
from kraftpy.log.results import Origin
from kraftpy.metadata.sessions import HeartbeatReply
from kraftpy.protocol.record_batch import encode_batch
from kraftpy.types import Offset, TopicPartition

BOUND_SECONDS = 20.0

Starts = dict[TopicPartition, int]


async def test_a_partition_that_is_being_opened_is_not_opened_again(tmp_path: Path) -> None:
    config = load("", {}, [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0", "num.partitions=5"]).config
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        brought_online = []

        async def try_again_all_the_time() -> None:
            while True:
                brought_online.extend(await broker.replica_manager.retry_offline())
                await asyncio.sleep(0)

        trying = tasks.create_task(try_again_all_the_time())
        try:
            opened = {}
            for name in ("one", "two", "three"):
                assert await auto_create_topics([name], broker.metadata, config, SystemClock()) == {}
                for number in range(5):
                    opened[TopicPartition(name, number)] = broker.replicas.leader(name, number)
            assert {replica.topic_partition: replica for replica in broker.replicas} == opened
        finally:
            trying.cancel()
        assert brought_online == [], "nothing was offline"
        assert await broker.stop()


async def test_who_asks_for_what_is_deleted_already_waits_until_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a crash right after the answer would bring the records back."""
    config = load("", {}, [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]).config
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        assert await auto_create_topics(["shortened"], broker.metadata, config, SystemClock()) == {}
        replica = broker.replicas.leader("shortened", 0)
        replica.append(encode_batch([(1, None, b"a value", ())] * 3), Origin.CLIENT, 1)
        may_write, is_asked = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        write = disks.Disk.write_checkpoints

        def write_when_allowed(disk: disks.Disk, points: dict[TopicPartition, int], starts: Starts) -> None:
            loop.call_soon_threadsafe(is_asked.set)
            assert may_write.wait(BOUND_SECONDS)
            write(disk, points, starts)

        monkeypatch.setattr(disks.Disk, "write_checkpoints", write_when_allowed)
        try:
            first = tasks.create_task(replica.delete_records(Offset(2)))
            async with asyncio.timeout(BOUND_SECONDS):
                await is_asked.wait()
            second = tasks.create_task(replica.delete_records(Offset(2)))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not first.done()
            assert not second.done()
        finally:
            may_write.set()
        await asyncio.gather(first, second)
        assert replica.log.written_log_start == 2
        assert await broker.stop()


async def test_a_checkpoint_that_fails_when_nobody_waits_for_it_any_more_is_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop gives up waiting while the disk is full. The next stop reports it; the loop has nothing to report."""
    config = load("", {}, [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]).config
    may_write, is_asked = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    reported: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))

    def fail_when_allowed(disk: disks.Disk, points: dict[TopicPartition, int], starts: Starts) -> None:
        loop.call_soon_threadsafe(is_asked.set)
        assert may_write.wait(BOUND_SECONDS)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        with monkeypatch.context() as patched:
            patched.setattr(disks.Disk, "write_checkpoints", fail_when_allowed)
            waiting = tasks.create_task(broker.replica_manager.checkpoints.write())
            async with asyncio.timeout(BOUND_SECONDS):
                await is_asked.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            may_write.set()
            with pytest.raises(OSError, match="No space left"):  # behind the first, for two never run at once
                await broker.replica_manager.checkpoints.write()
        gc.collect()
        await asyncio.sleep(0)
        assert reported == []
        assert await broker.stop()


async def test_a_stop_before_the_cluster_has_let_the_broker_in_comes_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends heartbeats by then but is never admitted: they end with it."""
    config = load("", {}, [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]).config
    has_asked = asyncio.Event()

    def stay_out(*_: object, **__: object) -> HeartbeatReply:
        has_asked.set()
        return HeartbeatReply(is_fenced=True)

    monkeypatch.setattr(Controller, "heartbeat", stay_out)
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        starting = asyncio.ensure_future(broker.start())
        await has_asked.wait()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await broker.stop(is_ready=False)
