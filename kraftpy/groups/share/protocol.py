"""What members of share groups ask, decided: one heartbeat, one silence (KIP-932).

Every decision works on a `ShareDraft` and either refuses, before it has put anything there, or puts the records of all
that follows: the member, the group's epoch, the new targets, what the member reads now, and the partitions that are to
be initialized. Nothing here waits or is told to anyone; `changes` has the records stored and answers afterwards.

A partition is assigned once the share coordinators have state of it: what is newly subscribed to comes with a heartbeat
after that. A change of topics or partitions is noticed by the next heartbeat of any member.

Where this differs from Kafka: who is a member may join again under its id, whatever epoch it had (Kafka:
FENCED_MEMBER_EPOCH until its session has run out); targets are made at once, without KIP-1263's interval; of the
partitions asked for together, those that could be initialized are, though others could not.

Left out: racks, which Kafka's assignor does not look at either.
"""

from __future__ import annotations

from kraftpy.groups.assignment import Assignment, by_topic
from kraftpy.groups.config import GroupConfig, Settings
from kraftpy.groups.events import Request
from kraftpy.groups.member_epochs import JOINING, LEAVING
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


def share_heartbeat_error(error_code: ErrorCode, text: str | None = None) -> ShareGroupHeartbeatResponse:
    """A heartbeat's answer that is nothing but an error."""
    return ShareGroupHeartbeatResponse(error_code=error_code, error_message=text or error_code.meaning)


class ShareProtocol:
    """Decides for share groups of one partition."""

    def __init__(self, config: GroupConfig, settings: Settings, topics: Topics) -> None:
        self.config = config
        self.settings = settings
        self.topics = topics

    # ---- one heartbeat

    def heartbeat(
        self, draft: ShareDraft, event: Request, message: ShareGroupHeartbeatRequest, timestamp: Millis
    ) -> ShareGroupHeartbeatResponse:
        """Let a member in, on, or out."""
        try:
            _check(message)
            if message.member_epoch == LEAVING:
                return self._leave(draft, message)
            return self._join_or_stay(draft, event, message, timestamp)
        except KafkaError as error:
            return share_heartbeat_error(error.code, str(error))

    def _join_or_stay(
        self, draft: ShareDraft, event: Request, message: ShareGroupHeartbeatRequest, timestamp: Millis
    ) -> ShareGroupHeartbeatResponse:
        member_id, group_id = message.member_id, draft.group.group_id
        self._admit(draft.group, message)
        # From here on nothing is refused.
        known = draft.group.members.get(member_id)
        before = draft.group.current(member_id)
        updated = _updated(known or ShareMemberValue(), message, event)
        if known != updated:
            draft.put(ShareMemberKey(group_id, member_id), updated)
        resubscribed = known is None or known.subscribed_topic_names != updated.subscribed_topic_names
        self._refresh(draft, changed=resubscribed or _is_assignment_pending(draft.group, self.topics))
        self._retarget(draft)
        after = _reconciled(draft.group, member_id)
        if after != before or member_id not in draft.group.currents:
            draft.put(ShareCurrentKey(group_id, member_id), after)
        self._initialize(draft, timestamp)
        is_late = message.member_epoch != before.member_epoch  # it joins, or the answer with its epoch was lost
        whole = is_late or message.subscribed_topic_names is not None
        return ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.settings(group_id).share_heartbeat_interval_ms,
            assignment=_answer(after.assigned) if whole or after.assigned != before.assigned else None,
        )

    def _admit(self, group: ShareGroup, message: ShareGroupHeartbeatRequest) -> None:
        """Check that it may come in or stay."""
        joins = message.member_epoch == JOINING
        if group.is_gone and not joins:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group.group_id}")
        if message.member_id not in group.members:
            if len(group.members) >= self.config.group_share_max_size:
                raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{group.group_id} has all the members it may")
            if not joins:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{message.member_id} is no member of {group.group_id}")
        elif not joins:
            current = group.current(message.member_id)
            if message.member_epoch not in (current.member_epoch, current.previous_member_epoch):
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    f"epoch {message.member_epoch} is not {current.member_epoch}: join again",
                )

    # ---- going

    def _leave(self, draft: ShareDraft, message: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        if draft.group.is_gone:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {draft.group.group_id}")
        if message.member_id not in draft.group.members:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{message.member_id} is no member of {draft.group.group_id}")
        self.remove(draft, message.member_id)
        return ShareGroupHeartbeatResponse(member_id=message.member_id, member_epoch=LEAVING)

    def remove(self, draft: ShareDraft, member_id: str) -> None:
        """It is no member any more. The next heartbeat of another makes new targets."""
        group_id = draft.group.group_id
        draft.put(ShareCurrentKey(group_id, member_id), None)
        draft.put(ShareTargetMemberKey(group_id, member_id), None)
        draft.put(ShareMemberKey(group_id, member_id), None)
        self._refresh(draft, changed=True)

    # ---- the group

    def _refresh(self, draft: ShareDraft, *, changed: bool) -> None:
        """The group's next epoch, where who is in it or what they read has changed, be it the topics themselves."""
        group = draft.group
        if not changed and group.topics_version == self.topics.version:
            return
        hashed = hash_of_topics(group.subscribed_topics(), self.topics)
        group.topics_version = self.topics.version
        if changed or hashed != group.metadata_hash:
            value = ShareGroupValue(epoch=group.epoch + 1, metadata_hash=hashed)
            draft.put(ShareGroupKey(group.group_id), value)

    def _retarget(self, draft: ShareDraft) -> None:
        """Targets for the group's epoch, where there are none yet."""
        group = draft.group
        if group.epoch == group.assignment_epoch:
            return
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
        targets = assign_simple(members, partitions)
        for member_id, target in sorted(targets.items()):
            if member_id not in group.targets or group.targets[member_id] != target:
                draft.put(ShareTargetMemberKey(group.group_id, member_id), ShareTargetMemberValue(partitions=target))
        draft.put(ShareTargetMetadataKey(group.group_id), ShareTargetMetadataValue(assignment_epoch=group.epoch))
        draft.group.assigned = draft.group.partitions

    def _initialize(self, draft: ShareDraft, timestamp: Millis) -> None:
        """Whatever is subscribed to and has no state shall have some."""
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
    """Refuse what contradicts itself."""
    problem = None
    if not message.group_id.strip():
        problem = "the group id is empty"
    elif not message.member_id.strip():
        problem = "the member id is empty"
    elif message.rack_id is not None and not message.rack_id.strip():
        problem = "the rack id is empty"
    elif message.member_epoch < LEAVING:
        problem = f"member epoch {message.member_epoch} means nothing"
    elif message.member_epoch == JOINING and not message.subscribed_topic_names:
        problem = "who joins says what it reads"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _updated(base: ShareMemberValue, message: ShareGroupHeartbeatRequest, event: Request) -> ShareMemberValue:
    """What is known of the member after this heartbeat; what it left out is as it was."""
    names = message.subscribed_topic_names
    return ShareMemberValue(
        rack_id=base.rack_id if message.rack_id is None else message.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        subscribed_topic_names=base.subscribed_topic_names if names is None else tuple(sorted(set(names))),
    )


def _reconciled(group: ShareGroup, member_id: str) -> ShareCurrentValue:
    """The member has its target, from now on."""
    current, target = group.current(member_id), group.target(member_id)
    if current.member_epoch == group.assignment_epoch and current.assigned == target:
        return current
    return ShareCurrentValue(
        member_epoch=group.assignment_epoch, previous_member_epoch=current.member_epoch, assigned=target
    )


def _is_assignment_pending(group: ShareGroup, topics: Topics) -> bool:
    """Whether partitions that somebody reads were initialized since the targets were made."""
    if group.epoch != group.assignment_epoch or not group.members or group.assigned is group.partitions:
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
