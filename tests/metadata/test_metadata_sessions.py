"""Broker liveness as the active controller sees it: fencing, unfencing, controlled shutdown, a new controller."""

from __future__ import annotations

from typing import Any

import pytest

from kraftpy.metadata import sessions as sessions_module
from kraftpy.metadata.commands import (
    BalanceLeaders,
    ChangeBroker,
    Command,
    CreateTopics,
    FeatureLevel,
    FormatCluster,
    NewTopic,
    RegisterBroker,
    ReplicaAssignment,
    UnregisterBroker,
    encode_command,
)
from kraftpy.metadata.controller import MetadataStateMachine
from kraftpy.metadata.decision import Decision
from kraftpy.metadata.image import ELR_FEATURE
from kraftpy.metadata.records import PartitionChanged
from kraftpy.metadata.sessions import RETRY_MS, HeartbeatReply, Sessions
from kraftpy.protocol.errors import ErrorCode
from kraftpy.types import BrokerId, Millis, TopicId

TERM = 7
SESSION_MS = 9_000
GRACE_MS = 250
CONTACT_MS = 1_000


class Controller:
    """Sessions beside a state machine: proposals are applied when the test asks for it."""

    def __init__(self, brokers: int = 3, *, balance_interval_ms: int | None = None) -> None:
        self.machine = MetadataStateMachine()
        self.index = 0
        self.changed: list[int] = []
        """How many partitions each entry changed."""
        self.now = 100_000
        self.sessions = Sessions(
            session_timeout_ms=SESSION_MS,
            disconnect_grace_ms=GRACE_MS,
            first_contact_ms=CONTACT_MS,
            balance_interval_ms=balance_interval_ms,
        )
        for number in range(1, brokers + 1):
            self.register(number)
            self.sessions.connected(BrokerId(number), self.now)
        self.sessions.activate(self.machine.image, TERM, self.now)

    def register(self, number: int, *, incarnation: bytes = b"first", fenced: bool = True, at_most: int = 0) -> int:
        """Register a broker, in as many parts as it takes; return the most partitions that one of them changes."""
        return self.repeat(
            RegisterBroker(
                broker_id=BrokerId(number),
                incarnation_id=incarnation.ljust(16),
                endpoints=(),
                time_ms=Millis(0),
                fenced=fenced,
                previous_session_expired=True,
                max_partitions=at_most,
            )
        )

    def in_parts(self, number: int, at_most: int, *, fenced: bool, stops: bool = False) -> int:
        """Fence, unfence or stop a broker, as `register`."""
        broker = self.machine.image.broker(BrokerId(number))
        assert broker is not None
        return self.repeat(
            ChangeBroker(
                broker_id=BrokerId(number),
                broker_epoch=broker.broker_epoch,
                fenced=fenced,
                in_controlled_shutdown=stops,
                max_partitions=at_most,
                time_ms=Millis(0),
            )
        )

    def repeat(self, command: Command) -> int:
        first = len(self.changed)
        for _ in range(20):
            if not self.apply(command).result.is_partial:
                return max(self.changed[first:])
        raise AssertionError("it does not end")

    def create(self, *assignments: tuple[int, ...], name: str = "t") -> None:
        replicas = [tuple(BrokerId(member) for member in assigned) for assigned in assignments]
        topic = NewTopic(
            name=name,
            topic_id=TopicId(name.encode() * 16),
            assignments=tuple(
                ReplicaAssignment(partition=number, replicas=assigned) for number, assigned in enumerate(replicas)
            ),
        )
        assert not self.apply(CreateTopics(topics=(topic,), time_ms=Millis(0))).result[0].error

    def apply(self, command: Command) -> Decision[Any]:
        self.index += 1
        decision = self.machine.apply(self.index, TERM, encode_command(command)).decision
        assert not decision.error, decision
        self.changed.append(sum(isinstance(record, PartitionChanged) for record in decision.records))
        return decision

    def leaderless(self) -> list[int]:
        return [number for _, number, partition in self.machine.image.partitions() if not partition.has_leader]

    def heartbeat(
        self,
        number: int,
        *,
        epoch: int | None = None,
        applied: int | None = None,
        wants_fence: bool = False,
        wants_shutdown: bool = False,
    ) -> HeartbeatReply:
        broker = self.machine.image.broker(BrokerId(number))
        if epoch is None:
            epoch = broker.broker_epoch if broker else -1
        return self.sessions.heartbeat(
            broker_id=BrokerId(number),
            broker_epoch=epoch,
            applied_index=self.index if applied is None else applied,
            wants_fence=wants_fence,
            wants_shutdown=wants_shutdown,
            image=self.machine.image,
            now=self.now,
        )

    def tick(self, *, later_ms: int = 0) -> list[str]:
        """Return the proposals of a tick, in words."""
        self.now += later_ms
        self.proposed = self.sessions.tick(self.machine.image, self.now)
        return [tell(command) for command in self.proposed]

    def settle(self, *, later_ms: int = 0) -> list[str]:
        """Apply the proposals of a tick, and return them in words."""
        told = self.tick(later_ms=later_ms)
        for command in self.proposed:
            self.apply(command)
        return told

    def all_active(self) -> None:
        for broker in self.machine.image.brokers():
            self.heartbeat(broker.broker_id)
        self.settle()
        assert len(self.machine.image.active_brokers()) == len(self.machine.image.brokers())

    def fenced(self) -> list[int]:
        return [broker.broker_id for broker in self.machine.image.brokers() if broker.fenced]


def tell(command: Command) -> str:
    if isinstance(command, BalanceLeaders):
        assert command.controller_epoch == TERM
        return "balance"
    assert isinstance(command, ChangeBroker)
    assert command.controller_epoch == TERM
    if command.fenced:
        return f"fence {command.broker_id}"
    return f"{'stop' if command.in_controlled_shutdown else 'unfence'} {command.broker_id}"


def test_rule_21_a_broker_is_unfenced_once_it_has_applied_its_own_registration() -> None:
    controller = Controller(brokers=2)
    assert controller.tick() == []
    reply = controller.heartbeat(1, applied=0)
    assert reply == HeartbeatReply(is_caught_up=False, is_fenced=True)
    assert controller.tick() == []
    assert controller.heartbeat(1, applied=1) == HeartbeatReply(is_caught_up=True, is_fenced=True)
    assert controller.settle() == ["unfence 1"]
    assert controller.heartbeat(1) == HeartbeatReply(is_caught_up=True, is_fenced=False)


def test_a_broker_that_wants_to_stay_fenced_does() -> None:
    controller = Controller(brokers=1)
    controller.heartbeat(1, wants_fence=True)
    assert controller.settle() == []
    controller.heartbeat(1)
    assert controller.settle() == ["unfence 1"]
    controller.heartbeat(1, wants_fence=True)
    assert controller.settle() == ["fence 1"]


def test_rule_21_a_broker_whose_heartbeats_stop_is_fenced_when_its_session_ends() -> None:
    controller = Controller(brokers=2)
    controller.all_active()
    assert controller.settle(later_ms=SESSION_MS - 1) == []
    controller.heartbeat(2)
    assert controller.sessions.next_deadline() is not None
    assert controller.settle(later_ms=1) == ["fence 1"]
    assert controller.fenced() == [1]
    assert controller.settle(later_ms=10_000) == ["fence 2"]


def test_a_lost_connection_counts_after_the_grace() -> None:
    controller = Controller(brokers=2)
    controller.all_active()
    controller.settle()
    controller.sessions.disconnected(BrokerId(2), controller.now)
    assert controller.sessions.next_deadline() == controller.now + GRACE_MS
    assert controller.settle(later_ms=GRACE_MS - 1) == []
    assert controller.settle(later_ms=1) == ["fence 2"]


def test_a_connection_that_comes_back_is_believed_once_the_broker_speaks() -> None:
    controller = Controller(brokers=2)
    controller.all_active()
    for number in (1, 2):
        controller.sessions.disconnected(BrokerId(number), controller.now)
        controller.sessions.connected(BrokerId(number), controller.now + 10)
    controller.now += 10
    controller.heartbeat(1)
    assert controller.settle(later_ms=CONTACT_MS - 1) == []
    assert controller.settle(later_ms=1) == ["fence 2"], "it may be another process: the first one said nothing more"


def test_rule_20_a_connection_alone_unfences_nobody() -> None:
    """It may be of a process that has yet to register, and has lost its disk: unfenced, it would be elected."""
    controller = Controller(brokers=2)
    controller.all_active()
    controller.sessions.disconnected(BrokerId(2), controller.now)
    assert controller.settle(later_ms=GRACE_MS) == ["fence 2"]
    controller.now += 2_400
    controller.sessions.connected(BrokerId(2), controller.now)
    assert controller.settle() == []
    assert controller.settle(later_ms=CONTACT_MS) == []
    assert controller.fenced() == [2]
    controller.heartbeat(2)
    assert controller.settle() == ["unfence 2"], "it is the same process after all"


def test_rule_20_a_process_of_an_earlier_registration_keeps_nothing_alive() -> None:
    controller = Controller(brokers=1)
    controller.all_active()
    earlier = controller.machine.image.brokers()[0].broker_epoch
    controller.register(1, incarnation=b"second")
    assert controller.heartbeat(1, epoch=earlier).error is ErrorCode.STALE_BROKER_EPOCH
    assert controller.settle() == []
    assert controller.fenced() == [1]
    controller.heartbeat(1)
    assert controller.settle() == ["unfence 1"]


def test_who_is_not_registered_is_told_so() -> None:
    controller = Controller(brokers=1)
    assert controller.heartbeat(9, epoch=1).error is ErrorCode.BROKER_ID_NOT_REGISTERED
    controller.apply(UnregisterBroker(broker_id=BrokerId(1), time_ms=Millis(0)))
    assert controller.settle() == []
    assert controller.heartbeat(1, epoch=1).error is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_what_was_proposed_is_repeated_only_after_a_while() -> None:
    controller = Controller(brokers=1)
    controller.heartbeat(1)
    assert controller.tick() == ["unfence 1"]
    controller.heartbeat(1)
    assert controller.tick(later_ms=RETRY_MS - 1) == []
    assert controller.sessions.next_deadline() == controller.now + 1
    assert controller.tick(later_ms=1) == ["unfence 1"]


def test_out_of_office_nobody_is_judged() -> None:
    controller = Controller(brokers=1)
    controller.all_active()
    controller.sessions.deactivate()
    assert controller.heartbeat(1).error is ErrorCode.NOT_CONTROLLER
    assert controller.tick(later_ms=1_000_000) == []
    assert controller.sessions.next_deadline() is None


def test_a_new_controller_gives_every_broker_a_fresh_session() -> None:
    controller = Controller(brokers=3)
    controller.all_active()
    controller.sessions.deactivate()
    controller.now += 10 * SESSION_MS
    controller.sessions.activate(controller.machine.image, TERM, controller.now)
    assert controller.settle() == []
    for number in (1, 2, 3):
        controller.heartbeat(number)
    assert controller.settle(later_ms=SESSION_MS - 1) == []
    assert controller.settle(later_ms=1) == ["fence 1", "fence 2", "fence 3"]


def test_rule_20_a_process_that_is_here_but_not_registered_does_not_wait_for_the_session_of_the_one_before() -> None:
    controller = Controller(brokers=2)
    controller.all_active()
    controller.sessions.deactivate()
    controller.sessions.activate(controller.machine.image, TERM, controller.now)
    controller.heartbeat(2)
    assert controller.settle(later_ms=2 * CONTACT_MS - 1) == []
    assert controller.settle(later_ms=1) == ["fence 1"]


def test_a_new_controller_waits_for_connections_no_longer_than_it_must() -> None:
    controller = Controller(brokers=3)
    controller.all_active()
    other = Sessions(session_timeout_ms=SESSION_MS, disconnect_grace_ms=GRACE_MS, first_contact_ms=CONTACT_MS)
    controller.sessions = other
    for number in (1, 2):
        other.connected(BrokerId(number), controller.now)
    other.disconnected(BrokerId(2), controller.now)  # the controller before us: this is why we are elected
    controller.now += 200
    other.activate(controller.machine.image, TERM, controller.now)
    assert controller.settle(later_ms=GRACE_MS - 201) == []
    assert controller.settle(later_ms=1) == ["fence 2"]
    assert controller.settle(later_ms=CONTACT_MS - 51) == []
    assert controller.settle(later_ms=1) == ["fence 3"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_was_lost_long_ago_says_nothing_about_now(*, comes_back: bool) -> None:
    controller = Controller(brokers=1)
    controller.all_active()
    controller.sessions.deactivate()
    controller.sessions.disconnected(BrokerId(1), controller.now)
    if comes_back:
        controller.sessions.connected(BrokerId(1), controller.now + 5)
    controller.now += 60_000
    controller.sessions.activate(controller.machine.image, TERM, controller.now)
    assert controller.settle() == []
    if comes_back:
        controller.heartbeat(1)
    assert controller.settle(later_ms=CONTACT_MS - 1) == []
    assert controller.settle(later_ms=1) == ([] if comes_back else ["fence 1"])


def test_rule_21_controlled_shutdown_is_granted_when_all_know_that_others_lead() -> None:
    controller = Controller(brokers=3)
    controller.all_active()
    controller.create((1, 2, 3), (2, 3, 1))
    assert not controller.heartbeat(1, wants_shutdown=True).should_shut_down
    before = controller.index
    assert controller.settle() == ["stop 1"]
    partition = controller.machine.image.partition("t", 0)
    assert partition is not None
    assert (partition.leader, partition.isr) == (2, (2, 3))
    assert not controller.heartbeat(1, wants_shutdown=True).should_shut_down
    controller.heartbeat(2)
    controller.heartbeat(3, applied=before)
    assert not controller.heartbeat(1, wants_shutdown=True).should_shut_down, "3 has yet to hear of it"
    controller.heartbeat(3)
    assert controller.settle() == []
    assert not controller.heartbeat(1, wants_shutdown=True).should_shut_down, "its fencing is not decided yet"
    assert controller.settle() == ["fence 1"]
    assert controller.heartbeat(1, wants_shutdown=True).should_shut_down
    assert controller.settle() == []


def test_who_is_alone_stops_when_it_leads_nothing() -> None:
    controller = Controller(brokers=1)
    controller.all_active()
    controller.create((1,))
    controller.heartbeat(1, wants_shutdown=True)
    assert controller.settle() == ["stop 1"]
    assert not controller.heartbeat(1, wants_shutdown=True).should_shut_down
    partition = controller.machine.image.partition("t", 0)
    assert partition is not None
    assert partition.leader == 1, "nobody else can lead: it does so until it is fenced"
    assert controller.settle() == ["fence 1"]
    partition = controller.machine.image.partition("t", 0)
    assert partition is not None
    assert partition.leader == -1
    assert controller.heartbeat(1, wants_shutdown=True).should_shut_down


def test_who_is_fenced_may_stop_at_once() -> None:
    controller = Controller(brokers=2)
    assert controller.heartbeat(1, wants_shutdown=True).should_shut_down
    assert controller.settle() == []


def test_leaders_are_balanced_in_intervals() -> None:
    controller = Controller(brokers=2, balance_interval_ms=60_000)
    controller.all_active()
    controller.create((1, 2), (2, 1))
    for _ in range(15):
        controller.heartbeat(1)
        controller.heartbeat(2)
        assert controller.settle(later_ms=4_000) == []
    epoch = controller.machine.image.brokers()[0].broker_epoch
    controller.apply(ChangeBroker(broker_id=BrokerId(1), broker_epoch=epoch, fenced=True, time_ms=Millis(0)))
    told = []
    for _ in range(15):
        controller.heartbeat(1)
        controller.heartbeat(2)
        told += controller.settle(later_ms=4_000)
    assert told == ["unfence 1"], "1 is preferred, but not in sync yet"


def test_a_fencing_of_many_partitions_is_proposed_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "PARTITIONS_AT_ONCE", 2)
    controller = Controller(brokers=2)
    controller.all_active()
    controller.create(*((1, 2) for _ in range(5)))
    controller.sessions.disconnected(BrokerId(1), controller.now)
    assert controller.settle(later_ms=GRACE_MS) == ["fence 1"]
    assert controller.fenced() == []
    assert controller.tick() == [], "one proposal at a time"
    for fenced in ([], [1]):
        controller.sessions.decided_in_part(BrokerId(1), controller.now)
        assert controller.sessions.next_deadline() == controller.now
        assert controller.settle() == ["fence 1"]
        assert controller.fenced() == fenced
        assert max(controller.changed) <= 2
    assert sum(controller.changed) == 5
    assert controller.settle(later_ms=RETRY_MS) == []


def test_a_broker_that_returns_while_it_is_leaving_gets_its_partitions_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "PARTITIONS_AT_ONCE", 2)
    controller = Controller(brokers=2)
    controller.all_active()
    controller.create((1,), (1,), (1,), (1,))
    controller.sessions.disconnected(BrokerId(1), controller.now)
    assert controller.settle(later_ms=GRACE_MS) == ["fence 1"]
    assert controller.leaderless() == [0, 1]
    controller.sessions.decided_in_part(BrokerId(1), controller.now)
    controller.sessions.connected(BrokerId(1), controller.now)
    controller.heartbeat(1)
    assert controller.settle() == ["unfence 1"]
    assert controller.leaderless() == []
    assert controller.settle(later_ms=RETRY_MS) == []


@pytest.mark.parametrize("returns", [True, False])
def test_a_new_controller_goes_on_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch, returns: bool) -> None:
    """It waits until it knows whether the broker is there."""
    monkeypatch.setattr(sessions_module, "PARTITIONS_AT_ONCE", 2)
    controller = Controller(brokers=2)
    controller.all_active()
    controller.create((1,), (1,), (1,), (1,))
    controller.sessions.disconnected(BrokerId(1), controller.now)
    assert controller.settle(later_ms=GRACE_MS) == ["fence 1"]
    controller.sessions = Sessions(first_contact_ms=CONTACT_MS)
    controller.sessions.connected(BrokerId(2), controller.now)
    controller.sessions.activate(controller.machine.image, TERM, controller.now)
    controller.heartbeat(2)
    assert controller.settle(later_ms=CONTACT_MS - 1) == []
    if returns:
        controller.sessions.connected(BrokerId(1), controller.now)
        controller.heartbeat(1)
        assert controller.settle() == ["unfence 1"]
        assert controller.leaderless() == []
    else:
        assert controller.settle(later_ms=1) == ["fence 1"]
        assert controller.fenced() == [1]


def test_an_unfencing_in_parts_is_gone_on_with_until_no_partition_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "PARTITIONS_AT_ONCE", 3)
    controller = Controller(brokers=1)
    controller.all_active()
    assert controller.tick() == []
    controller.create(*((1,) for _ in range(7)))
    epoch = controller.machine.image.broker(BrokerId(1)).broker_epoch  # type: ignore[union-attr]
    controller.apply(ChangeBroker(broker_id=BrokerId(1), broker_epoch=epoch, fenced=True, time_ms=Millis(0)))
    assert len(controller.leaderless()) == 7
    controller.heartbeat(1)
    for waiting in ([3, 4, 5, 6], [6], []):
        assert controller.settle() == ["unfence 1"]
        assert controller.leaderless() == waiting
        controller.sessions.decided_in_part(BrokerId(1), controller.now)
    assert controller.settle() == []


@pytest.mark.parametrize("has_elr", [False, True])
def test_parts_end_where_one_command_for_all_does(has_elr: bool) -> None:
    """Fencing, shutdown and registration change the same partitions, to the same, in parts of three or at once."""
    ends = []
    for limit in (0, 3):
        controller = Controller(brokers=0)
        controller.tick()
        features = (FeatureLevel(name=ELR_FEATURE, level=1),) if has_elr else ()
        controller.apply(FormatCluster(cluster_id="c", time_ms=Millis(0), features=features, min_insync_replicas=2))
        for number in (1, 2, 3):
            controller.register(number, fenced=False)
        controller.create(*((1,) for _ in range(5)), name="a")
        controller.create((1, 2), (2, 1), (3, 1), (1, 3), (2, 3), (1, 3), name="b")
        controller.create(*((1, 2, 3) for _ in range(5)), name="c")
        told = [controller.in_parts(3, limit, fenced=False, stops=True)]
        told += [controller.in_parts(number, limit, fenced=True) for number in (1, 3)]
        told += [controller.in_parts(2, limit, fenced=True)]
        registered = controller.register(1, incarnation=b"second", at_most=limit)
        told += [controller.in_parts(1, limit, fenced=False)]
        assert limit == 0 or max(max(told, default=0), registered) <= limit
        ends.append([partition for _, _, partition in controller.machine.image.partitions()])
    assert ends[0] == ends[1]
