"""A broker that cannot start says why in one line and an exit status; a stop is prompt and clean."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import confluent_kafka
import pytest
from broker_wire import StartBroker, ask, connect, fetch, fetch_request, is_closed, produce_values, read_all, serves

from kraftpy.broker.broker import Broker
from kraftpy.broker.runtime import OsDirectory, SystemClock
from kraftpy.broker.startup import StartupError
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.config import BrokerConfig
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.frames import encode_request
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.share.records import ShareKey
from kraftpy.testing.cluster import EmbeddedBroker
from kraftpy.testing.ports import ReservedPorts
from kraftpy.types import TopicId

USAGE, DAMAGE = 2, 1
BOUND_SECONDS = 30.0


def refused(*overrides: str, cwd: Path) -> tuple[int, str]:
    """Start a server that cannot start; its exit status and the one line it wrote besides warnings."""
    command = [sys.executable, "-m", "kraftpy", "server"]
    for override in overrides:
        command += ["--override", override]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=cwd)
    assert run.stdout == ""
    lines = [line for line in run.stderr.splitlines() if not line.startswith("kraftpy: warning: ")]
    assert len(lines) == 1, run.stderr
    assert lines[0].startswith("kraftpy: ")
    return run.returncode, lines[0]


def write(bootstrap: str, topic: str, *values: bytes) -> None:
    """Append to a topic, which is created if it is missing."""
    with connect(bootstrap) as connection:
        ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
        produce_values(connection, topic, *values)


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    """Every value of a topic of one partition."""
    return [value for _, value in read_all(bootstrap, topic)]


def stopped_broker(start_broker: StartBroker, topic: str = "kept") -> Path:
    """The log directory of a broker that was stopped cleanly, with one topic."""
    broker = start_broker()
    write(broker.bootstrap, topic, b"one", b"two")
    assert broker.stop() == 0
    return broker.data_dir / "logs"


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, line = refused(f"listeners=PLAINTEXT://127.0.0.1:{port}", f"log.dirs={tmp_path / 'logs'}", cwd=tmp_path)
    assert status == USAGE
    assert f"127.0.0.1:{port}" in line
    assert "taken" in line
    assert not (tmp_path / "logs").exists(), "nothing was touched"


@pytest.mark.parametrize("name", ["PLAINTEXT", "CONTROLLER"])
async def test_a_port_that_is_taken_during_the_start(tmp_path: Path, ports: ReservedPorts, name: str) -> None:
    """Another server, which reuses addresses too, begins to listen before this one does, at the same address."""
    port = ports.reserve()
    listeners = {"PLAINTEXT": 0, "CONTROLLER": 0, name: port}
    config = BrokerConfig.of(
        {
            "log.dirs": str(tmp_path / "logs"),
            "listeners": ",".join(f"{each}://127.0.0.1:{listeners[each]}" for each in listeners),
            "controller.quorum.voters": f"1@127.0.0.1:{listeners['CONTROLLER'] or ports.reserve()}",
        }
    )

    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
            broker = Broker(config, SystemClock(), tasks)
            tasks.create_task(listen_when_bound(broker, other))
            with pytest.raises(
                StartupError, match=f"cannot listen on {name}://127.0.0.1:{port}: the port is taken"
            ) as told:
                await broker.start()
            await broker.stop(is_ready=False)
    assert not told.value.is_damage


async def listen_when_bound(broker: Broker, other: socket.socket) -> None:
    while not broker.controller_address:  # noqa: ASYNC110 - it has no event; this listener is bound last
        await asyncio.sleep(0)
    other.listen()


def test_a_directory_in_use(start_broker: StartBroker) -> None:
    broker = start_broker()
    logs = broker.data_dir / "logs"
    status, line = refused("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={logs}", cwd=broker.data_dir)
    assert status == USAGE
    assert f"{logs} is in use" in line
    serves(broker.bootstrap)


def test_a_directory_of_another_node(start_broker: StartBroker) -> None:
    logs = stopped_broker(start_broker)
    status, line = refused(
        "node.id=7",
        "listeners=PLAINTEXT://127.0.0.1:0",
        f"log.dirs={logs}",
        cwd=logs.parent,
    )
    assert status == USAGE
    assert "belongs to node 1, this is node 7" in line


def test_directories_of_two_clusters(start_broker: StartBroker) -> None:
    one, other = stopped_broker(start_broker), stopped_broker(start_broker)
    status, line = refused("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={one},{other}", cwd=one.parent)
    assert status == USAGE
    assert "different clusters" in line


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_listener_that_is_not_ours(tmp_path: Path, host: str) -> None:
    status, line = refused(f"listeners=PLAINTEXT://{host}:0", f"log.dirs={tmp_path}/logs", cwd=tmp_path)
    assert status == USAGE
    assert host in line


def test_a_log_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here first")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/kraftpy")):
        status, line = refused("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={path}", cwd=tmp_path)
        assert status == USAGE
        assert str(path) in line


def test_bad_settings_of_several_kinds(tmp_path: Path) -> None:
    for override, expected in (
        ("num.partitions=zero", "num.partitions"),
        ("num.partition=1", "num.partitions"),
        ("listeners=PLAINTEXT://0.0.0.0:0", "advertised.listeners"),
        ("process.roles=", "process.roles"),
    ):
        status, line = refused(override, cwd=tmp_path)
        assert status == USAGE, override
        assert expected in line


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def test_a_damaged_metadata_journal_is_not_built_on(start_broker: StartBroker) -> None:
    logs = stopped_broker(start_broker)
    journal = logs / "metadata" / "journal"
    damage(journal, journal.stat().st_size // 2)
    status, line = refused("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={logs}", cwd=logs.parent)
    assert status == DAMAGE
    assert "journal" in line


def test_a_missing_metadata_journal_is_noticed(start_broker: StartBroker) -> None:
    logs = stopped_broker(start_broker)
    (logs / "metadata" / "journal").unlink()
    status, line = refused("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={logs}", cwd=logs.parent)
    assert status == DAMAGE
    assert "journal" in line


def test_a_partition_whose_topic_cannot_be_told_is_offline_and_the_others_are_served(start_broker: StartBroker) -> None:
    broker = start_broker()
    write(broker.bootstrap, "kept", b"one")
    write(broker.bootstrap, "damaged", b"two")
    broker.stop()
    (broker.data_dir / "logs" / "damaged-0" / "partition.metadata").write_text("version: 0\ntopic_id: ?\n")
    broker.start()
    assert values(broker.bootstrap, "kept") == [b"one"]
    with connect(broker.bootstrap) as connection:
        assert fetch(connection, "damaged", 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "damaged-0 is offline" in broker.log_text


def test_damaged_checkpoints_only_cost_a_scan(start_broker: StartBroker) -> None:
    broker = start_broker()
    write(broker.bootstrap, "kept", b"one", b"two")
    broker.stop()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        damage(broker.data_dir / "logs" / name, 2)
    broker.start()
    assert values(broker.bootstrap, "kept") == [b"one", b"two"]
    assert "is scanned" in broker.log_text


def test_a_stop_with_clients_that_wait(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long poll, a client that sends half a request, one that is idle: none of them holds the stop up."""
    monkeypatch.setenv("KRAFTPY_LOG_LEVEL", "INFO")
    broker = start_broker(stop_timeout=10.0)
    write(broker.bootstrap, "polled", b"one")
    poll = fetch_request("polled", 1, max_wait_ms=2**31 - 1)
    with connect(broker.bootstrap) as polling, connect(broker.bootstrap) as idle, connect(broker.bootstrap) as torn:
        polling.sendall(encode_request(ApiKey.FETCH, 12, 1, "poll", poll))
        torn.sendall(b"\0\0\1\0\0\0")
        ask(idle, ApiKey.METADATA, 9, MetadataRequest(topics=[]))
        assert broker.stop() == 0
        assert is_closed(polling)
        assert is_closed(idle)
        assert is_closed(torn)
    before = broker.log_text
    assert "Traceback" not in before
    broker.start()
    assert "recovered" not in broker.log_text[len(before) :], "the stop was clean: nothing is scanned"
    assert values(broker.bootstrap, "polled") == [b"one"]
    broker.kill()
    before = broker.log_text
    broker.start()
    assert "polled-0: recovered" in broker.log_text[len(before) :], "a crash is noticed"


def test_a_stop_while_producers_are_at_it(start_broker: StartBroker) -> None:
    broker = start_broker(stop_timeout=20.0)
    write(broker.bootstrap, "busy", b"first")
    acknowledged: list[bytes] = []
    ended = threading.Event()

    def produce() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        number = 0
        while not ended.is_set():
            number += 1
            producer.produce(
                "busy",
                str(number).encode(),
                on_delivery=lambda error, message: acknowledged.append(message.value()) if error is None else None,
            )
            producer.poll(0.001)
        producer.purge()
        producer.flush(5)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        deadline = 200
        while len(acknowledged) < 50 and deadline:
            deadline -= 1
            ended.wait(0.05)
        assert broker.stop() == 0
    finally:
        ended.set()
        thread.join()
    assert "Traceback" not in broker.log_text
    broker.start()
    assert values(broker.bootstrap, "busy")[1 : 1 + len(acknowledged)] == acknowledged
    with connect(broker.bootstrap) as connection:
        found = ask(connection, ApiKey.METADATA, 9, MetadataRequest(topics=[MetadataRequestTopic(name="busy")]))
        assert found.topics[0].error_code == ErrorCode.NONE


async def test_a_connection_that_was_accepted_before_a_stop_and_is_made_after_it_is_refused(tmp_path: Path) -> None:
    """A turn of the loop is between the two. A client served then would keep the node from ending until it leaves."""
    config = BrokerConfig.of({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
    accepted, client = socket.socketpair()
    with accepted, client:
        async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
            broker = Broker(config, SystemClock(), tasks)
            await broker.start()
            await broker.stop()
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: broker._connection("PLAINTEXT"), accepted)
        client.settimeout(BOUND_SECONDS)
        assert client.recv(1) == b""
        assert broker.connections == []


async def test_nothing_is_loaded_for_share_groups_once_a_broker_has_stopped(tmp_path: Path) -> None:
    """It would be tried again and again: for all that a stopped broker knows, it leads the partition."""
    config = BrokerConfig.of({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        await broker.stop()
        with pytest.raises(KafkaError, match="the broker is shutting down") as refused:
            broker.share_partitions.get(ShareKey("g", TopicId(bytes(16)), 0))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_controller_proposes_nothing_any_more_when_its_journal_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fence brokers that leave with it, and log that these commands were not decided: at each normal stop."""
    config = BrokerConfig.of({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
    was_active = []
    async with asyncio.timeout(BOUND_SECONDS), asyncio.TaskGroup() as tasks:
        broker = Broker(config, SystemClock(), tasks)
        await broker.start()
        controller, close = broker.controller, broker.metadata.stop
        assert controller is not None

        async def look_and_close() -> None:
            was_active.append(controller._sessions.is_active)
            await close()

        monkeypatch.setattr(broker.metadata, "stop", look_and_close)
        assert controller._sessions.is_active
        assert await broker.stop()
    assert was_active == [False]


_MISTAKEN = """
import asyncio, sys
from kraftpy.broker import server
from kraftpy.broker.broker import Broker
from kraftpy.config import BrokerConfig

start = Broker.start

async def mistaken(broker):
    broker.tasks.create_task(asyncio.Event().wait(), name="a mistake")
    if sys.argv[2] == "ready":
        await start(broker)
    print("started", flush=True)
    if sys.argv[2] == "starting":
        await asyncio.Event().wait()

Broker.start = mistaken
sys.exit(server.run(BrokerConfig.of({"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:0"})))
"""


@pytest.mark.parametrize("when", ["ready", "starting"])
def test_what_does_not_end_is_ended_and_named(tmp_path: Path, when: str) -> None:
    command = [sys.executable, "-c", _MISTAKEN, str(tmp_path), when]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "started\n"
        if when == "ready":
            assert "ready" in server.stdout.readline()
        server.terminate()
        _, errors = server.communicate(timeout=BOUND_SECONDS)
    assert server.returncode == 0
    assert errors.endswith("ERROR kraftpy.broker.server: a mistake: still running at the end of the stop\n")


def test_a_foreign_directory_of_the_same_name_is_set_aside(start_broker: StartBroker) -> None:
    """The directory of a topic of that name, but not that topic: kept, and not taken for the topic's own."""
    broker = start_broker()
    write(broker.bootstrap, "twice", b"of the first")
    broker.stop()
    metadata = broker.data_dir / "logs" / "twice-0" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ\n")
    broker.start()
    assert "of another topic of that name" in broker.log_text
    aside = [name for name in os.listdir(broker.data_dir / "logs") if name.endswith("-stray")]
    assert len(aside) == 1
    write(broker.bootstrap, "twice", b"of the second")
    assert values(broker.bootstrap, "twice") == [b"of the second"]


def test_the_first_line_says_where(start_broker: StartBroker) -> None:
    broker: EmbeddedBroker = start_broker()
    assert f"PLAINTEXT://{broker.bootstrap}" in broker.ready_line
    assert "node 1" in broker.ready_line


def test_new_log_directories_have_durable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(OsDirectory, "sync", lambda directory, opened=-1: synced.append(directory.path))
    config = BrokerConfig.of({"node.id": "1", "log.dirs": str(tmp_path / "new" / "data")})

    def opened() -> None:
        directories = LogDirectories(config, SystemClock())
        directories.open()
        directories.close(-1, is_clean=False)

    opened()
    # A name survives a power loss once the directory that it stands in was synced: of "new", "data" and "metadata".
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "data")} <= set(synced)
    synced.clear()
    opened()
    assert synced == [], "what was there before is durable"


def test_new_directories_may_lack_anything_until_the_cluster_was_told(tmp_path: Path) -> None:
    """A node of this name may have had partitions; a crash before they were reported must not make it forget that."""
    config = BrokerConfig.of({"node.id": "1", "log.dirs": str(tmp_path)})

    def may_lack(*, accounts: bool) -> bool:
        directories = LogDirectories(config, SystemClock())
        directories.open()
        directories.adopt("a-cluster")
        if accounts:
            directories.account()
        directories.close(-1, is_clean=False)
        return directories.may_lack

    assert may_lack(accounts=False)
    assert may_lack(accounts=True)
    assert not may_lack(accounts=False)
