"""A producer's transactions, as the scripts tell them; and a coordinator that loses answers, against the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from client_script import Words, run_script

from kraftpy.client.model import ConsumerGroupMetadata, OffsetAndMetadata
from kraftpy.client.producer import transaction_events as t
from kraftpy.client.producer.transaction_state import FOLLOWS, State, TransactionMachine
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.types import TopicPartition

SCRIPTS = sorted(Path(__file__).parent.glob("transaction_*.script"))


def partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


def shown(value: object) -> str:
    match value:
        case ConsumerGroupMetadata():
            return f"{value.group_id}/{value.generation_id}/{value.member_id or 'nobody'}"
        case Mapping():
            return ",".join(f"{name}@{offset.offset}" for name, offset in value.items())
        case KafkaError():
            return f"{type(value).__name__}({value.code.name})"
        case tuple():
            return ",".join(map(str, value))
        case t.Operation():
            return value.value
    return str(value)


class World:
    """One machine and its commands. The clock stays at the last `now`."""

    def __init__(self) -> None:
        self.machine = TransactionMachine("tx")
        self.now = 0.0

    def run(self, name: str, words: Words) -> list[str]:
        self.now = float(words.pop("now", self.now))
        machine = self.machine
        if name == "producer":
            self.machine = TransactionMachine("tx")
            return []
        if name == "state":
            sends = ",".join(map(str, sorted(machine.partitions))) or "nowhere"
            return [
                f"{machine.state.value} v{machine.version} {machine.producer_id}/{machine.producer_epoch} "
                f"sends={sends} deadline={machine.deadline_ms}"
            ]
        before = machine.state
        try:
            effects = machine.step(self.event(name, words), self.now)
        except KafkaError as failed:
            return [f"raises {shown(failed)}"]
        except RuntimeError as wrong:
            return [f"raises {wrong}"]
        assert machine.state is before or machine.state in FOLLOWS[before] or len(effects) > 1
        return [self.line(effect) for effect in effects]

    def line(self, effect: t.Effect) -> str:
        told = " ".join(f"{field.name}={shown(getattr(effect, field.name))}" for field in fields(effect))
        told = told.replace("producer_id=", "by=").replace(" producer_epoch=", "/")
        return f"-> {type(effect).__name__} {told}"

    def event(self, name: str, words: Words) -> t.Event:
        error = ErrorCode[words.get("error", "NONE")]
        match name:
            case "init":
                return t.Initialize()
            case "begin":
                return t.Begin()
            case "use":
                return t.Use(partition=partition(words["at"]))
            case "sent":
                return t.Sent()
            case "offsets":
                group, generation, member = words["group"].split("/")
                place, _, offset = words["at"].partition("@")
                return t.GiveOffsets(
                    group=ConsumerGroupMetadata(group, int(generation), member),
                    offsets={partition(place): OffsetAndMetadata(int(offset))},
                )
            case "commit":
                return t.Commit()
            case "abort":
                return t.Abort()
            case "drained":
                return t.Drained()
            case "failed":
                return t.BatchFailed(error=KafkaError(error))
            case "feature":
                return t.VersionFound(level=int(words["level"]))
            case "answer":
                producer_id, _, epoch = words.get("by", "-1/-1").partition("/")
                return t.Answered(error=error, producer_id=int(producer_id), producer_epoch=int(epoch))
            case "tick":
                return t.Tick()
        raise AssertionError(f"no such command: {name}")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_what_happens_is_what_the_script_says(path: Path) -> None:
    run_script(path, World().run)


def test_every_state_can_be_reached_and_only_a_fatal_error_is_for_ever() -> None:
    reached = {State.UNINITIALIZED, *(state for follows in FOLLOWS.values() for state in follows)}
    assert reached == set(State)
    assert [state for state in State if not FOLLOWS[state]] == [State.FATAL_ERROR]
