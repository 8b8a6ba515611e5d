"""A broker's change that is decided in parts looks at each partition about once, however many parts there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from image_invariants import check_image

from kraftpy.metadata.commands import (
    ChangeBroker,
    Command,
    CreateTopics,
    FormatCluster,
    NewTopic,
    RegisterBroker,
    UnregisterBroker,
    encode_command,
)
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.features import LATEST
from kraftpy.metadata.image import Partition
from kraftpy.types import BrokerId, Millis, TopicId

TOPICS = 40
EACH = 50
AT_ONCE = 100
NOW = Millis(0)


class Looked(list[Partition]):
    """A topic's partitions, which counts how many of them a loop comes to."""

    count = 0

    def __iter__(self) -> Iterator[Partition]:
        for partition in super().__iter__():
            Looked.count += 1
            yield partition


class Cluster:
    """Three brokers and many partitions."""

    def __init__(self, replication_factor: int, *, has_elr: bool) -> None:
        self.machine = MetadataStateMachine()
        self.index = 0
        self.do(FormatCluster(cluster_id="many", time_ms=NOW, features=LATEST if has_elr else ()))
        assert self.image.has_eligible_leader_replicas is has_elr
        for number in (1, 2, 3):
            self.register(number, b"first")
            self.change(number, fenced=False)
        names = [f"topic-{number * 7919 % TOPICS:03}" for number in range(TOPICS)]
        self.do(
            CreateTopics(
                topics=tuple(
                    NewTopic(
                        name=name,
                        topic_id=TopicId(name.encode().ljust(16, b"-")),
                        partitions=EACH,
                        replication_factor=replication_factor,
                        assignments=(),
                        configs=(),
                    )
                    for name in names
                ),
                time_ms=NOW,
                default_partitions=1,
                default_replication_factor=1,
            )
        )
        for topic in self.image.topics():
            topic.partitions = Looked(topic.partitions)
        Looked.count = 0

    @property
    def image(self) -> Any:
        return self.machine.image

    def do(self, command: Command) -> Decision[Any]:
        self.index += 1
        return self.machine.apply(self.index, 1, encode_command(command)).decision

    def in_parts(self, command: Command) -> int:
        """Repeat a command until all of it is decided; return how often."""
        parts, is_partial = 0, True
        while is_partial:
            decision = self.do(command)
            parts += 1
            is_partial = decision.result is not None and decision.result.is_partial
        return parts

    def register(self, number: int, incarnation: bytes) -> int:
        return self.in_parts(
            RegisterBroker(
                broker_id=BrokerId(number),
                incarnation_id=incarnation.ljust(16, b"-"),
                endpoints=(),
                time_ms=NOW,
                previous_session_expired=True,
                max_partitions=AT_ONCE,
            )
        )

    def change(self, number: int, *, fenced: bool, is_stopping: bool = False) -> int:
        broker = self.image.broker(BrokerId(number))
        return self.in_parts(
            ChangeBroker(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch,
                fenced=fenced,
                in_controlled_shutdown=is_stopping,
                max_partitions=AT_ONCE,
                time_ms=NOW,
            )
        )


@pytest.fixture(params=[2, 1], ids=["two replicas", "one replica"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    return Cluster(request.param, has_elr=True)


def looked_at() -> int:
    count, Looked.count = Looked.count, 0
    return count


def bound(parts: int) -> int:
    """Each partition once, and for each part the topic in which it ends once more, and once in the end."""
    return TOPICS * EACH + parts * 2 * EACH


def test_a_fencing_and_its_end(cluster: Cluster) -> None:
    parts = cluster.change(3, fenced=True)
    assert parts > 5
    assert looked_at() <= bound(parts)
    check_image(cluster.image)
    looked_at()
    parts = cluster.change(3, fenced=False)
    assert looked_at() <= bound(parts)
    check_image(cluster.image)


def test_a_controlled_shutdown(cluster: Cluster) -> None:
    parts = cluster.change(3, fenced=False, is_stopping=True)
    is_followed = cluster.image.topics()[0].replication_factor > 1
    assert parts > 5 or not is_followed
    assert looked_at() <= bound(parts)


def test_a_restart_before_the_fencing(cluster: Cluster) -> None:
    parts = cluster.register(3, b"second")
    assert parts > 5
    assert looked_at() <= bound(parts)
    check_image(cluster.image)


def test_a_broker_that_is_forgotten(cluster: Cluster) -> None:
    parts = cluster.in_parts(UnregisterBroker(broker_id=BrokerId(3), time_ms=NOW, max_partitions=AT_ONCE))
    assert parts > 5
    assert looked_at() <= bound(parts)


def test_a_fencing_without_eligible_leader_replicas() -> None:
    cluster = Cluster(2, has_elr=False)
    parts = cluster.change(3, fenced=True)
    assert parts > 5
    assert looked_at() <= bound(parts)
    check_image(cluster.image)


def test_a_restored_image_counts_the_same() -> None:
    cluster = Cluster(2, has_elr=True)
    cluster.do(
        ChangeBroker(
            broker_id=BrokerId(3),
            broker_epoch=cluster.image.broker(BrokerId(3)).broker_epoch,
            fenced=True,
            max_partitions=AT_ONCE,
            time_ms=NOW,
        )
    )
    restored = MetadataStateMachine()
    restored.restore(cluster.machine.snapshot())
    check_image(restored.image)
    for number in (-1, 1, 2, 3):
        broker_id = BrokerId(number)
        assert dict(restored.image.held_by(broker_id)) == dict(cluster.image.held_by(broker_id))
