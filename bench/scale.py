"""How far one node and one cluster go, and what grows faster than what it grows with.

    python -m bench.scale [--only NAME ...] [--most FRACTION] [--directory DIR] [--output FILE]

Writes bench/SCALE.md. Each part grows in four steps, each twice as large as the one before: 20,000 partitions on a
node, 200,000 partitions of two replicas on three nodes, 10,000 connections to a node, 10,000 groups on a node. The
cost that a step adds is divided by how much the step added. The last row compares the last step with the first: 1.0 is
linear growth. `--most 0.1` goes a tenth of the way. Client and nodes share the machine; processor time is that
of the nodes, and memory is resident set size.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench import machine
from bench.wire import Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.api_versions import ApiVersionsRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kraftpy.testing import Cluster, EmbeddedBroker

RESULTS: Final = Path(__file__).with_name("SCALE.md")
STEPS: Final = (8, 4, 2, 1)
"""The parts of the whole after which something is measured."""
PARTITIONS_OF_A_TOPIC: Final = 100
_BOUND_S: Final = 600.0
_AGAIN_S: Final = 0.02
_SETTLE_S: Final = 2.0
_REST_S: Final = 5.0
_SAMPLES: Final = 40
_BACK_S: Final = 60.0
_AWAY: Final = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)

Rows = list[tuple[int, tuple[float, ...]]]
"""How much there was, and what was measured."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page: a table with a row for each step."""

    title: str
    unit: str
    columns: tuple[str, ...]
    """The measures; those of `growing` are for as much of the unit as the column says."""
    growing: tuple[bool, ...]
    rows: Rows
    published: str

    def lines(self) -> list[str]:
        head = [f"## {self.title}", "", f"| {self.unit} | {' | '.join(self.columns)} |"]
        rule = "|--:|" + "--:|" * len(self.columns)
        rows = [f"| {count:,} | {' | '.join(map(_figure, found))} |" for count, found in self.rows]
        first, last = self.rows[0][1], self.rows[-1][1]
        growth = [
            f"{last[at] / first[at]:.2f}" if grows and first[at] > 0 else "" for at, grows in enumerate(self.growing)
        ]
        return [*head, rule, *rows, f"| last to first | {' | '.join(growth)} |", "", self.published]


def _figure(found: float) -> str:
    return f"{found:,.0f}" if found >= 100 else f"{found:.3g}"


class Nodes:
    """The processes of the nodes, for what they use."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]

    def cpu_s(self) -> float:
        used = [process.cpu_times() for process in self._processes]
        return float(sum(each.user + each.system for each in used))

    def resident_kb(self) -> float:
        return float(sum(process.memory_info().rss for process in self._processes)) / 1e3


def steps(most: int) -> list[int]:
    """Return how much there is after each step."""
    return [most // each for each in STEPS]


def _wait(what: str, until: Callable[[], bool]) -> float:
    """Return the seconds until it is so. Raises SystemExit if it does not become so."""
    started = time.monotonic()
    while not until():
        if time.monotonic() - started > _BOUND_S:
            raise SystemExit(f"{what} did not come to pass in {_BOUND_S:.0f} s")
        time.sleep(_AGAIN_S)
    return time.monotonic() - started


# --- partitions -------------------------------------------------------------------------------------------------------


def _create(wire: Wire, topics: Sequence[int], *, replicas: int) -> None:
    """Create topics of these numbers, ten with each request."""
    for at in range(0, len(topics), 10):
        asked = [
            CreatableTopic(name=_topic(each), num_partitions=PARTITIONS_OF_A_TOPIC, replication_factor=replicas)
            for each in topics[at : at + 10]
        ]
        answer = wire.ask(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=asked, timeout_ms=int(_BOUND_S * 1000)))
        for each in answer.topics:
            if each.error_code != ErrorCode.NONE:
                raise SystemExit(f"{each.name}: {ErrorCode.of(each.error_code).name}: {each.error_message}")


def _topic(number: int) -> str:
    return f"topic-{number:05}"


def _asked(wire: Wire, topics: Iterable[int]) -> list[Any]:
    """Return what Metadata says of the partitions of these topics."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=_topic(each)) for each in topics], allow_auto_topic_creation=False
    )
    return [each for topic in wire.ask(ApiKey.METADATA, 9, request).topics for each in topic.partitions]


def partitions_of_a_node(under: Path, most: int) -> Part:
    """A node with more and more partitions, none of which is used: creation, memory, rest, a start."""
    rows: Rows = []
    with _broker(under, {}) as broker:
        done = 0
        for target in steps(most):
            nodes = Nodes([broker.pid])
            cpu, memory, started = nodes.cpu_s(), nodes.resident_kb(), time.monotonic()
            wire = Wire(broker.bootstrap)
            _create(wire, range(done // PARTITIONS_OF_A_TOPIC, target // PARTITIONS_OF_A_TOPIC), replicas=1)
            wire.close()
            took, added = time.monotonic() - started, target - done
            time.sleep(_SETTLE_S)
            cpu, memory = nodes.cpu_s() - cpu, nodes.resident_kb() - memory
            at_rest = nodes.cpu_s()
            time.sleep(_REST_S)
            at_rest = (nodes.cpu_s() - at_rest) / _REST_S * 100
            stopped = time.monotonic()
            broker.stop()
            stop = time.monotonic() - stopped
            broker.start()
            start = Nodes([broker.pid]).cpu_s()
            done = target
            per = 1000 / added
            rows.append((target, (took * per, cpu * per, memory / added, at_rest, stop, start / target * 1000)))
    columns = (
        "creation, s for 1,000",
        "creation, CPU s for 1,000",
        "memory, kB each",
        "at rest, % of a core",
        "stop, s",
        "start, CPU s for 1,000",
    )
    published = (
        "Published for Apache Kafka: no more than 4,000 partitions on a broker are recommended "
        "([KIP-578](https://cwiki.apache.org/confluence/display/KAFKA/KIP-578)). The first step's memory has what the "
        "node first needed for any topic, and a start what it needs without partitions."
    )
    return Part("Partitions on a node", "partitions", columns, (True, True, True, False, False, True), rows, published)


def partitions_of_a_cluster(under: Path, most: int) -> Part:
    """Three nodes with more and more partitions: creation, a node that dies, its return."""
    rows: Rows = []
    with (
        _removed(under) as directory,
        Cluster(
            brokers=3,
            settings={"kraftpy.max.partitions": str(2 * most)},
            directory=directory,
            can_partition=False,
            start_timeout=_BOUND_S,
        ) as cluster,
    ):
        done = 0
        for target in steps(most):
            nodes = Nodes(cluster.pid(node) for node in cluster.brokers)
            cpu, memory, started = nodes.cpu_s(), nodes.resident_kb(), time.monotonic()
            with _wire(cluster.address(1)) as wire:
                _create(wire, range(done // PARTITIONS_OF_A_TOPIC, target // PARTITIONS_OF_A_TOPIC), replicas=2)
            took, added = time.monotonic() - started, target - done
            time.sleep(_SETTLE_S)
            cpu, memory = nodes.cpu_s() - cpu, nodes.resident_kb() - memory
            done, per = target, 1000 / added
            moved, failover = _fail_over(cluster, target // PARTITIONS_OF_A_TOPIC)
            back = _come_back(cluster, target // PARTITIONS_OF_A_TOPIC)
            found = (took * per, cpu * per, memory / added / 2, failover, moved / failover, back)
            rows.append((target, found))
    columns = (
        "creation, s for 1,000",
        "creation, CPU s for 1,000",
        "memory, kB a replica",
        "failover, s",
        "leaders chosen a second",
        "return, s",
    )
    published = (
        "Published for Apache Kafka: no more than 200,000 partitions in a cluster are recommended "
        "([Kafka 1.1](https://www.confluent.io/blog/apache-kafka-supports-200k-partitions-per-cluster)). Two replicas "
        "each, of which a sample is asked for; failover is the time from SIGKILL until the last partition of the node "
        "has another leader; return is the time from the start of the node's process until all replicas are in sync."
    )
    growing = (True, True, True, False, False, False)
    return Part("Partitions in a cluster", "partitions", columns, growing, rows, published)


def _sampled(topics: int) -> list[int]:
    count = min(_SAMPLES, topics)
    return [topics * at // count for at in range(count)]


def _fail_over(cluster: Cluster, topics: int) -> tuple[int, float]:
    """Kill the third node; return how many partitions it led, and the seconds until it leads none."""
    sampled = _sampled(topics)
    with _wire(cluster.address(1)) as wire:
        led = sum(each.leader_id == 3 for each in _asked(wire, sampled))
        moved = led * topics // len(sampled)
        cluster.kill(3)

        def left() -> int:
            return sum(each.leader_id == 3 or each.leader_id < 0 for each in _asked(wire, sampled))

        return moved, _wait("the last new leader", lambda: left() == 0)


def _come_back(cluster: Cluster, topics: int) -> float:
    """Start the third node again; return the seconds until its replicas are in sync, and let it lead again."""
    sampled = _sampled(topics)
    started = time.monotonic()
    cluster.start(3)
    with _wire(cluster.address(1)) as wire:
        _wait("the node's return", lambda: all(len(each.isr_nodes) == 2 for each in _asked(wire, sampled)))
        took = time.monotonic() - started
        _balance(wire)
        _wait("its leadership", lambda: any(each.leader_id == 3 for each in _asked(wire, sampled)))
    return took


def _balance(wire: Wire) -> None:
    from kraftpy.protocol.messages.elect_leaders import ElectLeadersRequest

    wire.ask(ApiKey.ELECT_LEADERS, 2, ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=60_000))


# --- connections ------------------------------------------------------------------------------------------------------


def connections_of_a_node(under: Path, most: int) -> Part:
    """A node with more and more connections: what one costs to open and to keep, and a request on any of them."""
    rows: Rows = []
    request = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    with _broker(under, {}) as broker, ExitStack() as stack:
        nodes = Nodes([broker.pid])
        wires: list[Wire] = []
        warm = stack.enter_context(_wire(broker.bootstrap))
        warm.ask(ApiKey.API_VERSIONS, 3, request)
        for target in steps(most):
            cpu, memory, started = nodes.cpu_s(), nodes.resident_kb(), time.monotonic()
            added = target - len(wires)
            for _ in range(added):
                wires.append(stack.enter_context(_wire(broker.bootstrap)))
                wires[-1].ask(ApiKey.API_VERSIONS, 3, request)
            took = time.monotonic() - started
            time.sleep(_SETTLE_S)
            cpu, memory = nodes.cpu_s() - cpu, nodes.resident_kb() - memory
            used, asked = nodes.cpu_s(), 0
            ends = time.monotonic() + _REST_S
            while time.monotonic() < ends:
                wires[asked * 7919 % len(wires)].ask(ApiKey.API_VERSIONS, 3, request)
                asked += 1
            each = (nodes.cpu_s() - used) / asked * 1e6
            per = 1000 / added
            rows.append((target, (took * per, cpu * per, memory / added, each)))
    columns = ("opening, s for 1,000", "opening, CPU s for 1,000", "memory, kB each", "a request, CPU us")
    published = (
        "Each connection has sent one request. A managed Apache Kafka allows 2,000 to 4,000 to a broker "
        "([Huawei Cloud](https://support.huaweicloud.com/intl/en-us/kafka_faq/kafka-faq-200426025.html))."
    )
    return Part("Connections to a node", "connections", columns, (True, True, True, True), rows, published)


# --- groups -----------------------------------------------------------------------------------------------------------


def groups_of_a_node(under: Path, most: int) -> Part:
    """A node with more and more groups of one member (KIP-848): joining, memory, heartbeats, a restart."""
    rows: Rows = []
    settings = {
        "offsets.topic.num.partitions": "50",
        "group.consumer.session.timeout.ms": "3600000",
        "group.consumer.max.session.timeout.ms": "3600000",
    }
    with _broker(under, settings) as broker:
        with _wire(broker.bootstrap) as wire:
            _create(wire, [0], replicas=1)
            _wait("a coordinator", lambda: _is_found(wire, 0))
        epochs: dict[int, int] = {}
        for target in steps(most):
            nodes = Nodes([broker.pid])
            cpu, memory, started = nodes.cpu_s(), nodes.resident_kb(), time.monotonic()
            added = target - len(epochs)
            with _wire(broker.bootstrap) as wire:
                for number in range(len(epochs), target):
                    epochs[number] = _beat(wire, number, 0)
                took = time.monotonic() - started
                time.sleep(_SETTLE_S)
                cpu, memory = nodes.cpu_s() - cpu, nodes.resident_kb() - memory
                used, asked, ends = nodes.cpu_s(), 0, time.monotonic() + _REST_S
                while time.monotonic() < ends:
                    number = asked * 7919 % target
                    _beat(wire, number, epochs[number])
                    asked += 1
                each = (nodes.cpu_s() - used) / asked * 1e6
            broker.stop()
            started = time.monotonic()
            broker.start()
            with _wire(broker.bootstrap) as wire:
                _wait("the first group after a restart", lambda: _is_served(wire, 0, epochs))
                for number in epochs:
                    while not _is_served(wire, number, epochs):
                        time.sleep(_AGAIN_S)
            back = time.monotonic() - started
            per = 1000 / added
            rows.append((target, (took * per, cpu * per, memory / added, each, back / target * 1000)))
    columns = (
        "joining, s for 1,000",
        "joining, CPU s for 1,000",
        "memory, kB each",
        "a heartbeat, CPU us",
        "restart until all were served, s for 1,000",
    )
    published = "One member each, subscribed to a topic of 100 partitions. No figure is published for Apache Kafka."
    return Part("Groups on a node", "groups", columns, (True, True, True, True, True), rows, published)


def _is_found(wire: Wire, number: int) -> bool:
    return not wire.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=f"group-{number}")).error_code


def _answer_to_beat(wire: Wire, number: int, epoch: int) -> Any:
    joins = epoch == 0
    request = ConsumerGroupHeartbeatRequest(
        group_id=f"group-{number}",
        member_id=f"member-{number}",
        member_epoch=epoch,
        rebalance_timeout_ms=300_000 if joins else -1,
        subscribed_topic_names=[_topic(0)] if joins else None,
        topic_partitions=[] if joins else None,
    )
    return wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)


def _beat(wire: Wire, number: int, epoch: int) -> int:
    """Send a heartbeat; return the member's epoch. Raises SystemExit if it is refused."""
    answer = _answer_to_beat(wire, number, epoch)
    if answer.error_code != ErrorCode.NONE:
        raise SystemExit(f"group-{number}: {ErrorCode.of(answer.error_code).name}: {answer.error_message}")
    return int(answer.member_epoch)


def _is_served(wire: Wire, number: int, epochs: dict[int, int]) -> bool:
    error = ErrorCode.of(_answer_to_beat(wire, number, epochs[number]).error_code)
    if error is not ErrorCode.NONE and error not in _AWAY:
        raise SystemExit(f"group-{number}: {error.name}")
    return error is ErrorCode.NONE


# --- the page ---------------------------------------------------------------------------------------------------------


@contextmanager
def _removed(under: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="kraftpy-bench-", dir=under))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _broker(under: Path, settings: dict[str, str]) -> Iterator[EmbeddedBroker]:
    with (
        _removed(under) as directory,
        EmbeddedBroker(directory, settings=settings, start_timeout=_BOUND_S, stop_timeout=_BOUND_S) as broker,
    ):
        yield broker


@contextmanager
def _wire(address: str) -> Iterator[Wire]:
    wire = Wire(address, answer_s=_BOUND_S)
    try:
        yield wire
    finally:
        wire.close()


PARTS: Final[dict[str, tuple[Callable[[Path, int], Part], int]]] = {
    "partitions": (partitions_of_a_node, 20_000),
    "cluster": (partitions_of_a_cluster, 200_000),
    "connections": (connections_of_a_node, 10_000),
    "groups": (groups_of_a_node, 10_000),
}
"""Each part, and how far it goes."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="leave the others out")
    parser.add_argument("--most", type=float, default=1.0, help="the fraction of the way to go")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the data go")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the connections, here and in the nodes
    page = ["# How far it goes", "", *(f"- {line}" for line in machine.describe(options.directory))]
    page.append(f"- load average {machine.load_average():.1f} before")
    for name, (measure, most) in PARTS.items():
        if options.only is None or name in options.only:
            part = measure(options.directory, int(most * options.most)).lines()
            print("\n".join(part), flush=True)
            page += ["", *part]
    options.output.write_text("\n".join([*page, ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
