"""A broker finds no descriptor for a file it wants to open: it does not blame the disk, and recovers afterwards.

Every n-th attempt to open something fails, different ones in each run, so that each kind of work meets a failure.
Clients get a retriable error, or wait; in the end all data is there, also for the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kraftpy.broker.broker import Broker
from kraftpy.broker.connection_limits import ConnectionLimits
from kraftpy.broker.containment import Complaints
from kraftpy.broker.descriptors import are_enough, least_limit, share_out
from kraftpy.broker.metadata.auto_creation import auto_create_topics
from kraftpy.broker.patience import patiently
from kraftpy.broker.replication.replica import Replica
from kraftpy.broker.runtime import OsDirectory, SystemClock, keep_spare_descriptors
from kraftpy.broker.startup import StartupError
from kraftpy.broker.storage.directories import DirectoryError, LogDirectories
from kraftpy.broker.threads import Threads
from kraftpy.broker.upkeep.retention import Retention
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.log.files import FileCache, LazyFile
from kraftpy.log.results import Origin
from kraftpy.metadata.commands import DeleteTopics, TopicReference
from kraftpy.ports import Failure, failure_of
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.record_batch import encode_batch, iter_records, split_batches
from kraftpy.testing.memory_files import MemoryDisk
from kraftpy.types import Offset

BOUND_SECONDS = 30.0
RUNS = 23
"""More than any one piece of work opens: or it would meet a shortage however often it is tried."""


class Shortage:
    """Makes every n-th attempt to open something under a path fail; a retry counts as another attempt.

    A node without spare descriptors (`runtime`) tries each call of the operating system twice: both calls fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, under: Path) -> None:
        self._under = str(under)
        self._lock = threading.Lock()
        self._count = 0
        self._which = (0, 0)
        self._number = 0
        self._failed_once: set[tuple[int, str]] = set()
        self.is_on = False
        self.met: list[str] = []
        opens, lists, removes = os.open, os.listdir, shutil.rmtree

        def opened(path: Any, flags: int, mode: int = 0o777, **how: Any) -> int:
            if flags & os.O_CLOEXEC:  # the broker's
                self.meet(str(path))
            return opens(path, flags, mode, **how)

        def listed(path: Any = ".") -> list[str]:
            self.meet(str(path))
            return lists(path)

        def removed(path: Any, *arguments: Any, **how: Any) -> None:
            self.meet(str(path))
            removes(path, *arguments, **how)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(os, "listdir", listed)
        monkeypatch.setattr(shutil, "rmtree", removed)

    def begin(self, number: int, *, each: int, offset: int) -> None:
        assert number in (errno.EMFILE, errno.ENFILE)
        self._number, self._which, self._count, self.is_on = number, (each, offset), 0, True

    def meet(self, path: str) -> None:
        if not self.is_on or not path.startswith(self._under):
            return
        attempt = threading.get_ident(), path
        with self._lock:
            if attempt in self._failed_once:
                self._failed_once.remove(attempt)
            else:
                self._count += 1
                each, offset = self._which
                if self._count % each != offset:
                    return
                self._failed_once.add(attempt)
                self.met.append(path)
        raise OSError(self._number, os.strerror(self._number), path)


@contextlib.asynccontextmanager
async def broker_on(path: Path, **settings: str) -> AsyncIterator[Broker]:
    overrides = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    config = load("", {}, [f"log.dirs={path}", "listeners=PLAINTEXT://127.0.0.1:0", *overrides]).config
    async with asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        yield broker
        await broker.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)


async def again(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """Retry retriable errors, as clients do; the error they get here is KAFKA_STORAGE_ERROR."""
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_CONTROLLER):
                    raise
            except OSError as error:
                if failure_of(error) is not Failure.RESOURCES:
                    raise
            await asyncio.sleep(0.01)


async def create(broker: Broker, name: str) -> None:
    async def attempt() -> None:
        refused = await auto_create_topics([name], broker.metadata, broker.config, SystemClock())
        for code in refused.values():
            raise KafkaError(code, name)

    await again(attempt)
    for number in range(broker.config.num_partitions):
        await until(lambda number=number: has_leader(broker, name, number))  # type: ignore[misc]


def has_leader(broker: Broker, name: str, number: int) -> bool:
    try:
        broker.replicas.leader(name, number)
    except KafkaError:
        return False
    return True


async def append(broker: Broker, topic: str, partition: int, value: bytes) -> None:
    """Acknowledged: appended, and synced."""
    batch = encode_batch([(SystemClock().now(), None, value, ())])

    async def appended() -> int:
        replica = broker.replicas.leader(topic, partition)
        return replica.append(bytearray(batch), Origin.CLIENT, SystemClock().now()).log_end_offset

    end_offset = await again(appended)
    await again(lambda: broker.replicas.leader(topic, partition).flush(end_offset))


def values(replica: Replica) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while offset < replica.high_watermark:
        records = replica.read_to_end(Offset(offset), 1 << 20, min_one_batch=True)
        for header, batch in split_batches(records):
            found += [bytes(record.value or b"") for record in iter_records(batch)]
            offset = header.next_offset
    return found


async def live(broker: Broker, shortage: Shortage) -> None:
    """Partitions, records and segments come and go, the metadata changes, checkpoints are written."""
    for number in range(4):
        await create(broker, f"t{number}")
    for number in range(6):
        for partition in range(3):
            await append(broker, "t0", partition, b"%d" % number + b" " * 300)
            await append(broker, "t1", partition, b"%d" % number)
    manager = broker.replica_manager
    await again(manager.checkpoints.write)
    await again(manager.checkpoints.write_high_watermarks)
    await again(Retention(manager, broker.clock, broker.incidents).delete_old_segments)
    await again(manager.topic_configs.promise_synced)
    command = DeleteTopics(topics=(TopicReference(name="t2"),), time_ms=SystemClock().now())
    await again(lambda: broker.metadata.submit(command))
    await until(lambda: broker.image.topic("t2") is None)
    assert not broker.directories.failures
    assert broker.incidents.count == 0


@pytest.mark.parametrize("run", range(RUNS))
async def test_nothing_is_lost_and_nothing_fails(
    run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    shortage = Shortage(monkeypatch, path)
    settings = {
        "num_partitions": "3",
        "log.segment.bytes": "1048576",
        "metadata_log_max_record_bytes_between_snapshots": "500",
        "kraftpy_flush_before_ack": "true",
    }
    async with broker_on(path, **settings) as broker:
        shortage.begin(errno.ENFILE if run % 2 else errno.EMFILE, each=RUNS, offset=run)
        await live(broker, shortage)
        shortage.is_on = False
    assert len(shortage.met) > 5
    assert len(caplog.records) < 40, [record.getMessage() for record in caplog.records]
    assert not [record for record in caplog.records if "unexpected error" in record.getMessage()]
    async with broker_on(path, **settings) as broker:
        for partition in range(3):
            assert values(broker.replicas.leader("t0", partition)) == [b"%d" % each + b" " * 300 for each in range(6)]
            assert values(broker.replicas.leader("t1", partition)) == [b"%d" % each for each in range(6)]
        assert broker.image.topic("t2") is None
        assert broker.image.topic("t3") is not None
        assert not broker.directories.failures


# --- the parts ---


@pytest.mark.parametrize(
    ("number", "failure", "of_a_sync"),
    [
        (errno.EMFILE, Failure.RESOURCES, Failure.RESOURCES),
        (errno.ENFILE, Failure.RESOURCES, Failure.RESOURCES),
        (errno.ENOMEM, Failure.RESOURCES, Failure.DISK),
        (errno.EAGAIN, Failure.RESOURCES, Failure.DISK),
        (errno.EINTR, Failure.RESOURCES, Failure.DISK),
        (errno.ENOBUFS, Failure.RESOURCES, Failure.DISK),
        (errno.ENOSPC, Failure.FULL, Failure.FULL),
        (errno.EDQUOT, Failure.FULL, Failure.FULL),
        (errno.EFBIG, Failure.FULL, Failure.FULL),
        (errno.ENAMETOOLONG, Failure.NAME, Failure.NAME),
        (errno.EIO, Failure.DISK, Failure.DISK),
        (errno.EROFS, Failure.DISK, Failure.DISK),
        (errno.ENODEV, Failure.DISK, Failure.DISK),
        (errno.ENOENT, Failure.DISK, Failure.DISK),
        (None, Failure.DISK, Failure.DISK),
    ],
)
def test_what_an_error_means(number: int | None, failure: Failure, of_a_sync: Failure) -> None:
    error = OSError("of a mistake") if number is None else OSError(number, os.strerror(number))
    assert failure_of(error) is failure
    assert failure_of(error, is_sync=True) is of_a_sync


@pytest.mark.parametrize("limit", [256, 512, 1024, 4096, 20_000, 1 << 20])
def test_the_shares_are_all_there_is(limit: int) -> None:
    for listeners, directories, nodes in ((1, 1, 0), (2, 3, 4)):
        shares = share_out(limit, listeners=listeners, directories=directories, cleaner_threads=2, other_nodes=nodes)
        spent = shares.cached_files + shares.pinned_files + shares.work_files + shares.connections
        assert spent < limit
        assert shares.pinned_files < shares.cached_files
        if not are_enough(shares):
            enough = share_out(
                least_limit(shares), listeners=listeners, directories=directories, cleaner_threads=2, other_nodes=nodes
            )
            assert are_enough(enough)
    assert limit < 1024 or share_out(limit).connections > limit // 2


async def test_a_node_that_could_serve_nobody_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kraftpy.broker.broker.open_files_limit", lambda: 128)
    config = load("", {}, [f"log.dirs={tmp_path}", "listeners=PLAINTEXT://127.0.0.1:0"]).config
    async with asyncio.TaskGroup() as tasks:
        with pytest.raises(StartupError, match=r"a limit of 128 open files \(ulimit -n\) is too low: \d+ are enough"):
            await Broker(config, SystemClock(), tasks).start()


def test_a_start_without_descriptors_takes_no_directory_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start could do without one of two directories, but would then take the data in it for lost."""
    config = BrokerConfig.of({"node.id": "1", "log.dirs": f"{tmp_path / 'first'},{tmp_path / 'second'}"})
    shortage = Shortage(monkeypatch, tmp_path / "second")
    directories = LogDirectories(config, SystemClock())
    directories.open()
    directories.close(-1, is_clean=False)
    shortage.begin(errno.EMFILE, each=1, offset=0)
    directories = LogDirectories(config, SystemClock())
    with pytest.raises(DirectoryError, match="second: Too many open files"):
        directories.open()
    directories.close(-1, is_clean=False)


def test_a_name_that_is_too_long_costs_no_directory() -> None:
    """249 characters and a suffix, on a file system that takes 143."""
    from kraftpy.broker.storage.disk import costs_the_directory

    assert not costs_the_directory(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)))


async def test_overrides_by_address(tmp_path: Path) -> None:
    given = {"max.connections.per.ip": "1", "max.connections.per.ip.overrides": "127.0.0.1:3, ::1:2"}
    limits = ConnectionLimits(BrokerConfig.of(given), share_out(1024), Complaints())
    await limits.resolve()
    assert [limits.admit("/127.0.0.1") for _ in range(4)] == [True, True, True, False]
    assert [limits.admit("/::1") for _ in range(3)] == [True, True, False]
    assert [limits.admit("/10.0.0.1") for _ in range(2)] == [True, False]
    limits.gone("/10.0.0.1")
    assert limits.admit("/10.0.0.1")


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", ":5", "a:99999999999", "a:٣"])
def test_overrides_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        BrokerConfig.of({"max.connections.per.ip.overrides": text})


async def test_more_connections_than_there_are_descriptors_for_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(BrokerConfig.of({"max.connections": "5000"}), share_out(1024), Complaints())
    assert 500 < limits.most < 1024
    [line] = [record.getMessage() for record in caplog.records]
    assert line == f"max.connections=5000 is more than a limit of 1024 open files allows; it is {limits.most}"
    for _ in range(limits.most):
        assert limits.admit("/10.0.0.1")
    for _ in range(1000):
        assert not limits.admit("/10.0.0.1")
    assert len(caplog.records) == 2, "one line a host a minute"
    assert ConnectionLimits(BrokerConfig.of({"max.connections": "7"}), share_out(1024), Complaints()).most == 7


def test_pinned_files_are_bounded() -> None:
    cache = FileCache(8, max_pinned=2)
    disk = MemoryDisk()
    handles = [LazyFile(disk.root, f"{number}.log", cache) for number in range(4)]
    pinned = [handle.pin() for handle in handles[:2]]
    assert [handle.may_pin for handle in handles] == [True, True, False, False]
    handles[0].close()  # its name is gone, but its pin still holds the file
    assert not handles[2].may_pin
    handles[0].unpin(pinned[0])
    assert handles[2].may_pin
    handles[1].unpin(pinned[1])
    assert cache.pinned == 0


def test_the_cache_gives_up_files_of_its_own() -> None:
    cache = FileCache(64)
    disk = MemoryDisk()
    for number in range(10):
        LazyFile(disk.root, f"{number}.log", cache).get()
    disk.fail("open", errno.EMFILE, name="more.log")
    LazyFile(disk.root, "more.log", cache).get()
    assert len(cache) < 10
    disk.fail("open", errno.EIO, name="other.log")
    with pytest.raises(OSError, match="Input/output"):
        LazyFile(disk.root, "other.log", cache).get()


def test_what_is_kept_in_reserve_is_for_files(tmp_path: Path) -> None:
    """All descriptors are taken: files are opened with those kept, and those are held again behind it."""
    import resource

    directory = OsDirectory(tmp_path)
    keep_spare_descriptors(4)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for number in range(20):
            directory.replace("a", b"%d" % number)
            assert directory.read("a") == b"%d" % number
            assert directory.names() == ["a"]
            directory.sync()
        files = [directory.open(f"{number}") for number in range(4)]
        with pytest.raises(OSError, match="Too many open files"):
            directory.replace("a", b"not any more")
        assert directory.exists("a")
        for file in files:
            file.close()
        assert directory.read("a") == b"19"
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)
        keep_spare_descriptors(0)


async def test_patience_has_an_end_with_the_shortage(caplog: pytest.LogCaptureFixture) -> None:
    attempts = 0

    async def attempt() -> int:
        nonlocal attempts
        attempts += 1
        if attempts < 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return attempts

    assert await patiently(attempt, "sync it", Complaints()) == 4
    assert len(caplog.records) == 1

    async def broken() -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with pytest.raises(OSError, match="Cannot allocate"):
        await patiently(broken, "sync it", Complaints(), is_sync=True)


async def test_a_pool_lives_with_the_threads_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Threads(4)
    try:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(OSError, match="can't start new thread") as caught:
            pool.submit(int)
        assert failure_of(caught.value) is Failure.RESOURCES
        monkeypatch.undo()
        first = threading.Event()
        waiting = loop.run_in_executor(pool, first.wait, BOUND_SECONDS)  # it has a thread now
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        others = [loop.run_in_executor(pool, int, "7") for _ in range(10)]
        first.set()
        assert await waiting
        assert await asyncio.gather(*others) == [7] * 10
    finally:
        monkeypatch.undo()
        pool.shutdown()


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


class _Dialer:
    """The part of a connection that limits look at."""

    client_host = "/10.0.0.1"

    def __init__(self) -> None:
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


async def test_beyond_the_limit_connections_are_let_in_to_prove_that_they_are_a_broker_s() -> None:
    shares = share_out(4096, other_nodes=2)
    limits = ConnectionLimits(BrokerConfig.of({"max.connections": "2"}), shares, Complaints())
    clients, crowd = [_Dialer() for _ in range(2)], [_Dialer() for _ in range(shares.reserved + 1)]
    assert all(limits.opened(each) for each in (*clients, *crowd))  # type: ignore[arg-type]
    assert [limits.must_prove(each) for each in clients] == [False, False]  # type: ignore[arg-type]
    assert [each.is_closed for each in crowd] == [True] + [False] * shares.reserved, "the oldest makes room"
    for each in crowd[:2]:
        limits.closed(each)  # type: ignore[arg-type]
    broker = crowd[2]
    limits.proved(broker)  # type: ignore[arg-type]
    assert not limits.must_prove(broker)  # type: ignore[arg-type]
    limits.proved(clients[0])  # type: ignore[arg-type]
    another = _Dialer()
    assert limits.opened(another)  # type: ignore[arg-type]
    assert not limits.must_prove(another), "a broker's connection takes no client's place"  # type: ignore[arg-type]
    for each in (broker, *clients, another, *crowd[3:]):
        limits.closed(each)  # type: ignore[arg-type]
    assert not limits._unproved
    assert not limits._refused
    assert not limits._brokers
    assert limits._count == 0
