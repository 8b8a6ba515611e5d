"""A group coordinator in any order of events: requests of all protocols for the same two groups, appends that succeed,
fail or take their time, ticks, deleted topics, ended transactions.

Three bytes are an event: its kind, its group and member, and a variant. After the last one all appends succeed and time
passes: then every request has had one answer. No exception leaves the machine, and none occurs within it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

import hostile
from hostile import Hostile, Plot
from odd_requests import odd

from kraftpy.groups.config import GroupConfig
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import (
    Append,
    Appended,
    ChangeState,
    Reply,
    Request,
    StateChanged,
    Tick,
    TopicsDeleted,
    TransactionEnded,
)
from kraftpy.protocol.apis import APIS, ApiKey
from kraftpy.protocol.errors import ErrorCode, ProtocolError
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Subtopology, Topology
from kraftpy.protocol.messages.sync_group import SyncGroupRequest
from kraftpy.types import Millis

ALLOWED = (ProtocolError,)
MORE_BYTES = 8 << 20
MOST_EVENTS = 300
_STEP_MS = 500
_HOUR_MS = 3_600_000
_KEYS = (
    ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_GROUPS, ApiKey.DELETE_GROUPS, ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS,
)  # fmt: skip


class _Run:
    """A coordinator, and its requests and appends in flight."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self.machine = GroupCoordinator(GroupConfig(), lambda: f"id-{next(numbers)}")
        self.machine.loaded(Millis(0), Millis(0))
        self.now = 0
        self.appends: deque[int] = deque()
        self.changes: deque[int] = deque()
        self.waiting: dict[int, str] = {}
        self.plots = [Plot(Random(number)) for number in range(2)]
        for number, plot in enumerate(self.plots):
            plot.group = f"g{number}"
        self.epochs: dict[tuple[int, int], int] = {}

    def ask(self, message: Any, version: int, group: int = 0) -> None:
        number = len(self.waiting) + self.now * 1000
        while number in self.waiting:
            number += 1
        self.waiting[number] = type(message).__name__
        request = Request(request_id=number, api_version=version, message=message, client_id="c", client_host="/h")
        self.step(request, group)

    def step(self, event: Any, group: int = 0) -> None:
        for effect in self.machine.step(event, Millis(self.now), Millis(self.now)):
            match effect:
                case Reply():
                    assert self.waiting.pop(effect.request_id, None) is not None, "answered twice"
                    self.plots[group].harvest(effect.response)
                case Append():
                    self.appends.append(effect.token)
                case ChangeState():
                    self.changes.append(effect.token)
                case _:
                    error = getattr(effect, "error", None)
                    if isinstance(error, Exception):
                        raise error

    def settle(self) -> None:
        """Let everything in flight succeed, until nothing is left."""
        while self.appends or self.changes:
            if self.appends:
                self.step(Appended(token=self.appends.popleft()))
            else:
                self.step(StateChanged(token=self.changes.popleft()))


def one(data: bytes) -> None:
    """Three bytes an event."""
    run = _Run()
    for at in range(0, min(len(data) - 2, 3 * MOST_EVENTS), 3):
        run.now += 1
        _event(run, data[at], data[at + 1], data[at + 2])
    run.settle()
    for _ in range(60):
        run.now += _STEP_MS if run.now < 60_000 else _HOUR_MS
        run.step(Tick())
        run.settle()
    assert not run.waiting, f"never answered: {sorted(set(run.waiting.values()))}"
    run.machine.validate()


def _event(run: _Run, kind: int, which: int, variant: int) -> None:
    group, member = which % 2, which // 2 % 3
    plot = run.plots[group]
    name = "ABC"[member] * 22
    epoch = (0, -1, plot.learned.get("member_epoch", 0), 0, -2, 5)[variant % 6]
    learned = str(plot.learned.get("member_id", ""))
    generation = int(plot.learned.get("generation_id", 0))
    match kind % 24:
        case 0 | 1:
            if run.appends:
                code = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)[variant % 3]
                run.step(Appended(token=run.appends.popleft(), error_code=code))
        case 2:
            if run.changes:
                run.step(StateChanged(token=run.changes.popleft()))
        case 3:
            run.now += (1, 1000, 30_000, 60_000, _HOUR_MS)[variant % 5]
            run.step(Tick())
        case 4 | 5:
            message: Any = ConsumerGroupHeartbeatRequest(
                group_id=plot.group,
                member_id=name,
                member_epoch=epoch,
                rebalance_timeout_ms=1000,
                subscribed_topic_names=["odd"],
                subscribed_topic_regex=(None, None, "odd.*")[variant // 6 % 3],
                topic_partitions=[],
            )
            run.ask(message, 1, group)
        case 6 | 7:
            message = ShareGroupHeartbeatRequest(
                group_id=plot.group, member_id=name, member_epoch=epoch, subscribed_topic_names=["odd"]
            )
            run.ask(message, 1, group)
        case 8:
            topology = Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="s", source_topics=["odd"])])
            message = StreamsGroupHeartbeatRequest(
                group_id=plot.group, member_id=name, member_epoch=epoch, rebalance_timeout_ms=1000, topology=topology
            )
            message.active_tasks = message.standby_tasks = message.warmup_tasks = []
            message.process_id = "p"
            run.ask(message, 0, group)
        case 9 | 10:
            message = JoinGroupRequest(
                group_id=plot.group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=("", learned)[variant % 2],
                group_instance_id=(None, None, "static")[variant // 2 % 3],
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=hostile.SUBSCRIPTION)],
            )
            run.ask(message, 4 if variant % 3 == 0 and message.group_instance_id is None else 7, group)
        case 11:
            message = SyncGroupRequest(group_id=plot.group, generation_id=generation, member_id=learned)
            run.ask(message, 5, group)
        case 12:
            message = HeartbeatRequest(group_id=plot.group, generation_id=generation, member_id=learned)
            run.ask(message, 4, group)
        case 13:
            message = LeaveGroupRequest(group_id=plot.group, members=[MemberIdentity(member_id=learned)])
            run.ask(message, 5, group)
        case 14:
            run.ask(DeleteGroupsRequest(groups_names=[plot.group]), 2, group)
        case 15:
            run.ask(AlterShareGroupOffsetsRequest(group_id=plot.group, topics=[]), 0, group)
        case 16:
            run.step(TopicsDeleted(topics=("odd",), topic_ids=(b"i" * 16,)))  # type: ignore[arg-type]
        case 17:
            run.step(TransactionEnded(producer_id=variant % 3, is_commit=variant % 2 == 0))
        case 18:
            run.ask(OffsetCommitRequest(group_id=plot.group, member_id="", topics=[]), 8, group)
        case _:
            key = _KEYS[variant % len(_KEYS)]
            chance = Random(f"{kind} {which}")
            version = chance.randint(APIS[key].first, APIS[key].last)
            words = Hostile(plot, {"odd": b"i" * 16}, 0.8, is_deep=False, has_heavy=False)
            run.ask(odd(APIS[key].request, version, chance, words), version, group)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Groups of each kind that come and go, of two kinds at once, and random ones."""
    yield "consumer", bytes((4, 0, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0))
    yield "share", bytes((6, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 6, 0, 1, 0, 0, 0))
    yield "streams", bytes((8, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0, 0, 8, 0, 1, 0, 0, 0))
    yield "classic", bytes((9, 0, 0, 9, 0, 1, 11, 0, 0, 0, 0, 0, 12, 0, 0, 13, 0, 0, 14, 0, 0))
    yield "static", bytes((9, 0, 5, 11, 0, 0, 0, 0, 0, 9, 0, 5, 12, 0, 0, 3, 0, 3))
    yield (
        "four-protocols-wait-in-line",
        bytes((4, 0, 0, 6, 2, 0, 8, 2, 0, 9, 0, 0, 12, 0, 0, 14, 0, 0, 6, 4, 1, 0, 0, 2)),
    )
    for number in range(30):
        chance = Random(number)
        yield (
            f"random-{number}",
            bytes(
                chance.choice((0, 0, 0, chance.randrange(24), chance.randrange(24)))
                if at % 3 == 0
                else chance.randrange(256)
                for at in range(240)
            ),
        )
