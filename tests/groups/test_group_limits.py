"""Groups and offsets have limits in bytes: additions are refused, existing state keeps working and is loaded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from kraftpy.groups import expiry, offsets
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.coordinator import GroupCoordinator
from kraftpy.groups.events import Append, Appended, Reply, Request, Tick, TopicsDeleted, TransactionEnded
from kraftpy.groups.expiry import Expiry
from kraftpy.groups.group import Group
from kraftpy.groups.memory import MEMBER_BYTES, OFFSET_BYTES, Room
from kraftpy.groups.records import Record
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest
from kraftpy.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest, Subtopology, Topology
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kraftpy.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kraftpy.types import Millis

FULL = ErrorCode.GROUP_MAX_SIZE_REACHED
TOO_MUCH = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
JOIN, JOIN_WITH_ID, COMMIT = 3, 5, 7
"""Versions: the last JoinGroup without ids that are given out first, one with them, an OffsetCommit."""


class Machine:
    """A coordinator whose appends are durable at once."""

    def __init__(self, *, room: Room | None = None, log: list[tuple[int, Record]] | None = None, **limits: int) -> None:
        self.refused: list[str] = []
        config = GroupConfig(**limits)  # type: ignore[arg-type]
        self.room = room or Room(config.kraftpy_group_coordinator_max_bytes, self.refused.append)
        ids = (f"id-{number}" for number in itertools.count())
        self.coordinator = GroupCoordinator(config, lambda: next(ids), room=self.room)
        self.log: list[tuple[int, Record]] = []
        """Producer id (-1 for none) and record."""
        for producer_id, (key, value) in log or ():
            if producer_id < 0:
                self.coordinator.replay(key, value)
            else:
                self.coordinator.replay_pending(producer_id, key, value)
        self.coordinator.loaded(Millis(0))
        self.appends: list[int] = []
        """Bytes of each."""
        self.now = Millis(1_000)
        self.answers: dict[int, Any] = {}
        self._numbers = itertools.count()

    def send(self, message: Any, version: int) -> int:
        number = next(self._numbers)
        self.step(
            Request(request_id=number, api_version=version, message=message, client_id="c", client_host="h"),
        )
        return number

    def step(self, event: Any) -> None:
        effects = [*self.coordinator.step(event, self.now)]
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Reply):
                self.answers[effect.request_id] = effect.response
            elif isinstance(effect, Append):
                self.log += [(effect.producer_id, record) for record in effect.records]
                self.appends.append(sum(len(key) + len(value or b"") for key, value in effect.records))
                done = Appended(token=effect.token, error_code=ErrorCode.NONE)
                effects += self.coordinator.step(done, self.now)
        self.coordinator.validate()

    def tick(self, now: int) -> None:
        self.now = Millis(now)
        self.step(Tick())

    def finish(self) -> int:
        """Finish work that is done in pieces. Returns how many pieces followed the first."""
        count = 0
        while (due := self.coordinator.next_deadline()) is not None and due <= self.now + 10:
            self.tick(due)
            count += 1
        return count

    def ask(self, message: Any, version: int) -> Any:
        return self.answers.get(self.send(message, version))

    def join(self, group: str, metadata: bytes = b"", *, member: str = "", version: int = JOIN) -> Any:
        return self.ask(
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id=member,
                protocol_type="test",
                protocols=[JoinGroupRequestProtocol(name="p", metadata=metadata)],
            ),
            version,
        )

    def commit(self, group: str, *partitions: int, note: str = "") -> list[ErrorCode]:
        message = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=each, committed_offset=5, committed_metadata=note)
                        for each in partitions
                    ],
                )
            ],
        )
        return [ErrorCode.of(each.error_code) for each in self.ask(message, COMMIT).topics[0].partitions]

    def commit_in_transaction(self, producer_id: int, group: str, *partitions: int) -> list[ErrorCode]:
        message = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=each, committed_offset=9, committed_metadata=None
                        )
                        for each in partitions
                    ],
                )
            ],
        )
        return [ErrorCode.of(each.error_code) for each in self.ask(message, 4).topics[0].partitions]


# --- members ----------------------------------------------------------------------------------------------------------


def test_a_member_that_says_too_much_is_refused_and_others_are_not() -> None:
    machine = Machine(kraftpy_group_max_bytes=100_000)
    answer = machine.join("large", bytes(100_000))
    assert ErrorCode.of(answer.error_code) is FULL
    assert machine.refused == ["a member (kraftpy.group.max.bytes=100000) of group large"]
    assert "large" not in machine.coordinator.groups, "nothing is kept of it"
    assert machine.join("small", bytes(1_000)).error_code == ErrorCode.NONE


def test_members_of_a_group_share_its_bytes() -> None:
    machine = Machine(kraftpy_group_max_bytes=100_000)
    machine.join("g", bytes(60_000))
    assert machine.join("g", bytes(60_000)).error_code == FULL
    assert machine.send(joining("g", bytes(10_000)), JOIN) not in machine.answers, "it fits, and waits for the first"


def joining(group: str, metadata: bytes, member: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member,
        protocol_type="test",
        protocols=[JoinGroupRequestProtocol(name="p", metadata=metadata)],
    )


def test_a_member_may_come_back_with_what_it_said_but_not_with_more() -> None:
    machine = Machine(kraftpy_group_coordinator_max_bytes=20_000)
    first = machine.join("g", bytes(5_000))
    assert first.error_code == ErrorCode.NONE
    machine.room.max_bytes = machine.room.used
    again = machine.send(joining("g", bytes(5_000), first.member_id), JOIN)
    assert machine.answers[again].error_code == ErrorCode.NONE
    assert machine.join("g", bytes(6_000), member=first.member_id).error_code == FULL
    assert first.member_id in machine.coordinator.groups["g"].kind.members


def test_ids_that_are_given_out_and_never_used_have_a_bound() -> None:
    machine = Machine(kraftpy_group_coordinator_max_bytes=50 * MEMBER_BYTES)
    told = [ErrorCode.of(machine.join("g", version=JOIN_WITH_ID).error_code) for _ in range(100)]
    pending = machine.coordinator.groups["g"].classic_or_empty().pending_members
    assert told.count(ErrorCode.MEMBER_ID_REQUIRED) == len(pending) < 50
    assert told[-1] is FULL


def test_members_that_leave_make_room() -> None:
    machine = Machine(kraftpy_group_coordinator_max_bytes=20_000)
    first = machine.join("g", bytes(15_000))
    assert machine.join("h", bytes(15_000)).error_code == FULL
    left = machine.ask(LeaveGroupRequest(group_id="g", member_id=first.member_id), 1)
    assert left.error_code == ErrorCode.NONE
    assert machine.join("h", bytes(1_000)).error_code == ErrorCode.NONE


def consumer(group: str, member: str, *topics: str, epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=1_000 if epoch == 0 else -1,
        subscribed_topic_names=list(topics) if topics else None,
        topic_partitions=[] if epoch == 0 else None,
    )


def share(group: str, member: str, *topics: str) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=0, subscribed_topic_names=list(topics)
    )


def streams(group: str, member: str, *topics: str) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topology=Topology(epoch=1, subtopologies=[Subtopology(subtopology_id="0", source_topics=list(topics))]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )


@pytest.mark.parametrize(("make", "version"), [(consumer, 1), (share, 1), (streams, 0)])
def test_the_newer_protocols_have_the_same_bound_and_name_it(make: Any, version: int) -> None:
    machine = Machine(kraftpy_group_coordinator_max_bytes=100_000)
    many = [f"a-topic-of-many-{number:08}" for number in range(2_000)]
    answer = machine.ask(make("large", "m", *many), version)
    assert ErrorCode.of(answer.error_code) is FULL
    assert "kraftpy.group.coordinator.max.bytes=100000" in answer.error_message
    assert "large" not in machine.coordinator.groups
    assert machine.ask(make("small", "m", "t"), version).error_code == ErrorCode.NONE


def test_a_member_of_the_newer_protocol_goes_on_when_there_is_no_room() -> None:
    machine = Machine()
    joined = machine.ask(consumer("g", "m", "t"), 1)
    machine.room.max_bytes = 0
    assert machine.ask(consumer("g", "m", epoch=joined.member_epoch), 1).error_code == ErrorCode.NONE
    assert machine.ask(consumer("g", "n", "t"), 1).error_code == FULL


# --- offsets ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def full() -> Iterator[Machine]:
    """A coordinator with two offsets of one group, and no room for another."""
    machine = Machine()
    assert machine.commit("g", 0, 1) == [ErrorCode.NONE] * 2
    machine.room.max_bytes = machine.room.used + OFFSET_BYTES - 1
    yield machine
    machine.coordinator.validate()


def test_new_offsets_are_refused_one_by_one_and_known_ones_go_on(full: Machine) -> None:
    assert full.commit("g", 0, 2, 1) == [ErrorCode.NONE, TOO_MUCH, ErrorCode.NONE]
    assert full.refused == [f"an offset (kraftpy.group.coordinator.max.bytes={full.room.max_bytes}) of group g"]
    assert full.commit("h", 0) == [TOO_MUCH]
    assert "h" not in full.coordinator.groups, "no group is left of a commit that was refused"


def test_a_note_may_not_grow_without_room(full: Machine) -> None:
    assert full.commit("g", 0, note="x" * OFFSET_BYTES) == [TOO_MUCH]
    assert full.commit("g", 0, note="x") == [ErrorCode.NONE]


def test_offsets_in_transactions_have_the_same_bound(full: Machine) -> None:
    assert full.commit_in_transaction(7, "g", 0, 2) == [ErrorCode.NONE, TOO_MUCH]
    full.step(TransactionEnded(producer_id=7, is_commit=True))
    assert full.coordinator.groups["g"].offsets.keys() == {("t", 0), ("t", 1)}


def test_pending_offsets_count_until_their_transaction_ends() -> None:
    machine = Machine(kraftpy_group_coordinator_max_bytes=100 * OFFSET_BYTES)
    told = [code for n in range(50) for code in machine.commit_in_transaction(7, "g", 3 * n, 3 * n + 1, 3 * n + 2)]
    assert told.count(ErrorCode.NONE) < 100
    assert told[-1] is TOO_MUCH
    machine.step(TransactionEnded(producer_id=7, is_commit=False))
    assert machine.commit_in_transaction(8, "another", 0) == [ErrorCode.NONE]


def test_a_group_that_is_deleted_makes_room(full: Machine) -> None:
    deleted = full.ask(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert deleted.results[0].error_code == ErrorCode.NONE
    assert full.room.used == 0
    assert full.commit("h", 0) == [ErrorCode.NONE]


def test_what_the_log_holds_is_loaded_though_it_is_above_the_bound() -> None:
    before = Machine()
    first = before.join("members", bytes(1_000))
    given = [SyncGroupRequestAssignment(member_id=first.member_id, assignment=b"a")]
    before.ask(SyncGroupRequest(group_id="members", generation_id=1, member_id=first.member_id, assignments=given), 3)
    before.commit("g", *range(100))
    after = Machine(log=before.log, kraftpy_group_coordinator_max_bytes=1_000)
    assert after.room.used > 1_000
    assert len(after.coordinator.groups["g"].offsets) == 100
    assert after.commit("g", 0, 100) == [ErrorCode.NONE, TOO_MUCH]
    assert after.send(joining("members", bytes(1_000), first.member_id), JOIN) in after.answers
    assert after.join("members").error_code == FULL


def test_coordinators_share_their_room_and_give_it_back() -> None:
    room = Room(10_000)
    one, other = Machine(room=room), Machine(room=room)
    assert one.commit("g", *range(20)) == [ErrorCode.NONE] * 20
    assert other.commit("h", *range(20))[-1] is TOO_MUCH
    one.coordinator.unload()
    assert other.commit("h", *range(20)) == [ErrorCode.NONE] * 20


# --- many of them -----------------------------------------------------------------------------------------------------

BATCH_BYTES = 300_000
"""More than one append has, and less than a log takes."""
LONG = "g" * 5_000


def largest_append(machine: Machine) -> int:
    return max(machine.appends, default=0)


def test_offsets_of_a_large_group_expire_in_appends_that_the_log_takes() -> None:
    """One append for all of them would be refused for its size, each time again, and they would stay for good."""
    machine = Machine()
    machine.commit(LONG, *range(400))
    machine.appends.clear()
    machine.tick(8 * 24 * 3_600_000)
    machine.finish()
    assert LONG not in machine.coordinator.groups
    assert len(machine.appends) > 1
    assert largest_append(machine) < BATCH_BYTES


def test_a_large_group_is_deleted_in_appends_that_the_log_takes() -> None:
    machine = Machine()
    machine.commit(LONG, *range(400))
    machine.appends.clear()
    request = machine.send(DeleteGroupsRequest(groups_names=[LONG]), 2)
    machine.finish()
    assert machine.answers[request].results[0].error_code == ErrorCode.NONE
    assert LONG not in machine.coordinator.groups
    assert largest_append(machine) < BATCH_BYTES


def test_offsets_of_deleted_topics_go_in_appends_that_the_log_takes() -> None:
    machine = Machine()
    machine.commit(LONG, *range(400))
    machine.appends.clear()
    machine.step(TopicsDeleted(topics=("t",)))
    machine.finish()
    assert LONG not in machine.coordinator.groups
    assert largest_append(machine) < BATCH_BYTES


def test_a_look_at_many_groups_is_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    look_at = Expiry._look_at

    def noted(self: Expiry, group: Group, turn: Any) -> None:
        looked_at.append(group.group_id)
        look_at(self, group, turn)

    monkeypatch.setattr(Expiry, "_look_at", noted)
    monkeypatch.setattr(expiry, "OFFSETS_AT_ONCE", 50)
    machine = Machine()
    for number in range(20):
        machine.commit(f"g{number:02}", *range(9))
    now = 8 * 24 * 3_600_000
    pieces = []
    while machine.coordinator.groups:
        machine.tick(now)
        pieces.append(len(looked_at))
        due = machine.coordinator.next_deadline()
        assert due is not None
        now = due
    assert pieces == [5, 10, 15, 20]
    assert now >= 8 * 24 * 3_600_000 + 600_000, "the next look is not before its time"


def test_members_are_asked_once_what_they_read_however_many_offsets_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    machine.ask(consumer("g", "m", "another"), 1)
    joined = machine.coordinator.groups["g"].kind
    assert joined is not None
    message = OffsetCommitRequest(
        group_id="g",
        member_id="m",
        generation_id_or_member_epoch=joined.current("m").member_epoch,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequestPartition(partition_index=each, committed_offset=5, committed_metadata="")
                    for each in range(50)
                ],
            )
        ],
    )
    machine.ask(message, 9)
    assert len(machine.coordinator.groups["g"].offsets) == 50
    asked = 0
    subscribed_topics = Group.subscribed_topics

    def counted(self: Group) -> Any:
        nonlocal asked
        asked += 1
        return subscribed_topics(self)

    monkeypatch.setattr(Group, "subscribed_topics", counted)
    gone = offsets.expired(machine.coordinator.groups["g"], machine.coordinator.config, Millis(8 * 24 * 3_600_000))
    assert (len(gone), asked) == (50, 1)
