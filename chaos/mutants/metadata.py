"""Mutants of the quorum, of the controller, and of what brokers make of the metadata."""

from __future__ import annotations

from typing import Any

from chaos.mutants.mutant import PROBLEM, Mutant, cycle, rounds, three, wrapped
from chaos.nemesis import Kind
from kraftpy.broker.broker import Broker
from kraftpy.broker.metadata.log import MetadataLog
from kraftpy.log import layout
from kraftpy.metadata import brokers, elections
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.raft.leader import Leader
from kraftpy.metadata.records import PartitionChanged
from kraftpy.metadata.sessions import Sessions

_LOST = frozenset({"lost-write", "unseen", "inconsistent-offsets", "lost-on-node", "lost-tail", "replica-divergence"})
_SPLIT = _LOST | {
    PROBLEM, "image-divergence", "image-falls", "two-controllers", "controller-epoch-falls", "two-leaders",
    "not-converged",
}  # fmt: skip
_DEAF_NODE, _DEAF_TO_EVERY = 2, 15


def _elect_first_that_lives(original: Any) -> Any:
    def elected(
        partition: Any, update: Any, rules: Any, topic: Any, replicas: Any, isr: Any, leaving: Any, eligible: Any,
        last_known: Any, offline: Any,
    ) -> Any:  # fmt: skip
        leader, is_unclean = original(
            partition, update, rules, topic, replicas, isr, leaving, eligible, last_known, offline
        )
        living = [replica for replica in replicas if replica in rules.active and replica not in offline]
        if update.prefers_first and replicas[0] in living:
            return replicas[0], False
        return (living[0], False) if living and leader != partition.leader else (leader, is_unclean)

    return elected


def _registered_clean(original: Any) -> Any:
    def started(command: Any, image: Any, **named: Any) -> Any:
        return original(command, image, **{**named, "is_clean": True})

    return started


def _promised_by_all(original: Any) -> Any:
    def write(directory: Any, metadata: Any) -> None:
        original(directory, metadata._replace(synced_before_ack=True))

    return write


def _unfenced_by_a_connection(original: Any) -> Any:
    def wanted(self: Any, broker: Any, session: Any, now: int) -> Any:
        if broker.fenced and not broker.in_controlled_shutdown and broker.broker_id in self._connected:
            return False, False
        return original(self, broker, session, now)

    return wanted


def _sent_is_stored(original: Any) -> Any:
    def send_entries(self: Any, follower: Any) -> None:
        original(self, follower)
        self._matches(follower, follower.next_index - 1)

    return send_entries


def _sometimes_not_acted_on(original: Any) -> Any:
    async def metadata_changed(self: Any, records: Any) -> None:
        if self.node_id == _DEAF_NODE and records is not None:
            changes = any(isinstance(record, PartitionChanged) for record in records)
            self._changes_heard = getattr(self, "_changes_heard", 0) + changes
            if changes and self._changes_heard % _DEAF_TO_EVERY == 0:
                return
        await original(self, records)

    return metadata_changed


class _Forgetful(MetadataStateMachine):
    """Leaves out every nth change of a partition."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def apply(self, index: int, term: int, data: bytes | memoryview) -> Any:
        """Apply the change as decided, without the parts that are left out."""
        before = {(topic.topic_id, number): partition for topic, number, partition in self.image.partitions()}
        applied = super().apply(index, term, data)
        for record in applied.decision.records:
            if isinstance(record, PartitionChanged):
                self.changes += 1
                topic = self.image.topic_by_id(record.topic_id)
                if self.changes % _DEAF_TO_EVERY == 0 and topic is not None:
                    topic.partitions[record.partition] = before[record.topic_id, record.partition]
        return applied


def _skip_on_one_node(original: Any) -> Any:
    def new_machine(self: Any) -> Any:
        machine = original(self)
        if self._config.node_id == _DEAF_NODE:
            machine.state = _Forgetful()
        return machine

    return new_machine


_lost_and_alone = rounds(
    (0, Kind.SLOW, "node c", 9_000, {"delay_ms": 500, "jitter_ms": 20}),
    (4_000, Kind.LOSE_UNSYNCED, "node a", 600, {}),
    (4_400, Kind.KILL, "node b", 3_000, {}),
    nodes="abc",
    every_ms=11_000,
)
"""A replica that lost records comes back while the other in-sync one is away, and the third is out of sync."""
_loses_what_it_had = three(
    controllers=3,
    workload="log",
    load=2.0,
    is_synced=False,
    settings={"replica.fetch.max.bytes": "100", "replica.lag.time.max.ms": "1000"},
)
"""Nothing is synced before it is acknowledged, and a replica that comes back takes long to catch up."""
_isr_moves = cycle((Kind.KILL, "node 3", 1_000, {}), (Kind.KILL, "node 1", 1_000, {}))

MUTANTS = (
    Mutant(
        name="election-ignores-isr",
        breaks="the first live replica is elected, in sync or not",
        rule="18",
        shows=_LOST,
        directed=three(
            workload="log", load=2.0, settings={"replica.fetch.max.bytes": "100", "replica.lag.time.max.ms": "1000"}
        ),
        faults=cycle(
            (Kind.SLOW, "one", 6_000, {"delay_ms": 500, "jitter_ms": 10}), (Kind.KILL, "leader of t0-0", 2_500, {})
        ),
        patches=(wrapped(elections, "_elected", _elect_first_that_lives),),
    ),
    Mutant(
        name="unclean-stop-stays-eligible",
        breaks="a broker that lost unsynced records stays an eligible leader replica",
        rule="18, 20",
        shows=_LOST,
        directed=_loses_what_it_had,
        faults=_lost_and_alone,
        patches=(wrapped(brokers, "_restart_changes", _registered_clean),),
    ),
    Mutant(
        name="promised-without-a-sync",
        breaks="every log promises that it syncs before it acknowledges: a replica that lost records stays eligible",
        rule="18, 20",
        shows=_LOST,
        directed=_loses_what_it_had,
        faults=_lost_and_alone,
        patches=(wrapped(layout, "write_partition_metadata", _promised_by_all),),
    ),
    Mutant(
        name="connection-unfences",
        breaks="a fenced broker may lead once a connection is opened in its name, before its process has registered",
        rule="20, 21",
        shows=_LOST,
        directed=three(
            controllers=3,
            workload="log",
            load=2.0,
            is_synced=True,
        ),
        faults=rounds(
            (0, Kind.LOSE_DISK, "node a", 400, {}),
            ((0, 3_000), Kind.LOSE_UNSYNCED, "node b", 4_000, {}),
            ((0, 3_000), Kind.LOSE_UNSYNCED, "node c", 4_000, {}),
            nodes="abc",
            every_ms=20_000,
        ),
        patches=(wrapped(Sessions, "_wanted", _unfenced_by_a_connection),),
    ),
    Mutant(
        name="quorum-counts-what-was-sent",
        breaks="the quorum's leader counts an entry as stored by a voter once it is sent: cut off, it decides alone",
        rule="46",
        shows=_SPLIT,
        directed=three(with_topics=True, load=2.0),
        faults=cycle((Kind.PARTITION, "controller", 4_000, {"shape": "target"})),
        patches=(wrapped(Leader, "_send_entries", _sent_is_stored),),
    ),
    Mutant(
        name="change-not-acted-on",
        breaks="one broker does not act on some changes of a partition",
        rule="metadata in order",
        shows=_SPLIT,
        directed=three(with_topics=True),
        faults=_isr_moves,
        patches=(wrapped(Broker, "_metadata_changed", _sometimes_not_acted_on),),
    ),
    Mutant(
        name="record-skipped",
        breaks="one node's image lacks some changes of a partition",
        rule="metadata in order",
        shows=_SPLIT,
        directed=three(with_topics=True),
        faults=_isr_moves,
        patches=(wrapped(MetadataLog, "_new_machine", _skip_on_one_node),),
    ),
)
