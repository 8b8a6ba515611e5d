"""A cluster of real nodes for a test: processes on free ports under one directory, killed, paused and cut off at will.

    with Cluster(brokers=3) as cluster:
        run_your_client(cluster.bootstrap_servers)
        cluster.kill(1)
        cluster.start(1)

`async with` gives an `AsyncCluster`, whose methods are coroutines. Nodes are named by their node id: the brokers are
1, 2, ..., and controllers apart from them, if any, have the numbers that follow.

Nothing stays behind. The nodes end with the block, and with the test's process however that ends: a companion process
(`kraftpy.testing.companion`) notices, kills them and deletes what was temporary. The companion also carries the
connections between nodes, so that `partition` can hold them back without being root; clients connect directly.

Ports are reserved for as long as the block lasts, so a node that starts again has the port it had.

Left out: cutting clients off, cutting in one direction only, TLS, systems without /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from kraftpy.testing.async_cluster import AsyncCluster
from kraftpy.testing.companion import TOKEN
from kraftpy.testing.server_process import BrokerDied, ServerProcess

MOST_COMBINED_VOTERS = 3
"""Where no controllers are asked for, so many brokers vote too."""

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.02
_ASK_SECONDS = 2.0
_TAIL_CHARACTERS = 4000
_COMPANION_SECONDS = 10.0


class _Ports(NamedTuple):
    """Where a node listens; 0 where it does not."""

    clients: int
    brokers: int
    controllers: int


class Cluster:
    """`brokers` nodes that serve clients, and the quorum that keeps their metadata.

    `controllers` is how many nodes keep the metadata and nothing else; without it the first three brokers do that too.
    `settings` are settings of every node, by Kafka's names; `node_settings` are of single nodes, by node id. `racks`
    are those of the brokers, in order. A topic that is created without a count of replicas has three, or as many as
    there are brokers; `__consumer_offsets` has so many too, and 8 partitions.

    Data are kept where a `directory` is given; the nodes then stop cleanly at the end of the block, rather than being
    killed. With `keep_on_failure` a temporary one is kept too where the block ends with an exception, which says where.

    `can_partition=False` lets nodes reach each other directly, for what counts every microsecond.

    Raises BrokerDied where a node does not start, or has ended by itself by the time the block ends.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        controllers: int | None = None,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        racks: Sequence[str] | None = None,
        directory: Path | str | None = None,
        keep_on_failure: bool = False,
        can_partition: bool = True,
        start_timeout: float = 30.0,
        stop_timeout: float = 30.0,
    ) -> None:
        if brokers < 1 or (controllers is not None and controllers < 1):
            raise ValueError(f"a cluster has brokers and controllers, not brokers={brokers}, controllers={controllers}")
        if racks is not None and len(racks) != brokers:
            raise ValueError(f"{len(racks)} racks for {brokers} brokers")
        self.brokers = tuple(range(1, brokers + 1))
        """The node ids of those that serve clients."""
        self.controllers = self.brokers[:MOST_COMBINED_VOTERS]
        """The node ids of those that vote on the metadata."""
        if controllers is not None:
            self.controllers = tuple(range(brokers + 1, brokers + controllers + 1))
        self.nodes = tuple(sorted({*self.brokers, *self.controllers}))
        """The node ids of all."""
        if unknown := sorted(set(node_settings or {}) - set(self.nodes)):
            raise ValueError(f"node_settings: there is no node {unknown[0]}")
        self._settings = dict(settings or {})
        self._node_settings = {node: dict(given) for node, given in (node_settings or {}).items()}
        self._racks = dict(zip(self.brokers, racks or (), strict=False))
        self._temporary = directory is None
        self._given_directory = directory
        self._keep_on_failure = keep_on_failure
        self._can_partition = can_partition
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._token = secrets.token_hex(16)
        self._reserved: list[socket.socket] = []
        self._ports: dict[int, _Ports] = {}
        self._voter_ports: dict[int, dict[int, int]] = {}
        self._replication_ports: dict[int, int] = {}
        self._processes: dict[int, ServerProcess] = {}
        self._paused: set[int] = set()
        self._cuts: set[frozenset[int]] = set()
        self._companion: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    # --- the block ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    async def __aenter__(self) -> AsyncCluster:
        await asyncio.to_thread(self.open)
        return AsyncCluster(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close, error)

    def open(self) -> None:
        """Start every node; returns when all of them serve and know each other. What `with` does at its start."""
        assert self._directory is None, "the cluster is open"
        self._directory = Path(
            tempfile.mkdtemp(prefix="kraftpy-cluster-") if self._given_directory is None else self._given_directory
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lay_links()
            for node in self.nodes:
                self._configure(node)
                self._launch(node)
            self.wait_ready()
        except BaseException as error:
            self.close(error)
            raise

    def close(self, error: BaseException | None = None) -> None:
        """End every node and remove what is temporary. What `with` does at its end, `error` being how its block ended.

        Raises BrokerDied where a node had ended by itself, or does not stop cleanly where that matters, unless there is
        an error already.
        """
        directory, self._directory = self._directory, None
        if directory is None:
            return
        problems: list[str] = []
        keep = not self._temporary or (self._keep_on_failure and error is not None)
        try:
            problems += self._end_all()
        finally:
            self._end_companion()
            for each in self._reserved:
                each.close()
            self._reserved.clear()
            if error is not None and keep:
                error.add_note(f"the cluster's data and logs are in {directory}")
            if not keep:
                shutil.rmtree(directory, ignore_errors=True)
        if problems and error is None:
            raise BrokerDied("; ".join(problems))

    def _end_all(self) -> list[str]:
        """End what runs; what was wrong with it."""
        problems = []
        for node, process in self._processes.items():
            if (status := process.exit_status) is not None:
                text = process.log_text[-_TAIL_CHARACTERS:]
                problems.append(f"node {node} had ended by itself with status {status}: {text}")
        number = signal.SIGKILL if self._temporary else signal.SIGTERM
        for node, process in self._processes.items():
            process.send(number)
            if node in self._paused:
                process.send(signal.SIGCONT)
        for node, process in self._processes.items():
            try:
                status = process.wait(self._stop_timeout)
            except BrokerDied as late:
                problems.append(f"node {node}: {late}")
                continue
            if status not in (0, -signal.SIGKILL):
                problems.append(f"node {node} stopped with status {status}: {process.log_text[-_TAIL_CHARACTERS:]}")
        self._processes.clear()
        self._paused.clear()
        self._cuts.clear()
        return problems

    # --- where it is ----------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of every broker, with commas, whether it runs or not."""
        return ",".join(self.address(node) for node in self.brokers)

    def address(self, node: int) -> str:
        """Host and port at which clients reach this broker."""
        assert node in self.brokers, f"node {node} serves no clients"
        return f"{_HOST}:{self._ports[node].clients}"

    @property
    def directory(self) -> Path:
        """Where everything is; `node-1` and so on within it are the nodes'."""
        assert self._directory is not None, "the cluster is not open"
        return self._directory

    def node_directory(self, node: int) -> Path:
        """The node's own: `server.properties`, `server.log` and `data`."""
        return self.directory / f"node-{node}"

    def logs(self, node: int) -> str:
        """What the node wrote to standard error, of all its runs."""
        path = self.node_directory(node) / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def is_running(self, node: int) -> bool:
        """Whether it was started and has not ended, paused or not."""
        process = self._processes.get(self._known(node))
        return process is not None and process.exit_status is None

    def pid(self, node: int) -> int:
        """The process id of a node that was started."""
        return self._started(node).pid

    # --- what is done to nodes ------------------------------------------------------------------------------------

    def start(self, node: int, *, wait: bool = True) -> None:
        """Start a node that was stopped or killed, on its data and ports; with `wait`, until all know it again."""
        assert self._known(node) not in self._processes, f"node {node} is running"
        self._launch(node)
        if wait:
            self.wait_ready()

    def kill(self, node: int) -> None:
        """SIGKILL, and wait: what a crash of the process leaves behind."""
        self._end(node, signal.SIGKILL)

    def stop(self, node: int) -> None:
        """SIGTERM, and wait. Raises BrokerDied where it stops late or with another status than 0."""
        self.resume(node)
        status = self._end(node, signal.SIGTERM)
        if status != 0:
            raise BrokerDied(f"node {node} stopped with status {status}: {self.logs(node)[-_TAIL_CHARACTERS:]}")

    def pause(self, node: int) -> None:
        """SIGSTOP: the node does nothing any more, and its connections stay open."""
        self._started(node).send(signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """SIGCONT. Does nothing where it was not paused."""
        self._started(node).send(signal.SIGCONT)
        self._paused.discard(node)

    def _end(self, node: int, number: signal.Signals) -> int:
        process = self._started(node)
        del self._processes[node]
        self._paused.discard(node)
        return process.end(number, self._stop_timeout)

    def _started(self, node: int) -> ServerProcess:
        process = self._processes.get(self._known(node))
        assert process is not None, f"node {node} is not running"
        return process

    def _known(self, node: int) -> int:
        assert node in self.nodes, f"there is no node {node}"
        return node

    # --- what is done to the network ------------------------------------------------------------------------------

    def partition(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Cut each of `some` off from each of `others`: nothing passes between them until `heal`.

        As packets that are dropped, not as connections that are closed: nodes have to notice by themselves. May be
        called again for more cuts.
        """
        if not self._can_partition:
            raise ValueError("the cluster was made with can_partition=False")
        for one, other in itertools.product(some, others):
            if self._known(one) == self._known(other):
                raise ValueError(f"node {one} cannot be cut off from itself")
            self._cuts.add(frozenset((one, other)))
        self._tell_companion()

    def heal(self) -> None:
        """Undo every cut; what was held back goes on."""
        self._cuts.clear()
        self._tell_companion()

    # --- what it says about itself --------------------------------------------------------------------------------

    def wait_ready(self, timeout: float | None = None) -> None:
        """Until every node that runs is ready and every broker that runs knows all of them. Raises BrokerDied.

        Paused nodes are left out.
        """
        deadline = time.monotonic() + (self._start_timeout if timeout is None else timeout)
        for node in sorted(self._processes):
            if node not in self._paused:
                self._wait_process(node, deadline)
        wanted = {node for node in self.brokers if node in self._processes and node not in self._paused}
        for node in sorted(wanted):
            while True:
                left = deadline - time.monotonic()
                known = self._known_to(node, max(_POLL_SECONDS, min(_ASK_SECONDS, left)))
                if wanted <= known:
                    break
                self._wait_process(node, deadline)
                if left < 0:
                    raise BrokerDied(
                        f"node {node} knows the brokers {sorted(known)}, not {sorted(wanted)}: "
                        f"{self.logs(node)[-_TAIL_CHARACTERS:]}"
                    )
                time.sleep(_POLL_SECONDS)

    def wait_in_sync(self, timeout: float | None = None) -> None:
        """Until every partition has a leader and all its replicas in sync, to every broker that runs.

        What to wait for between two failures, if one at a time is to be survived. Raises BrokerDied. Paused nodes are
        not asked.
        """
        deadline = time.monotonic() + (self._start_timeout if timeout is None else timeout)
        for node in self.brokers:
            while node in self._processes and node not in self._paused:
                left = deadline - time.monotonic()
                lagging = self._lagging(node, max(_POLL_SECONDS, min(_ASK_SECONDS, left)))
                if lagging == []:
                    break
                self._wait_process(node, deadline)
                if left < 0:
                    what = "does not answer" if lagging is None else f"sees {', '.join(lagging[:5])}"
                    raise BrokerDied(f"not all is in sync: node {node} {what}")
                time.sleep(_POLL_SECONDS)

    def leader_of(self, topic: str, partition: int = 0, *, ask: int | None = None) -> int | None:
        """The broker that leads a partition; None where there is none.

        As broker `ask` has it, else the first that answers: one that is cut off has old news.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        for answer in self._ask_any(ApiKey.METADATA, 9, request, ask):
            for found in answer.topics:
                for each in found.partitions:
                    if each.partition_index == partition and each.leader_id >= 0:
                        return int(each.leader_id)
            return None
        return None

    def led_by(self, node: int, *, ask: int) -> int:
        """How many partitions a node leads, as broker `ask` has it; of -1, how many have no leader.

        Raises BrokerDied where that broker does not answer.
        """
        answer = self._metadata(ask, _ASK_SECONDS, is_of_topics=True)
        if answer is None:
            raise BrokerDied(f"node {ask} does not answer: {self.logs(ask)[-_TAIL_CHARACTERS:]}")
        return sum(each.leader_id == node for topic in answer.topics for each in topic.partitions)

    def quorum_leader(self) -> int | None:
        """The node that leads the quorum, as the first broker that answers has it; None where there is none.

        That is the active controller.
        """
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.describe_quorum import DescribeQuorumRequest, QuorumPartition, QuorumTopic

        topic = QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])
        for answer in self._ask_any(ApiKey.DESCRIBE_QUORUM, 0, DescribeQuorumRequest(topics=[topic])):
            for found in answer.topics:
                for each in found.partitions:
                    if each.error_code == 0 and each.leader_id >= 0:
                        return int(each.leader_id)
        return None

    def coordinator_of(self, group: str) -> int | None:
        """The broker that coordinates a consumer group, as the first broker that answers has it; None without one."""
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest

        for answer in self._ask_any(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group)):
            if answer.error_code == 0:
                return int(answer.node_id)
        return None

    def _known_to(self, node: int, timeout: float) -> set[int]:
        """The brokers in this broker's metadata; empty where it does not answer."""
        answer = self._metadata(node, timeout, is_of_topics=False)
        return set() if answer is None else {broker.node_id for broker in answer.brokers}

    def _lagging(self, node: int, timeout: float) -> list[str] | None:
        """The partitions that this broker sees without a leader or with replicas out of sync; None without answer."""
        answer = self._metadata(node, timeout, is_of_topics=True)
        if answer is None:
            return None
        return [
            f"{topic.name}-{each.partition_index}: leader {each.leader_id}, replicas {each.replica_nodes}, "
            f"in sync {each.isr_nodes}"
            for topic in answer.topics
            for each in topic.partitions
            if each.leader_id < 0 or set(each.isr_nodes) != set(each.replica_nodes)
        ]

    def _metadata(self, node: int, timeout: float, *, is_of_topics: bool) -> Any:
        """This broker's answer to Metadata, with all topics or none; None where it does not answer."""
        from kraftpy.protocol.apis import ApiKey
        from kraftpy.protocol.messages.metadata import MetadataRequest
        from kraftpy.testing.asking import ask

        request = MetadataRequest(topics=None if is_of_topics else [])
        try:
            return ask((_HOST, self._ports[node].clients), ApiKey.METADATA, 9, request, timeout=timeout)
        except OSError:
            return None

    def _ask_any(self, key: Any, version: int, request: object, only: int | None = None) -> Iterable[Any]:
        """The answers of the brokers that do answer."""
        from kraftpy.testing.asking import ask

        for node in self.brokers if only is None else (only,):
            if node in self._processes and node not in self._paused:
                with contextlib.suppress(OSError):
                    yield ask((_HOST, self._ports[node].clients), key, version, request, timeout=_ASK_SECONDS)

    def _wait_process(self, node: int, deadline: float) -> None:
        process = self._processes[node]
        try:
            process.wait_ready(deadline)
        except BrokerDied as died:
            del self._processes[node]
            raise BrokerDied(f"node {node}: {died}") from None
        if process.exit_status is not None:
            raise BrokerDied(f"node {node} ended with status {process.exit_status}: {process.log_text}")

    # --- making it ------------------------------------------------------------------------------------------------

    def _reserve(self) -> int:
        """A free port that nobody else is given.

        A socket that is bound, and does not listen, keeps it: the system hands it out no more, and a server that reuses
        addresses, as ours does, may listen there nevertheless.
        """
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((_HOST, 0))
        self._reserved.append(held)
        return int(held.getsockname()[1])

    def _lay_links(self) -> None:
        """Ports of the nodes, and the companion with the links between them."""
        for node in self.nodes:
            is_broker, is_controller = node in self.brokers, node in self.controllers
            self._ports[node] = _Ports(
                clients=self._reserve() if is_broker else 0,
                brokers=self._reserve() if is_broker else 0,
                controllers=self._reserve() if is_controller else 0,
            )
        links: list[dict[str, Any]] = []
        listening: list[socket.socket] = []

        def link(from_node: int | None, to_node: int, to_port: int) -> int:
            if not self._can_partition:
                return to_port
            listener = socket.create_server((_HOST, 0), backlog=128)
            listening.append(listener)
            links.append({"fd": listener.fileno(), "from_node": from_node, "to_node": to_node, "to_port": to_port})
            return int(listener.getsockname()[1])

        for node in self.nodes:
            self._voter_ports[node] = {
                voter: self._ports[voter].controllers
                if voter == node
                else link(node, voter, self._ports[voter].controllers)
                for voter in self.controllers
            }
        self._replication_ports = {node: link(None, node, self._ports[node].brokers) for node in self.brokers}
        remove = str(self._directory) if self._temporary and not self._keep_on_failure else None
        spec = {"token": self._token, "remove": remove, "links": links}
        self._companion = subprocess.Popen(
            [sys.executable, "-c", "from kraftpy.testing.companion import main; main()", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno() for listener in listening],
            start_new_session=True,
        )
        for listener in listening:
            listener.close()

    def _configure(self, node: int) -> None:
        """The node's properties file."""
        ports = self._ports[node]
        is_broker, is_controller = node in self.brokers, node in self.controllers
        replicas = str(min(3, len(self.brokers)))
        listeners, roles = [], []
        if is_broker:
            listeners += [f"PLAINTEXT://{_HOST}:{ports.clients}", f"REPLICATION://{_HOST}:{ports.brokers}"]
            roles.append("broker")
        if is_controller:
            listeners.append(f"CONTROLLER://{_HOST}:{ports.controllers}")
            roles.append("controller")
        settings = {
            "process.roles": ",".join(roles),
            "node.id": str(node),
            "controller.quorum.voters": ",".join(
                f"{voter}@{_HOST}:{port}" for voter, port in sorted(self._voter_ports[node].items())
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.node_directory(node) / "data"),
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "8",
        }
        if is_broker:
            settings["inter.broker.listener.name"] = "REPLICATION"
            settings["advertised.listeners"] = (
                f"PLAINTEXT://{_HOST}:{ports.clients},REPLICATION://{_HOST}:{self._replication_ports[node]}"
            )
            if node in self._racks:
                settings["broker.rack"] = self._racks[node]
        settings |= self._settings | self._node_settings.get(node, {})
        self.node_directory(node).mkdir(exist_ok=True)
        text = "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())
        (self.node_directory(node) / "server.properties").write_text(text, encoding="utf-8")

    def _launch(self, node: int) -> None:
        directory = self.node_directory(node)
        self._processes[node] = ServerProcess(
            [str(directory / "server.properties")],
            log=directory / "server.log",
            environment={TOKEN: self._token},
            own_session=True,
        )

    def _tell_companion(self) -> None:
        """Have the cuts in force when this returns."""
        companion = self._companion
        assert companion is not None, "the cluster is not open"
        assert companion.stdin is not None
        assert companion.stdout is not None
        companion.stdin.write(json.dumps([sorted(pair) for pair in self._cuts]).encode() + b"\n")
        companion.stdin.flush()
        if companion.stdout.readline() != b"ok\n":
            raise BrokerDied("the companion process that carries the connections between nodes has ended")

    def _end_companion(self) -> None:
        companion, self._companion = self._companion, None
        if companion is None:
            return
        try:
            companion.communicate(timeout=_COMPANION_SECONDS)
        except subprocess.TimeoutExpired:
            companion.kill()
            companion.communicate()


def _escaped(value: str) -> str:
    """As a properties file wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
