"""Invariants of every image, after any command, and from one image to the next."""

from __future__ import annotations

from collections import Counter, defaultdict

from kraftpy.metadata.elections import Rules
from kraftpy.metadata.image import Image, Partition
from kraftpy.metadata.records import NO_LEADER
from kraftpy.types import BrokerId, TopicId


def check_image(image: Image) -> None:
    """The invariants of elections, and that every index agrees with what it is an index of."""
    names = [topic.name for topic in image.topics()]
    assert names == sorted(names)
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics())
    placed: dict[BrokerId, list[tuple[str, int]]] = {}
    held: dict[BrokerId, Counter[str]] = defaultdict(Counter)
    eligible: dict[BrokerId, Counter[str]] = defaultdict(Counter)
    for topic, number, partition in image.partitions():
        assert image.topic(topic.name) is topic
        assert image.topic_by_id(topic.topic_id) is topic
        assert image.partition(topic.name, number) is partition
        check_partition(topic.name, partition, image)
        for replica in partition.replicas:
            placed.setdefault(replica, []).append((topic.name, number))
        for holder in {*partition.isr, partition.leader}:
            held[holder][topic.name] += 1
        for replica in partition.eligible_leader_replicas:
            eligible[replica][topic.name] += 1
    for broker_id in {NO_LEADER, *held, *eligible, *(broker.broker_id for broker in image.brokers())}:
        assert image.held_by(broker_id) == held[broker_id]
        assert image.eligible_in(broker_id) == eligible[broker_id]
    assert image.holders() == sorted(broker_id for broker_id, counts in held.items() if counts)
    for broker_id, expected in placed.items():
        assert [(topic.name, number) for topic, number, _ in image.partitions_of(broker_id)] == expected
        assert image.replica_count(broker_id) == len(expected)
    for broker in image.brokers():
        if broker.broker_id not in placed:
            assert not list(image.partitions_of(broker.broker_id))
            assert image.replica_count(broker.broker_id) == 0
    epochs = [broker.broker_epoch for broker in image.brokers()]
    assert len(set(epochs)) == len(epochs)
    assert all(epoch <= image.version for epoch in epochs)


def check_partition(topic: str, partition: Partition, image: Image) -> None:
    replicas, isr, elr = partition.replicas, partition.isr, partition.eligible_leader_replicas
    assert replicas
    assert len(set(replicas)) == len(replicas)
    for members in (isr, elr):
        assert list(members) == [replica for replica in replicas if replica in members], "in the order of the replicas"
        assert len(set(members)) == len(members)
    assert not set(isr) & set(elr), "who is in sync is not also eligible"
    has_elr = image.has_eligible_leader_replicas
    if elr:
        assert has_elr
        assert len(isr) < min(image.min_insync_replicas(topic), len(replicas)), "eligible only below the minimum"
    if has_elr:
        assert not any(image.is_fenced(member) for member in isr), "who is fenced is not in sync"
    else:
        assert isr, "the last one in sync stays"
    if partition.last_known_elr:
        assert has_elr
        assert not isr
        assert len(partition.last_known_elr) == 1
    offline = partition.offline_replicas
    assert list(offline) == [replica for replica in replicas if replica in offline]
    assert partition.leader not in offline
    if has_elr or not set(isr) <= set(offline):
        assert not set(isr) & set(offline), "who cannot use its log is not in sync"
    can_lead = [member for member in (*isr, *elr) if image.is_active(member) and member not in offline]
    moving = {broker.broker_id: broker for broker in image.brokers() if broker.is_leaving or broker.is_returning}
    if partition.leader == NO_LEADER:
        can_lead = [member for member in can_lead if member not in moving]
        assert not can_lead, "somebody could lead, and is not about to"
        if Rules(image).allows_unclean(topic):
            waiting = [each for each in replicas if each not in offline and each not in moving]
            assert not any(image.is_active(replica) for replica in waiting)
    else:
        assert partition.leader in isr
        assert not image.is_fenced(partition.leader)
        assert (
            image.is_active(partition.leader)
            or partition.leader in moving
            or not [member for member in can_lead if member not in moving]
        ), "who is about to stop leads what nobody else can"
    adding, removing = set(partition.adding_replicas), set(partition.removing_replicas)
    assert adding <= set(replicas)
    assert removing <= set(replicas)
    assert not adding & removing
    assert partition.target_replicas


Seen = dict[tuple[TopicId, int], Partition]


def partitions(image: Image) -> Seen:
    """Every partition as it is now: they are frozen."""
    return {(topic.topic_id, number): partition for topic, number, partition in image.partitions()}


def check_step(before: Seen, after: Seen) -> None:
    """Epochs never fall, a change has a new partition epoch, a new leader or fewer replicas have a new leader epoch."""
    for key, old in before.items():
        new = after.get(key)
        if new is None or new is old:
            continue
        assert new.leader_epoch >= old.leader_epoch
        assert new.partition_epoch > old.partition_epoch or new == old
        if new.leader != old.leader or not set(old.replicas) <= set(new.replicas):
            assert new.leader_epoch > old.leader_epoch
