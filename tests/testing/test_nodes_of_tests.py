"""A node of a test is the one of production until the test wants something of it, and again afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest
from waiting import eventually

from kraftpy.broker import apis
from kraftpy.broker.runtime import OsDirectory, OsFile
from kraftpy.client import BlockingAdmin, BlockingProducer, NewTopic, OffsetSpec, TopicPartition
from kraftpy.testing import Cluster, EmbeddedBroker
from kraftpy.testing.misbehaviour import InForce
from kraftpy.testing.rules import Rule

BOUND_SECONDS = 20.0

REPLACED = [
    (apis, "answer"),
    (OsFile, "sync"),
    (OsFile, "write"),
    (OsDirectory, "sync"),
    (OsDirectory, "replace"),
    (OsDirectory, "open"),
    (OsDirectory, "child"),
]


def loaded(broker: EmbeddedBroker) -> set[str]:
    """The modules of the testing package that the node has imported, as its interpreter reports."""
    return set(re.findall(r"^import time:.*\| +(kraftpy\.testing\.\w+)$", broker.log_text, re.MULTILINE))


def test_nothing_is_loaded_until_something_is_to_go_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    with EmbeddedBroker() as broker:
        assert "kraftpy.broker.server" in broker.log_text
        assert loaded(broker) == set()
        with broker.drop("Produce"):
            assert loaded(broker) == {f"kraftpy.testing.{name}" for name in ("misbehaviour", "rules", "bad_answers")}


def test_what_is_replaced_is_put_back(tmp_path: Path) -> None:
    originals = [getattr(owner, name) for owner, name in REPLACED]
    in_force = InForce()

    def replaced() -> list[str]:
        now = [getattr(owner, name) for owner, name in REPLACED]
        pairs = zip(REPLACED, originals, now, strict=True)
        return [f"{owner.__name__}.{name}" for (owner, name), before, after in pairs if before is not after]

    def rule(number: int, kind: str) -> Rule:
        return Rule(id=number, kind=kind, hits=str(tmp_path / f"{number}.hits"))

    try:
        in_force.change([rule(1, "drop")])
        assert replaced() == ["kraftpy.broker.apis.answer"]
        in_force.change([rule(1, "drop"), rule(2, "sync")])
        answer = apis.answer
        assert replaced() == ["kraftpy.broker.apis.answer", "OsFile.sync", "OsDirectory.sync", "OsDirectory.replace"]
        in_force.change([rule(1, "drop"), rule(3, "full")])
        assert len(replaced()) == len(REPLACED)
        assert apis.answer is answer, "what stays is not touched"
        in_force.change([rule(3, "full")])
        assert "kraftpy.broker.apis.answer" not in replaced()
    finally:
        in_force.change([])
    assert replaced() == []


def test_no_fault_outlives_the_test_that_asked_for_it() -> None:
    with EmbeddedBroker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        fault = broker.hold("Produce")
        producer.produce("events", b"0")
        fault.wait()
        broker._running._control.close()
        assert producer.flush(BOUND_SECONDS) == 0


LOOKS_OFTEN = {"log.retention.check.interval.ms": "20", "log.initial.task.delay.ms": "0"}


def started(kind: str, settings: dict[str, str]) -> EmbeddedBroker | Cluster:
    return EmbeddedBroker(settings=settings) if kind == "broker" else Cluster(brokers=1, settings=settings)


@pytest.mark.parametrize("kind", ["broker", "cluster"])
@pytest.mark.parametrize(("settings", "kept"), [({}, 2), ({"log.retention.minutes": "60"}, 0)], ids=["default", "set"])
def test_records_of_long_ago_are_kept_unless_a_setting_says_otherwise(
    kind: str, settings: dict[str, str], kept: int
) -> None:
    with started(kind, LOOKS_OFTEN | settings) as nodes:
        bootstrap = nodes.bootstrap if isinstance(nodes, EmbeddedBroker) else nodes.bootstrap_servers
        topics = {"default": {}, "said": {"retention.ms": "60000"}}
        with BlockingAdmin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic(name=name, num_partitions=1, config=each) for name, each in topics.items()])
        with BlockingProducer(bootstrap_servers=bootstrap) as producer:
            for name in topics:  # in this order: if those of the second are gone, the first has been looked at
                for number in (1, 2):
                    producer.send(name, b"%d" % number, timestamp_ms=10_000 + number)
                producer.flush()
        with BlockingAdmin(bootstrap_servers=bootstrap) as admin:

            def first(topic: str) -> int:
                found = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.EARLIEST})[TopicPartition(topic, 0)]
                return -1 if found is None else found.offset

            eventually(lambda: first("said") == 2, "those of the topic that says how long are deleted")
            eventually(lambda: first("default") == 2 - kept, "the others are deleted if a setting says so")
