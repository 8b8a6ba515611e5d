"""A Docker engine, seen from a test: commands, containers, compose projects, and records that were acknowledged."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "kraftpy"
SECONDS = 120.0
MOST_WAITING = 10_000
"""Records that a producer may hold while no broker takes them."""


def command(*arguments: object, timeout: float = SECONDS) -> str:
    """Run a command, which must succeed; return its output."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def succeeds(*arguments: object) -> bool:
    """Return whether a command exists and ends with status 0."""
    try:
        return (
            subprocess.run([str(a) for a in arguments], capture_output=True, timeout=SECONDS, check=False).returncode
            == 0
        )
    except FileNotFoundError:
        return False


def wait_until(reached: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)


def free_port() -> int:
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Container:
    """A container by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state(self) -> dict[str, Any]:
        """`docker inspect`'s State."""
        return dict(json.loads(command("docker", "inspect", "--format", "{{json .State}}", self.name)))

    def run(self, *arguments: object) -> str:
        """Run a command inside the container; return its output."""
        return command("docker", "exec", self.name, *arguments)

    def logs(self) -> str:
        """Both streams of the server."""
        done = subprocess.run(
            ["docker", "logs", self.name], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.stdout + done.stderr

    def wait_healthy(self) -> None:
        """Until the engine calls it healthy."""
        wait_until(lambda: self.state()["Health"]["Status"] == "healthy", f"{self.name} is healthy: {self.logs()}")

    def stop(self) -> float:
        """`docker stop`; the seconds it took."""
        began = time.monotonic()
        command("docker", "stop", "--time", 60, self.name)
        return time.monotonic() - began


class Compose:
    """A compose file brought up under a project name of its own; `with` takes it down again, volumes and all."""

    def __init__(self, file: Path, project: str) -> None:
        tool = ["docker", "compose"] if succeeds("docker", "compose", "version") else ["docker-compose"]
        self._command = [*tool, "--file", str(file), "--project-name", project]

    def __call__(self, *arguments: object) -> str:
        """Run a compose command; return its output."""
        return command(*self._command, *arguments, timeout=600)

    def __enter__(self) -> Compose:
        try:
            self("up", "--detach")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self("down", "--volumes", "--timeout", 0)

    def container(self, service: str) -> Container:
        """The one container of a service, running or not."""
        everyone = command("docker", "ps", "--all", "--format", "{{.ID}} {{.Label \"com.docker.compose.service\"}}",
                           "--filter", f"label=com.docker.compose.project={self._command[-1]}")  # fmt: skip
        (found,) = [line.split()[0] for line in everyone.splitlines() if line.split()[1] == service]
        return Container(found)


def compose_file(path: Path, services: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a compose file; JSON is YAML."""
    path.write_text(json.dumps({"services": services}))
    return path


class Load:
    """A producer that numbers its records and remembers what was acknowledged, until the `with` block ends."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 120_000}
        )
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, name="load")
        self.acknowledged: dict[int, list[int]] = defaultdict(list)  # partition -> numbers, as they were acknowledged
        self.failed: list[KafkaError] = []
        self.count = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.poll(0.002)
            if len(self._producer) > MOST_WAITING:
                continue
            for partition in range(self._partitions):
                self._producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
                number += 1
        self._producer.flush(SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        value = message.value()
        assert value is not None
        self.acknowledged[message.partition() or 0].append(int(value))
        self.count += 1

    def wait_for_more(self, records: int = 300) -> None:
        """Wait until this number of further records is acknowledged."""
        target = self.count + records
        wait_until(lambda: self.count >= target, f"{records} more records acknowledged")


class Commits:
    """A group that commits ever higher offsets and remembers what was acknowledged, until the `with` block ends."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "commits", "enable.auto.commit": False})
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._commit, name="commits")
        self.last = [-1] * partitions
        self.count = 0

    def __enter__(self) -> Commits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _offsets(self, offset: int) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition, offset) for partition in range(self._partitions)]

    def _commit(self) -> None:
        offset = 0
        while not self._stop.is_set():
            offset += 1
            while not self._stop.is_set():
                try:
                    self._consumer.commit(offsets=self._offsets(offset), asynchronous=False)
                except KafkaException:
                    continue  # its coordinator is on its way to another node: the same offset again
                self.last = [offset] * self._partitions
                self.count += 1
                break

    def wait_for_more(self, commits: int = 20) -> None:
        """Wait until this number of further records is acknowledged."""
        target = self.count + commits
        wait_until(lambda: self.count >= target, f"{commits} more commits acknowledged")

    def committed(self) -> list[int]:
        """Return the records that the group finds; offsets of a commit that was never answered may be one higher."""
        found = self._consumer.committed(self._offsets(-1001), timeout=SECONDS)
        self._consumer.close()
        return [partition.offset for partition in found]


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[int]]:
    """Every record there is, by partition, from the first to the end there was at the beginning."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    ends = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=SECONDS)[1]
        for partition in range(partitions)
    }
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[int]] = {partition: [] for partition in range(partitions)}
    deadline = time.monotonic() + SECONDS
    while any(len(found[partition]) < ends[partition] for partition in ends):
        assert time.monotonic() < deadline, {partition: (len(found[partition]), ends[partition]) for partition in ends}
        for message in consumer.consume(1000, 0.5):
            if message.error() is not None:
                raise KafkaException(message.error())
            value = message.value()
            assert value is not None
            found[message.partition() or 0].append(int(value))
    consumer.close()
    return found


def round_trip(bootstrap: str, topic: str, records: Sequence[bytes] = (b"a", b"b", b"c")) -> None:
    """Produce, and consume in a group; what comes back is what was sent."""
    producer = Producer({"bootstrap.servers": bootstrap})
    failed: list[KafkaError] = []
    for record in records:
        producer.produce(topic, record, key=b"k", on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(SECONDS) == 0
    assert failed == []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    received: list[bytes | None] = []
    deadline = time.monotonic() + SECONDS
    while len(received) < len(records):
        assert time.monotonic() < deadline, received
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            received.append(message.value())
    consumer.close()
    assert received == list(records)


def engine_answers() -> bool:
    """Return whether there is a daemon to talk to."""
    return succeeds("docker", "info")


def is_root() -> bool:
    """Return whether this process may install and start things."""
    return os.geteuid() == 0
