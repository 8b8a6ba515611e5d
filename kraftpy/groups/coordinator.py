"""The coordinator of the groups whose ids map to one partition of `__consumer_offsets`.

    coordinator = GroupCoordinator(config, new_id)
    for each record of the partition, in order: coordinator.replay(key, value, offset)
    effects = coordinator.loaded(now, timestamp)
    effects = coordinator.step(event, now, timestamp)     # for every request, Appended, and at next_deadline() a Tick
    effects = coordinator.unload()                        # the partition is no longer ours; then drop the object

There are two clocks. `now` drives sessions and barriers and should never jump (a monotonic clock). `timestamp` is the
wall clock, which goes into records and determines expiry. If only `now` is given, it serves as both.

Invariants: durable state changes in `replay` alone, once the log has the record, so replaying the log gives the same
state again; each request is answered once; an answer that a client may rely on is sent after its records are durable.

An append that failed must not be in the log. If that is not known (REQUEST_TIMED_OUT or
NOT_ENOUGH_REPLICAS_AFTER_APPEND after the write), the shell should unload and load again after reporting it.

A group is of exactly one kind (`group.Kind`). The requests of a group of the consumer protocol go through its queue
(`change_queue`, `consumer.changes`), and so does anything else that must not overtake its records.

`share.changes` does for share groups what `consumer.changes` does for consumer groups. The shell passes its requests on
to the share coordinators (`ChangeState`). Streams groups have `streams.changes`; the shell creates the internal topics
that they lack (`CreateInternalTopics`).

Left out: authorization; quotas.

Read: the classic protocol: KIP-62, KIP-134, KIP-211, KIP-345, KIP-394, KIP-429, KIP-496, KIP-814; the consumer
protocol: KIP-848, KIP-1101; share groups: KIP-932; streams groups: KIP-1071.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, assert_never

from kraftpy.groups import offsets, queries
from kraftpy.groups import transactional_offsets as transactional
from kraftpy.groups.admission import Admission
from kraftpy.groups.appends import (
    Appends,
    DeleteDoomedOffsets,
    DeleteGroupRecords,
    DeleteOffsets,
    ExpireOffsets,
    InFlight,
    Purpose,
    StoreAssignment,
    StoreConsumerGroup,
    StoreEmpty,
    StoreOffsets,
    StoreShareGroup,
    StoreStaticMember,
    StoreStreamsGroup,
    StoreTransactionalOffsets,
    group_error,
    group_ids,
    offset_error,
)
from kraftpy.groups.backlog import Backlog
from kraftpy.groups.classic.group import ClassicGroup
from kraftpy.groups.classic.membership import Membership
from kraftpy.groups.classic.reading import Readings
from kraftpy.groups.classic.rebalance import JOIN, SESSION, SYNC, Rebalance, join_error
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.consumer.changes import ConsumerChangeQueue
from kraftpy.groups.consumer.group import ConsumerGroup
from kraftpy.groups.consumer.protocol import heartbeat_error
from kraftpy.groups.deadlines import Deadlines, Key
from kraftpy.groups.deletion import Deletions
from kraftpy.groups.descriptions import Descriptions
from kraftpy.groups.events import (
    Appended,
    Computed,
    Effect,
    Event,
    Request,
    StateChanged,
    Tick,
    TopicsDeleted,
    TransactionEnded,
)
from kraftpy.groups.expiry import Expiry
from kraftpy.groups.group import Group
from kraftpy.groups.invariants import Invariants
from kraftpy.groups.member_errors import NO_GROUP_ID
from kraftpy.groups.member_timers import AGAIN_MS
from kraftpy.groups.memory import Room
from kraftpy.groups.registry import GroupRegistry
from kraftpy.groups.replay import Durable, durable
from kraftpy.groups.restoration import Restoration
from kraftpy.groups.routing import group_ids as named_groups
from kraftpy.groups.routing import refuse, while_loading
from kraftpy.groups.share.changes import ShareChangeQueue
from kraftpy.groups.share.group import ShareGroup
from kraftpy.groups.step import Step
from kraftpy.groups.streams.changes import StreamsChangeQueue
from kraftpy.groups.streams.group import StreamsGroup
from kraftpy.groups.topic_deletion import DeletedTopics
from kraftpy.groups.topic_matches import TopicMatches
from kraftpy.groups.topics import NoTopics, Topics
from kraftpy.groups.transactional_offsets import mark_stable, uncount
from kraftpy.groups.unloading import refusals
from kraftpy.ports import Buffer
from kraftpy.protocol.errors import ErrorCode
from kraftpy.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from kraftpy.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from kraftpy.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kraftpy.protocol.messages.delete_groups import DeleteGroupsRequest
from kraftpy.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from kraftpy.protocol.messages.describe_groups import DescribeGroupsRequest
from kraftpy.protocol.messages.heartbeat import HeartbeatRequest
from kraftpy.protocol.messages.join_group import JoinGroupRequest
from kraftpy.protocol.messages.leave_group import LeaveGroupRequest
from kraftpy.protocol.messages.list_groups import ListGroupsRequest
from kraftpy.protocol.messages.offset_commit import OffsetCommitRequest
from kraftpy.protocol.messages.offset_delete import OffsetDeleteRequest
from kraftpy.protocol.messages.offset_fetch import OffsetFetchRequest
from kraftpy.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from kraftpy.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kraftpy.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from kraftpy.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from kraftpy.protocol.messages.sync_group import SyncGroupRequest
from kraftpy.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from kraftpy.types import Millis

DUE_AT_ONCE: Final = 500
"""How many passed deadlines are handled before other requests are served: many members may fall silent together."""


class GroupCoordinator:
    """All groups in one partition of `__consumer_offsets`, and their committed offsets."""

    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        topics: Topics | None = None,
        settings: Settings | None = None,
        matches: TopicMatches | None = None,
        room: Room | None = None,
    ) -> None:
        """`new_id` returns unique, unguessable text for member ids; `topics` are the cluster's topics.

        `settings` returns the settings of a single group; without it, every group uses those of `config`. `matches` and
        `room` are shared by all coordinators of a node and bound their work on regular expressions and their memory.
        """
        self._matches = matches = matches or TopicMatches(topics or NoTopics())
        self.config = config
        self._registry = GroupRegistry()
        self.groups = self._registry.groups
        self._deadlines = Deadlines()
        self._appends = Appends()
        self._rebalance = Rebalance(config, self._deadlines)
        self._membership = Membership(self._rebalance, new_id)
        self._consumers = ConsumerChangeQueue(
            config,
            settings or config.settings,
            self._rebalance,
            topics or NoTopics(),
            new_id,
            self._reconsider,
            matches,
        )
        self._shares = ShareChangeQueue(
            config, settings or config.settings, self._deadlines, topics or NoTopics(), self._reconsider
        )
        self._streams = StreamsChangeQueue(
            config, settings or config.settings, self._rebalance, topics or NoTopics(), self._reconsider, matches
        )
        self._queues = (self._consumers, self._shares, self._streams)
        self._deletions = Deletions(self.groups, self._rebalance, self._shares)
        self._loaded = False
        self._restoration = Restoration(config, self.groups, self._registry.usage, self._queues, self._rebalance)
        self._admission = Admission(config, room, self._registry.usage)
        protocols = self._consumers.protocol, self._shares.protocol, self._streams.protocol
        self._descriptions = Descriptions(self.groups, *protocols)
        self._readings = Readings(self.groups, self._admission.room, self._attempt)
        self._expiry = Expiry(config, self.groups, self._deadlines, self._deletions, self._readings)
        self._readings.for_expiry = self._expiry.look_again
        self._deleted_topics = DeletedTopics(self.groups, self._deadlines, self._shares)
        self._backlog = Backlog(
            self.groups,
            self._deadlines,
            self._expiry,
            self._deleted_topics,
            self._deletions,
            self._registry.pending_offsets,
            self._registry.forget_if_vacant,
        )
        self._invariants = Invariants(
            self.groups, self._deadlines, self._appends, self._queues, self._deletions, self._registry.pending_offsets
        )

    # ---- loading and unloading

    def replay(self, key: Buffer | None, value: Buffer | None, offset: int = -1, parsed: object = None) -> None:
        """Apply one record of the partition, `parsed` before if that takes long. Raises ProtocolError if it is not in
        Kafka's format."""
        self._registry.replay(key, value, offset, parsed)

    def replay_pending(self, producer_id: int, key: Buffer | None, value: Buffer | None) -> None:
        """Apply one record that is part of this producer's transaction. Raises ProtocolError."""
        self._registry.replay_pending(producer_id, key, value)

    def _replay_appended(self, in_flight: InFlight) -> None:
        purpose = in_flight.purpose
        if isinstance(purpose, StoreConsumerGroup | StoreStreamsGroup | StoreShareGroup):
            group = self.groups[purpose.group_id]
            if any(queue.take_over(group) for queue in self._queues):
                for key, value in in_flight.records:
                    self._registry.count(key, value)
                return
        for key, value in in_flight.records:
            if isinstance(purpose, StoreTransactionalOffsets):
                self.replay_pending(purpose.producer_id, key, value)
            else:
                self.replay(key, value)

    def replay_end(self, producer_id: int, *, is_commit: bool) -> None:
        """End the producer's transaction: its offsets are committed, or dropped, by `replay_on` or after `loaded`."""
        self._registry.pending_offsets.end(producer_id, is_commit=is_commit)

    def replay_on(self) -> bool:
        """Do a piece of what ended transactions have left to do; return True if there is more. For loading."""
        return self._backlog.end_transactions()

    def loaded(self, now: Millis, timestamp: Millis | None = None) -> list[Effect]:
        """Begin serving once the whole partition has been replayed. The sessions of all members start now."""
        while self.restore(now, timestamp):
            pass
        step = self._begin_step(now, timestamp)
        step.effects = self._restoration.take_effects()
        self._loaded = True
        self._backlog.begin(step)
        return step.effects

    def restore(self, now: Millis, timestamp: Millis | None = None) -> bool:
        """Do a piece of what `loaded` does for each member; return True if there is more. For loading."""
        return self._restoration.go_on(self._begin_step(now, timestamp))

    def unload(self) -> list[Effect]:
        """Refuse all waiting requests: the partition moved to another broker. Drop the object afterwards."""
        self._admission.room.leave(self._registry.usage)
        return [*refusals(self.groups, self._appends.purposes(), self._waiting())]

    def _waiting(self) -> list[Request]:
        """Return the requests that wait for something other than the log, a barrier, or their group's queue."""
        return [
            *self._shares.waiting(),
            *self._deletions.waiting(),
            *self._readings.waiting(),
            *self._descriptions.waiting(),
        ]

    # ---- the machine

    def next_deadline(self) -> Millis | None:
        """The latest time for the next Tick, on the clock of `now`; None before `loaded`."""
        return self._deadlines.next() if self._loaded else None

    def step(self, event: Event, now: Millis, timestamp: Millis | None = None) -> list[Effect]:
        """Handle an event and return its effects, in order."""
        step = self._begin_step(now, timestamp)
        match event:
            case Request():
                if self._loaded:
                    self._attempt(event, step)
                else:
                    step.reply(event.request_id, while_loading(event.message, event.api_version))
            case Appended():
                self._appends.reported(event.token, event.error_code)
                while (done := self._appends.take_done()) is not None:
                    in_flight, error_code = done
                    if error_code is ErrorCode.NONE:
                        self._replay_appended(in_flight)
                    self._appended(in_flight.purpose, error_code, step)
            case TopicsDeleted():
                self._deleted_topics.deleted(event, step)
            case TransactionEnded():
                self.replay_end(event.producer_id, is_commit=event.is_commit)
                self._backlog.transaction_ended(step)
            case StateChanged():
                self._shares.state_changed(event, self.groups, step)
            case Computed():
                self._computed(event, step)
            case Tick():
                pass
            case _:
                assert_never(event)
        for _ in range(DUE_AT_ONCE if self._loaded else 0):  # the rest remains due
            if (due := self._deadlines.pop_due(now)) is None:
                break
            self._attempt_due(due, step)
        return step.effects

    @property
    def is_loaded(self) -> bool:
        """True once the whole partition has been replayed."""
        return self._loaded

    def _begin_step(self, now: Millis, timestamp: Millis | None) -> Step:
        self._matches.advance(now)
        return Step(now, now if timestamp is None else timestamp, self._appends, self.groups)

    def _classic(self, group_id: str) -> ClassicGroup | None:
        """Return the group as the classic protocol sees it; None if it does not exist."""
        group = self.groups.get(group_id)
        return None if group is None else group.classic_or_empty()

    # ---- requests

    def _attempt(self, event: Request, step: Step) -> None:
        """Handle a request. An unexpected error costs only this request, provided its groups are still consistent.

        If they are not, the error propagates out of `step`, and the shell loads the partition again.
        """
        try:
            self._request(event, step)
        except Exception as error:
            named = named_groups(event.message, event.api_version) or []
            self._check_whole(named, error)
            step.survived(type(event.message).__name__, named[0] if len(named) == 1 else "", error)
            is_waiting = self._invariants.is_waiting(event.request_id, named, self._waiting())
            if not is_waiting and not step.has_answered(event.request_id):
                refusal = refuse(event.message, event.api_version, ErrorCode.UNKNOWN_SERVER_ERROR)
                step.reply(event.request_id, refusal)

    def _reconsider(self, item: Request | Key, step: Step) -> None:
        """Handle an item from a group's queue that does not belong to that kind of group."""
        if isinstance(item, Key):
            self._due(item, step)
        else:
            self._attempt(item, step)

    def _check_whole(self, group_ids: Iterable[str], error: Exception) -> None:
        """Raise the error if it left one of these groups half changed."""
        for group_id in group_ids:
            self._registry.forget_if_vacant(group_id)
            if group_id in self.groups and not self._invariants.is_whole(self.groups[group_id]):
                raise error

    def _request(self, event: Request, step: Step) -> None:
        message = event.message
        if (refusal := self._admission.refusal(event, self.groups)) is not None:
            step.reply(event.request_id, refusal)
            return
        match message:
            case ConsumerGroupHeartbeatRequest():
                self._heartbeat_of_consumer(event, message, step)
            case ConsumerGroupDescribeRequest() | ShareGroupDescribeRequest() | StreamsGroupDescribeRequest():
                self._descriptions.request(event, message, step)
            case ShareGroupHeartbeatRequest() | AlterShareGroupOffsetsRequest() | DeleteShareGroupOffsetsRequest():
                self._of_share_group(event, message.group_id, step)
            case StreamsGroupHeartbeatRequest():
                self._of_streams_group(event, message.group_id, step)
            case JoinGroupRequest() | SyncGroupRequest() | HeartbeatRequest() | LeaveGroupRequest() if (
                self._is_with_consumers(message.group_id)
            ):
                self._consumers.submit(self.groups[message.group_id], event, step)
            case JoinGroupRequest():
                self._join(event, message, step)
            case SyncGroupRequest():
                self._membership.sync(event, message, self._classic(message.group_id), step)
            case HeartbeatRequest():
                self._membership.heartbeat(event, message, self._classic(message.group_id), step)
            case LeaveGroupRequest():
                self._membership.leave(event, message, self._classic(message.group_id), step)
                self._registry.forget_if_vacant(message.group_id)
            case OffsetCommitRequest():
                self._commit(event, message, step)
            case TxnOffsetCommitRequest():
                self._commit_in_transaction(event, message, step)
            case OffsetFetchRequest():
                fetched = offsets.fetch(message, event.api_version, self.groups)
                if message.require_stable:
                    transactional.only_stable(message, fetched, self.groups)
                step.reply(event.request_id, fetched)
            case OffsetDeleteRequest():
                group = self.groups.get(message.group_id)
                if not self._readings.begin(group, event, step):
                    offsets.delete(event, message, group, step)
            case DescribeGroupsRequest():
                step.reply(event.request_id, queries.describe(message, event.api_version, self.groups))
            case ListGroupsRequest():
                step.reply(event.request_id, queries.list_groups(message, self.groups, event.among))
            case DeleteGroupsRequest():
                self._deletions.request(event, message, step)
                for group_id in message.groups_names:
                    self._registry.forget_if_vacant(group_id)
            case _:
                assert_never(message)

    def _heartbeat_of_consumer(self, event: Request, message: ConsumerGroupHeartbeatRequest, step: Step) -> None:
        if not message.group_id:
            refusal = refuse(message, event.api_version, ErrorCode.INVALID_REQUEST, NO_GROUP_ID)
            step.reply(event.request_id, refusal)
            return
        # If they are being stored, its members will be known in a moment.
        if self._appends.stores(message.group_id, StoreAssignment, StoreStaticMember):
            step.reply(event.request_id, refuse(message, event.api_version, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        group = self._registry.named(message.group_id)
        if isinstance(group.kind, ShareGroup) or self._is_streams(group):
            text = f"Group {message.group_id} is not a consumer group."
            step.reply(event.request_id, heartbeat_error(ErrorCode.GROUP_ID_NOT_FOUND, text))
            return
        self._consumers.submit(group, event, step)
        self._registry.forget_if_vacant(message.group_id)

    def _is_with_consumers(self, group_id: str) -> bool:
        """Return True if a classic request is for a consumer group that has members, or may be about to."""
        group = self.groups.get(group_id)
        if group is None or group.is_dead:
            return False
        if self._is_streams(group):
            return False
        return group.is_changing or (isinstance(group.kind, ConsumerGroup) and bool(group.kind.members))

    def _is_streams(self, group: Group) -> bool:
        """Return True if this is a streams group, or is becoming one."""
        return isinstance(group.kind, StreamsGroup) or self._appends.stores(group.group_id, StoreStreamsGroup)

    def _of_share_group(self, event: Request, group_id: str, step: Step) -> None:
        if not group_id:
            is_heartbeat = isinstance(event.message, ShareGroupHeartbeatRequest)
            error = ErrorCode.INVALID_REQUEST if is_heartbeat else ErrorCode.INVALID_GROUP_ID
            why = NO_GROUP_ID if is_heartbeat else None
            step.reply(event.request_id, refuse(event.message, event.api_version, error, why))
            return
        self._shares.submit(self._registry.named(group_id), event, step)
        self._registry.forget_if_vacant(group_id)

    def _of_streams_group(self, event: Request, group_id: str, step: Step) -> None:
        if self._appends.stores(group_id, StoreShareGroup):  # its kind will be known in a moment
            refusal = refuse(event.message, event.api_version, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            step.reply(event.request_id, refusal)
            return
        self._streams.submit(self._registry.named(group_id), event, step)
        self._registry.forget_if_vacant(group_id)

    def _join(self, event: Request, message: JoinGroupRequest, step: Step) -> None:
        group = self.groups.get(message.group_id)
        if group is None or group.is_dead:
            self._join_classic(event, message, step)
        elif self._is_streams(group) and group.is_changing:
            self._streams.submit(group, event, step)  # by then its members may have left
        elif isinstance(group.kind, StreamsGroup) and group.is_empty:
            self._streams.empty_out(group, event, step)
        elif isinstance(group.kind, ShareGroup | StreamsGroup):
            refused = join_error(event.api_version, message.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            step.reply(event.request_id, refused)
        elif isinstance(group.kind, ConsumerGroup):
            self._consumers.empty_out(group, event, step)
        else:
            self._join_classic(event, message, step)

    def _join_classic(self, event: Request, message: JoinGroupRequest, step: Step) -> None:
        self._membership.join(event, message, self.groups, step)
        self._registry.forget_if_vacant(message.group_id)

    def _commit(self, event: Request, message: OffsetCommitRequest, step: Step) -> None:
        error = offsets.check_commit(message, self.groups.get(message.group_id), event.api_version)
        error = self._appends.share_error(self.groups.get(message.group_id)) or error
        if error is not ErrorCode.NONE:
            step.reply(event.request_id, offsets.refuse_commit(message, error))
            return
        group = self._registry.named(message.group_id)
        self._touch_classic(group, message.member_id, step)
        offsets.commit(event, message, group, self.config, self._admission.room, step, self._deleted_topics.is_pending)
        self._registry.forget_if_vacant(message.group_id)

    def _commit_in_transaction(self, event: Request, message: TxnOffsetCommitRequest, step: Step) -> None:
        error = transactional.check(message, self.groups.get(message.group_id))
        error = self._appends.share_error(self.groups.get(message.group_id)) or error
        if error is not ErrorCode.NONE:
            step.reply(event.request_id, transactional.refuse(message, error))
            return
        group = self._registry.named(message.group_id)
        self._touch_classic(group, message.member_id, step)
        transactional.commit(
            event, message, group, self.config, self._admission.room, step, self._deleted_topics.is_pending
        )
        self._registry.forget_if_vacant(message.group_id)

    def _touch_classic(self, group: Group, member_id: str, step: Step) -> None:
        classic = group.classic
        if classic is not None and member_id in classic.members:
            self._rebalance.touch(classic, classic.members[member_id], step)

    # ---- what was appended

    def _appended(self, purpose: Purpose, error_code: ErrorCode, step: Step) -> None:
        for group_id in group_ids(purpose):
            self.groups[group_id].records_in_flight -= 1
        match purpose:
            case StoreAssignment():
                classic = self.groups[purpose.group_id].classic_or_empty()
                self._rebalance.assignment_stored(classic, purpose, error_code, step)
            case StoreStaticMember():
                classic = self.groups[purpose.group_id].classic_or_empty()
                self._rebalance.static_member_stored(classic, purpose, error_code, step)
            case StoreOffsets():
                uncount(self.groups[purpose.group_id].offsets_in_flight, purpose.partitions)
                response = purpose.response
                if error_code is not ErrorCode.NONE:
                    response = offsets.failed_commit(response, offset_error(error_code))
                step.reply(purpose.request_id, response)
            case StoreTransactionalOffsets():
                mark_stable(self.groups[purpose.group_id], purpose.partitions)
                answer = purpose.response
                if error_code is not ErrorCode.NONE:
                    answer = transactional.failed(answer, offset_error(error_code))
                step.reply(purpose.request_id, answer)
            case DeleteOffsets():
                failed = error_code is not ErrorCode.NONE
                deletion = offsets.failed_delete(group_error(error_code)) if failed else purpose.response
                step.reply(purpose.request_id, deletion)
            case DeleteDoomedOffsets():
                self._deletions.piece_stored(purpose, error_code, step)
            case DeleteGroupRecords():
                self._deletions.stored(purpose, error_code, step)
            case StoreConsumerGroup():
                # If the log deleted the group and nothing else is left of it, the waiting requests start a new one.
                self._consumers.stored(self._registry.named(purpose.group_id), purpose, error_code, step)
            case StoreShareGroup():
                self._shares.stored(self._registry.named(purpose.group_id), purpose, error_code, step)
            case StoreStreamsGroup():
                self._streams.stored(self._registry.named(purpose.group_id), purpose, error_code, step)
            case StoreEmpty() | ExpireOffsets():
                pass
            case _:
                assert_never(purpose)
        for group_id in group_ids(purpose):
            self._registry.forget_if_vacant(group_id)

    # ---- what falls due

    def _attempt_due(self, key: Key, step: Step) -> None:
        """Handle what is due. After an unexpected error it falls due again a little later."""
        try:
            self._due(key, step)
        except Exception as error:
            group, queue = self.groups.get(key.group_id), self._queue_of(key)
            if group is not None and queue is not None:
                if key not in self._deadlines and key not in group.waiting:
                    queue.again(group, key, step)
            elif self._backlog.is_for(key) or (group is not None and key in self._invariants.expected_deadlines(group)):
                self._deadlines.set(key, Millis(step.now + AGAIN_MS))
            self._check_whole([key.group_id], error)
            step.survived(key.kind, key.group_id, error)

    def _due(self, key: Key, step: Step) -> None:
        if self._backlog.is_for(key):
            self._backlog.go_on(key, step)
            return
        group, queue = self.groups.get(key.group_id), self._queue_of(key)
        if group is None:  # an unexpected error left the deadline behind
            return
        if queue is not None:
            queue.submit(group, key, step)
        elif group.is_changing:  # it may have migrated to the other protocol by the time its records are stored
            self._deadlines.set(key, Millis(step.now + AGAIN_MS))
        elif not isinstance(group.kind, ClassicGroup) or not self._invariants.expects(group, key):
            pass
        elif key.kind == SESSION:
            self._rebalance.session_is_over(group.kind, key.member_id, step)
        elif key.kind == JOIN:
            self._rebalance.join_time_is_up(group.kind, step)
        elif key.kind == SYNC:
            self._rebalance.sync_time_is_up(group.kind, step)
        self._registry.forget_if_vacant(key.group_id)

    def _computed(self, event: Computed, step: Step) -> None:
        if self._readings.computed(event, step):
            return
        if self._descriptions.computed(event, step):
            return
        group = self.groups.get(event.group_id)
        if group is None or group.decision is None or group.decision.token != event.token:
            return
        queue = next(each for each in self._queues if each.is_deciding(group))
        queue.computed(group, event, step)
        self._registry.forget_if_vacant(event.group_id)

    def _queue_of(self, key: Key) -> ConsumerChangeQueue | ShareChangeQueue | StreamsChangeQueue | None:
        return next((each for each in self._queues if key.kind in each.kinds), None)

    # ---- for tests and simulations

    def durable(self) -> Durable:
        """The durable state of every group. Equals that of a new coordinator that replayed the log."""
        return durable(self.groups)

    def validate(self) -> None:
        """Assert the invariants. For tests and simulations: call between steps, once loaded."""
        self._registry.usage.validate(self.groups)
        self._registry.pending_offsets.validate()
        self._invariants.check(*self._backlog.expected_deadlines())
