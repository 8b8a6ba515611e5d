"""The systems of the paper's bench, one node each: how it is started, and how its own load tool sends and receives.

Every system gets a new directory, which is removed afterwards, a memory limit as its own scripts give it, and no sync
of the disk before a message is acknowledged. All tools run in a JVM with the same memory.

A producer either does not wait for acknowledgements, or has at most `WINDOW` messages that are not acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from bench.paper_reports import Run, artemis, kafka_consumer, kafka_producer, rabbitmq
from kraftpy.testing.ports import ReservedPorts

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "compat")]

from maven import JavaProject  # noqa: E402
from peer_clusters import PeerCluster, kafka_class_path  # noqa: E402

HOST = "127.0.0.1"
SIZE = 200
"""Bytes of a message."""
WINDOW = 1_000
FETCH_BYTES = 200_000
"""The paper: a pull request prefetches up to 1000 messages or about 200KB."""
TOOL_JAVA = ("-Xmx512M",)
KAFKA_JAVA = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""The options of Kafka's own start script."""
BATCH_BYTES = {1: 0, 50: 10_640}
"""batch.size by records of a batch. The header takes 61 bytes, a record of 200 bytes 209 or 210."""
REPORTS_MS = 100

_POM = Path(__file__).with_name("paper_pom.xml")
_BUILT = ROOT / "build" / "bench-paper"
_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_ADD_OPENS = "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED"
_START_S = 300.0
_STOP_S = 60.0
_TOOL_S = 600.0
_LEAST_PER_S = 200
"""A tool that is slower than that is ended."""


class System(Protocol):
    """A node that runs."""

    @property
    def data(self) -> Path:
        """Its data directory."""

    def create(self, queue: str) -> None:
        """Create a topic of one partition, or a queue, if the tools do not do that themselves."""

    def produce(self, queue: str, messages: int, *, waits: bool) -> Run:
        """Send so many persistent messages; `waits` if acknowledgements are waited for."""

    def consume(self, queue: str, messages: int) -> Run:
        """Receive so many."""


class Kafka:
    """A node that speaks Kafka's protocol, under Kafka's own tools."""

    def __init__(self, cluster: PeerCluster, batch: int) -> None:
        """Producers make batches of so many records."""
        self._cluster, self._batch = cluster, batch
        self._bootstrap = f"{HOST}:{cluster.ports[0]}"
        self._java = ["java", *TOOL_JAVA, "-cp", kafka_class_path()]

    @property
    def data(self) -> Path:
        return Path(self._cluster.data_directory(1))

    def create(self, queue: str) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "enable.metrics.push": False})
        admin.create_topics([NewTopic(queue, 1, 1)])[queue].result(30)

    def produce(self, queue: str, messages: int, *, waits: bool) -> Run:
        settings = {
            "acks": "1" if waits else "0",
            "enable.idempotence": "false",
            "batch.size": str(BATCH_BYTES[self._batch]),
            "max.in.flight.requests.per.connection": str(WINDOW // self._batch),
        }
        command = [*self._java, "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", self._bootstrap]
        command += ["--topic", queue, "--num-records", str(messages), "--record-size", str(SIZE), "--throughput", "-1"]
        command += ["--reporting-interval", str(REPORTS_MS), "--print-metrics", "--command-property"]
        command += [f"{name}={value}" for name, value in settings.items()]
        return kafka_producer(_ended(command, messages))

    def consume(self, queue: str, messages: int) -> Run:
        command = [*self._java, "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", self._bootstrap]
        command += ["--topic", queue, "--num-records", str(messages), "--fetch-size", str(FETCH_BYTES)]
        command += ["--reporting-interval", str(REPORTS_MS), "--show-detailed-stats", "--print-metrics"]
        return kafka_consumer(_ended([*command, "--timeout", "60000"], messages), messages)


@contextlib.contextmanager
def kafka(kind: str, batch: int) -> Iterator[System]:
    """Run a node of "kraftpy" or "kafka"."""
    cluster = PeerCluster(kind, 1, java=KAFKA_JAVA)  # type: ignore[arg-type]
    try:
        cluster.start()
        yield Kafka(cluster, batch)
    finally:
        cluster.stop()


class RabbitMQ:
    """A node of RabbitMQ, under its PerfTest."""

    def __init__(self, directory: Path, port: int) -> None:
        """It listens to this port and keeps its messages below the directory."""
        self._directory = directory
        self._command = ["java", *TOOL_JAVA, "-cp", _peers().path(), "com.rabbitmq.perf.PerfTest"]
        self._command += ["--uri", f"amqp://guest:guest@{HOST}:{port}", "--id", "paper", "--size", str(SIZE)]
        self._command += ["--auto-delete", "false", "--flag", "persistent"]

    @property
    def data(self) -> Path:
        return self._directory / "mnesia"

    def create(self, queue: str) -> None:
        """Do nothing: the tool declares its queue."""

    def produce(self, queue: str, messages: int, *, waits: bool) -> Run:
        given = ["--queue", queue, "--producers", "1", "--consumers", "0", "--pmessages", str(messages)]
        return self._run([*given, *(["--confirm", str(WINDOW)] if waits else [])], "published", messages)

    def consume(self, queue: str, messages: int) -> Run:
        given = ["--queue", queue, "--producers", "0", "--consumers", "1", "--cmessages", str(messages), "--autoack"]
        return self._run(given, "received", messages)

    def _run(self, given: Sequence[str], column: str, messages: int) -> Run:
        table = self._directory / "results.csv"
        output = _ended([*self._command, *given, "--output-file", str(table)], messages)
        return rabbitmq(output, table.read_text(encoding="utf-8"), column, messages)


@contextlib.contextmanager
def rabbit() -> Iterator[System]:
    """Run a node of RabbitMQ with an epmd of its own, beside any that run as services."""
    with _directory("rabbitmq") as directory, ReservedPorts() as reserved:
        port, distribution, epmd = (reserved.reserve() for _ in range(3))
        own = {
            "HOME": directory,  # of the cookie
            "RABBITMQ_NODENAME": "paper@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": distribution,
            "RABBITMQ_MNESIA_BASE": directory / "mnesia",
            "RABBITMQ_LOG_BASE": directory / "log",
            "RABBITMQ_CONF_ENV_FILE": directory / "rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": directory / "rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "enabled_plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": epmd,
            "ERL_EPMD_ADDRESS": HOST,
        }
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        with (
            _running(["epmd", "-port", str(epmd), "-address", HOST], directory / "epmd", environment, ports=[epmd]),
            _running([str(_RABBITMQ)], directory / "rabbitmq", environment, says=" completed with "),
        ):
            yield RabbitMQ(directory, port)


class Artemis:
    """A node of ActiveMQ Artemis, under `artemis perf`."""

    def __init__(self, directory: Path, port: int) -> None:
        """It listens to this port and keeps its messages below the directory."""
        self._directory = directory
        self._environment = {**os.environ, "JAVA_ARGS": " ".join([*TOOL_JAVA, _ADD_OPENS])}
        self._url = f"tcp://{HOST}:{port}?consumerWindowSize={FETCH_BYTES}"

    @property
    def data(self) -> Path:
        return self._directory / "node" / "data"

    def create(self, queue: str) -> None:
        """Do nothing: the node creates queues that are used."""

    def produce(self, queue: str, messages: int, *, waits: bool) -> Run:
        given = ["--persistent", "--message-size", str(SIZE), "--max-pending", str(WINDOW if waits else 0)]
        return self._run("producer", queue, messages, given)

    def consume(self, queue: str, messages: int) -> Run:
        return self._run("consumer", queue, messages, [])

    def _run(self, tool: str, queue: str, messages: int, given: Sequence[str]) -> Run:
        results = self._directory / "results.json"
        command = [str(_artemis_home() / "bin" / "artemis"), "perf", tool, "--silent", "--url", self._url]
        command += ["--user", "paper", "--password", "paper", "--message-count", str(messages), "--json", str(results)]
        _ended([*command, *given, f"queue://{queue}"], messages, self._environment)
        return artemis(results.read_text(encoding="utf-8"), messages)


@contextlib.contextmanager
def activemq() -> Iterator[System]:
    """Run a node of ActiveMQ Artemis."""
    with _directory("artemis") as directory, ReservedPorts() as reserved:
        port = reserved.reserve()
        node = directory / "node"
        create = [str(_artemis_home() / "bin" / "artemis"), "create", str(node), "--silent", "--name", "paper"]
        create += [
            "--user",
            "paper",
            "--password",
            "paper",
            "--require-login",
            "--no-web",
            "--no-fsync",
            "--no-autotune",
        ]
        create += ["--no-amqp-acceptor", "--no-hornetq-acceptor", "--no-mqtt-acceptor", "--no-stomp-acceptor"]
        create += ["--host", HOST, "--default-port", str(port)]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        run = [str(node / "bin" / "artemis"), "run"]
        with _running(run, directory / "artemis", dict(os.environ), says="Server is now active"):
            yield Artemis(directory, port)


def versions() -> dict[str, str]:
    """Return the version of each system and tool by name."""
    kafka_jars = Path(kafka_class_path().split(os.pathsep)[-1]).parent
    return {
        "Apache Kafka": _version(kafka_jars, "kafka-clients-*.jar"),
        "RabbitMQ": _version(_RABBITMQ.parents[1] / "lib", "rabbitmq_server-*"),
        "PerfTest": _version(_peers().jars, "perf-test-*.jar"),
        "ActiveMQ Artemis": _artemis_home().name.rpartition("-")[2],
    }


def _version(directory: Path, pattern: str) -> str:
    (found,) = directory.glob(pattern)
    return found.name.removesuffix(".jar").rpartition("-")[2]


def wait_until_stored(directory: Path) -> None:
    """Wait until the files have not grown for a second: the node has stored what is still in its buffers."""
    before, deadline = -1, time.monotonic() + _STOP_S
    while time.monotonic() < deadline:
        found = sum(_allocated(path) for path in directory.rglob("*"))
        if found == before:
            return
        before = found
        time.sleep(1)


def _allocated(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _peers() -> JavaProject:
    return JavaProject(_BUILT, _POM)


def _artemis_home() -> Path:
    (archive,) = _peers().jars.glob("apache-artemis-*-bin.tar.gz")
    home = _BUILT / archive.name.removesuffix("-bin.tar.gz")
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_BUILT) as unpacked:
            subprocess.run(["tar", "--extract", "--file", archive, "--directory", unpacked], check=True)
            (Path(unpacked) / home.name).rename(home)
    return home


@contextlib.contextmanager
def _directory(name: str) -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix=f"kraftpy-bench-{name}-"))
    try:
        yield found
    finally:
        shutil.rmtree(found, ignore_errors=True)


@contextlib.contextmanager
def _running(
    command: Sequence[str], name: Path, environment: Mapping[str, str], *, says: str = "", ports: Sequence[int] = ()
) -> Iterator[None]:
    """Run a server, once it has said something and listens to some ports. Its processes are ended afterwards."""
    output = name.with_suffix(".out")
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _START_S
        while says not in output.read_text(encoding="utf-8", errors="replace") or not all(map(_listens, ports)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {output.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex((HOST, port)) == 0


def _ended(command: Sequence[str], messages: int, environment: Mapping[str, str] | None = None) -> str:
    """Run a tool; return its output. Raises RuntimeError if it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        timeout=_TOOL_S + messages / _LEAST_PER_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-2000:]}")
    return done.stdout
