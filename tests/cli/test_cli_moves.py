"""Plans of `kraftpy topic reassign`: what every plan must be, and the form in which it is read and written."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kraftpy.cli.moves import changes, parse_plan, render_plan, spread
from kraftpy.types import TopicPartition

Placed = dict[TopicPartition, tuple[int, ...]]


def partitions(*replicas: tuple[int, ...]) -> Placed:
    return {TopicPartition("t", number): each for number, each in enumerate(replicas)}


@some.composite
def clusters(draw: some.DrawFn) -> tuple[Placed, dict[int, str | None], int | None]:
    everybody = list(range(1, draw(some.integers(1, 6)) + 1))
    lists = some.permutations(everybody).flatmap(
        lambda order: some.integers(1, len(order)).map(lambda count: tuple(order[:count]))
    )
    current = partitions(*draw(some.lists(lists, min_size=1, max_size=12)))
    targets = draw(some.lists(some.integers(1, 8), min_size=1, max_size=7, unique=True))
    racks = draw(some.sampled_from([None, 2, 3]))
    factor = draw(some.none() | some.integers(1, len(targets)))
    return current, {broker: None if racks is None else f"r{broker % racks}" for broker in targets}, factor


@given(clusters())
def test_every_plan_is_whole_even_and_final(cluster: tuple[Placed, dict[int, str | None], int | None]) -> None:
    current, brokers, factor = cluster
    needed = max(factor or len(replicas) for replicas in current.values())
    if needed > len(brokers):
        with pytest.raises(ValueError, match=f"{needed} replicas need {needed} brokers"):
            spread(current, brokers, factor)
        return
    planned = spread(current, brokers, factor)
    assert planned.keys() == current.keys()
    for name, replicas in planned.items():
        assert len(replicas) == (factor or len(current[name])) == len(set(replicas))
        assert set(replicas) <= brokers.keys()
    if len(set(brokers.values())) == 1:  # racks may stand in the way of an even load
        loads = Counter(dict.fromkeys(brokers, 0))
        for replicas in planned.values():
            loads.update(replicas)
        assert max(loads.values()) - min(loads.values()) <= 1
    assert spread(planned, brokers, factor) == planned
    assert changes(planned, planned) == {}


def test_what_may_stay_stays() -> None:
    current = partitions((1, 2), (2, 3), (3, 1))
    assert spread(current, {1: None, 2: None, 3: None}) == current
    planned = spread(current, {2: None, 3: None, 4: None})
    assert planned == partitions((4, 2), (2, 3), (3, 4))
    assert changes(current, planned).keys() == {TopicPartition("t", 0), TopicPartition("t", 2)}


def test_a_new_broker_gets_its_share() -> None:
    planned = spread(partitions(*[(1, 2), (2, 1)] * 4), {1: None, 2: None, 3: None, 4: None})
    assert Counter(broker for replicas in planned.values() for broker in replicas) == dict.fromkeys((1, 2, 3, 4), 4)


def test_replicas_are_kept_on_different_racks() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b"}
    planned = spread(partitions((1,), (1,), (1,), (1,)), racks, 2)
    assert all({racks[broker] for broker in replicas} == {"a", "b"} for replicas in planned.values())


def test_replicas_are_kept_on_different_hosts_before_racks() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "a"}
    hosts = {1: "h", 2: "h", 3: "i"}
    planned = spread(partitions((1,), (2,), (3,)), racks, 2, hosts)
    assert all({hosts[broker] for broker in replicas} == {"h", "i"} for replicas in planned.values())


def test_replicas_that_share_a_host_are_parted() -> None:
    hosts = {1: "h", 2: "h", 11: "i", 12: "i"}
    current = partitions((1, 2), (2, 1), (1, 11))
    planned = spread(current, dict.fromkeys(hosts), None, hosts)
    assert planned == partitions((12, 1), (2, 11), (1, 11))
    assert spread(planned, dict.fromkeys(hosts), None, hosts) == planned
    one = dict.fromkeys(hosts, "h")
    assert spread(partitions((1, 2)), dict.fromkeys(hosts), None, one) == partitions((1, 2))


@given(clusters(), some.integers(1, 4))
def test_a_plan_uses_as_many_hosts_as_it_can(
    cluster: tuple[Placed, dict[int, str | None], int | None], count: int
) -> None:
    current, brokers, factor = cluster
    if max(factor or len(replicas) for replicas in current.values()) > len(brokers):
        return
    hosts = {broker: f"h{broker % count}" for broker in brokers}
    planned = spread(current, brokers, factor, hosts)
    for replicas in planned.values():
        assert len({hosts[broker] for broker in replicas}) == min(len(replicas), len({*hosts.values()}))
    assert spread(planned, brokers, factor, hosts) == planned


def test_a_plan_goes_round_in_kafkas_form() -> None:
    planned = {TopicPartition("b", 1): (2, 3), TopicPartition("a", 0): (1,)}
    text = render_plan(planned)
    assert json.loads(text) == {
        "version": 1,
        "partitions": [
            {"topic": "a", "partition": 0, "replicas": [1]},
            {"topic": "b", "partition": 1, "replicas": [2, 3]},
        ],
    }
    assert parse_plan(text) == planned
    assert parse_plan('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["any"]}]}')


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "not a plan"),
        ('{"version": 2, "partitions": []}', "not a plan"),
        ('{"partitions": []}', "moves nothing"),
        ('{"partitions": [3]}', "3 is not a partition"),
        ('{"partitions": [{"topic": "t"}]}', "does not name a partition"),
        ('{"partitions": [{"topic": "t", "partition": true, "replicas": [1]}]}', "does not name a partition"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "t-0 has no list of replicas"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "t-0 has a broker twice"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}',
            "t-0 names a log directory",
        ),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, '
            '{"topic": "t", "partition": 0, "replicas": [2]}]}',
            "t-0 occurs twice",
        ),
    ],
)
def test_what_is_no_plan_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_plan(text)
