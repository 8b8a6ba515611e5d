"""Reads a simulated cluster as an onlooker and writes into the history, for the checkers of nodes.

Every second it writes what has changed since the last reading: `watermarks` of each replica, each node's `image` of the
metadata, and the node that each takes for the `controller`. Ten times a second it writes `decided` if a node leads the
quorum, since two may lead one term for less than a second, and `isr` if the newest image has other replicas in sync, or
brokers have registered again. In the end it writes all of it once more, marked `final`, and every `replica`: its
batches, read from the files on its disk by the code here, not by the product, and its records.

A reading takes no time and changes nothing: its invocation and completion are one instant. A key is a partition. Topics
that are deleted and made again under their name have their id in the key (`topic-1@Ab3.../0` is another partition than
its namesake). Watermarks carry the number of the replica they belong to, one for each that was ever opened: a partition
that left a node and comes back to it has a new number there.

Left out: the bytes of compacted partitions, which each replica cleans on its own; of those only the watermarks are
read.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import xxhash

from chaos.generator import TOPIC_PREFIX
from chaos.history import Key, Recorder, Type, value_of
from chaos.replica_logs import of_transaction
from chaos.workloads import hostile
from kraftpy.protocol.checksum import crc32c
from kraftpy.protocol.record_batch import iter_records, read_header
from kraftpy.protocol.records import CorruptBatch
from kraftpy.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from chaos.worlds.simulated import Node, SimulatedCluster
    from kraftpy.broker.broker import Broker
    from kraftpy.broker.replication.replica import Replica
    from kraftpy.metadata.image import Partition

ONLOOKER: Final = 1_000_000
"""The process that reads: no client has this number."""
_SECONDS: Final = 1.0
_LEADER_SECONDS: Final = 0.1
_BATCH_PREFIX: Final = struct.Struct(">qi")
_PREFIX_BYTES: Final = _BATCH_PREFIX.size
_CRC_START: Final = 21


class Readings:
    """Takes a reading every second, from `begin` until `end`."""

    def __init__(self, cluster: SimulatedCluster, recorder: Recorder, now_ns: Callable[[], int]) -> None:
        self._cluster = cluster
        self._recorder = recorder
        self._now_ns = now_ns
        self._last: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._images: dict[int, tuple[int, int]] = {}
        self._in_sync_at: tuple[int, ...] = ()
        self._in_sync: dict[Key, tuple[Any, ...]] = {}
        self._numbers: dict[Replica, int] = {}
        self._next_number = itertools.count(1)
        self._is_over = False

    def begin(self) -> None:
        """Read now, and every second from now on."""
        self._read_again()
        self._look_again()

    def _read_again(self) -> None:
        if not self._is_over:
            self.read()
            self._cluster.loop.call_later(_SECONDS, self._read_again, context=self._cluster.loop.outside)

    def _look_again(self) -> None:
        if not self._is_over:
            for number, node in self._cluster.nodes.items():
                if node.is_running and node.is_ready and node.broker is not None:
                    self._decided(number, node.broker)
            self._look_who_is_in_sync()
            self._cluster.loop.call_later(_LEADER_SECONDS, self._look_again, context=self._cluster.loop.outside)

    def end(self) -> None:
        """Stop reading."""
        self._is_over = True

    def read(self, *, final: bool = False) -> None:
        """Record changes since the last reading; if `final`, record everything, marked so."""
        for number, node in self._cluster.nodes.items():
            broker = node.broker
            if not node.is_running or not node.is_ready or broker is None:
                continue
            extra: dict[str, Any] = {"incarnation": node.starts}
            if final:
                extra["final"] = True
            self._quorum(number, broker, extra)
            for replica in _replicas(broker):
                if not replica.is_offline:
                    self._watermarks(number, replica, extra)
            if final:
                self._replicas(number, node, broker, extra)

    def _read(self, f: str, key: tuple[Any, ...], value: dict[str, Any], extra: Mapping[str, Any]) -> None:
        incarnation = extra["incarnation"]
        if self._last.get((f, *key, incarnation)) == value and "final" not in extra:
            return
        self._last[f, *key, incarnation] = value
        now = self._now_ns()
        self._recorder.invoke(now, ONLOOKER, f, None, **extra)
        self._recorder.complete(now, ONLOOKER, Type.OK, value, **extra)

    def differences(self) -> list[str]:
        """Return the remaining differences: nodes' images, replicas' ends, in-sync replicas."""
        found: list[str] = []
        nodes = {number: node.broker for number, node in self._cluster.nodes.items() if node.is_ready}
        found += [f"node {number} does not serve" for number in self._cluster.nodes if nodes.get(number) is None]
        brokers = {number: broker for number, broker in nodes.items() if broker is not None}
        if not brokers:
            return found
        newest = max(brokers.values(), key=lambda broker: broker.metadata.applied_index)
        if len({broker.metadata.applied_index for broker in brokers.values()}) > 1:
            found.append("the images are of different offsets")
        for topic, partition, state in newest.image.partitions():
            name = f"{topic.name}-{partition}"
            if state.is_reassigning or state.leader < 0 or {*state.isr} != {*state.replicas}:
                found.append(f"{name} is led by {state.leader}, in sync are {state.isr} of {state.replicas}")
                continue
            ends = set()
            for number in state.replicas:
                broker = brokers.get(int(number))
                held = None if broker is None else broker.replicas.held(TopicPartition(topic.name, partition))
                ends.add(None if held is None else (held.high_watermark, held.log_end_offset, held.leader_epoch))
            if len(ends) > 1 or None in ends:
                found.append(f"{name} ends differently")
        return found

    def _quorum(self, number: int, broker: Broker, extra: Mapping[str, Any]) -> None:
        metadata = broker.metadata
        index, incarnation = metadata.applied_index, extra["incarnation"]
        if self._images.get(number) != (index, incarnation) or "final" in extra:
            self._images[number] = (index, incarnation)
            digest = xxhash.xxh3_64_hexdigest(broker.image.to_bytes())
            self._read("image", (number,), {"node": number, "offset": index, "digest": digest}, extra)
        epoch, leader = metadata.leader_epoch, metadata.leader_id
        if epoch < 0:
            return  # its disk is full: it knows no leader, and forgets a term that it could not write down
        self._read("controller", (number,), {"node": number, "epoch": epoch, "controller": leader}, extra)
        self._decided(number, broker)

    def _decided(self, number: int, broker: Broker) -> None:
        epoch = broker.metadata.leader_epoch
        if broker.metadata.is_leader and epoch >= 0:
            decided = {"node": number, "epoch": epoch}
            if self._last.get(("decided", number)) != decided:
                self._last["decided", number] = decided
                self._recorder.note(self._now_ns(), "onlooker", "decided", decided)

    def _look_who_is_in_sync(self) -> None:
        """Record only if the newest image differs from the last."""
        nodes = self._cluster.nodes.items()
        brokers = {
            number: node.broker
            for number, node in nodes
            if node.is_running and node.is_ready and node.broker is not None and node.broker.config.is_broker
        }
        if not brokers:
            return
        newest = max(brokers.values(), key=lambda broker: broker.metadata.applied_index)
        epochs = {number: _registered(number, broker, newest) for number, broker in brokers.items()}
        place = (newest.metadata.applied_index, *(epochs.get(number, -1) for number, _ in nodes))
        if place == self._in_sync_at:
            return
        self._in_sync_at = place
        for topic, partition, state in newest.image.partitions():
            name = f"{topic.name}@{topic.topic_id.hex()}" if topic.name.startswith(TOPIC_PREFIX) else topic.name
            key = f"{name}-{partition}"
            alive = [(int(number), epochs.get(int(number), -1)) for number in state.replicas]
            seen = (state.leader_epoch, state.isr, alive)
            if self._in_sync.get(key) == seen:
                continue
            self._in_sync[key] = seen
            held = {
                number: broker.replicas.held_by_id(topic.topic_id, partition)
                for number, broker in brokers.items()
                if epochs[number] >= 0
            }
            self._note_in_sync(key, state, alive, held)

    def _note_in_sync(
        self, key: Key, state: Partition, alive: list[tuple[int, int]], held: Mapping[int, Replica | None]
    ) -> None:
        here = {
            number: replica
            for number, replica in held.items()
            if replica is not None and not replica.is_offline and replica.leader_epoch == state.leader_epoch
        }
        leader = here.get(int(state.leader))
        leading = None if leader is None else leader.leading
        starts = {} if leader is None else dict(leader.log.epochs.entries())
        value = {
            "key": key,
            "leader": int(state.leader),
            "leader_epoch": int(state.leader_epoch),
            "epoch_start": starts.get(state.leader_epoch) if leading is not None else None,
            "high_watermark": int(leading.high_watermark) if leading is not None else None,
            "isr": [int(number) for number in state.isr],
            "ends": [[number, int(here[number].log_end_offset)] for number, _ in alive if number in here],
        }
        now = self._now_ns()
        self._recorder.invoke(now, ONLOOKER, "isr", None)
        self._recorder.complete(now, ONLOOKER, Type.OK, value)

    def _watermarks(self, number: int, replica: Replica, extra: Mapping[str, Any]) -> None:
        key = _key(replica)
        value = {
            "node": number,
            "key": key,
            "leader": replica.leading is not None,
            "leader_epoch": int(replica.leader_epoch),
            "log_start": int(replica.log_start_offset),
            "last_stable": int(replica.last_stable_offset),
            "high_watermark": int(replica.high_watermark),
            "log_end": int(replica.log_end_offset),
        }
        if replica not in self._numbers:
            self._numbers[replica] = next(self._next_number)
        self._read("watermarks", (number, key), value, {**extra, "replica": self._numbers[replica]})

    def _replicas(self, number: int, node: Node, broker: Broker, extra: Mapping[str, Any]) -> None:
        for replica in _replicas(broker):
            partition = broker.image.partition(*replica.topic_partition)
            if replica.is_offline or partition is None or number not in partition.replicas:
                continue
            if _is_compacted(broker, replica.topic_partition.topic):
                continue
            start = int(replica.log_start_offset)
            is_hostile = replica.topic_partition.topic.startswith(hostile.NAME)
            batches, records, transactional, damaged = _log(node, replica, with_records=not is_hostile)
            value = {
                "node": number,
                "key": _key(replica),
                "log_start": start,
                "high_watermark": int(replica.high_watermark),
                "log_end": int(replica.log_end_offset),
                "epochs": [[epoch, offset] for epoch, offset in replica.log.epochs.entries()],
                "batches": [batch for batch in batches if batch[1] >= start],
                "records": [record for record in records if record[0] >= start],
            }
            if transactional:
                value["transactional"] = transactional
            if damaged:
                value["damaged"] = damaged
            self._read("replica", (number, value["key"]), value, extra)


def _registered(number: int, broker: Broker, newest: Broker) -> int:
    """Return the epoch of a node's broker if it is the registered one; -1 otherwise."""
    registered = newest.image.broker(BrokerId(number))
    is_this = registered is not None and registered.broker_epoch == broker.broker_epoch
    return int(broker.broker_epoch) if is_this else -1


def _replicas(broker: Broker) -> list[Replica]:
    return sorted(broker.replicas, key=lambda each: each.topic_partition) if broker.config.is_broker else []


def _key(replica: Replica) -> Key:
    topic, number = replica.topic_partition
    return f"{topic}@{replica.topic_id.hex()}-{number}" if topic.startswith(TOPIC_PREFIX) else f"{topic}-{number}"


def _is_compacted(broker: Broker, topic: str) -> bool:
    policy = broker.image.topic_configs(topic).get("cleanup.policy", ",".join(broker.config.log_cleanup_policy))
    return "compact" in policy


def _log(
    node: Node, replica: Replica, *, with_records: bool
) -> tuple[list[list[Any]], list[list[Any]], list[list[Any]], list[int]]:
    """Return [base offset, last offset, leader epoch, digest] of each batch on the disk; [offset, value] of each
    record; each batch of a transaction (`of_transaction`); the position of each batch whose checksum is wrong."""
    batches: list[list[Any]] = []
    records: list[list[Any]] = []
    transactional: list[list[Any]] = []
    damaged: list[int] = []
    for data in _segments(node, replica):
        for batch in _batches(data):
            try:
                header = read_header(batch)
            except CorruptBatch:
                damaged.append(_BATCH_PREFIX.unpack_from(batch)[0])
                continue
            digest = xxhash.xxh3_64_hexdigest(batch)
            batches.append([header.base_offset, header.last_offset, header.partition_leader_epoch, digest])
            if crc32c(batch[_CRC_START:]) != header.crc:
                damaged.append(header.base_offset)
                continue
            if header.is_transactional:
                transactional.append(of_transaction(batch, header))
            if with_records and not header.is_control:
                records += [[record.offset, value_of(record.value)] for record in iter_records(batch, header)]
    return batches, records, transactional, damaged


def _segments(node: Node, replica: Replica) -> Iterator[bytes]:
    directory = node.disk.root
    for part in replica.log.directory.path.strip("/").split("/"):
        directory = directory.child(part)
    for name in directory.names():
        if name.endswith(".log"):
            yield directory.read(name)


def _batches(data: bytes) -> Iterator[bytes]:
    """Return the batches of a segment, in order."""
    position = 0
    while position + _PREFIX_BYTES <= len(data):
        _, length = _BATCH_PREFIX.unpack_from(data, position)
        end = position + _PREFIX_BYTES + length
        if length <= 0 or end > len(data):
            return
        yield data[position:end]
        position = end
