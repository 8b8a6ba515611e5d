"""Replicas: different brokers, different racks while there are any, leaders even, the same answer each time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.metadata.image import Broker
from kraftpy.metadata.placement import CannotPlaceError, place
from kraftpy.types import BrokerId, Millis


def broker(number: int, rack: str | None = None, *, fenced: bool = False) -> Broker:
    return Broker(
        broker_id=BrokerId(number),
        broker_epoch=number,
        incarnation_id=bytes(16),
        endpoints=(),
        rack=rack,
        fenced=fenced,
        registered_ms=Millis(0),
    )


brokers = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from([None, "a", "b", "c"]), st.booleans()),
    min_size=1,
    max_size=9,
    unique_by=lambda item: item[0],
).map(lambda items: [broker(number, rack, fenced=fenced) for number, rack, fenced in items])


@settings(max_examples=300, deadline=None)
@given(brokers, st.integers(1, 30), st.integers(1, 5), st.integers(0, 100), st.randoms(use_true_random=False))
def test_replicas_are_spread(some: list[Broker], partitions: int, factor: int, seed: int, chance: object) -> None:
    active = [one for one in some if not one.fenced]
    if not active or factor > len(some):
        with pytest.raises(CannotPlaceError):
            place(some, partitions=partitions, replication_factor=factor, seed=seed)
        return
    placed = place(some, partitions=partitions, replication_factor=factor, seed=seed)
    shuffled = sorted(some, key=lambda one: hash((one.broker_id, seed)))
    assert place(shuffled, partitions=partitions, replication_factor=factor, seed=seed) == placed
    racks = {one.broker_id: one.rack for one in some}
    sizes = Counter(racks.values())
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == factor
        assert len(set(replicas)) == factor
        used = Counter(racks[replica] for replica in replicas)
        for one_rack, count in used.items():
            assert count == 1 or all(used[other] >= min(count - 1, sizes[other]) for other in sizes), (one_rack, used)
    leaders = Counter(replicas[0] for replicas in placed)
    assert set(leaders) <= {one.broker_id for one in active}
    counts = [leaders[one.broker_id] for one in active]
    assert max(counts) - min(counts) <= 1


def test_the_stripe() -> None:
    three = [broker(1), broker(2), broker(3)]
    assert place(three, partitions=6, replication_factor=2, seed=0) == [
        (1, 2), (2, 3), (3, 1),
        (1, 3), (2, 1), (3, 2),
    ]  # fmt: skip


def test_the_leaderships_of_a_broker_that_dies_fall_to_all_the_others() -> None:
    six = [broker(number) for number in range(6)]
    placed = place(six, partitions=600, replication_factor=3, seed=0)
    next_leaders = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert next_leaders == {1: 20, 2: 20, 3: 20, 4: 20, 5: 20}


def test_every_partition_is_in_every_rack() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    placed = place(
        [broker(number, rack) for number, rack in racks.items()], partitions=60, replication_factor=3, seed=4
    )
    assert all({racks[replica] for replica in replicas} == {"a", "b", "c"} for replicas in placed)
    followers = Counter(replica for replicas in placed for replica in replicas)
    assert max(followers.values()) - min(followers.values()) <= 12


def test_growth_goes_on_after_the_last_leader() -> None:
    three = [broker(1), broker(2), broker(3)]
    placed = place(three, partitions=3, replication_factor=1, seed=7, after=BrokerId(2))
    assert placed == [(3,), (1,), (2,)]
    assert place(three, partitions=1, replication_factor=1, seed=7, after=BrokerId(9)) == [(2,)]


def test_a_fenced_broker_follows_only_where_its_rack_has_no_other() -> None:
    some = [broker(1, "a"), broker(2, "a", fenced=True), broker(3, "b", fenced=True), broker(4, "c")]
    placed = place(some, partitions=4, replication_factor=3, seed=0)
    assert placed == [(1, 3, 4), (4, 1, 3), (1, 4, 3), (4, 3, 1)] or all(2 not in replicas for replicas in placed)
