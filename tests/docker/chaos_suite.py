"""The world of containers: that each ability does what it says, and a short run; by `make docker-test` alone.

Each fault is observed at its effects: from another container, from inside the one that was hit, by a client.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import command

from chaos.nemesis import NodeId
from chaos.worlds.containers import NODES, RUN_DIRECTORY
from chaos.worlds.disks import mounts_below
from chaos.worlds.docker import PROJECT, DockerWorld
from kraftpy.client import Producer
from kraftpy.protocol.errors import ErrorCode, KafkaError

pytestmark = pytest.mark.timeout(900)

READY_SECONDS = 60.0
IN_SYNC_SECONDS = 90.0
TOPIC = "t0"
CONNECT = """
import socket, sys, time
began = time.monotonic()
try:
    socket.create_connection((sys.argv[1], 9093), timeout=2).close()
except OSError:
    print("none")
else:
    print(round((time.monotonic() - began) * 1000))
"""
WRITE = """
import os, time
began = time.monotonic()
try:
    file = os.open("/var/lib/kafka/data/tried", os.O_CREAT | os.O_WRONLY)
    os.write(file, bytes(4096))
    os.fsync(file)
    os.unlink("/var/lib/kafka/data/tried")
except OSError as error:
    print(error.strerror)
else:
    print(time.monotonic() - began)
"""


def test_a_run_of_five_faults_finds_nothing_wrong(engine: None, tmp_path: Path) -> None:
    """The command a user types. It comes first, for there is one cluster of these ports at a time."""
    said = command(
        sys.executable, "-m", "chaos", "run", "--world", "docker", "--faults", 5, "--seed", 1, "--out", tmp_path,
        timeout=800,
    )  # fmt: skip
    assert "5 faults" in said
    assert (tmp_path / "report.html").stat().st_size > 0
    assert mounts_below(RUN_DIRECTORY) == []
    assert command("docker", "ps", "--all", "--quiet", f"--filter=label=com.docker.compose.project={PROJECT}") == ""


@pytest.fixture(scope="module")
def opened(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerWorld]:
    """In sync, with a topic of two partitions."""
    made = DockerWorld(tmp_path_factory.mktemp("world"))

    async def begin() -> None:
        await made.open()
        assert await made.wait_ready(READY_SECONDS) == []
        await made.create_topic(TOPIC, 2)
        assert await made.wait_in_sync(IN_SYNC_SECONDS) == []

    try:
        asyncio.run(begin())
        yield made
    finally:
        asyncio.run(made.close())


@pytest.fixture
def world(opened: DockerWorld) -> Iterator[DockerWorld]:
    """Each test leaves a whole cluster, in which no process ended except by the test itself."""
    yield opened

    async def heal() -> None:
        await opened.heal_all()
        assert await opened.wait_ready(READY_SECONDS) == []
        assert await opened.wait_in_sync(IN_SYNC_SECONDS) == []

    asyncio.run(heal())
    assert opened.problems() == []


def inside(world: DockerWorld, node: NodeId, program: str, *arguments: str) -> str:
    return command("docker", "exec", world.container_name(node), "python3", "-c", program, *arguments)


def reaches(world: DockerWorld, node: NodeId, other: NodeId) -> int | None:
    """In how many milliseconds a node reaches the other's controller; None if not at all."""
    said = inside(world, node, CONNECT, f"kafka{other}")
    return None if said == "none" else int(said)


def send(world: DockerWorld, partition: int = 0, value: bytes = b"x") -> int:
    """A record to the topic; its offset. Raises KafkaError."""

    async def sent() -> int:
        async with Producer(
            bootstrap_servers=world.bootstrap_servers, delivery_timeout_ms=20_000, request_timeout_ms=5_000
        ) as producer:
            return int((await producer.send_and_wait(TOPIC, value, partition=partition)).offset)

    return asyncio.run(sent())


def send_many(world: DockerWorld) -> None:
    """More than fits into the last block of a file."""
    for _ in range(5):
        send(world, value=bytes(10_000))


def test_a_link_is_cut_in_one_direction_and_mended(world: DockerWorld) -> None:
    """Neither end can connect to the other, and the third node notices nothing."""
    asyncio.run(world.cut([(1, 2)]))
    assert reaches(world, 1, 2) is None
    assert reaches(world, 2, 1) is None, "the answer does not arrive"
    assert reaches(world, 3, 2) is not None
    asyncio.run(world.mend([(1, 2)]))
    assert reaches(world, 1, 2) is not None


def test_a_cut_lasts_while_a_container_comes_back(world: DockerWorld) -> None:
    async def hurt() -> None:
        await world.cut([(1, 2), (2, 1)])
        await world.kill(2)
        await world.start(2)

    asyncio.run(hurt())
    assert reaches(world, 2, 1) is None
    assert reaches(world, 1, 2) is None
    assert reaches(world, 2, 3) is not None


def test_a_slow_link_takes_so_long(world: DockerWorld) -> None:
    asyncio.run(world.degrade(1, 150, 0, 0.0))
    took = reaches(world, 1, 2)
    assert took is not None
    assert took >= 300, "there and back"
    asyncio.run(world.degrade(1, 0, 0, 0.0))
    assert reaches(world, 1, 2) is not None


def test_of_a_lossy_link_nothing_arrives_if_all_is_lost(world: DockerWorld) -> None:
    asyncio.run(world.degrade(1, 0, 0, 1.0))
    assert reaches(world, 1, 2) is None
    assert reaches(world, 3, 2) is not None


def test_a_clock_is_wrong_and_the_node_serves(world: DockerWorld) -> None:
    """The wall clock of that node and no other; while it runs; and nothing that waits is disturbed."""
    asyncio.run(world.set_clock(2, 3_600_000))
    wrong, right = (float(inside(world, node, "import time; print(time.time())")) for node in (2, 1))
    assert 3500 < wrong - right < 3700
    waited = inside(
        world,
        2,
        "import threading, time; a = time.monotonic(); threading.Event().wait(0.5); print(time.monotonic() - a)",
    )
    assert 0.5 <= float(waited) < 60
    for partition in (0, 1):
        send(world, partition)
    asyncio.run(world.set_clock(2, -3_600_000))
    assert float(inside(world, 2, "import time; print(time.time())")) < right - 3500
    for partition in (0, 1):
        send(world, partition)


def test_full_disks_refuse_records_and_end_no_node(world: DockerWorld) -> None:
    """The node meets ENOSPC and refuses records, no node ends, and all is as before once there is space."""

    async def fill(*, full: bool) -> None:
        for node in NODES:
            await world.disk(node, full=full, fsync_delay_ms=0)

    asyncio.run(fill(full=True))
    assert inside(world, 1, WRITE) == "No space left on device"
    with pytest.raises(KafkaError) as refused:
        send_many(world)
    assert refused.value.code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
    assert all(world.is_running(node) for node in NODES)
    assert any("No space left on device" in world.server_log(node) for node in NODES)
    asyncio.run(fill(full=False))
    send(world)


def test_a_slow_disk_lets_a_sync_wait(world: DockerWorld) -> None:
    asyncio.run(world.disk(1, full=False, fsync_delay_ms=1000))
    took = max(float(inside(world, 1, WRITE)) for _ in range(3))
    assert took > 0.2
    asyncio.run(world.disk(1, full=False, fsync_delay_ms=0))


def test_a_disk_that_fails_is_mended_by_a_start(world: DockerWorld) -> None:
    before = world.incarnation(1)
    asyncio.run(world.fail_fsync(1))
    assert inside(world, 2, WRITE) != "Input/output error"
    said = command("sh", "-c", f"touch {RUN_DIRECTORY}/kafka1/disk/data/tried 2>&1 || true")
    assert "Input/output error" in said
    asyncio.run(world.start(1))
    assert world.incarnation(1) == before + 1


def test_a_paused_node_does_not_answer_and_goes_on(world: DockerWorld) -> None:
    before = world.incarnation(3)
    asyncio.run(world.pause(3))
    assert asyncio.run(world.wait_ready(1.0)) != []
    assert world.is_running(3)
    asyncio.run(world.resume(3))
    assert world.incarnation(3) == before


@pytest.mark.parametrize("how", ["kill", "stop", "lose_unsynced", "lose_disk"])
def test_a_node_that_ended_comes_back_and_has_all_there_is(world: DockerWorld, how: str) -> None:
    """It has its own data, or if its volume is lost, that of the others; its copy is complete."""
    end = send(world)

    async def hurt() -> None:
        await getattr(world, how)(1)
        assert not world.is_running(1)
        if how == "lose_disk":
            assert list((await world.log_directory(1)).iterdir()) == []
        await world.start(1)
        assert await world.wait_ready(READY_SECONDS) == []
        assert await world.wait_in_sync(IN_SYNC_SECONDS) == []

    asyncio.run(hurt())
    assert send(world) == end + 1
