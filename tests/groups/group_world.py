"""A group coordinator with a log, driven by hand: what scripts and random histories share.

Checks after every step, for every driver: the coordinator's own invariants, every request answered exactly once or
still waiting inside, every answer encodable in the version of its request, generations that never go back, and a
log that, replayed afresh, gives the same durable state.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from share_words import ShareCoordinators, partitions_asked
from topics_now import TopicsNow

from kraftpy.config import BrokerConfig
from kraftpy.config.group import GroupSettings, group_settings
from kraftpy.groups.appends import StoreShareGroup
from kraftpy.groups.assignment import TopicIdPartition
from kraftpy.groups.classic.group import ClassicGroup, State
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import (
    Append,
    Appended,
    ChangeState,
    Compute,
    Computed,
    Effect,
    Event,
    GroupRequest,
    GroupResponse,
    Note,
    Reply,
    Request,
    StateChanged,
    Tick,
    TopicsDeleted,
    TransactionEnded,
)
from kraftpy.groups.records import Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.schema import decode, encode
from kraftpy.types import Millis


def subscription(topics: Iterable[str], version: int = 0) -> bytes:
    """A ConsumerProtocolSubscription with null user data."""
    names = [topic.encode() for topic in topics]
    body = b"".join(struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">hi", version, len(names)) + body + struct.pack(">i", -1)


class Written(tuple[bytes, bytes | None]):
    """A record of a producer's transaction, or with `is_commit` its marker."""

    producer_id: int
    is_commit: bool | None

    @staticmethod
    def of(record: Record, producer_id: int, is_commit: bool | None = None) -> Written:
        written = Written(record)
        written.producer_id, written.is_commit = producer_id, is_commit
        return written


class World:
    """One coordinator, its log, its clients' requests, and the time."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.now = Millis(0)
        self.flushed: list[Record] = []  # the log of earlier loads
        self.added: dict[int, tuple[Record, ...]] = {}  # records that this coordinator's appends added to it, by token
        self.hold = False
        self.held: list[Append] = []
        self.silent = False  # share coordinators answer on request, not at once
        self.asked: list[ChangeState] = []
        self.is_busy = False  # assignments computed apart are done on request, not at once
        self.computing: list[Compute] = []
        self.share_coordinators = ShareCoordinators()
        self.requests: dict[int, Request] = {}
        self.answers: dict[int, GroupResponse] = {}
        self.generations: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self.last_id = 0
        self.topics = TopicsNow()
        self.overrides: dict[str, dict[str, str]] = {}
        self.coordinator = self._fresh()
        self.take(self.coordinator.loaded(self.now))

    def _fresh(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(self.config, self._new_id, self.topics, self._settings)
        for offset, record in enumerate(self.log):
            key, value = record
            if not isinstance(record, Written):
                coordinator.replay(key, value, offset)
            elif record.is_commit is None:
                coordinator.replay_pending(record.producer_id, key, value)
            else:
                coordinator.replay_end(record.producer_id, is_commit=record.is_commit)
                while coordinator.replay_on():
                    pass
        return coordinator

    def _settings(self, group_id: str) -> GroupSettings:
        if group_id not in self.overrides:
            return self.config.settings(group_id)
        return group_settings(self.overrides[group_id], BrokerConfig())

    @property
    def log(self) -> list[Record]:
        return self.flushed + [record for _, records in sorted(self.added.items()) for record in records]

    def _new_id(self) -> str:
        self.last_id += 1
        return str(self.last_id)

    # ---- driving

    def request(self, message: GroupRequest, api_version: int, client_id: str = "c", host: str = "/10.0.0.1") -> int:
        """Send it, as the wire would deliver it. Gives the request's id."""
        request_id = len(self.requests) + 1
        arrived = decode(type(message), encode(message, api_version), api_version)
        event = Request(
            request_id=request_id, api_version=api_version, message=arrived, client_id=client_id, client_host=host
        )
        self.requests[request_id] = event
        self.step(event)
        return request_id

    def step(self, event: Event) -> list[Effect]:
        effects = self.coordinator.step(event, self.now)
        self.take(effects)
        self.go_on()
        return effects

    def go_on(self) -> None:
        """Complete everything that waits for the log or for share coordinators, unless it is held back."""
        while True:
            if self.held and not self.hold:
                self.appended(self.held[0].token)
            elif self.computing and not self.is_busy:
                self.computed()
            elif self.asked and not self.silent:
                self.told(self.asked[0].token)
            else:
                return

    def tick(self, now: int) -> None:
        self.now = Millis(now)
        self.step(Tick())

    def appended(self, token: int, error_code: ErrorCode = ErrorCode.NONE) -> None:
        """Complete a held append. If it succeeded, its records are in the log, in their place."""
        append = next(each for each in self.held if each.token == token)
        self.held.remove(append)
        if error_code is ErrorCode.NONE:
            producer_id = append.producer_id
            self.added[token] = tuple(
                record if producer_id < 0 else Written.of(record, producer_id) for record in append.records
            )
        self.step(Appended(token=token, error_code=error_code))

    def computed(self) -> None:
        """Do the oldest computation that was asked for."""
        effect = self.computing.pop(0)
        result, failure = None, None
        try:
            result = effect.function()
        except Exception as error:
            failure = error
        self.step(Computed(group_id=effect.group_id, token=effect.token, result=result, error=failure))

    def told(self, token: int, failing: Mapping[TopicIdPartition, ErrorCode] | None = None) -> None:
        """Let the share coordinators answer."""
        asked = next(each for each in self.asked if each.token == token)
        self.asked.remove(asked)
        gone = [each for each in partitions_asked(asked) if self.topics.name(each.topic_id) is None]
        refused = {**dict.fromkeys(gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), **(failing or {})}
        failed = self.share_coordinators.change(asked, refused)
        self.step(StateChanged(token=token, failed=failed))

    def delete_topics(self, *names: str) -> None:
        """Delete these topics."""
        ids = tuple(self.topics.last_id(name) for name in names if self.topics.has_been(name))
        self.topics.become({name: count for name, count in self.topics.counts().items() if name not in names})
        self.share_coordinators.forget(frozenset(ids))
        self.step(TopicsDeleted(topics=names, topic_ids=ids))

    def ended(self, producer_id: int, *, is_commit: bool) -> None:
        """A transaction's marker is in the log, behind all that was appended."""
        assert not self.held
        self.flushed = [*self.log, Written.of((b"", None), producer_id, is_commit)]
        self.added = {}
        self.step(TransactionEnded(producer_id=producer_id, is_commit=is_commit))

    def reload(self) -> None:
        """Move the partition away and load it again from its log. Held appends are lost."""
        self.take(self.coordinator.unload(), alive=False)
        self.held.clear()
        self.asked.clear()
        self.computing.clear()
        self.flushed = self.log
        self.added = {}
        assert self.waiting_outside() == set(), "unload left somebody waiting"
        self.generations.clear()
        self.coordinator = self._fresh()
        self.take(self.coordinator.loaded(self.now))
        self.go_on()

    # ---- what comes of it

    def take(self, effects: list[Effect], *, alive: bool = True) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    self._answered(effect)
                case Append():
                    self.held.append(effect)
                case ChangeState():
                    self.asked.append(effect)
                case Compute():
                    self.computing.append(effect)
                case Note():
                    pass
            self.happened(effect)
        if alive:
            self.check()

    def happened(self, effect: Effect) -> None:
        """Called for each effect; scripts override it to write the effect down."""

    def _answered(self, reply: Reply) -> None:
        request = self.requests[reply.request_id]
        assert reply.request_id not in self.answers, f"request {reply.request_id} was answered twice"
        version = request.api_version
        self.answers[reply.request_id] = decode(type(reply.response), encode(reply.response, version), version)

    # ---- checks

    def waiting_outside(self) -> set[int]:
        return self.requests.keys() - self.answers.keys()

    def waiting_inside(self) -> set[int]:
        coordinator = self.coordinator
        waiting = [
            each.request_id
            for group in coordinator.groups.values()
            for member in group.classic_or_empty().members.values()
            for each in (member.join, member.sync)
            if each is not None
        ]
        waiting += [
            each.request_id
            for group in coordinator.groups.values()
            for each in group.waiting
            if isinstance(each, Request)
        ]
        for group in coordinator.groups.values():
            waiting += [] if group.decision is None else [event.request_id for event, _ in group.decision.answers]
        for purpose in coordinator._appends.purposes():
            waiting += [request.request_id for request, _ in getattr(purpose, "answers", ())]
            if isinstance(purpose, StoreShareGroup) and purpose.operation is not None:
                waiting.append(purpose.operation.event.request_id)
        waiting += [each.request_id for each in coordinator._waiting()]
        asked = (getattr(purpose, "request_id", None) for purpose in coordinator._appends.purposes())
        waiting += [request_id for request_id in asked if request_id is not None]
        assert len(set(waiting)) == len(waiting), waiting
        return set(waiting)

    def check(self) -> None:
        coordinator = self.coordinator
        coordinator.validate()
        assert self.waiting_inside() == self.waiting_outside()
        deadline = coordinator.next_deadline()
        assert deadline is not None
        assert deadline > self.now, f"{deadline} was due, it is {self.now}"
        for group_id, group in coordinator.groups.items():
            known, kind = self.generations.get(group_id, 0), group.kind
            now = kind.generation_id if isinstance(kind, ClassicGroup) else known
            assert now >= known, f"{group_id} went from generation {known} to {now}"
        self.generations = {  # a consumer group with members that becomes a classic one continues from its epoch
            group_id: kind.generation_id if isinstance(kind, ClassicGroup) else kind.epoch
            for group_id, group in coordinator.groups.items()
            if isinstance(kind := group.kind, ClassicGroup) or (isinstance(kind, ConsumerGroup) and kind.members)
        }
        for group_id, group in coordinator.groups.items():
            of_members = group.durable_kind()
            epoch = of_members.epoch if of_members is not None else 0
            assert not epoch or epoch >= self.epochs.get(group_id, 0), f"{group_id} went back to epoch {epoch}"
        self.epochs = {
            group_id: of_members.epoch
            for group_id, group in coordinator.groups.items()
            if (of_members := group.durable_kind()) is not None
        }

    def check_replay(self) -> None:
        """A coordinator that reads the log now has the same durable state, and shows Stable groups the same."""
        if self.held:
            return
        fresh = self._fresh()
        assert fresh.durable() == self.coordinator.durable()
        fresh.loaded(self.now)
        fresh.validate()
        for group_id, group in self.coordinator.groups.items():
            live = group.kind
            if isinstance(live, ClassicGroup) and live.state is State.STABLE:
                again = fresh.groups[group_id].kind
                assert isinstance(again, ClassicGroup)
                assert again.state is State.STABLE
                assignments = {m.member_id: m.assignment or b"" for m in live.members.values()}
                assert again.to_value(assignments).members == live.to_value(assignments).members
                assert {m.member_id: m.assignment for m in again.members.values()} == assignments
                assert (again.generation_id, again.leader_id) == (live.generation_id, live.leader_id)
