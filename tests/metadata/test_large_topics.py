"""A topic of thousands of partitions: what is the same for many of them is worked out, and kept, once."""

from __future__ import annotations

import pytest

from kraftpy.metadata import frozen, placement
from kraftpy.metadata.commands import CreateTopics, NewTopic
from kraftpy.metadata.controller import MetadataStateMachine, decide
from kraftpy.metadata.records import BrokerRegistered, PartitionCreated
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


def test_a_class_of_many_objects_gets_an_initializer_of_its_own() -> None:
    @frozen.frozen
    class Example:
        name: str
        number: int = 7

    first = Example(name="a")
    assert Example.__init__ is frozen._init
    for _ in range(frozen.COMPILED_AFTER):
        last = Example(name="a")
    assert Example.__init__ is not frozen._init
    assert (last.name, last.number) == ("a", 7)
    assert last == first
    assert Example(name="b", number=1).number == 1
    with pytest.raises(TypeError):
        Example()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Example(name="a", other=1)  # type: ignore[call-arg]
    assert PartitionCreated.__dataclass_fields__  # the records of partitions are such classes
