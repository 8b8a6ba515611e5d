from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from client_script import Words, run_script

from kraftpy.client.assignors import ASSIGNORS
from kraftpy.client.consumer import membership_events as m
from kraftpy.client.consumer.classic_membership import Membership, MembershipOptions, State
from kraftpy.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicPartition

SCRIPTS = sorted(Path(__file__).parent.glob("membership_*.script"))


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """`t-0,t-1`"""
    found = []
    for item in filter(None, text.split(",")):
        topic, _, index = item.rpartition("-")
        found.append(TopicPartition(topic, int(index)))
    return tuple(found)


def shown(value: object) -> str:
    match value:
        case tuple() if value and isinstance(value[0], TopicPartition):
            return ",".join(map(str, value))
        case tuple():
            return ",".join(map(str, value)) or "none"
        case _:
            return str(value)


class World:
    """One membership and its commands. The clock stays at the last `now`."""

    def __init__(self) -> None:
        self.machine = Membership(MembershipOptions(assignors=(ASSIGNORS["range"],)))
        self.now = 0.0

    def run(self, name: str, words: Words) -> list[str]:
        self.now = float(words.pop("now", self.now))
        if name == "member":
            names = words.get("assignors", "range").split(",")
            self.machine = Membership(
                MembershipOptions(
                    assignors=tuple(ASSIGNORS[assignor] for assignor in names),
                    group_instance_id=words.get("instance"),
                )
            )
            return []
        if name == "state":
            machine = self.machine
            return [
                f"{machine.state.value} member={machine.member_id!r} generation={machine.generation_id} "
                f"held={shown(machine.held)} deadline={machine.deadline_ms}"
            ]
        effects = self.machine.step(self.event(name, words), self.now)
        self.check()
        return [f"-> {self.line(effect)}" for effect in effects]

    def check(self) -> None:
        machine = self.machine
        assert len(set(machine.held)) == len(machine.held)
        assert machine.state is not State.FAILED or not machine.held
        if machine.heartbeat_sent_ms is not None:
            assert machine.heartbeat_at_ms is not None

    def event(self, name: str, words: Words) -> m.Event:
        error = ErrorCode[words.get("error", "NONE")]
        match name:
            case "subscribe":
                return m.Subscribed(topics=tuple(filter(None, words.get("topics", "").split(","))))
            case "tick":
                return m.Tick()
            case "revoked":
                return m.Revoked()
            case "joined":
                return m.Joined(
                    error=error,
                    generation_id=int(words.get("generation", "-1")),
                    protocol_name=words.get("protocol"),
                    leader=words.get("leader", ""),
                    member_id=words.get("id", ""),
                    skip_assignment="skip" in words,
                    members=tuple(self.joined_member(text) for text in words.get("members", "").split(";") if text),
                )
            case "described":
                counts = dict(item.split(":") for item in words["counts"].split(","))
                return m.TopicsDescribed(partition_counts={topic: int(count) for topic, count in counts.items()})
            case "metadata":
                counts = dict(item.split(":") for item in words["counts"].split(","))
                return m.MetadataChanged(partition_counts={topic: int(count) for topic, count in counts.items()})
            case "synced":
                assigned = encode_assignment(partitions(words.get("assigned", "")))
                return m.Synced(error=error, assignment=bytes.fromhex(words["bytes"]) if "bytes" in words else assigned)
            case "heartbeat":
                return m.HeartbeatAnswered(error=error)
            case "commit_refused":
                return m.CommitRefused(error=error)
            case "overdue":
                return m.PollOverdue()
            case "resume":
                return m.Resume()
            case "close":
                return m.Close()
        raise AssertionError(f"no such command: {name}")

    def joined_member(self, text: str) -> m.JoinedMember:
        """`id:topics` or `id:topics:owned`"""
        member, topics, *owned = text.split(":")
        subscription = Subscription(
            topics=tuple(topics.split("+")),
            owned=partitions(owned[0].replace("+", ",")) if owned else (),
            generation_id=1 if owned else -1,
        )
        return m.JoinedMember(member_id=member, group_instance_id=None, metadata=encode_subscription(subscription))

    def line(self, effect: m.Effect) -> str:
        match effect:
            case m.SendJoin():
                told = []
                for name, data in effect.protocols:
                    subscription = decode_subscription(data)
                    owned = (
                        f" owned={shown(subscription.owned)}@{subscription.generation_id}" if subscription.owned else ""
                    )
                    told.append(f"{name}({shown(subscription.topics)}{owned})")
                return f"SendJoin member={effect.member_id!r} {' '.join(told)} because {effect.reason}"
            case m.SendSync():
                told = [f"{member}={shown(decode_assignment(data)) or 'none'}" for member, data in effect.assignments]
                return (
                    f"SendSync member={effect.member_id!r} generation={effect.generation_id} {' '.join(told)}".rstrip()
                )
            case m.Fail():
                return f"Fail {effect.error}"
            case _:
                words = [f"{field.name}={shown(getattr(effect, field.name))}" for field in fields(effect)]
                return " ".join([type(effect).__name__, *words])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_membership(path: Path) -> None:
    run_script(path, World().run)
