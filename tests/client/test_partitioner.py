from __future__ import annotations

from collections import Counter

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kraftpy.client.producer.partitioner import Partitioner, murmur2


@given(st.binary(max_size=2000))
@settings(deadline=None)
def test_murmur2_is_that_of_kafka_python_and_aiokafka(data: bytes) -> None:
    assert murmur2(data) == kafka_python_murmur2(data) & 0xFFFFFFFF == aiokafka_murmur2(data) & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "hashed"),
    [(b"", 275646681), (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_murmur2_as_kafka_publishes_it(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed & 0xFFFFFFFF


def chooser(*fractions: float) -> Partitioner:
    values = iter(fractions)
    return Partitioner(sticky_bytes=100, random=lambda: next(values))


def test_a_key_stays_with_its_partition_though_that_has_no_leader() -> None:
    partitioner = chooser(*[0.5] * 10)
    partitioner.update(4, [0, 1, 2, 3])
    before = [partitioner.for_key(b"%d" % n) for n in range(100)]
    partitioner.update(4, [2])
    assert [partitioner.for_key(b"%d" % n) for n in range(100)] == before
    assert set(before) == {0, 1, 2, 3}


def test_without_a_key_it_sticks_until_enough_bytes_went_there_then_goes_elsewhere() -> None:
    partitioner = chooser(0.0, 0.0, 0.99, 0.0)
    partitioner.update(3, [0, 1, 2])
    chosen = [partitioner.for_none(40) for _ in range(9)]
    assert chosen == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_without_a_key_a_partition_without_a_leader_is_left() -> None:
    partitioner = chooser(0.0, 0.0)
    partitioner.update(2, [0, 1])
    assert partitioner.for_none(10) == 0
    partitioner.update(2, [1])
    assert partitioner.for_none(10) == 1


def test_without_a_key_all_partitions_get_about_the_same() -> None:
    import random

    partitioner = Partitioner(sticky_bytes=100, random=random.Random(1).random)
    partitioner.update(5, range(5))
    counted = Counter(partitioner.for_none(10) for _ in range(50_000))
    assert min(counted.values()) > 0.9 * max(counted.values())
