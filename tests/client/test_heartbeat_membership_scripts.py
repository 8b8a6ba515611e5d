"""The client's side of the consumer protocol (KIP-848), as a script tells it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from client_script import Words, run_script

from kraftpy.client.consumer import membership_events as m
from kraftpy.client.consumer.classic_membership import MembershipOptions, State
from kraftpy.client.consumer.heartbeat_membership import HeartbeatMembership
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import TopicPartition


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """`t-0,t-1`, or `none`."""
    found = []
    for item in text.split(",") if text not in ("", "none") else []:
        topic, _, index = item.rpartition("-")
        found.append(TopicPartition(topic, int(index)))
    return tuple(found)


def shown(value: object) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


class World:
    """One member and its commands. The clock stays at the last `now`; an answer is to the last heartbeat."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ids = 0
        self.machine = self.member(None)
        self.last = 0

    def member(self, instance_id: str | None) -> HeartbeatMembership:
        return HeartbeatMembership(MembershipOptions(assignors=(), group_instance_id=instance_id), self.new_id)

    def new_id(self) -> str:
        self.ids += 1
        return f"m{self.ids}"

    def run(self, name: str, words: Words) -> list[str]:
        self.now = float(words.pop("now", self.now))
        machine = self.machine
        if name == "member":
            self.machine = self.member(words.get("instance"))
            return []
        if name == "state":
            return [
                f"{machine.state.value} epoch={machine.generation_id} held={shown(machine.held)} "
                f"deadline={machine.deadline_ms}"
            ]
        lines = []
        for effect in machine.step(self.event(name, words), self.now):
            if isinstance(effect, m.SendConsumerHeartbeat):
                self.last = effect.number
            told = " ".join(
                f"{field.name}={shown(getattr(effect, field.name))}"
                for field in fields(effect)
                if field.name != "number"
            )
            lines.append(f"-> {type(effect).__name__} {told}".rstrip())
        assert machine.state is not State.FAILED or not machine.held
        assert machine.state is State.REVOKING or not machine._giving_up or machine.state is State.LEAVING
        return lines

    def event(self, name: str, words: Words) -> m.Event:
        error = ErrorCode[words.get("error", "NONE")]
        match name:
            case "subscribe":
                return m.Subscribed(topics=tuple(filter(None, words.get("topics", "").split(","))))
            case "tick":
                return m.Tick()
            case "revoked":
                return m.Revoked()
            case "answer":
                return m.ConsumerHeartbeatAnswered(
                    number=self.last,
                    error=error,
                    member_epoch=int(words.get("epoch", "0")),
                    heartbeat_interval_ms=float(words.get("interval", "0")),
                    assignment=partitions(words["has"]) if "has" in words else None,
                )
            case "commit_refused":
                return m.CommitRefused(error=error)
            case "overdue":
                return m.PollOverdue()
            case "resume":
                return m.Resume()
            case "close":
                return m.Close()
        raise AssertionError(f"no such command: {name}")


def test_what_happens_is_what_the_script_says() -> None:
    run_script(Path(__file__).parent / "heartbeat_membership.script", World().run)
