"""`Cluster.chaos`: what a seed decides, what it leaves behind, what it says, and a client that lives through it.

A test that leaves nodes dead has its own cluster.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from cluster.traffic import Traffic

from kraftpy.client import BlockingAdmin, NewTopic
from kraftpy.testing import BrokerDied, Cluster
from kraftpy.testing.chaos import KINDS, Step, schedule

pytestmark = pytest.mark.timeout(300)

BOUND_SECONDS = 60.0
MANY = 400


def first(count: int, seed: int, **options: Any) -> list[Step]:
    return list(itertools.islice(schedule(seed, (1, 2, 3, 4, 5), (1, 2, 3), **options), count))


def test_a_seed_is_a_schedule_and_another_seed_another() -> None:
    assert first(MANY, 7) == first(MANY, 7)
    assert first(MANY, 7) != first(MANY, 8)


def test_a_schedule_keeps_to_its_limits() -> None:
    steps = first(MANY, 1, most_nodes=2, lasts=(1.0, 2.0), pause=(3.0, 4.0))
    assert {step.kind for step in steps} == set(KINDS)
    assert {len(step.nodes) for step in steps} == {1, 2}
    assert {node for step in steps for node in step.nodes} == {1, 2, 3, 4, 5}
    assert all(1.0 <= step.lasts <= 2.0 and 3.0 <= step.pause <= 4.0 for step in steps)
    assert all(len(step.nodes) == 1 for step in first(MANY, 1)), "a minority of three voters"
    assert {step.kind for step in first(MANY, 1, kinds=["kill", "drop"])} == {"kill", "drop"}
    apart = itertools.islice(schedule(1, (1, 2), (3, 4, 5)), MANY)
    assert {node for step in apart if step.kind == "clients" for node in step.nodes} == {1, 2}
    assert len({str(step) for step in steps}) > MANY / 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"broker.heartbeat.interval.ms": "200", "broker.session.timeout.ms": "1500"}) as running:
        yield running


def values_in(cluster: Cluster, topic: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers.split(","), auto_offset_reset="earliest")
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        found: list[bytes] = []
        deadline = time.monotonic() + BOUND_SECONDS
        while consumer.position(partition) < end:
            assert time.monotonic() < deadline, found
            found += [record.value for batch in consumer.poll(100).values() for record in batch]
        return found
    finally:
        consumer.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 5])
def test_an_idempotent_producer_loses_nothing_and_repeats_nothing(cluster: Cluster, seed: int) -> None:
    topic = f"survives-{seed}"
    with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, num_partitions=1, config={"min.insync.replicas": "2"})])
    cluster.wait_in_sync()
    acknowledged: list[bytes] = []
    failed: list[str] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,
            "socket.timeout.ms": 5000,
            "request.timeout.ms": 4000,
            "retry.backoff.ms": 50,
        }
    )
    sent = 0

    def done(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            acknowledged.append(message.value())
        else:
            failed.append(str(error))

    with cluster.chaos(seed, faults=8, lasts=(0.2, 1.5), pause=(0.1, 0.3)) as chaos:
        while len([each for each in chaos.log if "healed" not in each.what]) < 8:
            producer.produce(topic, b"%d" % sent, partition=0, on_delivery=done)
            sent += 1
            producer.poll(0.01)
        chaos.wait()
    assert producer.flush(BOUND_SECONDS) == 0
    assert failed == []
    assert acknowledged == [b"%d" % number for number in range(sent)]
    assert values_in(cluster, topic) == acknowledged, str(chaos)


@pytest.mark.long
def test_producers_and_groups_of_three_libraries_live_through_it(cluster: Cluster) -> None:
    with Traffic(cluster.bootstrap_servers) as traffic:
        with cluster.chaos(201, faults=6, lasts=(0.2, 2.0), pause=(0.1, 0.3)) as chaos:
            chaos.wait()
        traffic.goes_on(str(chaos))
    traffic.proof()


def test_what_is_done_is_what_the_seed_says(cluster: Cluster) -> None:
    quick = {"kinds": ("pause", "slow-disk", "drop", "delay"), "lasts": (0.05, 0.1), "pause": (0.0, 0.05)}
    with cluster.chaos(9, faults=4, **quick) as chaos:  # type: ignore[arg-type]
        chaos.wait()
    planned = itertools.islice(schedule(9, cluster.brokers, cluster.controllers, **quick), 4)  # type: ignore[arg-type]
    begun = [each.what for each in chaos.log if "healed" not in each.what]
    assert begun == [str(step) for step in planned]
    assert len(chaos.log) == 8
    assert [each.at for each in chaos.log] == sorted(each.at for each in chaos.log)


@pytest.mark.parametrize("kind", ["kill", "pause", "partition", "clients"])
def test_the_end_of_the_block_heals_what_is_broken(cluster: Cluster, kind: str) -> None:
    def fail() -> None:
        with cluster.chaos(3, kinds=[kind], lasts=(BOUND_SECONDS, BOUND_SECONDS), pause=(0.0, 0.0)) as chaos:
            deadline = time.monotonic() + BOUND_SECONDS
            while not chaos.log:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            raise RuntimeError("the test's own")

    with pytest.raises(RuntimeError, match="the test's own") as caught:
        fail()
    (note,) = caught.value.__notes__
    assert note.startswith("chaos(3): repeat it with this seed.")
    assert "healed" in note
    assert all(cluster.is_running(node) and cluster.can_ask(node) for node in cluster.nodes)
    cluster.wait_in_sync(timeout=1.0)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
    producer.produce(f"after-{kind}", b"0")
    assert producer.flush(BOUND_SECONDS) == 0


def test_a_cluster_that_does_not_recover_is_an_error_with_the_seed() -> None:
    with Cluster() as cluster:
        with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name="events", replica_assignment={0: [1, 2, 3]})])
        cluster.wait_in_sync()
        with (
            cluster.kill(3),
            pytest.raises(BrokerDied, match=r"chaos\(4\): the cluster did not recover.*events-0"),
            cluster.chaos(4, settle=0.5, kinds=["pause"], pause=(0.0, 0.0), lasts=(0.1, 0.1)) as chaos,
        ):
            chaos.wait()


@pytest.mark.parametrize("kind", ["kill", "pause"])
def test_a_node_that_the_test_has_killed_is_spared(kind: str) -> None:
    quick = {"kinds": (kind,), "lasts": (0.05, 0.1), "pause": (0.0, 0.0)}
    seed = next(seed for seed in range(100) if {3} < drawn_nodes(seed, quick))
    with Cluster() as cluster:
        gone = cluster.kill(3)
        with cluster.chaos(seed, faults=2, **quick) as chaos:  # type: ignore[arg-type]
            chaos.wait()
            assert not cluster.is_running(3), "it is the test's to start it"
        spared = [each.what for each in chaos.log if each.what.startswith("spared")]
        done = [each.what for each in chaos.log if each.what.startswith(kind)]
        assert (len(spared), len(done)) == (1, 1), str(chaos)
        assert f"{kind} node 3" in spared[0]
        gone.heal()
        cluster.wait_ready()


def drawn_nodes(seed: int, options: Any) -> set[int]:
    """Return the nodes hit by a seed's first two faults among three nodes."""
    steps = itertools.islice(schedule(seed, (1, 2, 3), (1, 2, 3), **options), 2)
    return {node for step in steps for node in step.nodes}


def test_leaders_are_moved(cluster: Cluster) -> None:
    with BlockingAdmin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="led", replica_assignment={0: [1, 2, 3]})])
    cluster.wait_in_sync()
    assert cluster.leader_of("led") == 1
    assert cluster.move_leader("led", to=3) == 3
    deadline = time.monotonic() + BOUND_SECONDS
    while cluster.leader_of("led", ask=3) != 3:  # a broker hears of it a little later
        assert time.monotonic() < deadline
    with cluster.chaos(1, kinds=["move-leader"], faults=3, pause=(0.0, 0.0)) as chaos:
        chaos.wait()
    assert sum("is led by" in each.what for each in chaos.log) == 3, str(chaos)


def test_a_seed_is_drawn_where_none_is_given(cluster: Cluster) -> None:
    assert cluster.chaos().seed != cluster.chaos().seed
    with pytest.raises(ValueError, match="unknown kind of fault 'murder'; expected one of kill, pause"):
        cluster.chaos(kinds=["murder"])


async def test_as_coroutines() -> None:
    async with Cluster(brokers=1) as cluster:
        async with (
            aiokafka.AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True, retry_backoff_ms=20
            ) as producer,
            cluster.chaos(6, faults=3, lasts=(0.1, 0.2), pause=(0.0, 0.1)) as chaos,
        ):
            await producer.send_and_wait("events", b"0", partition=0)
            await chaos.wait()
            assert (await producer.send_and_wait("events", b"1", partition=0)).offset == 1
        assert chaos.seed == 6
        assert len(chaos.log) >= 3
        assert str(chaos).startswith("chaos(6)")
