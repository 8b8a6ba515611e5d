"""The coordinator of the groups whose ids fall to one partition of `__consumer_offsets`.

    coordinator = GroupCoordinator(config, new_id)
    for each record of the partition, in order: coordinator.replay(key, value, offset)
    effects = coordinator.loaded(now, timestamp)
    effects = coordinator.step(event, now, timestamp)     # for every request, Appended, and at next_deadline() a Tick
    effects = coordinator.unload()                        # the partition is no longer ours; then drop the object

Two clocks: `now` drives sessions and barriers and should never jump (a monotonic clock); `timestamp` is the wall clock,
which goes into records and decides about expiry. Where only `now` is given it is both.

Invariants: what is durable changes in `replay` alone, when the log has it, so replaying the log gives the same again; a
request is answered once; what a client may rely on is answered after its records are durable.

An append that failed must not be in the log. Where that is not known (REQUEST_TIMED_OUT or
NOT_ENOUGH_REPLICAS_AFTER_APPEND after the write), the shell should unload and load again once it has reported.

A group of the consumer protocol is a `Group` whose classic half stays empty and whose `consumer` is set; what it is
asked goes through `consumer_turns.py`, and so does whatever else may not overtake its records.

Left out: transactional offset commits; share and streams groups, whose records are passed over and whose groups are not
seen; passing from one protocol to the other with members in the group; authorization; quotas.

Read: the classic protocol: KIP-62, KIP-134, KIP-211, KIP-345, KIP-394, KIP-429, KIP-496, KIP-814; the consumer
protocol: KIP-848, KIP-1101.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from kraftpy.groups import consumer_queries, offsets, queries, transactional
from kraftpy.groups.appends import (
    Appends,
    DeleteGroupRecords,
    DeleteOffsets,
    ExpireOffsets,
    Purpose,
    StoreAssignment,
    StoreConsumerGroup,
    StoreEmpty,
    StoreOffsets,
    StoreStaticMember,
    StoreTransactionalOffsets,
    group_error,
    group_ids,
    offset_error,
)
from kraftpy.groups.config import GroupConfig
from kraftpy.groups.consumer_group import NEVER, ConsumerGroup, Draft, NoTopics, Topics
from kraftpy.groups.consumer_protocol import heartbeat_error
from kraftpy.groups.consumer_records import ConsumerKey, ConsumerValue
from kraftpy.groups.consumer_records import read_key as read_consumer_key
from kraftpy.groups.consumer_records import read_value as read_consumer_value
from kraftpy.groups.consumer_turns import CONSUMER_SESSION, REVOCATION, ConsumerTurns
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.events import Appended, Effect, Event, Reply, Request, Tick, TopicsDeleted, TransactionEnded
from kraftpy.groups.group import Group, State
from kraftpy.groups.membership import Membership
from kraftpy.groups.rebalance import JOIN, SESSION, SYNC, Rebalance, join_error
from kraftpy.groups.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    group_record,
    read_group,
    read_key,
    read_offset,
)
from kraftpy.groups.routing import refuse, while_loading
from kraftpy.groups.transactional import PendingOffsets, settle
from kraftpy.groups.turn import Turn
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode, ProtocolError
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest
from kraftpy.protocol.messages.offset_delete import OffsetDeleteRequest
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest
from kraftpy.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kraftpy.types import Millis, TopicPartition

EXPIRY = "expiry"
EXPIRY_KEY = Key("", EXPIRY)

Durable = dict[str, tuple[GroupMetadataValue | None, ConsumerGroup | None, dict[TopicPartition, OffsetCommitValue]]]
"""What the log says: by group its stored generation or its consumer group, if any, and its offsets."""


class GroupCoordinator:
    """All groups of one partition of `__consumer_offsets`, and their committed offsets."""

    def __init__(self, config: GroupConfig, new_id: Callable[[], str], topics: Topics | None = None) -> None:
        """`new_id` gives text that never repeats and cannot be guessed, for member ids; `topics` are the cluster's."""
        self.config = config
        self.groups: dict[str, Group] = {}
        self._deadlines = Deadlines()
        self._appends = Appends()
        self._rebalance = Rebalance(config, self._deadlines)
        self._membership = Membership(self._rebalance, new_id)
        self._consumers = ConsumerTurns(config, self._deadlines, topics or NoTopics(), new_id, self._request)
        self._loaded = False
        self._pending_offsets = PendingOffsets()
        self._topics_deleted_early: set[str] = set()  # while loading: their offsets may still be about to be replayed

    # ---- loading and unloading

    def replay(self, key: Buffer | None, value: Buffer | None, offset: int = -1) -> None:
        """What one record of the partition says becomes so. Raises ProtocolError where it is not in Kafka's format."""
        if key is None:
            return
        try:
            match read_key(key):
                case OffsetCommitKey() as named:
                    self._replay_offset(named, None if value is None else read_offset(value))
                case GroupMetadataKey() as named:
                    self._replay_group(named.group_id, None if value is None else read_group(value))
                case None:
                    consumer_key = read_consumer_key(key)
                    if consumer_key is not None:
                        read = None if value is None else read_consumer_value(consumer_key, value)
                        self._replay_consumer(consumer_key, read)
        except ProtocolError as error:
            raise ProtocolError(f"the record at offset {offset}: {error}") from error

    def replay_pending(self, producer_id: int, key: Buffer | None, value: Buffer | None) -> None:
        """The same, for a record that is part of this producer's transaction. Raises ProtocolError."""
        named = None if key is None else read_key(key)
        if isinstance(named, OffsetCommitKey) and value is not None:
            group = self._group(named.group_id)
            self._pending_offsets.add(producer_id, group, named.topic_partition, read_offset(value))

    def replay_end(self, producer_id: int, *, is_commit: bool) -> None:
        """The producer's transaction has ended: what it committed becomes so, or is forgotten."""
        for (group_id, partition), (place, value) in self._pending_offsets.take(producer_id).items():
            group = self.groups[group_id]
            settle(group, [partition])
            if is_commit:
                group.offsets[partition] = value
                self._pending_offsets.superseded(group, partition, by=place)
            self._forget_if_vacant(group_id)

    def _replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        group = self.groups.get(key.group_id)
        if group is not None:
            self._pending_offsets.superseded(group, key.topic_partition)
        if value is not None:
            self._group(key.group_id).offsets[key.topic_partition] = value
        elif key.group_id in self.groups:
            self.groups[key.group_id].offsets.pop(key.topic_partition, None)
            self._forget_if_vacant(key.group_id)

    def _replay_group(self, group_id: str, value: GroupMetadataValue | None) -> None:
        if value is not None:
            self._group(group_id).persisted = value
        elif group_id in self.groups:
            self.groups[group_id].persisted = None
            self._forget_if_vacant(group_id)

    def _replay_consumer(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        group = self.groups.get(key.group_id)
        if value is not None:
            group = self._group(key.group_id)
            group.consumer = group.consumer or ConsumerGroup(group_id=key.group_id)
        if group is None or group.consumer is None:
            return
        group.consumer.apply(key, value)
        if group.consumer.is_gone:
            group.consumer = None
            self._forget_if_vacant(key.group_id)

    def loaded(self, now: Millis, timestamp: Millis | None = None) -> list[Effect]:
        """The whole partition has been replayed: sessions of the members found begin now."""
        turn = self._turn(now, timestamp)
        self._loaded = True
        self._arm_expiry(turn)
        for _, group in sorted(self.groups.items()):
            self._restore(group, turn)
        self._delete_topics(frozenset(self._topics_deleted_early), turn)
        return turn.effects

    def _restore(self, group: Group, turn: Turn) -> None:
        if group.consumer is not None:
            self._consumers.restore(group, turn)
            return
        group.restore()
        for member in group.members.values():
            self._rebalance.touch(group, member, turn)
        if len(group.members) > self.config.group_max_size:
            self._rebalance.prepare(group, turn, f"{len(group.members)} members are more than is allowed now")

    def unload(self) -> list[Effect]:
        """The partition is another broker's now: whoever waits shall look for it there. Drop the object afterwards."""
        moved = ErrorCode.NOT_COORDINATOR
        effects: list[Effect] = []
        for _, group in sorted(self.groups.items()):
            for member in group.members.values():
                if member.join is not None:
                    refused = join_error(member.join.api_version, member.member_id, moved)
                    effects.append(Reply(request_id=member.join.request_id, response=refused))
                if member.sync is not None:
                    effects.append(
                        Reply(request_id=member.sync.request_id, response=SyncGroupResponse(error_code=moved))
                    )
            for item in group.waiting:
                if isinstance(item, Request):
                    refusal = refuse(item.message, item.api_version, moved)
                    effects.append(Reply(request_id=item.request_id, response=refusal))
        for purpose in self._appends.purposes():
            match purpose:
                case StoreConsumerGroup():
                    told = heartbeat_error(moved)
                    effects += [Reply(request_id=each, response=told) for each, _ in purpose.answers]
                case StoreOffsets():
                    response = offsets.failed_commit(purpose.response, moved)
                    effects.append(Reply(request_id=purpose.request_id, response=response))
                case StoreTransactionalOffsets():
                    failed = transactional.failed(purpose.response, moved)
                    effects.append(Reply(request_id=purpose.request_id, response=failed))
                case DeleteOffsets():
                    effects.append(Reply(request_id=purpose.request_id, response=offsets.failed_delete(moved)))
                case DeleteGroupRecords(request_id=int(request_id), response=DeleteGroupsResponse() as prepared):
                    effects.append(Reply(request_id=request_id, response=_failed_deletion(prepared, moved)))
        return effects

    # ---- the machine

    def next_deadline(self) -> Millis | None:
        """When a Tick is due at the latest, on the clock of `now`; None before `loaded`."""
        return self._deadlines.next()

    def step(self, event: Event, now: Millis, timestamp: Millis | None = None) -> list[Effect]:
        """What follows from an event at that time, in this order."""
        turn = self._turn(now, timestamp)
        match event:
            case Request():
                if self._loaded:
                    self._request(event, turn)
                else:
                    turn.reply(event.request_id, while_loading(event.message, event.api_version))
            case Appended():
                self._appends.reported(event.token, event.error_code)
                while (done := self._appends.take_done()) is not None:
                    in_flight, error_code = done
                    if error_code is ErrorCode.NONE:
                        for key, value in in_flight.records:
                            match in_flight.purpose:
                                case StoreTransactionalOffsets(producer_id=producer_id):
                                    self.replay_pending(producer_id, key, value)
                                case _:
                                    self.replay(key, value)
                    self._appended(in_flight.purpose, error_code, turn)
            case TopicsDeleted():
                if self._loaded:
                    self._delete_topics(frozenset(event.topics), turn)
                else:
                    self._topics_deleted_early.update(event.topics)
            case TransactionEnded():
                self.replay_end(event.producer_id, is_commit=event.is_commit)
            case Tick():
                pass
            case _:
                assert_never(event)
        while (due := self._deadlines.pop_due(now)) is not None:
            self._due(due, turn)
        return turn.effects

    @property
    def is_loaded(self) -> bool:
        """Whether all of the partition was replayed."""
        return self._loaded

    def _turn(self, now: Millis, timestamp: Millis | None) -> Turn:
        return Turn(now, now if timestamp is None else timestamp, self._appends, self.groups)

    def _group(self, group_id: str) -> Group:
        """The group, made if need be."""
        return self.groups.setdefault(group_id, Group(group_id=group_id))

    def _forget_if_vacant(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.vacant:
            del self.groups[group_id]

    # ---- requests

    def _request(self, event: Request, turn: Turn) -> None:
        message = event.message
        match message:
            case ConsumerGroupHeartbeatRequest():
                self._heartbeat_of_consumer(event, message, turn)
            case ConsumerGroupDescribeRequest():
                described = consumer_queries.describe(message, self.groups, self._consumers.protocol)
                turn.reply(event.request_id, described)
            case JoinGroupRequest():
                self._join(event, message, turn)
            case SyncGroupRequest():
                self._membership.sync(event, message, self.groups.get(message.group_id), turn)
            case HeartbeatRequest():
                self._membership.heartbeat(event, message, self.groups.get(message.group_id), turn)
            case LeaveGroupRequest():
                self._membership.leave(event, message, self.groups.get(message.group_id), turn)
                self._forget_if_vacant(message.group_id)
            case OffsetCommitRequest():
                self._commit(event, message, turn)
            case TxnOffsetCommitRequest():
                self._commit_in_transaction(event, message, turn)
            case OffsetFetchRequest():
                fetched = offsets.fetch(message, event.api_version, self.groups)
                if message.require_stable:
                    transactional.only_stable(message, fetched, self.groups)
                turn.reply(event.request_id, fetched)
            case OffsetDeleteRequest():
                offsets.delete(event, message, self.groups.get(message.group_id), turn)
            case DescribeGroupsRequest():
                turn.reply(event.request_id, queries.describe(message, event.api_version, self.groups))
            case ListGroupsRequest():
                turn.reply(event.request_id, queries.list_groups(message, self.groups))
            case DeleteGroupsRequest():
                self._delete_groups(event, message, turn)
            case _:
                assert_never(message)

    def _heartbeat_of_consumer(self, event: Request, message: ConsumerGroupHeartbeatRequest, turn: Turn) -> None:
        if not message.group_id:
            turn.reply(event.request_id, refuse(message, event.api_version, ErrorCode.INVALID_REQUEST))
            return
        self._consumers.submit(self._group(message.group_id), event, turn)
        self._forget_if_vacant(message.group_id)

    def _join(self, event: Request, message: JoinGroupRequest, turn: Turn) -> None:
        group = self.groups.get(message.group_id)
        if group is not None and group.is_changing:
            group.waiting.append(event)
        elif group is not None and group.consumer is not None and group.state is State.EMPTY:
            if group.consumer.members:
                refusal = join_error(event.api_version, message.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
                turn.reply(event.request_id, refusal)
            else:
                self._consumers.empty_out(group, event, turn)
        else:
            self._membership.join(event, message, self.groups, turn)
            self._forget_if_vacant(message.group_id)

    def _commit(self, event: Request, message: OffsetCommitRequest, turn: Turn) -> None:
        error = offsets.check_commit(message, self.groups.get(message.group_id), event.api_version)
        if error is not ErrorCode.NONE:
            turn.reply(event.request_id, offsets.refuse_commit(message, error))
            return
        group = self._group(message.group_id)
        member = group.members.get(message.member_id)
        if member is not None:
            self._rebalance.touch(group, member, turn)
        offsets.commit(event, message, group, self.config, turn)
        self._forget_if_vacant(message.group_id)

    def _commit_in_transaction(self, event: Request, message: TxnOffsetCommitRequest, turn: Turn) -> None:
        error = transactional.check(message, self.groups.get(message.group_id))
        if error is not ErrorCode.NONE:
            turn.reply(event.request_id, transactional.refuse(message, error))
            return
        group = self._group(message.group_id)
        member = group.members.get(message.member_id)
        if member is not None:
            self._rebalance.touch(group, member, turn)
        transactional.commit(event, message, group, self.config, turn)
        self._forget_if_vacant(message.group_id)

    def _delete_groups(self, event: Request, message: DeleteGroupsRequest, turn: Turn) -> None:
        results = []
        doomed: list[Group] = []
        for group_id in message.groups_names:
            group = self.groups.get(group_id)
            if group is not None and group.is_changing:  # whether it is empty will be known then
                group.waiting.append(event)
                return
        for group_id in dict.fromkeys(message.groups_names):
            group = self.groups.get(group_id)
            if group is None or group.state is State.DEAD:
                error = ErrorCode.GROUP_ID_NOT_FOUND
            elif not group.is_empty:
                error = ErrorCode.NON_EMPTY_GROUP
            else:
                error = ErrorCode.NONE
                doomed.append(group)
            results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        response = DeleteGroupsResponse(results=results)
        if doomed:
            self._bury(doomed, turn, event.request_id, response)
        else:
            turn.reply(event.request_id, response)

    def _bury(
        self,
        doomed: list[Group],
        turn: Turn,
        request_id: int | None = None,
        response: DeleteGroupsResponse | None = None,
    ) -> None:
        """Empty groups become Dead until their tombstones are durable."""
        records = []
        for group in doomed:
            for member_id in sorted(group.pending_members):
                self._rebalance.drop(group, member_id, turn)
            group.become(State.DEAD, turn.timestamp)
            turn.note(group, "deleted")
            records += [*offsets.tombstones(group), group_record(group.group_id, None)]
            if group.consumer is not None:
                draft = Draft(group.consumer)
                draft.delete_all()
                records += draft.records
        ids = tuple(group.group_id for group in doomed)
        turn.append(records, DeleteGroupRecords(group_ids=ids, request_id=request_id, response=response))

    def _delete_topics(self, topics: frozenset[str], turn: Turn) -> None:
        for group_id, group in sorted(self.groups.items()):
            records = offsets.tombstones(group, topics)
            if records:
                turn.append(records, ExpireOffsets(group_id=group_id))

    # ---- what was appended

    def _appended(self, purpose: Purpose, error_code: ErrorCode, turn: Turn) -> None:
        for group_id in group_ids(purpose):
            self.groups[group_id].records_in_flight -= 1
        match purpose:
            case StoreAssignment():
                self._rebalance.assignment_stored(self.groups[purpose.group_id], purpose, error_code, turn)
            case StoreStaticMember():
                self._rebalance.static_member_stored(self.groups[purpose.group_id], purpose, error_code, turn)
            case StoreOffsets():
                in_flight = self.groups[purpose.group_id].offsets_in_flight
                in_flight.subtract(purpose.partitions)
                for partition in purpose.partitions:
                    if in_flight[partition] <= 0:
                        del in_flight[partition]
                response = purpose.response
                if error_code is not ErrorCode.NONE:
                    response = offsets.failed_commit(response, offset_error(error_code))
                turn.reply(purpose.request_id, response)
            case StoreTransactionalOffsets():
                settle(self.groups[purpose.group_id], purpose.partitions)
                answer = purpose.response
                if error_code is not ErrorCode.NONE:
                    answer = transactional.failed(answer, offset_error(error_code))
                turn.reply(purpose.request_id, answer)
            case DeleteOffsets():
                failed = error_code is not ErrorCode.NONE
                deletion = offsets.failed_delete(group_error(error_code)) if failed else purpose.response
                turn.reply(purpose.request_id, deletion)
            case DeleteGroupRecords():
                self._deleted(purpose, error_code, turn)
            case StoreConsumerGroup():
                # Where the log deleted the group, and nothing else is left of it, those who wait begin a new one.
                self._consumers.stored(self._group(purpose.group_id), purpose, error_code, turn)
            case StoreEmpty() | ExpireOffsets():
                pass
            case _:
                assert_never(purpose)
        for group_id in group_ids(purpose):
            self._forget_if_vacant(group_id)

    def _deleted(self, purpose: DeleteGroupRecords, error_code: ErrorCode, turn: Turn) -> None:
        response = purpose.response
        if error_code is not ErrorCode.NONE:
            for group_id in purpose.group_ids:
                self._revive(group_id)
            response = None if response is None else _failed_deletion(response, group_error(error_code))
        if purpose.request_id is not None and response is not None:
            turn.reply(purpose.request_id, response)

    def _revive(self, group_id: str) -> None:
        """Its tombstones did not reach the log: it is Empty again, as it was. Nothing leads back from Dead itself."""
        self.groups[group_id] = replace(self.groups[group_id], state=State.EMPTY)

    # ---- what falls due

    def _due(self, key: Key, turn: Turn) -> None:
        if key == EXPIRY_KEY:
            self._expire_offsets(turn)
            return
        group = self.groups[key.group_id]
        if key.kind in (CONSUMER_SESSION, REVOCATION):
            self._consumers.submit(group, key, turn)
        elif key.kind == SESSION:
            self._rebalance.session_is_over(group, key.member_id, turn)
        elif key.kind == JOIN:
            self._rebalance.join_time_is_up(group, turn)
        elif key.kind == SYNC:
            self._rebalance.sync_time_is_up(group, turn)
        self._forget_if_vacant(key.group_id)

    def _arm_expiry(self, turn: Turn) -> None:
        self._deadlines.set(EXPIRY_KEY, Millis(turn.now + max(self.config.offsets_retention_check_interval_ms, 1)))

    def _expire_offsets(self, turn: Turn) -> None:
        """Delete offsets nobody needs, and groups with nothing left. Groups with records in flight have time."""
        self._arm_expiry(turn)
        for _, group in sorted(self.groups.items()):
            if group.records_in_flight:
                continue
            partitions = offsets.expired(group, self.config, turn.timestamp)
            ends = group.is_empty and not group.pending_members
            if ends and len(partitions) == len(group.offsets) and not group.unstable:
                self._bury([group], turn)
            elif partitions:
                offsets.expire(group, partitions, turn)

    # ---- for tests and simulations

    def durable(self) -> Durable:
        """What the log says of every group. Equal to that of a fresh coordinator that replayed the log."""
        return {
            group_id: (
                group.persisted,
                None if group.consumer is None else replace(group.consumer, topics_version=NEVER),
                dict(group.offsets),
            )
            for group_id, group in sorted(self.groups.items())
            if group.persisted is not None or group.consumer is not None or group.offsets
        }

    def _unstable(self, group_id: str) -> Counter[TopicPartition]:
        counts: Counter[TopicPartition] = Counter()
        for purpose in self._appends.purposes():
            if isinstance(purpose, StoreTransactionalOffsets) and purpose.group_id == group_id:
                counts.update(purpose.partitions)
        for partition in {*self.groups[group_id].unstable, *counts}:
            counts[partition] += self._pending_offsets.count(group_id, partition)
        return counts

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations, between steps, once loaded."""
        expected = {EXPIRY_KEY}
        in_flight = [group_id for purpose in self._appends.purposes() for group_id in group_ids(purpose)]
        for group_id, group in self.groups.items():
            group.validate()
            assert not group.vacant, group
            assert group.records_in_flight == in_flight.count(group_id), group
            assert group.unstable == self._unstable(group_id), group
            expected |= {Key(group_id, SESSION, m) for m in (*group.members, *group.pending_members)}
            expected |= self._consumers.expected_deadlines(group)
            if group.state is State.PREPARING_REBALANCE:
                expected.add(Key(group_id, JOIN))
            if group.pending_sync:
                expected.add(Key(group_id, SYNC))
            if group.state is State.STABLE and not group.records_in_flight:
                assignments = {m.member_id: m.assignment or b"" for m in group.members.values()}
                assert group.persisted is not None
                live = group.to_value(assignments)
                assert live.members == group.persisted.members, (live, group.persisted)
                assert live.generation_id == group.persisted.generation_id
                assert (live.leader, live.protocol) == (group.persisted.leader, group.persisted.protocol)
        assert set(in_flight) <= self.groups.keys()
        assert self._deadlines.all().keys() == expected, (self._deadlines.all(), expected)


def _failed_deletion(prepared: DeleteGroupsResponse, error_code: ErrorCode) -> DeleteGroupsResponse:
    """The answer prepared for success, with this error where it said NONE."""
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=each.group_id, error_code=each.error_code or error_code)
            for each in prepared.results
        ]
    )
