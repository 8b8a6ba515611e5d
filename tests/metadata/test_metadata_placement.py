"""Replicas: different brokers, then hosts, then racks while there are any, leaders even, the same answer each time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.metadata.image import Broker
from kraftpy.metadata.placement import CannotPlaceError, place
from kraftpy.types import BrokerId, Millis


def broker(number: int, rack: str | None = None, *, fenced: bool = False, host: str | None = None) -> Broker:
    return Broker(
        broker_id=BrokerId(number),
        broker_epoch=number,
        incarnation_id=bytes(16),
        endpoints=(),
        rack=rack,
        fenced=fenced,
        registered_ms=Millis(0),
        host=host,
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


hosted = st.lists(
    st.tuples(
        st.integers(0, 40), st.sampled_from([None, "h", "i", "j"]), st.sampled_from([None, "a", "b"]), st.booleans()
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda item: item[0],
).map(lambda items: [broker(number, rack, fenced=fenced, host=host) for number, host, rack, fenced in items])


@settings(max_examples=300, deadline=None)
@given(hosted, st.integers(1, 40), st.integers(1, 6), st.integers(0, 100))
def test_no_host_has_two_replicas_while_another_has_none(
    some: list[Broker], partitions: int, factor: int, seed: int
) -> None:
    if factor > len(some) or all(one.fenced for one in some):
        return
    hosts = {one.broker_id: one.host or str(one.broker_id) for one in some}
    sizes = Counter(hosts.values())
    racks = {one.broker_id: one.rack for one in some}
    for replicas in place(some, partitions=partitions, replication_factor=factor, seed=seed):
        assert len(set(replicas)) == factor
        used = Counter(hosts[replica] for replica in replicas)
        for host, count in used.items():
            assert all(used[other] >= min(count - 1, sizes[other]) for other in sizes), (host, used)
        if (
            factor == 2
            and len({*hosts.values()}) > 1
            and any(hosts[other] != hosts[replicas[0]] and racks[other] != racks[replicas[0]] for other in hosts)
        ):
            assert racks[replicas[0]] != racks[replicas[1]]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_equal_hosts_have_equal_shares(hosts: int, processes: int, factor: int, has_racks: bool) -> None:
    some = [
        broker(100 * host + process, f"rack-{host}" if has_racks else None, host=f"host-{host}")
        for host in range(hosts)
        for process in range(processes)
    ]
    if factor > len(some):
        return
    laps = len(some) - 1 or 1
    placed = place(some, partitions=len(some) * laps, replication_factor=factor, seed=0)
    assert {*Counter(replicas[0] for replicas in placed).values()} == {laps}
    followers = Counter({one.broker_id: 0 for one in some})
    followers.update(replica for replicas in placed for replica in replicas[1:])
    assert max(followers.values()) <= 2 * max(1, min(followers.values())), followers


def test_the_processes_of_two_hosts() -> None:
    some = [broker(number, host="h" if number < 10 else "i") for number in (1, 2, 11, 12)]
    assert place(some, partitions=4, replication_factor=2, seed=0) == [(1, 11), (11, 2), (2, 12), (12, 1)]
    assert place(some, partitions=1, replication_factor=3, seed=0) == [(1, 11, 2)]


def test_a_broker_without_a_host_has_one_of_its_own() -> None:
    some = [broker(1, host="h"), broker(2, host="h"), broker(3), broker(4)]
    placed = place(some, partitions=40, replication_factor=3, seed=0)
    assert all(not {1, 2} <= {*replicas} for replicas in placed)


def test_a_host_comes_before_a_rack() -> None:
    racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}
    hosts = {1: "h", 2: "i", 3: "j", 4: "k", 5: "k"}
    some = [broker(number, rack, host=hosts[number]) for number, rack in racks.items()]
    for replicas in place(some, partitions=40, replication_factor=4, seed=0):
        assert len({hosts[replica] for replica in replicas}) == 4


def test_a_fenced_host_is_used_before_a_second_replica_on_another() -> None:
    some = [broker(number, host="h") for number in (1, 2)] + [broker(11, fenced=True, host="i"), broker(12, host="i")]
    assert place(some, partitions=2, replication_factor=2, seed=0)[0] == (1, 12)
    some[3] = broker(12, fenced=True, host="i")
    assert {replicas[1] for replicas in place(some, partitions=12, replication_factor=2, seed=0)} == {11, 12}
