"""`kraftpy server --processes`: N brokers for clients, one line, one log, one stop, and what the end of each costs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import eventually

from kraftpy.broker.supervisor import described_end
from kraftpy.testing.ports import ReservedPorts

HOST = "127.0.0.1"
SECONDS = 60.0
READY = re.compile(r"^kraftpy \S+ ready: nodes (\d+) to (\d+), (.+), [\d.]+ s\n$")
RECORDS = 300


def ports_in_a_row(count: int) -> Iterator[int]:
    """Yield the first of so many ports that nobody else gets meanwhile."""
    while True:
        held = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(held):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                each.bind((HOST, held[0].getsockname()[1] + number if number else 0))
        except (OSError, OverflowError):
            continue
        else:
            yield held[0].getsockname()[1]
            return
        finally:
            for each in held:
                each.close()


class Host:
    """A supervisor and its processes, whose data are in a directory."""

    def __init__(
        self, directory: Path, processes: int, *settings: str, options: Sequence[str] = (), data: str = "data"
    ) -> None:
        overrides = [f"log.dirs={directory / data}", "offsets.topic.num.partitions=6", *settings]
        self.log = directory / f"{data}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "kraftpy", "server", "--processes", str(processes), *options),
                    *(argument for each in overrides for argument in ("--override", each)),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                start_new_session=True,
            )
        self.ports: dict[int, int] = {}
        """The port of each node's first listener, once they are ready."""
        self._known: dict[int, psutil.Process] = {}

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], SECONDS)[0], self.log.read_text()
        match = READY.match(self.process.stdout.readline())
        assert match is not None, self.log.read_text()
        nodes = range(int(match[1]), int(match[2]) + 1)
        ports = [int(port) for port in re.findall(r"PLAINTEXT://(?:127\.0\.0\.1|localhost):(\d+)", match[3])]
        self.ports = dict(zip(nodes, ports, strict=True))
        self.pids()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    def pids(self) -> dict[int, int]:
        """Return the process of each node that listens."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            self._known[child.pid] = child
            try:
                listens = {each.laddr.port for each in child.net_connections() if each.status == psutil.CONN_LISTEN}
            except psutil.Error:
                continue
            found |= {node: child.pid for node, port in self.ports.items() if port in listens}
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def are_gone(self) -> bool:
        """Return whether no process that was seen is left."""
        return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in self._known.values())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        for each in self._known.values():
            if each.is_running():
                each.kill()


Start = Callable[..., Host]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Host] = []

    def run(*arguments: object, **options: object) -> Host:
        started.append(Host(tmp_path, *arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield run
    for each in started:
        each.kill()


@pytest.fixture
def quorum() -> Iterator[str]:
    """Settings by which each node has any free port, and the controller one that is known."""
    with ReservedPorts() as ports:
        yield f"listeners=PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:{ports.reserve()}"


def create(bootstrap: str, name: str, partitions: int, replicas: int) -> dict[int, list[int]]:
    """Create a topic, and return the replicas of each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(SECONDS)
    return replicas_of(bootstrap, name, partitions)


def replicas_of(bootstrap: str, name: str, partitions: int) -> dict[int, list[int]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found: dict[int, list[int]] = {}

    def are_known() -> bool:
        topic = admin.list_topics(name, timeout=10).topics[name]
        found.update({number: each.replicas for number, each in topic.partitions.items() if each.leader >= 0})
        return len(found) == partitions

    eventually(are_known)
    return found


def produce(bootstrap: str, topic: str, partitions: int, first: int = 0) -> None:
    refused: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(first, first + RECORDS):
        producer.produce(
            topic,
            str(number),
            partition=number % partitions,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert not refused


def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    """Read as a new group, from the beginning, so many records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[int] = []

    def is_read() -> bool:
        for message in consumer.consume(count, 0.2):
            if not message.error():
                value = message.value()
                assert value is not None
                found.append(int(value))
        return len(found) >= count

    eventually(is_read)
    consumer.close()
    return sorted(found)


async def round_trip(bootstrap: str, topic: str, partitions: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        for number in range(RECORDS):
            await producer.send(topic, str(number).encode(), partition=number % partitions)
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id="aiokafka", auto_offset_reset="earliest")
    async with asyncio.timeout(SECONDS), consumer:
        found = [int((await consumer.getone()).value) for _ in range(RECORDS)]
    assert sorted(found) == list(range(RECORDS))


# -- what clients see


def test_clients_see_as_many_brokers_and_use_them_all(start: Start) -> None:
    first = next(ports_in_a_row(5))
    host = start(4, f"listeners=PLAINTEXT://{HOST}:{first}", "num.partitions=8")
    host.wait_ready()
    assert host.ports == {node: first + node - 1 for node in (1, 2, 3, 4)}
    known = AdminClient({"bootstrap.servers": f"{HOST}:{first + 2}"}).list_topics(timeout=10).brokers
    assert {(each.id, each.host, each.port) for each in known.values()} == {
        (node, HOST, port) for node, port in host.ports.items()
    }
    replicas = create(host.bootstrap, "spread", 8, 1)
    assert Counter(each[0] for each in replicas.values()) == dict.fromkeys((1, 2, 3, 4), 2)
    produce(host.bootstrap, "spread", 8)
    assert consume(host.bootstrap, "spread", RECORDS) == list(range(RECORDS))
    create(host.bootstrap, "replicated", 4, 3)
    asyncio.run(round_trip(host.bootstrap, "replicated", 4))
    assert len({*host.pids().values()}) == 4
    assert host.stop() == 0
    assert host.process.stdout is not None
    assert host.process.stdout.read() == ""
    assert host.are_gone()
    host = start(4, f"listeners=PLAINTEXT://{HOST}:{first}", "num.partitions=8")
    host.wait_ready()
    assert consume(host.bootstrap, "spread", RECORDS) == list(range(RECORDS))
    assert consume(host.bootstrap, "replicated", RECORDS) == list(range(RECORDS))
    assert host.stop(signal.SIGINT) == 0


def test_they_have_one_log_and_one_health(start: Start, quorum: str) -> None:
    host = start(3, quorum, "kraftpy.log.format=json", "kraftpy.metrics.listener=127.0.0.1:0")
    host.wait_ready()
    host.process.send_signal(signal.SIGUSR1)
    eventually(lambda: host.log.read_text().count("\n") >= 3)
    assert all("node" not in json.loads(line) for line in host.log.read_text().splitlines())  # health has none
    os.kill(host.pids()[2], signal.SIGKILL)
    eventually(lambda: "is ready again" in host.log.read_text())
    assert host.stop() == 0
    lines = [json.loads(line) for line in host.log.read_text().splitlines()]
    of_second = [(each["level"], each["message"]) for each in lines if each.get("node") == 2]
    assert of_second[0] == ("ERROR", "node 2 was killed by SIGKILL; it starts again in 1 s")
    assert of_second[-1] == ("INFO", "node 2 is ready again")


def test_the_log_of_each_one_s_console_names_it(start: Start, quorum: str) -> None:
    first = next(ports_in_a_row(2))
    consoles = (f"kraftpy.console.listener={HOST}:{first}", "kraftpy.console.allow.changes=true")
    host = start(2, quorum, *consoles)
    host.wait_ready()

    def is_refused(node: int) -> bool:
        request = urllib.request.Request(f"http://{HOST}:{first + node - 1}/topic/delete", data=b"name=a")
        try:
            urllib.request.urlopen(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            return error.code == 403
        except OSError:  # not there yet
            return False
        return False

    for node in (1, 2):
        eventually(lambda node=node: is_refused(node))
        line = rf"^\S+ \S+ INFO node {node} kafka\.authorizer\.logger: {{.*POST /topic/delete"
        eventually(lambda line=line: re.search(line, host.log.read_text(), re.MULTILINE))
    assert host.stop() == 0


def test_tools_and_monitors_see_each_of_them(start: Start, quorum: str) -> None:
    first = next(ports_in_a_row(3))
    host = start(3, quorum, f"kraftpy.metrics.listener={HOST}:{first}")
    host.wait_ready()
    brokers = []
    for node in (1, 2, 3):
        with urllib.request.urlopen(f"http://{HOST}:{first + node - 1}/readyz", timeout=SECONDS) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://{HOST}:{first + node - 1}/metrics", timeout=SECONDS) as answer:
            page = answer.read().decode()
        brokers += re.findall(r"^kafka_brokers\S* (\S+)$", page, re.MULTILINE)
    assert [float(each) for each in brokers] == [3.0]  # the active controller shows it

    def ask(*arguments: str) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "kraftpy", *arguments, "--bootstrap-server", host.bootstrap]
        lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS).stdout.splitlines()
        return [json.loads(line) for line in lines]

    create(host.bootstrap, "seen", 3, 1)
    produce(host.bootstrap, "seen", 3)
    rows = [row for row in ask("cluster", "status") if "broker" in row]
    assert [(row["broker"], row["state"]) for row in rows] == [(node, "active") for node in (1, 2, 3)]
    assert [row["leaders"] for row in rows] == [1, 1, 1]
    replicas = {row["node"]: row["role"] for row in ask("cluster", "quorum")}
    assert replicas == {1: "leader", 2: "observer", 3: "observer"}
    assert "seen" in json.dumps(ask("top", "--once", "--interval", "0.2"))
    assert host.stop() == 0


def test_they_share_the_memory_of_what_was_imported(start: Start, quorum: str) -> None:
    host = start(3, quorum)
    host.wait_ready()
    assert psutil.Process(host.process.pid).num_threads() == 1  # it may fork at any time
    for pid in host.pids().values():
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = {name: int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
        assert sizes["Pss_Anon"] < 0.8 * sizes["Anonymous"], sizes
    assert host.stop() == 0


def test_replicas_are_on_different_hosts(start: Start, quorum: str) -> None:
    address = quorum.rpartition("//")[2]
    one = start(2, quorum, f"controller.quorum.voters=1@{address}", data="one")
    two = start(
        2,
        f"listeners=PLAINTEXT://{HOST}:0",
        "advertised.listeners=PLAINTEXT://localhost:0",
        "process.roles=broker",
        "node.id=11",
        f"controller.quorum.voters=1@{address}",
        data="two",
    )
    one.wait_ready()
    two.wait_ready()
    bootstrap = f"{one.bootstrap},{two.bootstrap}"
    for each in create(bootstrap, "pairs", 8, 2).values():
        assert sorted(node > 10 for node in each) == [False, True], each
    for each in create(bootstrap, "triples", 4, 3).values():
        assert sorted(node > 10 for node in each) in ([False, False, True], [False, True, True]), each
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assigned = NewTopic("assigned", num_partitions=2, replica_assignment=[[1, 2], [2, 1]])
    admin.create_topics([assigned])["assigned"].result(SECONDS)
    assert replicas_of(bootstrap, "assigned", 2) == {0: [1, 2], 1: [2, 1]}
    reassign = ["topic", "reassign", "assigned", "--execute", "--wait", "--bootstrap-server", bootstrap]
    subprocess.run([sys.executable, "-m", "kraftpy", *reassign], check=True, capture_output=True, timeout=SECONDS)
    for each in replicas_of(bootstrap, "assigned", 2).values():
        assert sorted(node > 10 for node in each) == [False, True], each
    produce(bootstrap, "pairs", 8)
    assert two.stop() == 0  # its leaderships move to the other host
    assert consume(one.bootstrap, "pairs", RECORDS) == list(range(RECORDS))
    assert one.stop() == 0


# -- ends that nobody asked for


def test_a_process_that_is_killed_comes_back_with_its_data(start: Start, quorum: str) -> None:
    host = start(3, quorum)
    host.wait_ready()
    create(host.bootstrap, "kept", 6, 1)
    produce(host.bootstrap, "kept", 6)
    for node in (3, 1):  # a broker, and the one that is the controller as well
        os.kill(host.pids()[node], signal.SIGKILL)
        again = f"node {node} is ready again"
        eventually(lambda again=again: again in host.log.read_text(), again)
        assert f"node {node} was killed by SIGKILL; it starts again in 1 s" in host.log.read_text()
    assert consume(f"{HOST}:{host.ports[2]}", "kept", RECORDS) == list(range(RECORDS))
    produce(f"{HOST}:{host.ports[2]}", "kept", 6, first=RECORDS)
    assert host.stop() == 0
    assert host.are_gone()


def test_a_process_that_cannot_start_again_is_tried_less_and_less_often(
    start: Start, quorum: str, tmp_path: Path
) -> None:
    host = start(2, quorum)
    host.wait_ready()
    directory = tmp_path / "data" / "node-2"
    meta = (directory / "meta.properties").read_text()
    (directory / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=9\n")
    os.kill(host.pids()[2], signal.SIGKILL)
    eventually(lambda: "node 2 ended with status 2; it starts again in 4 s" in host.log.read_text())
    text = host.log.read_text()
    assert "node 2 was killed by SIGKILL; it starts again in 1 s" in text
    assert "node 2 ended with status 2; it starts again in 2 s" in text
    assert f"kraftpy: node 2: log.dirs: {directory} belongs to node 9, this is node 2" in text
    (directory / "meta.properties").write_text(meta)
    eventually(lambda: "node 2 is ready again" in host.log.read_text())
    assert host.stop() == 0


def test_every_end_can_be_told() -> None:
    assert described_end(2) == "ended with status 2"
    assert described_end(-signal.SIGKILL) == "was killed by SIGKILL"
    assert described_end(-(signal.SIGRTMIN + 3)) == f"was killed by signal {signal.SIGRTMIN + 3}"


def test_no_process_outlives_its_supervisor(start: Start, quorum: str) -> None:
    host = start(3, quorum)
    host.wait_ready()
    create(host.bootstrap, "kept", 3, 1)
    produce(host.bootstrap, "kept", 3)
    host.process.kill()
    eventually(host.are_gone)
    text = host.log.read_text()
    for node in (1, 2, 3):
        assert re.search(rf" ERROR node {node} kraftpy\.\S+: the supervisor is gone: this node stops", text), text
    host = start(3, quorum)
    host.wait_ready()
    assert consume(host.bootstrap, "kept", RECORDS) == list(range(RECORDS))
    assert host.stop() == 0


def test_one_process_may_be_told_to_start_again(start: Start, quorum: str) -> None:
    host = start(2, quorum)
    host.wait_ready()
    os.kill(host.pids()[2], signal.SIGTERM)
    eventually(lambda: "kraftpy: info: node 2 is ready again" in host.log.read_text())
    assert "kraftpy: info: node 2 ended with status 0; it starts again in 1 s" in host.log.read_text()
    assert host.stop() == 0


def test_controllers_stop_last(start: Start, quorum: str) -> None:
    host = start(3, quorum)
    host.wait_ready()
    processes = {node: psutil.Process(pid) for node, pid in host.pids().items()}
    os.kill(processes[3].pid, signal.SIGSTOP)
    began = time.monotonic()
    host.process.send_signal(signal.SIGTERM)
    eventually(lambda: not processes[2].is_running())
    is_kept = processes[1].is_running()
    assert is_kept or time.monotonic() - began > 10
    os.kill(processes[3].pid, signal.SIGCONT)
    assert host.process.wait(SECONDS) == 0
    assert host.are_gone()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_process_that_does_not_stop_is_killed(start: Start, quorum: str) -> None:
    host = start(2, quorum)
    host.wait_ready()
    pid = host.pids()[2]
    os.kill(pid, signal.SIGSTOP)
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(2 * SECONDS) == 1
    assert "kraftpy: node 2 has not stopped within 60 s and is killed\n" in host.log.read_text()
    assert host.are_gone()


def test_it_may_be_stopped_before_it_is_ready(start: Start) -> None:
    with ReservedPorts() as ports:  # there is no quorum at that address
        voters = f"controller.quorum.voters=9@{HOST}:{ports.reserve()}"
        host = start(2, f"listeners=PLAINTEXT://{HOST}:0", "process.roles=broker", voters)
        supervisor = psutil.Process(host.process.pid)
        eventually(lambda: len(supervisor.children()) == 2)
        assert host.stop() == 0


# -- what cannot be started


def test_a_taken_port_ends_all_with_status_2(start: Start) -> None:
    first = next(ports_in_a_row(4))
    with socket.create_server((HOST, first + 1)):
        host = start(3, f"listeners=PLAINTEXT://{HOST}:{first}")
        assert host.process.wait(SECONDS) == 2
    text = host.log.read_text()
    assert f"kraftpy: node 2: listeners: cannot listen on PLAINTEXT://{HOST}:{first + 1}: the port is taken\n" in text
    assert "kraftpy: node 2 ended with status 2 before it was ready: all nodes stop\n" in text
    assert host.are_gone()


def test_ports_that_meet_are_told_before_anything_starts(start: Start, tmp_path: Path) -> None:
    settings = f"listeners=PLAINTEXT://{HOST}:9092,CONTROLLER://{HOST}:9093"
    host = start(2, settings)
    assert host.process.wait(SECONDS) == 2
    assert host.log.read_text() == (
        "kraftpy: --processes: listener PLAINTEXT of node 2 and listener CONTROLLER of node 1 would both have port "
        "9093: set --port-step, for example 10\n"
    )
    assert not (tmp_path / "data").exists()


# -- one process, and several


def test_data_of_one_process_are_moved_once(start: Start, quorum: str, tmp_path: Path) -> None:
    host = start(1, f"listeners=PLAINTEXT://{HOST}:0")
    assert host.process.stdout is not None
    port = int(re.findall(r"127\.0\.0\.1:(\d+)", host.process.stdout.readline())[0])
    create(f"{HOST}:{port}", "kept", 3, 1)
    produce(f"{HOST}:{port}", "kept", 3)
    assert host.stop() == 0
    host = start(2, quorum)
    assert host.process.wait(SECONDS) == 2
    data = tmp_path / "data"
    assert f"log.dirs: {data} holds the data of a single process" in host.log.read_text()
    data.rename(tmp_path / "node-1")
    data.mkdir()
    shutil.move(tmp_path / "node-1", data)
    host = start(2, quorum)
    host.wait_ready()
    assert consume(host.bootstrap, "kept", RECORDS) == list(range(RECORDS))
    assert sorted(create(host.bootstrap, "new", 2, 1).values()) == [[1], [2]]
    assert host.stop() == 0
    host = start(1, f"listeners=PLAINTEXT://{HOST}:0")
    assert host.process.wait(SECONDS) == 2
    assert f"log.dirs: {data} holds the data of several processes, such as {data}/node-1" in host.log.read_text()


def test_a_container_runs_several_and_is_healthy_with_all_of_them(tmp_path: Path) -> None:
    first = next(ports_in_a_row(3))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "KRAFTPY_"))}
    environment = inherited | {
        "KAFKA_LISTENERS": f"PLAINTEXT://{HOST}:{first}",
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
        "CLUSTER_ID": "7mHQeQOJRqGJbGzBfx3-tw",
        "KRAFTPY_PROCESSES": "2",
    }
    command = [sys.executable, "-m", "kraftpy.cli.container"]

    def is_healthy() -> bool:
        checked = subprocess.run([*command, "healthy"], env=environment, capture_output=True, timeout=SECONDS)
        return checked.returncode == 0

    process = subprocess.Popen([*command, "run"], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert READY.match(process.stdout.readline())
        assert "cluster.id=7mHQeQOJRqGJbGzBfx3-tw" in (tmp_path / "data" / "node-2" / "meta.properties").read_text()
        eventually(is_healthy)
        one = psutil.Process(process.pid).children()[-1]
        one.suspend()
        eventually(lambda: not is_healthy())
        one.resume()
        eventually(is_healthy)
    finally:
        process.terminate()
        assert process.communicate(timeout=SECONDS) == ("", None)
        assert process.returncode == 0
