"""A node of a test is the one of production until the test wants something of it, and again afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import confluent_kafka
import pytest

from kraftpy.broker import apis
from kraftpy.broker.runtime import OsDirectory, OsFile
from kraftpy.testing import EmbeddedBroker
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


def test_records_of_long_ago_outlive_these_tests(kraftpy_server: EmbeddedBroker) -> None:
    """They were deleted half a minute after a node's start: whatever test ran at that moment failed."""
    assert b"LOG_INITIAL_TASK_DELAY_MS=86400000\0" in Path(f"/proc/{kraftpy_server.pid}/environ").read_bytes()
