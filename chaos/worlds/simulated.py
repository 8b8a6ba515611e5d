"""The simulated world: a whole cluster in one process, production code unchanged, and one integer that repeats a run.

Brokers, the quorum with its Raft library, coordinators and our client run on a seeded loop (`loop`) over a simulated
network (`network`) and on disks in memory (`kraftpy.testing.memory_files`), each node with a wall clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeVar

from chaos.nemesis import ClusterState, Cut, Kind, NodeId
from chaos.worlds.loop import Process, SimulatedLoop, current, seeded_world
from chaos.worlds.network import Network
from kraftpy.broker.broker import Broker, StartupError
from kraftpy.broker.directories import LogDirectories
from kraftpy.client import Admin, NewTopic
from kraftpy.config import BrokerConfig, load
from kraftpy.log import layout
from kraftpy.ports import Directory
from kraftpy.protocol.errors import KafkaError
from kraftpy.testing.memory_files import Loss, MemoryDisk
from kraftpy.types import Millis, TopicPartition

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.BaseProtocol)

EPOCH_MS: Final = 1_700_000_000_000
CLIENT_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
_THREAD_SECONDS: Final = 0.0005
_STOP_SECONDS: Final = 120.0
_ASK_SECONDS: Final = 20.0
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
    """What a client is given of the world."""

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

    async def connect(self, protocol: Callable[[], P], host: str, port: int) -> P:
        """Open a connection. Raises OSError."""
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
        """That it answers. Raises OSError."""
        directory.exists(layout.META_PROPERTIES)


class Node:
    """A machine with a disk, and the broker on it while it runs."""

    def __init__(self, cluster: SimulatedCluster, node_id: int, settings: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.host = f"node{node_id}"
        self.settings = dict(settings)
        self.disk = MemoryDisk()
        self.clock = NodeClock(cluster.loop)
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.is_ready = False
        self.exits: list[str] = []
        """Why it ended by itself, each time it did."""
        self.starts = 0
        self.thread_seconds = _THREAD_SECONDS
        """What work of a thread takes, at the mean."""
        self._stop: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return (
            self.process is not None and not self.process.is_dead and self._main is not None and not self._main.done()
        )

    def start(self) -> None:
        """Start the broker's process; it is ready some time later."""
        assert not self.is_running
        self.starts += 1
        loop = self.cluster.loop
        process = Process(loop, self.host, self.host, f"{self.cluster.seed} {self.host} {self.starts}")
        process.thread_delay = lambda: 0.0001 + process.random.expovariate(1 / self.thread_seconds)
        self.process = process
        self.is_ready = False
        config = load(None, None, [f"{name}={value}" for name, value in self.settings.items()]).config
        self._stop = asyncio.Event()
        self._main = process.run(self._run(config, self._stop), name=f"{self.host} main")

    async def _run(self, config: BrokerConfig, stop: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                broker = Broker(config, self.clock, tasks, MemoryDirectories(config, self.clock, self.disk))
                self.broker = broker
                await broker.start()
                self.is_ready = True
                await stop.wait()
                self.is_ready = False
                await broker.stop()
        except* StartupError as errors:
            self._exited(str(errors.exceptions[0]))
        except* Exception as errors:
            logger.exception("%s ended", self.host)
            self._exited(repr(errors))
        else:
            self._exited(None)

    def _exited(self, why: str | None) -> None:
        self.is_ready = False
        if why is not None:
            self.exits.append(why)
        assert self.process is not None
        self.process.die()

    def forget(self) -> None:
        """The simulation is over."""
        self.broker = self._main = self._stop = None

    def stop(self) -> None:
        """Ask it to stop cleanly; it ends some time later."""
        if self._stop is not None and self.process is not None:
            self.process.call_soon(self._stop.set)

    def kill(self, loss: Loss = Loss.NOTHING) -> None:
        """End the process (SIGKILL), or the machine, with whatever its disk then loses."""
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

    def __init__(self, seed: int, *, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed)
        self.network = Network(self.loop, seed)
        self.clients: list[Process] = []
        voters = ",".join(f"{number}@node{number}:{CONTROLLER_PORT}" for number in range(1, brokers + 1))
        self.nodes: dict[int, Node] = {}
        for number in range(1, brokers + 1):
            own = {
                "node.id": str(number),
                "process.roles": "broker,controller",
                "listeners": f"PLAINTEXT://node{number}:{CLIENT_PORT},CONTROLLER://node{number}:{CONTROLLER_PORT}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                "log.dirs": "/data",
                "offsets.topic.num.partitions": "4",
                "offsets.topic.replication.factor": str(min(3, brokers)),
                "default.replication.factor": str(min(3, brokers)),
                "min.insync.replicas": str(min(2, brokers)),
                **(settings or {}),
            }
            self.nodes[number] = Node(self, number, own)

    @property
    def bootstrap_servers(self) -> str:
        """For clients."""
        return ",".join(f"{node.host}:{CLIENT_PORT}" for node in self.nodes.values())

    def client(self, name: str) -> tuple[Process, SimulatedRuntime]:
        """A process for clients, on a machine of its own."""
        process = Process(self.loop, name, name, f"{self.seed} client {name}")
        self.clients.append(process)
        return process, SimulatedRuntime(NodeClock(self.loop), self.loop)

    def run(self, main: Coroutine[Any, Any, T], *, at_most_seconds: float = 600.0, name: str = "client") -> T:
        """Run a coroutine in a client's process to its end. TimeoutError when virtual time runs out first."""
        process, _ = self.client(name)
        task = process.run(main, name=name)
        if not self.loop.run_until(task.done, at_most_seconds=at_most_seconds):
            raise TimeoutError(f"{name} did not end within {at_most_seconds} virtual seconds")
        return task.result()

    def wait_ready(self, at_most_seconds: float = 30.0) -> bool:
        """Run until every node serves; whether they do."""
        return self.loop.run_until(
            lambda: all(node.is_ready for node in self.nodes.values()), at_most_seconds=at_most_seconds
        )


class SimulatedWorld:
    """What `chaos.nemesis` can do to a simulated cluster: its `World`.

    What changes the cluster's metadata it asks for as an administrator would; what is refused or not answered in time
    was no fault then.

    Left out: voters that come and go, full and failing disks, corruption, empty disks.
    """

    abilities: Final = frozenset(
        {
            Kind.KILL,
            Kind.STOP,
            Kind.PAUSE,
            Kind.PARTITION,
            Kind.SLOW,
            Kind.LOSSY,
            Kind.CLOCK_SKEW,
            Kind.CLOCK_STROBE,
            Kind.SLOW_DISK,
            Kind.LOSE_UNSYNCED,
            Kind.ROLLING_RESTART,
            Kind.MOVE_LEADER,
            Kind.REASSIGN,
            Kind.CREATE_TOPIC,
            Kind.DELETE_TOPIC,
        }
    )

    def __init__(self, cluster: SimulatedCluster, chance: Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._cuts: dict[Cut, int] = {}  # how many faults cut this link

    def _node(self, node: NodeId) -> Node:
        return self._cluster.nodes[node]

    async def state(self) -> ClusterState:
        """What the nodes know that are ready, those that know most first."""
        nodes = tuple(sorted(self._cluster.nodes))
        ready = [node.broker for node in self._cluster.nodes.values() if node.is_ready and node.broker is not None]
        if not ready:
            return ClusterState(nodes=nodes)
        broker = max(ready, key=lambda broker: broker.metadata.applied_index)
        leaders, replicas = {}, {}
        for topic, number, partition in broker.image.partitions():
            replicas[f"{topic.name}-{number}"] = tuple(map(int, partition.replicas))
            if partition.leader >= 0:
                leaders[f"{topic.name}-{number}"] = int(partition.leader)
        leader = broker.metadata.leader_id
        return ClusterState(nodes=nodes, controller=leader, leaders=leaders, replicas=replicas)

    async def kill(self, node: NodeId) -> None:
        """SIGKILL."""
        if self._node(node).is_running:
            self._node(node).kill()

    async def stop(self, node: NodeId) -> None:
        """SIGTERM (and SIGCONT), and wait; what takes two minutes is killed, and the run notes it."""
        it = self._node(node)
        await self.resume(node)
        it.stop()
        deadline = self._cluster.loop.time() + _STOP_SECONDS
        while it.is_running:
            if self._cluster.loop.time() > deadline:
                it.exits.append("it did not stop when it was asked to")
                it.kill()
                return
            await asyncio.sleep(0.05)

    async def start(self, node: NodeId) -> None:
        """Start it, if it does not run."""
        if not self._node(node).is_running:
            self._node(node).start()

    async def pause(self, node: NodeId) -> None:
        """SIGSTOP."""
        process = self._node(node).process
        assert process is not None
        process.pause()

    async def resume(self, node: NodeId) -> None:
        """SIGCONT."""
        process = self._node(node).process
        assert process is not None
        process.resume()

    def _hosts(self, link: Cut) -> tuple[str, str]:
        return self._node(link[0]).host, self._node(link[1]).host

    async def cut(self, links: Sequence[Cut]) -> None:
        """Hold back what the first of each pair sends to the second."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1
            self._cluster.network.cut(*self._hosts(link))

    async def mend(self, links: Sequence[Cut]) -> None:
        """Undo these cuts."""
        for link in links:
            self._cuts[link] -= 1
            if not self._cuts[link]:
                self._cluster.network.mend(*self._hosts(link))

    async def degrade(self, node: NodeId, delay_ms: int, jitter_ms: int, loss: float) -> None:
        """Make the node's links to the others slow and lossy."""
        for other in self._cluster.nodes.values():
            if other.node_id != node:
                self._cluster.network.degrade(
                    self._node(node).host, other.host, delay_ms / 1000, jitter_ms / 1000, loss
                )
                self._cluster.network.degrade(
                    other.host, self._node(node).host, delay_ms / 1000, jitter_ms / 1000, loss
                )

    async def set_clock(self, node: NodeId, skew_ms: int) -> None:
        """Make its wall clock wrong by so much."""
        self._node(node).clock.offset_ms = skew_ms

    async def disk(self, node: NodeId, *, full: bool, fsync_delay_ms: int) -> None:
        """Make its disk slow."""
        self._node(node).thread_seconds = max(_THREAD_SECONDS, fsync_delay_ms / 1000)

    async def lose_unsynced(self, node: NodeId) -> None:
        """The machine loses its power."""
        if self._node(node).is_running:
            self._node(node).kill(self._chance.choice([Loss.PREFIX, Loss.SECTORS, Loss.EVERYTHING]))

    async def fail_fsync(self, node: NodeId) -> None:
        """Not among its abilities."""
        raise ValueError("the simulated world cannot do that yet")

    async def corrupt(self, node: NodeId, of: str, seed: int) -> bool:
        """Not among its abilities."""
        raise ValueError("the simulated world cannot do that yet")

    async def lose_disk(self, node: NodeId) -> None:
        """Not among its abilities."""
        raise ValueError("the simulated world cannot do that yet")

    async def set_voter(self, node: NodeId, voter: bool) -> None:
        """Not among its abilities."""
        raise ValueError("the simulated world cannot do that yet")

    async def _ask(self, what: Callable[[Admin], Coroutine[Any, Any, Any]]) -> None:
        runtime = SimulatedRuntime(NodeClock(self._cluster.loop), self._cluster.loop)
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_ASK_SECONDS):
                async with Admin(bootstrap_servers=self._cluster.bootstrap_servers, runtime=runtime) as admin:
                    await what(admin)

    async def move_leader(self, partition: str, seed: int) -> None:
        """Put the replicas into another order, and have the first of them lead."""
        await self.reassign(partition, seed)
        moved = {_partition(partition)}
        await self._ask(lambda admin: admin.elect_leaders(moved))

    async def reassign(self, partition: str, seed: int) -> None:
        """Give the partition other replicas, two at least, in another order."""
        chance = Random(seed)
        nodes = sorted(self._cluster.nodes)
        replicas = chance.sample(nodes, k=chance.randint(min(2, len(nodes)), min(3, len(nodes))))
        moves = {_partition(partition): replicas}
        await self._ask(lambda admin: admin.alter_partition_reassignments(moves))

    async def create_topic(self, topic: str, partitions: int) -> None:
        """Beside the workload's."""
        new = NewTopic(name=topic, num_partitions=partitions, replication_factor=min(3, len(self._cluster.nodes)))
        await self._ask(lambda admin: admin.create_topics([new]))

    async def delete_topic(self, topic: str) -> None:
        """One that `create_topic` made."""
        await self._ask(lambda admin: admin.delete_topics([topic]))

    async def heal_all(self) -> None:
        """Mend, resume, start and set right whatever is not."""
        self._cuts.clear()
        self._cluster.network.heal()
        for node in self._cluster.nodes.values():
            if node.process is not None:
                node.process.resume()
            node.clock.offset_ms = 0.0
            node.thread_seconds = _THREAD_SECONDS
            if not node.is_running:
                node.start()


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))


@contextmanager
def simulated_cluster(seed: int, **options: Any) -> Iterator[SimulatedCluster]:
    """A cluster that is not started yet. Everything that asks for chance meanwhile gets it from the seed.

    Call `loop.collect_quietly` when nothing of it is held any more.
    """
    cluster = SimulatedCluster(seed, **options)
    with seeded_world(cluster.loop, seed, lambda: EPOCH_MS / 1000 + cluster.loop.time()):
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
