"""A cluster of real nodes for a test: processes on free ports under one directory, to kill, pause and cut off at will.

    with Cluster(brokers=3) as cluster:
        run_your_client(cluster.bootstrap_servers)
        cluster.kill(1)
        cluster.start(1)

`async with` gives an `AsyncCluster`, whose methods are coroutines. Nodes are named by their node id: the brokers are 1,
2, ..., and separate controllers, if any, have the numbers that follow.

Nothing stays behind. The nodes end with the block, and with the test's process however that ends: a companion process
(`kraftpy.testing.companion`) notices, kills them and deletes temporary files. The companion also carries the
connections between nodes, so that `partition` can hold them back without being root. Clients connect directly: if they
are cut off, the node itself holds their requests or the answers, which costs nothing otherwise.

Every method that breaks something returns a `Fault` (see `kraftpy.testing.faults` for the other faults), which repairs
it at the end of its `with` block or on request. `chaos` breaks things on its own, from a seed.

Left out: TLS between nodes, systems without /proc.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kraftpy.testing.async_cluster import AsyncCluster
from kraftpy.testing.client_security import LISTENER, ClientSecurity
from kraftpy.testing.companion import TOKEN
from kraftpy.testing.faults import Fault, Faults, Faulty, Nodes, several
from kraftpy.testing.ports import HOST
from kraftpy.testing.questions import ASK_SECONDS, Questions
from kraftpy.testing.server_process import BrokerDied, ServerProcess
from kraftpy.testing.wiring import Wiring

if TYPE_CHECKING:
    from kraftpy.security.acls import AclBinding
    from kraftpy.testing.chaos import Chaos

MOST_COMBINED_VOTERS = 3
"""Without separate controllers, at most this many brokers also vote."""

CLIENTS = "clients"
"""Everything that is not a node, for `Cluster.partition`."""

_POLL_SECONDS = 0.02
_TAIL_CHARACTERS = 4000


class Cluster(Faulty, Questions):
    """`brokers` nodes that serve clients, and the quorum that keeps their metadata.

    `controllers` is the number of nodes that only keep the metadata; without it the first three brokers do that, too.
    `settings` apply to every node, by Kafka's names; `node_settings` to single nodes, by node id. `racks` are those of
    the brokers, in order. A topic created without a replication factor gets three replicas, or as many as there are
    brokers; so do `__consumer_offsets`, `__transaction_state` and `__share_group_state`, which have 8 partitions.

    A given `directory` keeps the data, and the nodes then stop cleanly at the end of the block, rather than being
    killed. With `keep_on_failure`, a temporary directory is kept, too, if the block ends with an exception, which names
    it.

    `security` is one of ssl, sasl_plaintext, sasl_ssl: clients then connect over TLS, to a certificate made for it, and
    log in as one of `users`, a mapping of names to passwords; `client_options` and `client_properties` configure them.
    With `acls` (`kraftpy.client.AclBinding`), users may do only what these allow; the setting `super.users` exempts
    users from them.

    `can_partition=False` lets nodes reach each other directly, for measurements of microseconds.

    Raises BrokerDied if a node does not start, or has ended on its own by the time the block ends.

    One class because a test holds one thing, the cluster, and asks it everything.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        controllers: int | None = None,
        settings: Mapping[str, str] | None = None,
        node_settings: Mapping[int, Mapping[str, str]] | None = None,
        racks: Sequence[str] | None = None,
        security: str | None = None,
        users: Mapping[str, str] | None = None,
        acls: Iterable[AclBinding] | None = None,
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
        """The node ids of the brokers."""
        self.controllers = self.brokers[:MOST_COMBINED_VOTERS]
        """The node ids of the quorum's voters."""
        if controllers is not None:
            self.controllers = tuple(range(brokers + 1, brokers + controllers + 1))
        self.nodes = tuple(sorted({*self.brokers, *self.controllers}))
        """All node ids."""
        if unknown := sorted(set(node_settings or {}) - set(self.nodes)):
            raise ValueError(f"node_settings: unknown node {unknown[0]}")
        if security is None and (users is not None or acls is not None):
            raise ValueError(f"{'acls' if users is None else 'users'} need security, such as security='sasl_ssl'")
        self._security = None if security is None else ClientSecurity(security, users or {}, acls)
        self._settings = dict(settings or {})
        self._node_settings = {node: dict(given) for node, given in (node_settings or {}).items()}
        self._racks = dict(zip(self.brokers, racks or (), strict=False))
        self._temporary = directory is None
        self._given_directory = directory
        self._keep_on_failure = keep_on_failure
        self.can_partition = can_partition
        """True if nodes can be cut off from each other."""
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._wiring = Wiring(self.brokers, self.controllers, can_partition=can_partition)
        self._processes: dict[int, ServerProcess] = {}
        self._paused: set[int] = set()
        self._directory: Path | None = None
        self._faults = Faults(self._processes, self._paused, lambda: self.directory / "faults")
        self._partitions: list[Fault] = []
        self._lock = threading.RLock()  # chaos has a thread of its own

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
        """Start every node. Returns when all of them are ready and know each other. `with` calls this."""
        assert self._directory is None, "the cluster is open"
        self._directory = Path(
            tempfile.mkdtemp(prefix="kraftpy-cluster-") if self._given_directory is None else self._given_directory
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            is_removed = self._temporary and not self._keep_on_failure
            self._wiring.open(remove=str(self._directory) if is_removed else None)
            if self._security is not None:
                self._security.open(self._directory)
            for node in self.nodes:
                self._configure(node)
                self._launch(node)
            self.wait_ready()
            if self._security is not None:
                self._security.apply([self._host_and_port(node) for node in self.brokers], self._start_timeout)
        except BaseException as error:
            self.close(error)
            raise

    def close(self, error: BaseException | None = None) -> None:
        """End every node and remove temporary files. `with` calls this with the exception of its block, if any.

        Raises BrokerDied if a node had ended on its own, or does not stop cleanly when it should, unless there is an
        error already.
        """
        directory, self._directory = self._directory, None
        if directory is None:
            return
        problems: list[str] = []
        keep = not self._temporary or (self._keep_on_failure and error is not None)
        try:
            problems += self._end_all()
        finally:
            self._wiring.close()
            if error is not None and keep:
                error.add_note(f"the cluster's data and logs are in {directory}")
            if not keep:
                shutil.rmtree(directory, ignore_errors=True)
        if problems and error is None:
            raise BrokerDied("; ".join(problems))

    def _end_all(self) -> list[str]:
        """End the running nodes. Returns the problems."""
        problems = []
        for node, process in self._processes.items():
            if (status := process.exit_status) is not None:
                text = process.log_text[-_TAIL_CHARACTERS:]
                problems.append(f"node {node} had ended on its own with status {status}: {text}")
        try:
            self.heal()
        except BrokerDied as mute:
            problems.append(str(mute))
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
        return problems

    # --- where it is ----------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, separated by commas, whether they are running or not."""
        return ",".join(self.address(node) for node in self.brokers)

    @property
    def bootstrap_controllers(self) -> str:
        """The addresses of all controllers, for administrators (`bootstrap.controllers`, KIP-919)."""
        return ",".join(f"{HOST}:{self._wiring.ports[node].controllers}" for node in self.controllers)

    def address(self, node: int) -> str:
        """Return the host and port at which clients reach this broker."""
        assert node in self.brokers, f"node {node} serves no clients"
        return f"{HOST}:{self._wiring.ports[node].clients}"

    def client_options(self, user: str | None = None) -> dict[str, Any]:
        """Return keyword arguments for our clients, `bootstrap_servers` among them; `user` is the first by default."""
        options = {} if self._security is None else self._security.client_options(user)
        return {"bootstrap_servers": self.bootstrap_servers, **options}

    def client_properties(self, user: str | None = None) -> dict[str, str]:
        """Return a client's settings by Kafka's names, for `--command-config` and Java; `user` as above."""
        settings = {} if self._security is None else self._security.client_properties(user)
        return {"bootstrap.servers": self.bootstrap_servers, **settings}

    def _host_and_port(self, node: int) -> tuple[str, int]:
        """Return the host and port for questions to a broker: a listener without security."""
        ports = self._wiring.ports[node]
        return HOST, ports.clients if self._security is None else ports.brokers

    @property
    def directory(self) -> Path:
        """The cluster's directory; the nodes have `node-1` and so on within it."""
        assert self._directory is not None, "the cluster is not open"
        return self._directory

    def node_directory(self, node: int) -> Path:
        """Return the node's own directory, with `server.properties`, `server.log` and `data`."""
        return self.directory / f"node-{node}"

    def logs(self, node: int) -> str:
        """Return the node's standard error, over all of its runs."""
        path = self.node_directory(node) / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def can_ask(self, node: int) -> bool:
        """Return whether the node is running and not paused."""
        return node in self._processes and node not in self._paused

    def is_running(self, node: int) -> bool:
        """Return whether the node was started and has not ended, paused or not."""
        process = self._processes.get(self._known(node))
        return process is not None and process.exit_status is None

    def pid(self, node: int) -> int:
        """Return the process id of a node that was started."""
        return self._started(node).pid

    # --- what is done to nodes ------------------------------------------------------------------------------------

    def start(self, node: int, *, wait: bool = True) -> None:
        """Start a node that was stopped or killed, on its data and ports; with `wait`, until all know it again."""
        with self._lock:
            assert self._known(node) not in self._processes, f"node {node} is running"
            self._launch(node)
        if wait:
            self.wait_ready()

    def kill(self, node: int) -> Fault:
        """Send SIGKILL and wait, leaving behind what a crash of the process would. Healed by `start`."""
        self._end(node, signal.SIGKILL)
        return Fault(f"kill node {node}", lambda: self._start_again(node))

    def stop(self, node: int) -> Fault:
        """Send SIGTERM and wait. Healed by `start`. Raises BrokerDied if it is late or its status is not 0."""
        self.resume(node)
        status = self._end(node, signal.SIGTERM)
        if status != 0:
            raise BrokerDied(f"node {node} stopped with status {status}: {self.logs(node)[-_TAIL_CHARACTERS:]}")
        return Fault(f"stop node {node}", lambda: self._start_again(node))

    def pause(self, node: int) -> Fault:
        """Send SIGSTOP: the node stops working, and its connections stay open. Healed by `resume`."""
        with self._lock:
            self._started(node).send(signal.SIGSTOP)
            self._paused.add(node)
        return Fault(f"pause node {node}", lambda: self._resume_again(node))

    def resume(self, node: int) -> None:
        """Send SIGCONT. Does nothing unless the node is paused."""
        with self._lock:
            self._started(node).send(signal.SIGCONT)
            self._paused.discard(node)

    def wait_ended(self, node: int, timeout: float | None = None) -> int:
        """Wait until a node ends on its own, as after a disk failure. Returns the exit status. Healed by `start`.

        If it does not end, kills it and raises BrokerDied.
        """
        return self._ended(node, self._stop_timeout if timeout is None else timeout)

    def _end(self, node: int, number: signal.Signals) -> int:
        self._started(node).send(number)
        return self._ended(node, self._stop_timeout)

    def _ended(self, node: int, timeout: float) -> int:
        with self._lock:
            process = self._started(node)
            del self._processes[node]
            self._paused.discard(node)
        return process.wait(timeout)

    def _start_again(self, node: int) -> None:
        if node not in self._processes:
            self.start(node)

    def _resume_again(self, node: int) -> None:
        if node in self._paused:
            self.resume(node)

    def _started(self, node: int) -> ServerProcess:
        process = self._processes.get(self._known(node))
        assert process is not None, f"node {node} is not running"
        return process

    def _known(self, node: int) -> int:
        assert node in self.nodes, f"unknown node {node}"
        return node

    def _targets(self, broker: Nodes) -> tuple[int, ...]:
        nodes = several(broker, self.brokers)
        if unknown := sorted(set(nodes) - set(self.nodes)):
            raise ValueError(f"unknown node {unknown[0]}")
        return nodes

    # --- what is done to the network ------------------------------------------------------------------------------

    def partition(self, some: Nodes | str, others: Nodes | str, *, one_way: bool = False) -> Fault:
        """Cut each of `some` off from each of `others`: nothing passes between them until it is healed.

        Either may be `CLIENTS` ("clients"), which is everything but the nodes. With `one_way`, only what `some` send to
        `others` is lost.

        It looks as if packets were dropped, not as if connections were closed: each side has to notice. Held data
        arrives in the end, even from a client that has given up. Call it again for more cuts.
        """
        what = f"{_named(some)} {'does not reach' if one_way else 'cut off from'} {_named(others)}"
        if CLIENTS in (some, others):
            return self._cut_clients(some, others, what, one_way=one_way)
        if not self.can_partition:
            raise ValueError("the cluster was created with can_partition=False")
        cuts: set[tuple[int, int]] = set()
        for one, other in itertools.product(_nodes(some), _nodes(others)):
            if self._known(one) == self._known(other):
                raise ValueError(f"node {one} cannot be cut off from itself")
            cuts |= {(one, other)} if one_way else {(one, other), (other, one)}
        number = self._wiring.cut(cuts)
        return self._partitioned(Fault(what, lambda: self._wiring.mend(number)))

    def _cut_clients(self, some: Nodes | str, others: Nodes | str, what: str, *, one_way: bool) -> Fault:
        nodes = self._targets(_nodes(others if some == CLIENTS else some))
        if unserved := sorted(set(nodes) - set(self.brokers)):
            raise ValueError(f"node {unserved[0]} serves no clients")
        directions = {some != CLIENTS} if one_way else {False, True}
        parts = [self._faults.begin(nodes, what, "cut", is_response=each) for each in sorted(directions)]

        def heal() -> None:
            for part in parts:
                part.heal()

        return self._partitioned(Fault(what, heal, lambda: [hit for part in parts for hit in part.hits]))

    def _partitioned(self, fault: Fault) -> Fault:
        with self._lock:
            self._partitions = [*(each for each in self._partitions if not each.is_over), fault]
        return fault

    def chaos(
        self,
        seed: int | None = None,
        *,
        faults: int | None = None,
        kinds: Sequence[str] | None = None,
        most_nodes: int | None = None,
        lasts: tuple[float, float] = (0.5, 3.0),
        pause: tuple[float, float] = (0.2, 1.0),
        settle: float = 60.0,
    ) -> Chaos:
        """Break things at random for as long as the block lasts: `with cluster.chaos(seed) as chaos:`.

        The same seed breaks the same things in the same order (`kraftpy.testing.chaos` lists them); without one, a
        random seed is chosen and reported. `faults` is the maximum number of faults, `most_nodes` that of nodes
        affected at once: by default, no majority. `lasts` and `pause` are ranges of seconds: how long a fault lasts,
        and how long the pause before it. After the block, everything is healed and in sync.

        Raises BrokerDied if the cluster does not recover from a fault within `settle` seconds.
        """
        from kraftpy.testing.chaos import Chaos

        return Chaos(
            self,
            seed,
            faults=faults,
            kinds=kinds,
            most_nodes=most_nodes,
            lasts=lasts,
            pause=pause,
            settle=settle,
        )

    def heal(self) -> None:
        """Heal every cut and every other fault, except those that `start` and `resume` end."""
        with self._lock:
            partitions, self._partitions = self._partitions, []
        for fault in partitions:
            fault.heal()
        self._faults.heal()

    # --- what it says about itself --------------------------------------------------------------------------------

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until every running node is ready and every running broker knows all of them. Raises BrokerDied.

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
                known = self._known_to(node, max(_POLL_SECONDS, min(ASK_SECONDS, left)))
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
        """Wait until every running broker sees every partition with a leader and all its replicas in sync.

        Call it between two failures if the cluster must survive each. Raises BrokerDied. Paused nodes are not asked.
        """
        deadline = time.monotonic() + (self._start_timeout if timeout is None else timeout)
        for node in self.brokers:
            while node in self._processes and node not in self._paused:
                left = deadline - time.monotonic()
                lagging = self._lagging(node, max(_POLL_SECONDS, min(ASK_SECONDS, left)))
                if lagging == []:
                    break
                self._wait_process(node, deadline)
                if left < 0:
                    what = "does not answer" if lagging is None else f"sees {', '.join(lagging[:5])}"
                    raise BrokerDied(f"not everything is in sync: node {node} {what}")
                time.sleep(_POLL_SECONDS)

    def _wait_process(self, node: int, deadline: float) -> None:
        process = self._processes.get(node)
        if process is None:  # another thread killed it meanwhile
            return
        try:
            process.wait_ready(deadline)
        except BrokerDied as died:
            if self._processes.get(node) is not process:
                return
            del self._processes[node]
            raise BrokerDied(f"node {node}: {died}") from None
        if process.exit_status is not None and self._processes.get(node) is process:
            raise BrokerDied(f"node {node} ended with status {process.exit_status}: {process.log_text}")

    # --- making it ------------------------------------------------------------------------------------------------

    def _configure(self, node: int) -> None:
        """Write the node's properties file."""
        ports = self._wiring.ports[node]
        is_broker, is_controller = node in self.brokers, node in self.controllers
        replicas = str(min(3, len(self.brokers)))
        clients, protocol = ("PLAINTEXT",) * 2 if self._security is None else (LISTENER, self._security.protocol)
        listeners, roles = [], []
        if is_broker:
            listeners += [f"{clients}://{HOST}:{ports.clients}", f"REPLICATION://{HOST}:{ports.brokers}"]
            roles.append("broker")
        if is_controller:
            listeners.append(f"CONTROLLER://{HOST}:{ports.controllers}")
            roles.append("controller")
        settings = {
            "process.roles": ",".join(roles),
            "node.id": str(node),
            "controller.quorum.voters": ",".join(
                f"{voter}@{HOST}:{port}" for voter, port in sorted(self._wiring.voter_ports[node].items())
            ),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": f"{clients}:{protocol},REPLICATION:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.node_directory(node) / "data"),
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": "8",
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": str(min(2, len(self.brokers))),
            "transaction.state.log.num.partitions": "8",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": str(min(2, len(self.brokers))),
            "share.coordinator.state.topic.num.partitions": "8",
        }
        if is_broker:
            settings["inter.broker.listener.name"] = "REPLICATION"
            settings["advertised.listeners"] = (
                f"{clients}://{HOST}:{ports.clients},REPLICATION://{HOST}:{self._wiring.replication_ports[node]}"
            )
            if node in self._racks:
                settings["broker.rack"] = self._racks[node]
        given = self._settings | self._node_settings.get(node, {})
        super_users = given.pop("super.users", "")
        settings |= {"super.users": super_users} if super_users else {}
        if self._security is not None:
            settings |= self._security.settings(super_users)
        settings |= given
        self.node_directory(node).mkdir(exist_ok=True)
        if self._security is not None:
            self._security.format(settings)
        text = "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())
        properties = self.node_directory(node) / "server.properties"
        properties.touch(mode=0o600)  # it may contain a secret
        properties.write_text(text, encoding="utf-8")

    def _launch(self, node: int) -> None:
        directory = self.node_directory(node)
        self._processes[node] = ServerProcess(
            [str(directory / "server.properties")],
            log=directory / "server.log",
            environment={TOKEN: self._wiring.token},
            own_session=True,
            node=node,
            rules=self._faults.rules_of(node),
        )


def _nodes(given: Nodes | str) -> tuple[int, ...]:
    if given is None or isinstance(given, str):
        raise ValueError(f"{given!r} are not nodes")
    return several(given, ())


def _named(given: Nodes | str) -> str:
    if isinstance(given, str):
        return given
    nodes = _nodes(given)
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes))}"


def _escaped(value: str) -> str:
    """Escape a value for a properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
