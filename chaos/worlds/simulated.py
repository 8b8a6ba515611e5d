"""The simulated world: a whole cluster in one process, production code unchanged, and one integer that repeats a run.

Brokers, the quorum with its Raft library, coordinators and our client run on a seeded loop (`loop`) over a simulated
network (`network`) and on disks in memory (`kraftpy.testing.memory_files`), each node with a wall clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from chaos.worlds.cleaning import cleaning_on_the_loop
from chaos.worlds.loop import Process, SimulatedLoop, current, seeded_world
from chaos.worlds.network import Network
from chaos.worlds.replacing import replaced
from kraftpy.broker.broker import Broker
from kraftpy.broker.containment import DirectoryFailed, Fatal, Incidents
from kraftpy.broker.server import start
from kraftpy.broker.startup import StartupError
from kraftpy.broker.storage.directories import LogDirectories
from kraftpy.client.consumer.fetcher import Fetcher
from kraftpy.client.consumer.partition_state import PartitionReader
from kraftpy.config import BrokerConfig
from kraftpy.log import layout
from kraftpy.ports import Directory
from kraftpy.protocol.messages.fetch import PartitionData
from kraftpy.testing.memory_files import Loss, MemoryDirectory, MemoryDisk
from kraftpy.types import Millis

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

EPOCH_MS: Final = 1_700_000_000_000
CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
SECURE_PORT: Final = 9094
"""The port of the listener with a login, in a secure cluster."""
THREAD_SECONDS: Final = 0.0005
NODE_CALLBACKS: Final = 6_000
CLIENT_CALLBACKS: Final = 1_500
"""A process that runs more of them in a virtual second repeats itself without waiting for anything."""
APPEND_CALLBACKS: Final = 10
"""Additional callbacks that each write to a log allows a node: one with an empty disk that fetches everything again, a
small batch at a time and each synced, needs 7 for a batch, and has more than a thousand batches in a second."""
FETCH_CALLBACKS: Final = 4
"""Additional callbacks for a client and for the leader, for each part of a fetch response with which a reader makes
progress: a reader may start at the beginning while `fetch.max.bytes` gives it only 1,024 bytes at a time."""
_LOG_SUFFIX: Final = ".log"
_MOST_COMBINED_VOTERS: Final = 3
logger = logging.getLogger(__name__)


class _ProcessDied(BaseException):
    """Thrown into a thread's work: it gets no further."""


class NodeClock:
    """A node's clocks. The wall clock may be wrong, run at another speed, and jump."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset_ms = 0.0
        self.drift = 0.0

    def now(self) -> Millis:
        """Wall-clock milliseconds."""
        return Millis(int(EPOCH_MS + self._loop.time() * 1000 * (1 + self.drift) + self.offset_ms))

    def monotonic_ms(self) -> Millis:
        """Milliseconds that never go back."""
        return Millis(int(self._loop.time() * 1000))


class SimulatedRuntime:
    """The world as a client sees it."""

    def __init__(self, clock: NodeClock, loop: SimulatedLoop) -> None:
        self._clock = clock
        self._loop = loop

    def now_ms(self) -> int:
        """Wall-clock milliseconds."""
        return self._clock.now()

    def monotonic_ms(self) -> float:
        """Milliseconds that never go back."""
        return self._loop.time() * 1000

    def random(self) -> float:
        """A float in [0, 1)."""
        process = current.get()
        return (self._loop if process is None else process).random.random()

    def pause(self, seconds: float) -> None:
        """Blocking would stop the whole world."""
        raise RuntimeError("nothing may block here")

    async def connect(self, protocol: Callable[[], P], host: str, port: int, tls: ssl.SSLContext | None = None) -> P:
        """Open a connection. Raises OSError."""
        assert tls is None, "there is no TLS in here"
        _, connected = await self._loop.create_connection(protocol, host, port)
        found: P = connected
        return found


class MemoryDirectories(LogDirectories):
    """Log directories on a disk in memory; they need no lock."""

    def __init__(self, config: BrokerConfig, clock: NodeClock, disk: MemoryDisk) -> None:
        super().__init__(config, clock)
        self._disk = disk

    def _take(self, path: str) -> Any:
        directory = self._disk.root.child(path.strip("/").replace("/", "-"))
        self._disk.root.sync()
        return directory

    def check(self, directory: Directory) -> None:
        """Check that it answers. Raises OSError."""
        directory.exists(layout.META_PROPERTIES)


class Node:
    """A machine with a disk, and the broker on it while it runs."""

    def __init__(self, cluster: SimulatedCluster, node_id: int, settings: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"node{node_id}"
        self.settings = dict(settings)
        self.disk = self._empty_disk()
        self.clock = NodeClock(cluster.loop)
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.is_ready = False
        self.exits: list[str] = []
        """The reasons why it ended, each time it should not have."""
        self.excuses: set[str] = set()
        """Reasons, or parts of them, for which it may end now, because of a current fault."""
        self.excused: list[str] = []
        """The reasons why it ended, each time a fault excused it."""
        self._incidents: list[Incidents] = []
        self.starts = 0
        self.thread_seconds = THREAD_SECONDS
        """The mean duration of a thread's work."""
        self._stop: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Return True if its process lives."""
        return (
            self.process is not None and not self.process.is_dead and self._main is not None and not self._main.done()
        )

    @property
    def survived(self) -> list[str]:
        """The unexpected errors that its broker survived, of all its lives: nothing excuses them."""
        return [f"{incident.what}: {incident.error}" for each in self._incidents for incident in each.last]

    def start(self) -> None:
        """Start the broker's process; it is ready some time later."""
        assert not self.is_running
        self.starts += 1
        loop = self.cluster.loop
        process = Process(loop, self.host, self.host, f"{self.cluster.seed} {self.host} {self.starts}")
        process.most_callbacks = process.callbacks_left = NODE_CALLBACKS
        process.thread_delay = lambda: 0.0001 + process.random.expovariate(1 / self.thread_seconds)
        self.process = process
        self.is_ready = False
        config = BrokerConfig.of(self.settings)
        self._stop = asyncio.Event()
        self._main = process.run(self._run(config, self._stop), name=f"{self.host} main")

    async def _run(self, config: BrokerConfig, stop: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                broker = Broker(config, self.clock, tasks, MemoryDirectories(config, self.clock, self.disk))
                self._incidents.append(broker.incidents)
                self.broker = broker
                self.is_ready = await start(broker, stop)
                await stop.wait()
                was_ready, self.is_ready = self.is_ready, False
                await broker.stop(is_ready=was_ready)
        except* (StartupError, DirectoryFailed, Fatal) as errors:
            self._exited(str(_first(errors)))
        except* Exception as errors:
            logger.exception("%s ended", self.host)
            self._exited(f"a traceback: {errors!r}", may_be_excused=False)
        else:
            self._exited(None)

    def _exited(self, why: str | None, *, may_be_excused: bool = True) -> None:
        """Note that the process has ended. A fault may excuse that it gave up and said why, but never a traceback."""
        self.is_ready = False
        if why is not None:
            is_excused = may_be_excused and any(excuse in why for excuse in self.excuses)
            (self.excused if is_excused else self.exits).append(why)
        assert self.process is not None
        self.process.die()

    def new_disk(self) -> None:
        """Replace the disk with an empty one. The node does not run."""
        assert not self.is_running
        self.disk = self._empty_disk()

    def _empty_disk(self) -> MemoryDisk:
        disk = MemoryDisk()
        disk.on_operation = self._operates
        return disk

    def _operates(self, operation: str, path: str) -> None:
        if operation == "write" and path.endswith(_LOG_SUFFIX) and self.process is not None:
            self.process.got_on(APPEND_CALLBACKS)

    def forget(self) -> None:
        """Let go of everything: the simulation is over."""
        self.broker = self._main = self._stop = None

    def stop(self) -> None:
        """Ask it to stop cleanly; it ends some time later."""
        if self._stop is not None and self.process is not None:
            self.process.call_soon(self._stop.set)

    def kill(self, loss: Loss = Loss.NOTHING) -> None:
        """End the process (SIGKILL), or the machine, whose disk may then lose what was not synced."""
        assert self.process is not None
        self.process.half_done(self._interrupt)
        if loss is not Loss.NOTHING:
            self.cluster.network.machine_down(self.host)
        self.process.die()
        self.is_ready = False
        self.disk.crash(self.process.random, loss)
        if loss is not Loss.NOTHING:
            self.cluster.network.machine_up(self.host)

    def _interrupt(self, work: Callable[[], None]) -> None:
        """Run a thread's work until the disk operation at which its process dies."""
        assert self.process is not None
        left = self.process.random.randrange(12)

        def count(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _ProcessDied

        before, self.disk.on_operation = self.disk.on_operation, count
        with contextlib.suppress(_ProcessDied):
            work()
        self.disk.on_operation = before


class SimulatedCluster:
    """The nodes, the network between them, and the processes of their clients."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 3,
        controllers: int = 0,
        settings: Mapping[str, str] | None = None,
        is_secure: bool = False,
    ) -> None:
        """`controllers` keep the metadata and nothing else; without them the first three brokers do that too.

        If the cluster `is_secure`, each broker has one more listener, `SECURE`, and the settings must secure it.
        """
        self.seed = seed
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop, seed)
        self.clients: list[Process] = []
        self.furthest: dict[int, tuple[PartitionReader, int]] = {}
        """The furthest offset that each reader has fetched to, by its `id`, which stays its own while it is kept."""
        self.nodes: dict[int, Node] = {}
        self._is_secure = is_secure
        self.brokers = tuple(range(1, brokers + 1))
        self.voters = tuple(range(brokers + 1, brokers + controllers + 1)) or self.brokers[:_MOST_COMBINED_VOTERS]
        for number in sorted({*self.brokers, *self.voters}):
            self.nodes[number] = Node(self, number, {**self._settings(number), **(settings or {})})

    def _settings(self, number: int) -> dict[str, str]:
        roles, listeners = [], []
        if number in self.brokers:
            roles.append("broker")
            listeners.append(f"PLAINTEXT://node{number}:{CLIENT_PORT}")
            if self._is_secure:
                listeners.append(f"SECURE://node{number}:{SECURE_PORT}")
        if number in self.voters:
            roles.append("controller")
            listeners.append(f"CONTROLLER://node{number}:{CONTROLLER_PORT}")
        copies = min(3, len(self.brokers))
        return {
            "node.id": str(number),
            "process.roles": ",".join(roles),
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{voter}@node{voter}:{CONTROLLER_PORT}" for voter in self.voters),
            "log.dirs": "/data",
            "kraftpy.quorum.secret": "a secret of the simulation",
            "initial.broker.registration.timeout.ms": "600000",  # a node that gives up sooner is not started again
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(min(2, copies)),
            "share.coordinator.state.topic.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": str(min(2, copies)),
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(min(2, copies)),
        }

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap servers for clients."""
        return ",".join(f"node{number}:{CLIENT_PORT}" for number in self.brokers)

    def directory_here(self, path: str) -> MemoryDirectory:
        """The directory of this path on the disk of the node that runs now."""
        process = current.get()
        directory = next(node.disk for node in self.nodes.values() if node.process is process).root
        for part in path.strip("/").split("/"):
            directory = directory.child(part)
        return directory

    def client(self, name: str, host: str | None = None) -> tuple[Process, SimulatedRuntime]:
        """A process for clients, on a machine of its own; `host` is its address, by default its name."""
        process = Process(self.loop, name, name if host is None else host, f"{self.seed} client {name}")
        process.most_callbacks = process.callbacks_left = CLIENT_CALLBACKS
        self.clients.append(process)
        return process, SimulatedRuntime(NodeClock(self.loop), self.loop)

    def fetched(self, reader: PartitionReader, leader: int) -> None:
        """An answer of the leader was taken in by the process that runs now."""
        _, furthest = self.furthest.get(id(reader), (reader, -1))
        if reader.fetch_offset > furthest:
            self.furthest[id(reader)] = reader, reader.fetch_offset
            node = self.nodes.get(leader)
            for process in (current.get(), None if node is None else node.process):
                if process is not None:
                    process.got_on(FETCH_CALLBACKS)

    def run(self, main: Coroutine[Any, Any, T], *, at_most_seconds: float = 600.0, name: str = "client") -> T:
        """Run a coroutine in a client's process to its end. TimeoutError when virtual time runs out first."""
        process, _ = self.client(name)
        task = process.run(main, name=name)
        if not self.loop.run_until(task.done, at_most_seconds=at_most_seconds):
            raise TimeoutError(f"{name} did not end within {at_most_seconds} virtual seconds")
        return task.result()

    def wait_ready(self, at_most_seconds: float = 30.0) -> bool:
        """Run until every node serves; return True if all do."""
        return self.loop.run_until(
            lambda: all(node.is_ready for node in self.nodes.values()), at_most_seconds=at_most_seconds
        )


def _noticing(cluster: SimulatedCluster) -> Callable[[Fetcher, PartitionReader, PartitionData], None]:
    take = Fetcher._take

    def noticed(self: Fetcher, reader: PartitionReader, data: PartitionData) -> None:
        take(self, reader, data)
        info = self._cluster.metadata.partition(reader.name)
        if data.records:
            cluster.fetched(reader, -1 if info is None else info.leader)

    return noticed


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def simulated_cluster(seed: int, **options: Any) -> Iterator[SimulatedCluster]:
    """A cluster that is not started yet. Everything that asks for chance meanwhile gets it from the seed.

    Call `loop.collect_quietly` when nothing of it is held any more.
    """
    cluster = SimulatedCluster(seed, **options)
    with (
        seeded_world(cluster.loop, seed, lambda: EPOCH_MS / 1000 + cluster.loop.time()),
        cleaning_on_the_loop(cluster.directory_here),
        replaced(Fetcher, "_take", _noticing(cluster)),
    ):
        try:
            yield cluster
        finally:
            for node in cluster.nodes.values():
                if node.process is not None:
                    node.process.die()
            for process in cluster.clients:
                process.die()
            cluster.loop.close()
            for node in cluster.nodes.values():
                node.forget()
