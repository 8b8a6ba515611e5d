"""A topic of thousands of partitions: what is the same for many of them is worked out, and kept, once."""

from __future__ import annotations

import pytest

from kraftpy.metadata import placement
from kraftpy.metadata.commands import CreateTopics, NewTopic
from kraftpy.metadata.controller import MetadataStateMachine, decide
from kraftpy.metadata.records import BrokerRegistered
from kraftpy.types import BrokerId, Millis, TopicId

PARTITIONS = 5_000
BROKERS = 3


def test_replicas_are_chosen_once_for_partitions_that_are_placed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MetadataStateMachine()
    for number in range(BROKERS):
        machine.image.replay(
            BrokerRegistered(
                broker_id=BrokerId(number),
                broker_epoch=1,
                incarnation_id=bytes(16),
                endpoints=(),
                rack=None,
                fenced=False,
                registered_ms=Millis(0),
            )
        )
    chosen = 0
    followers = placement._followers

    def counted(*arguments: object) -> list[BrokerId]:
        nonlocal chosen
        chosen += 1
        return followers(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(placement, "_followers", counted)
    topic = NewTopic(name="large", topic_id=TopicId(b"1" * 16), partitions=PARTITIONS, replication_factor=BROKERS)
    command = CreateTopics(topics=(topic,), time_ms=Millis(0), default_partitions=1, default_replication_factor=1)
    decision = decide(command, machine.image)
    assert 0 < chosen <= BROKERS * (BROKERS - 1)
    for record in decision.records:
        machine.image.replay(record)
    made = machine.image.topic("large")
    assert made is not None
    assert len(made.partitions) == PARTITIONS
    assert len({id(each) for each in made.partitions}) == BROKERS * (BROKERS - 1)
    assert len({each.replicas for each in made.partitions}) == BROKERS * (BROKERS - 1)
    assert {each.leader for each in made.partitions} == {0, 1, 2}
