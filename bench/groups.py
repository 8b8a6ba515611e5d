"""The cost of 1,000 groups of ten members on three nodes: joining, heartbeats, a coordinator's failover.

    python -m bench.groups [--groups N] [--members N] [--seconds S] [--output FILE]

Writes bench/GROUPS.md. The members use the consumer protocol (KIP-848) and send the same requests as a client, but over
one connection to each node, so that the brokers are measured and not a thousand clients. Client and nodes are on the
same machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench import machine
from bench.wire import Wire
from kraftpy.protocol.apis import ApiKey
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupTopicPartitions,
)
from kraftpy.protocol.messages.find_coordinator import FindCoordinatorRequest
from kraftpy.testing import Cluster

RESULTS = Path(__file__).with_name("GROUPS.md")
PARTITIONS = 20
_BOUND_S = 300.0
_AGAIN_S = 0.02
_AWAY = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
SETTINGS = {
    "offsets.topic.num.partitions": "50",
    "offsets.topic.replication.factor": "3",
    "group.consumer.session.timeout.ms": "300000",
    "group.consumer.max.session.timeout.ms": "300000",
}


@dataclass(slots=True)
class Member:
    """A member, with the epoch and partitions that it was given."""

    member_id: str
    epoch: int = 0
    partitions: list[ConsumerGroupTopicPartitions] = field(default_factory=list)

    def said(self, group_id: str) -> ConsumerGroupHeartbeatRequest:
        """Return its next heartbeat, which reports its partitions."""
        joins = self.epoch == 0
        return ConsumerGroupHeartbeatRequest(
            group_id=group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=300_000 if joins else -1,
            subscribed_topic_names=["t"] if joins else None,
            topic_partitions=self.partitions,
        )

    def heard(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        """Apply the response."""
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.partitions = answer.assignment.topic_partitions

    @property
    def count(self) -> int:
        """The number of partitions it reads."""
        return sum(len(each.partitions) for each in self.partitions)


@dataclass(slots=True)
class Group:
    """A group and its members."""

    group_id: str
    members: list[Member]

    @property
    def is_shared_out(self) -> bool:
        """True if all members are at the same epoch and have all partitions between them."""
        return len({each.epoch for each in self.members}) == 1 and sum(m.count for m in self.members) == PARTITIONS


class Bench:
    """The cluster, its groups, and the coordinator of each."""

    def __init__(self, cluster: Cluster, groups: int, members: int) -> None:
        self.cluster = cluster
        self.groups = [
            Group(f"group-{number}", [Member(f"{number}-{place}") for place in range(members)])
            for number in range(groups)
        ]
        self.wires: dict[int, Wire] = {}
        self.coordinators: dict[str, int] = {}

    def wire(self, node: int) -> Wire:
        if node not in self.wires:
            self.wires[node] = Wire(self.cluster.address(node))
        return self.wires[node]

    def find(self, group_id: str, asked: int) -> int | None:
        """Return the group's coordinator, if the node knows one."""
        answer = self.wire(asked).ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key=group_id))
        return None if answer.error_code else int(answer.node_id)

    def beat(self, group: Group, member: Member) -> ErrorCode:
        """Send a heartbeat to the known coordinator."""
        message = member.said(group.group_id)
        wire = self.wire(self.coordinators[group.group_id])
        answer = wire.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
        error = ErrorCode.of(answer.error_code)
        if error is ErrorCode.NONE:
            member.heard(answer)
        elif error not in _AWAY:
            raise SystemExit(f"{group.group_id}: {error.name}: {answer.error_message}")
        return error

    def locate(self) -> None:
        """Find the coordinator of every group, and wait until it serves."""
        deadline = time.monotonic() + _BOUND_S
        for group in self.groups:
            while (found := self.find(group.group_id, 1)) is None:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{group.group_id} has no coordinator")
                time.sleep(_AGAIN_S)
            self.coordinators[group.group_id] = found

    def join(self) -> float:
        """Return the seconds until every member of every group has its share."""
        start = time.monotonic()
        unsettled = list(self.groups)
        while unsettled:
            for group in unsettled:
                for member in group.members:
                    self.beat(group, member)
            unsettled = [group for group in unsettled if not group.is_shared_out]
            if time.monotonic() - start > _BOUND_S:
                raise SystemExit(f"{len(unsettled)} groups have not joined")
        return time.monotonic() - start

    def steady(self, seconds: float) -> tuple[int, float]:
        """Return the heartbeats answered in `seconds`, and the brokers' CPU seconds for them."""
        processes = [psutil.Process(self.cluster.pid(node)) for node in (1, 2, 3)]
        before = _cpu(processes)
        sent, end = 0, time.monotonic() + seconds
        for group, member in self._in_turn():
            if time.monotonic() >= end:
                break
            self.beat(group, member)
            sent += 1
        return sent, _cpu(processes) - before

    def _in_turn(self) -> Iterator[tuple[Group, Member]]:
        while True:
            for group in self.groups:
                for member in group.members:
                    yield group, member

    def fail_over(self) -> list[float]:
        """Return the seconds from the end of a coordinator until each of its groups is served again."""
        victim = self.coordinators[self.groups[0].group_id]
        mine = [group for group in self.groups if self.coordinators[group.group_id] == victim]
        witness = next(node for node in (1, 2, 3) if node != victim)
        self.cluster.kill(victim)
        start = time.monotonic()
        self.wires.pop(victim).close()
        took: list[float] = []
        while mine:
            served = [group for group in mine if self._is_served(group, witness, victim)]
            took += [time.monotonic() - start] * len(served)
            names = {group.group_id for group in served}
            mine = [group for group in mine if group.group_id not in names]
            if time.monotonic() - start > _BOUND_S:
                raise SystemExit(f"{len(mine)} groups are not served again")
            time.sleep(_AGAIN_S)
        return took

    def _is_served(self, group: Group, witness: int, victim: int) -> bool:
        found = self.find(group.group_id, witness)
        if found is None or found == victim:
            return False
        self.coordinators[group.group_id] = found
        return self.beat(group, group.members[0]) is ErrorCode.NONE

    def close(self) -> None:
        for wire in self.wires.values():
            wire.close()


def _cpu(processes: list[psutil.Process]) -> float:
    return float(sum(times.user + times.system for times in (process.cpu_times() for process in processes)))


def run(groups: int, members: int, seconds: float) -> list[str]:
    """Measure, and return the lines of the page."""
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(30)
        bench = Bench(cluster, groups, members)
        try:
            bench.locate()
            joined = bench.join()
            sent, cpu = bench.steady(seconds)
            took = bench.fail_over()
        finally:
            bench.close()
    return [
        f"| what | {groups} groups of {members} members, {PARTITIONS} partitions each |",
        "|---|---|",
        f"| until all have joined and have an assignment | {joined:.1f} s |",
        f"| a heartbeat that changes nothing | {cpu / max(sent, 1) * 1e6:.0f} us of broker CPU (of {sent}) |",
        f"| groups of a coordinator that was killed ({len(took)}), served again: median | "
        f"{statistics.median(took):.1f} s |",
        f"| ... the last one | {max(took):.1f} s |",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long heartbeats are measured")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines = run(options.groups, options.members, options.seconds)
    print("\n".join(lines))
    page = ["# What groups cost", "", *(f"- {line}" for line in machine.describe(Path.cwd())), "", *lines, ""]
    options.output.write_text("\n".join(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
