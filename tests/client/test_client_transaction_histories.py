"""A producer's transactions against the broker's own coordinator, over a network that loses requests and answers.

Markers come late, coordinators move and reload their log, records are given up; yet the outcome a producer was given
for each transaction is what readers see in the end.

Left out: a coordinator that moves while the answer to a request for the next epoch (KIP-360, version 1) is lost. The
log does not say which epoch was the last before, here as in Kafka, so the next coordinator takes the repetition for
another producer's, which is fenced.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.client.producer import transaction_events as t
from kraftpy.client.producer.transaction_state import State, TransactionMachine
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.transactions import events as c
from kraftpy.transactions.config import TransactionConfig
from kraftpy.transactions.coordinator import TransactionCoordinator
from kraftpy.types import Millis, TopicPartition

ID = "tx"
PARTITIONS = [TopicPartition("t", n) for n in range(3)]


class Cluster:
    """One coordinator, its log, and the partitions as readers of committed records see them."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes | None, bytes | None]] = []
        self.coordinator = TransactionCoordinator(TransactionConfig())
        self.now = Millis(0)
        self.requests = 0
        self.producer_ids = 0
        self.markers: list[c.WriteMarkers] = []
        self.open: dict[TopicPartition, list[str]] = {name: [] for name in PARTITIONS}
        self.committed: list[str] = []
        self.carry_out(self.coordinator.loaded(self.now, self.now))

    def move(self) -> None:
        """Another broker coordinates: it knows what the log says."""
        self.coordinator = TransactionCoordinator(TransactionConfig())
        for key, value in self.log:
            self.coordinator.replay(key, value)
        self.markers.clear()
        self.carry_out(self.coordinator.loaded(self.now, self.now))

    def ask(self, command: c.Command) -> c.Result:
        self.requests += 1
        self.producer_ids += 1
        request = c.Request(request_id=self.requests, command=command, fresh_producer_id=self.producer_ids)
        replies = self.carry_out(self.coordinator.step(request, self.now, self.now))
        return replies[self.requests]

    def carry_out(self, effects: list[c.Effect]) -> dict[int, c.Result]:
        replies: dict[int, c.Result] = {}
        while effects:
            effect, *effects = effects
            match effect:
                case c.Reply():
                    replies[effect.request_id] = effect.result
                case c.Append():
                    self.log.append(effect.record)
                    effects += self.coordinator.step(c.Appended(token=effect.token), self.now, self.now)
                case c.WriteMarkers():
                    self.markers.append(effect)
        return replies

    def write_markers(self) -> None:
        """Every marker that is due reaches its partitions."""
        while self.markers:
            marker = self.markers.pop(0)
            for name in sorted(marker.partitions):
                if marker.is_commit:
                    self.committed += self.open[name]
                self.open[name] = []
            written = c.MarkersWritten(
                transactional_id=ID,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                partitions=marker.partitions,
            )
            self.carry_out(self.coordinator.step(written, self.now, self.now))

    def produce(self, machine: TransactionMachine, name: TopicPartition, value: str) -> ErrorCode:
        """One record, as a leader takes it: known again if it is there; the partition is added, or must have been."""
        if value in self.open[name]:
            return ErrorCode.NONE
        kind = c.AddPartitions if machine.version == 2 else c.VerifyPartitions
        options = {"client_version": 2} if machine.version == 2 else {}
        result = self.ask(
            kind(
                transactional_id=ID,
                producer_id=machine.producer_id,
                producer_epoch=machine.producer_epoch,
                partitions=frozenset({name}),
                **options,
            )
        )
        if result.error_code is not ErrorCode.NONE:
            return result.error_code
        assert not result.missing, "in version 1 it is part of the transaction before records go there"
        self.open[name].append(value)
        return ErrorCode.NONE


class Producer:
    """The machine, driven as its shell does; the network's fate is drawn for each exchange."""

    def __init__(self, cluster: Cluster, data: st.DataObject, version: int) -> None:
        self.cluster = cluster
        self.data = data
        self.machine = TransactionMachine(ID)
        self.request: t.Request | None = None
        self.done: list[t.Done] = []
        self.awaits_epoch = False  # it was given the next epoch and has not heard of it
        self.step(t.VersionFound(level=version))

    def step(self, event: t.Event) -> None:
        for effect in self.machine.step(event, self.cluster.now):
            if isinstance(effect, t.Request):
                assert self.request is None, "one request at a time"
                self.request = effect
            elif isinstance(effect, t.Done):
                self.done.append(effect)
            assert not isinstance(effect, t.Stop), effect

    def fate(self) -> str:
        fate: str = self.data.draw(st.sampled_from(["heard"] * 6 + ["lost", "unheard", "moves", "markers", "markers"]))
        if fate == "moves" and not self.awaits_epoch:
            self.cluster.move()
        elif fate == "markers":
            self.cluster.write_markers()
        return fate

    def exchange(self) -> None:
        """Let time pass; messages in flight arrive or are lost."""
        self.cluster.now = Millis(self.cluster.now + 100)
        fate = self.fate()
        request, self.request = self.request, None
        if request is None:
            self.step(t.Tick())
        elif fate == "lost":
            self.step(t.Answered(error=ErrorCode.NETWORK_EXCEPTION))
        else:
            result = self.cluster.ask(command(request, self.machine.version))
            if fate == "unheard":
                self.awaits_epoch = isinstance(request, t.SendInitProducerId) and request.producer_id >= 0
                self.step(t.Answered(error=ErrorCode.REQUEST_TIMED_OUT))
            else:
                self.awaits_epoch = False
                answer = t.Answered(
                    error=result.error_code, producer_id=result.producer_id, producer_epoch=result.producer_epoch
                )
                self.step(answer)

    def until_done(self, operation: t.Operation) -> t.Done:
        for _ in range(200):
            if self.done:
                done = self.done.pop()
                assert done.operation is operation
                return done
            self.cluster.write_markers() if self.data.draw(st.booleans()) else None
            self.exchange()
        raise AssertionError(f"{operation} does not end: {self.machine}")

    def send(self, name: TopicPartition, value: str) -> bool:
        """Send a value until it is acknowledged; return False if it is given up."""
        self.step(t.Use(partition=name))
        for attempt in range(100):
            if not self.machine.may_send(name) or attempt % 3 == 2:
                self.exchange()
                self.cluster.write_markers()
                continue
            self.step(t.Sent())
            fate = self.fate()
            error = ErrorCode.NETWORK_EXCEPTION if fate == "lost" else self.cluster.produce(self.machine, name, value)
            if fate == "unheard":
                error = ErrorCode.NETWORK_EXCEPTION
            if error is ErrorCode.NONE:
                return True
            if not error.retriable or self.data.draw(st.integers(0, 9)) == 0:
                self.step(t.BatchFailed(error=KafkaError(error)))
                return False
        raise AssertionError(f"{name} cannot be written: {self.machine}")


def command(request: t.Request, version: int) -> c.Command:
    match request:
        case t.SendInitProducerId():
            return c.InitProducerId(
                transactional_id=ID,
                timeout_ms=60_000,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            )
        case t.SendAddPartitions():
            return c.AddPartitions(
                transactional_id=ID,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                partitions=frozenset(request.partitions),
            )
        case t.SendEndTransaction():
            return c.EndTransaction(
                transactional_id=ID,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                is_commit=request.is_commit,
                client_version=2 if request.version == 2 else 0,
            )
    raise AssertionError(request)


@pytest.mark.parametrize("version", [1, 2])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_a_producer_was_told_is_what_readers_see(version: int, data: st.DataObject) -> None:
    cluster = Cluster()
    producer = Producer(cluster, data, version)
    producer.step(t.Initialize())
    assert producer.until_done(t.Operation.INIT).error is None
    told: list[str] = []
    for number in range(data.draw(st.integers(1, 6))):
        producer.step(t.Begin())
        values = []
        for place in range(data.draw(st.integers(0, 3))):
            value = f"{number}.{place}"
            if not producer.send(data.draw(st.sampled_from(PARTITIONS)), value):
                break
            values.append(value)
        is_broken = producer.machine.state is State.ABORTABLE_ERROR
        if not is_broken and data.draw(st.booleans()):
            producer.step(t.Commit())
            producer.step(t.Drained())
            assert producer.until_done(t.Operation.COMMIT).error is None
            told += values
        else:
            producer.step(t.Abort())
            producer.step(t.Drained())
            assert producer.until_done(t.Operation.ABORT).error is None
        assert producer.machine.state is State.READY
    cluster.write_markers()
    assert sorted(cluster.committed) == sorted(told)
    assert all(not values for values in cluster.open.values()), "no transaction hangs"
