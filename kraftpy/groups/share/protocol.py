"""Decides the requests and timeouts of members of share groups (KIP-932).

Every decision works on a `ShareDraft`. It either refuses before adding anything to it, or adds all resulting records:
the member, the group's epoch, the new targets, the partitions the member now reads, and those to initialize. Nothing
here waits or sends; `changes` has the records stored and answers afterwards.

A partition is assigned once the share coordinators have state for it: new subscriptions take effect with a later
heartbeat. A change of topics or partitions is noticed at the next heartbeat of any member.

Differences from Kafka: a member may rejoin under its id at any epoch (Kafka: FENCED_MEMBER_EPOCH until its session
expires); of several partitions requested together, those that can be initialized are, even if others fail.

Left out: racks, which Kafka's assignor ignores as well.
"""

from __future__ import annotations

from functools import partial

from kraftpy.groups.apart import LIGHT, UNITS_AT_ONCE, Deciding, Work
from kraftpy.groups.assignment import Assignment, by_topic
from kraftpy.groups.assignment_interval import may_assign
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.events import Request
from kraftpy.groups.member_epochs import JOINING, LEAVING, next_epoch
from kraftpy.groups.member_errors import fenced_member, group_is_full, is_blank, unknown_member
from kraftpy.groups.share import partitions as share_partitions
from kraftpy.groups.share.assignor import ShareSubscriber, assign_simple
from kraftpy.groups.share.group import ShareDraft, ShareGroup
from kraftpy.groups.share.records import (
    ShareCurrentKey,
    ShareCurrentValue,
    ShareGroupKey,
    ShareGroupValue,
    ShareMemberKey,
    ShareMemberValue,
    ShareTargetMemberKey,
    ShareTargetMemberValue,
    ShareTargetMetadataKey,
    ShareTargetMetadataValue,
    partitions_of,
)
from kraftpy.groups.topics import Topics, hash_of_topics
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupTopicPartitions,
)
from kraftpy.types import Millis, TopicId

_LONGEST_MEMBER_ID = 36
"""The length of a UUID as text: members use UUIDs as their ids."""


def share_heartbeat_error(error_code: ErrorCode, text: str | None = None) -> ShareGroupHeartbeatResponse:
    """Return a heartbeat response that carries only an error."""
    return ShareGroupHeartbeatResponse(error_code=error_code, error_message=text or error_code.meaning)


class ShareProtocol:
    """Decides for the share groups in one partition."""

    def __init__(self, config: GroupConfig, settings: Settings, topics: Topics) -> None:
        self.config = config
        self.settings = settings
        self.topics = topics

    # ---- one heartbeat

    def heartbeat(
        self, draft: ShareDraft, event: Request, message: ShareGroupHeartbeatRequest, timestamp: Millis
    ) -> Deciding[ShareGroupHeartbeatResponse]:
        """Let a member join, carry on or leave."""
        try:
            _check(message)
            if message.member_epoch == LEAVING:
                return (yield from self._leave(draft, message))
            return (yield from self._join_or_stay(draft, event, message, timestamp))
        except KafkaError as error:
            return share_heartbeat_error(error.code, error.message)

    def _join_or_stay(
        self, draft: ShareDraft, event: Request, message: ShareGroupHeartbeatRequest, timestamp: Millis
    ) -> Deciding[ShareGroupHeartbeatResponse]:
        member_id, group_id = message.member_id, draft.group.group_id
        self._admit(draft.group, message)
        # Nothing is refused below this point.
        before, epoch = draft.group.current(member_id), draft.group.epoch
        named = len(message.subscribed_topic_names or ()) // LIGHT
        update = partial(self._update, draft, event, message)
        resubscribed: bool = update() if named <= UNITS_AT_ONCE else (yield Work(named, update))
        if resubscribed or self._may_have_changed(draft.group):
            yield from self._refresh(draft, changed=resubscribed)
        interval_ms = self.settings(group_id).share_assignment_interval_ms
        is_lacking = draft.group.epoch != draft.group.assignment_epoch
        if is_lacking and may_assign(draft.group.assigned_at, interval_ms, timestamp):
            yield Work(self._units(draft.group), lambda: self._retarget(draft, timestamp))
        if draft.group.epoch != epoch or not _is_reconciled(draft.group, member_id):
            units = len(draft.group.target(member_id)) + len(draft.group.members[member_id].subscribed_topic_names)
            yield Work(units, lambda: self._reconcile(draft, member_id))
        after = draft.group.current(member_id)
        if draft.group.complete_for != (self.topics.version, draft.group.epoch):
            yield Work(self._lacking_units(draft.group), partial(self._initialize, draft, timestamp))
        is_late = message.member_epoch != before.member_epoch  # it joins, or the response with its epoch was lost
        assignment: ShareGroupHeartbeatResponseAssignment | None = None
        if is_late or message.subscribed_topic_names is not None or after.assigned != before.assigned:
            assignment = yield Work(len(after.assigned), partial(_answer, after.assigned))
        return ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.settings(group_id).share_heartbeat_interval_ms,
            assignment=assignment,
        )

    def _update(self, draft: ShareDraft, event: Request, message: ShareGroupHeartbeatRequest) -> bool:
        """Store the member as its heartbeat describes it; return True if it is new or subscribes to other topics."""
        known = draft.group.members.get(message.member_id)
        updated = _updated(known or ShareMemberValue(), message, event)
        if known != updated:
            draft.put(ShareMemberKey(draft.group.group_id, message.member_id), updated)
        return known is None or known.subscribed_topic_names != updated.subscribed_topic_names

    def _admit(self, group: ShareGroup, message: ShareGroupHeartbeatRequest) -> None:
        """Check that the member may join or stay."""
        joins = message.member_epoch == JOINING
        if group.is_gone and not joins:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group.group_id} not found.")
        if message.member_id not in group.members:
            if len(group.members) >= self.config.group_share_max_size:
                raise group_is_full("share", self.config.group_share_max_size)
            if not joins:
                raise unknown_member(message.member_id, group.group_id)
        elif not joins:
            current = group.current(message.member_id)
            if message.member_epoch not in (current.member_epoch, current.previous_member_epoch):
                raise fenced_member("share", message.member_epoch, current.member_epoch)

    # ---- going

    def _leave(self, draft: ShareDraft, message: ShareGroupHeartbeatRequest) -> Deciding[ShareGroupHeartbeatResponse]:
        if draft.group.is_gone:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {draft.group.group_id} not found.")
        if message.member_id not in draft.group.members:
            raise unknown_member(message.member_id, draft.group.group_id)
        yield from self.remove(draft, message.member_id)
        return ShareGroupHeartbeatResponse(member_id=message.member_id, member_epoch=LEAVING)

    def remove(self, draft: ShareDraft, member_id: str) -> Deciding[None]:
        """Remove a member. The next heartbeat of another member computes new targets."""
        group_id = draft.group.group_id
        draft.put(ShareCurrentKey(group_id, member_id), None)
        draft.put(ShareTargetMemberKey(group_id, member_id), None)
        draft.put(ShareMemberKey(group_id, member_id), None)
        yield from self._refresh(draft, changed=True)

    # ---- the group

    def _refresh(self, draft: ShareDraft, *, changed: bool) -> Deciding[None]:
        """Start the group's next epoch if its members, their subscriptions or the topics have changed, or if subscribed
        partitions were initialized after the targets were computed."""
        group = draft.group
        has_new_topics = changed or group.topics_version != self.topics.version
        if has_new_topics or _may_lack_targets(group):
            units = _subscribed_units(group) if has_new_topics else 0
            units += 0 if changed or not _may_lack_targets(group) else group.partitions.size
            yield Work(units, lambda: self._look_at_topics(draft, changed=changed))

    def _may_have_changed(self, group: ShareGroup) -> bool:
        return group.topics_version != self.topics.version or _may_lack_targets(group)

    def _look_at_topics(self, draft: ShareDraft, *, changed: bool) -> None:
        group, version = draft.group, self.topics.version  # they may change while this runs
        changed = changed or _is_assignment_pending(group, self.topics)
        if not changed and group.topics_version == version:
            return
        hashed = hash_of_topics(group.subscribed_topics(), self.topics)
        group.topics_version = version
        if changed or hashed != group.metadata_hash:
            value = ShareGroupValue(epoch=next_epoch(group.epoch), metadata_hash=hashed)
            draft.put(ShareGroupKey(group.group_id), value)

    def _units(self, group: ShareGroup) -> int:
        """Return the size of the group: its members, the topics they subscribe to, and the partitions with state."""
        return len(group.members) + _subscribed_units(group) + group.partitions.size

    def _question(self, draft: ShareDraft) -> tuple[dict[str, ShareSubscriber], Assignment]:
        """Return the members as the assignor sees them, and the partitions that it may assign."""
        group = draft.group
        members = {}
        subscriptions: dict[tuple[str, ...], frozenset[TopicId]] = {}
        for member_id, member in group.members.items():
            names = member.subscribed_topic_names
            if names not in subscriptions:
                infos = (self.topics.topic(name) for name in names)
                subscriptions[names] = frozenset(info.topic_id for info in infos if info is not None)
            members[member_id] = ShareSubscriber(topics=subscriptions[names], target=group.target(member_id))
        partitions = partitions_of(group.partitions.initialized)
        draft.cost += len(members) + len(partitions) + sum(map(len, subscriptions.values()))
        return members, partitions

    def _retarget(self, draft: ShareDraft, timestamp: Millis) -> None:
        """Compute and store the targets for the group's epoch."""
        group = draft.group
        targets = assign_simple(*self._question(draft))
        for member_id, target in sorted(targets.items()):
            if member_id not in group.targets or group.targets[member_id] != target:
                draft.put(ShareTargetMemberKey(group.group_id, member_id), ShareTargetMemberValue(partitions=target))
        value = ShareTargetMetadataValue(assignment_epoch=group.epoch, assigned_at=timestamp)
        draft.put(ShareTargetMetadataKey(group.group_id), value)
        draft.group.assigned = draft.group.partitions

    def _reconcile(self, draft: ShareDraft, member_id: str) -> None:
        """Assign the member its target, without the topics that it no longer reads if the target is older than that."""
        group = draft.group
        before, target = group.currents.get(member_id), group.target(member_id)
        if group.epoch != group.assignment_epoch:
            infos = (self.topics.topic(name) for name in group.members[member_id].subscribed_topic_names)
            reads = frozenset(info.topic_id for info in infos if info is not None)
            target = frozenset(each for each in target if each.topic_id in reads)
        if before is None or before.member_epoch != group.assignment_epoch:
            before = ShareCurrentValue(previous_member_epoch=group.current(member_id).member_epoch)
        elif before.assigned == target:
            return
        value = ShareCurrentValue(
            member_epoch=group.assignment_epoch,
            previous_member_epoch=before.previous_member_epoch,
            assigned=target,
        )
        draft.put(ShareCurrentKey(group.group_id, member_id), value)

    def _lacking_units(self, group: ShareGroup) -> int:
        """Return the number of partitions to look at for those that lack state, or of topics if there are very many."""
        if (topics := _subscribed_units(group)) > UNITS_AT_ONCE:
            return topics
        infos = (self.topics.topic(name) for name in group.subscribed_topics())
        return group.partitions.size + sum(info.partition_count for info in infos if info is not None)

    def _initialize(self, draft: ShareDraft, timestamp: Millis) -> None:
        """Request state for subscribed partitions that have none."""
        group = draft.group
        looked_at = (self.topics.version, group.epoch)
        if group.complete_for == looked_at:
            return
        lacking = share_partitions.missing(
            group.partitions,
            sorted(group.subscribed_topics()),
            self.topics,
            timestamp,
            self.config.group_share_initialize_retry_interval_ms,
        )
        if lacking:
            draft.initialize |= lacking
            draft.put_partitions(share_partitions.initializing(group.partitions, lacking, self.topics, timestamp))
        elif not group.partitions.initializing:
            group.complete_for = looked_at


def _check(message: ShareGroupHeartbeatRequest) -> None:
    """Refuse invalid requests."""
    problem = None
    if is_blank(message.group_id):
        problem = "GroupId can't be empty."
    elif is_blank(message.member_id):
        problem = "MemberId can't be empty."
    elif len(message.member_id) > _LONGEST_MEMBER_ID:
        problem = "Invalid member id in the request."
    elif message.rack_id is not None and is_blank(message.rack_id):
        problem = "RackId can't be empty."
    elif message.member_epoch < LEAVING:
        problem = "MemberEpoch is invalid."
    elif message.member_epoch == JOINING and not message.subscribed_topic_names:
        problem = "SubscribedTopicNames must be set in first request."
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _updated(base: ShareMemberValue, message: ShareGroupHeartbeatRequest, event: Request) -> ShareMemberValue:
    """Return the member, updated from the heartbeat; fields it omits stay as they were."""
    names = message.subscribed_topic_names
    return ShareMemberValue(
        rack_id=base.rack_id if message.rack_id is None else message.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        subscribed_topic_names=base.subscribed_topic_names if names is None else tuple(sorted(set(names))),
    )


def _subscribed_units(group: ShareGroup) -> int:
    """Return how many topics members subscribe to; equal subscriptions count once."""
    counted = {id(names): len(names) for names in (member.subscribed_topic_names for member in group.members.values())}
    return sum(counted.values())


def _is_reconciled(group: ShareGroup, member_id: str) -> bool:
    """Return True if the member has been assigned its target."""
    current, target = group.currents.get(member_id), group.target(member_id)
    if current is None or current.member_epoch != group.assignment_epoch:
        return False
    return current.assigned is target or current.assigned == target


def _may_lack_targets(group: ShareGroup) -> bool:
    """Return True if partitions may have been initialized since the targets were computed."""
    return group.epoch == group.assignment_epoch and bool(group.members) and group.assigned is not group.partitions


def _is_assignment_pending(group: ShareGroup, topics: Topics) -> bool:
    """Return True if subscribed partitions were initialized after the targets were computed."""
    if not _may_lack_targets(group):
        return False
    infos = (topics.topic(name) for name in group.subscribed_topics())
    reads = frozenset(info.topic_id for info in infos if info is not None)
    initialized = frozenset(each for each in partitions_of(group.partitions.initialized) if each.topic_id in reads)
    if initialized <= frozenset().union(*group.targets.values()):
        group.assigned = group.partitions
        return False
    return True


def _answer(assigned: Assignment) -> ShareGroupHeartbeatResponseAssignment:
    return ShareGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ShareGroupTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic(assigned)
        ]
    )
